// Package consumer is what consumer groups make of one partition's messages:
// who was handed what, how often, until when, and what becomes of it.
package consumer
