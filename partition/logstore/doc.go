// Package logstore keeps the logs of all partitions of a node, and the rows
// derived from them, in one store on disk. It is the only place that knows
// Pebble.
package logstore
