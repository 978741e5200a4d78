// Package sample is the real input that the demo runs on: 20,000 flights of
// 2001, one JSON object a line. README.md beside it gives source and fields.
//
// It owns the bytes and nothing else: reading lines is package ndjson's, and
// what counts as their right order is package check's.
//
//	flights.ndjson ─► embedded ─► Flights ─► strandmq demo
package sample

import _ "embed"

// Flights is the file: 20,000 lines, each ended by a newline.
//
//go:embed flights.ndjson
var Flights string

// Key is the field that keys the flights: the airport that they left from.
const Key = "origin"

// Topic is the topic that the demo publishes them to.
const Topic = "flights"
