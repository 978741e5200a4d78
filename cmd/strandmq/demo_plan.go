package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	"github.com/strandmq/strandmq/cmd/strandmq/sample"
	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/ndjson"
)

// flights is the sample, ready to be published and checked.
type flights struct {
	items []check.Item   // in the order of the file
	ids   []string       // of the messages, derived as publish derives them
	index map[string]int // item by id
	fails []int          // how often the billing of a flight fails; always: never succeeds
}

// always marks a flight that can never be billed.
const always = -1

// hopeless is the delay in minutes from which on the demo's billing gives up: it
// stands for the message that no program can handle.
const hopeless = 360

// readFlights reads the embedded sample. Which flights fail is a function of the
// data, so that every run of the demo meets the same ones.
func readFlights() (*flights, error) {
	f := &flights{index: map[string]int{}}
	lines := ndjson.NewReader(strings.NewReader(sample.Flights), ndjson.Config{KeyField: sample.Key})
	ids := ndjson.NewIdentity("")
	for {
		l, err := lines.Next()
		if err != nil {
			if len(f.items) == 0 {
				return nil, fmt.Errorf("the sample: %w", err)
			}
			return f, sampleEnd(err)
		}
		var flight struct {
			Date  string
			Delay int
		}
		if err := json.Unmarshal(l.Text, &flight); err != nil {
			return nil, fmt.Errorf("the sample, line %d: %w", l.Number, err)
		}
		id := ids.ID(l)
		f.index[id] = len(f.items)
		f.ids = append(f.ids, id)
		f.items = append(f.items, check.Item{Key: l.Key, Body: string(l.Text), Stamp: flight.Date})
		f.fails = append(f.fails, failures(l.Text, flight.Delay))
	}
}

// failures decides how often a flight fails: about one in 60 once, one in 120
// twice, and what is hopelessly late always.
func failures(line []byte, delay int) int {
	if delay >= hopeless {
		return always
	}
	h := fnv.New32a()
	h.Write(line)
	switch n := h.Sum32() % 120; {
	case n == 0:
		return 2
	case n <= 2:
		return 1
	}
	return 0
}

// sampleEnd is what ended the reading, unless it was the end.
func sampleEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("the sample: %w", err)
}
