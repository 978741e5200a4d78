//go:build race

package broker

// raced tells that the race detector is built in: the store then takes its memory
// tables and caches from the heap.
const raced = true
