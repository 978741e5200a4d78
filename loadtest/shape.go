package loadtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Shape is a load that finds a limit: as fast as the broker lets it or at a
// rate, without failures, with a check that costs next to nothing. Shapes are
// the workloads by which brokers are compared; docs/loadtest.md says what each
// is for.
type Shape struct {
	Name string
	Help string

	Size    int           // of a body
	Sync    int           // so many publishers, each on a connection of its own and with one message at a time; 0: one, pipelined
	Unary   bool          // by unary calls over HTTP/1.1
	Rate    int           // messages a second by schedule; 0: as fast as possible
	Consume bool          // a group takes everything at the same time
	Window  int           // the most published and not handled, of a partition; 0: without bound
	Backlog int           // publish so many first, for at most twice the duration; then consume
	Keys    uint32        // how many there are
	Warmup  time.Duration // before the figures
	Time    time.Duration // of the figures
}

// Shapes are the named ones.
var Shapes = []Shape{
	{Name: "w1", Size: 100, Help: "publish, pipelined"},
	{Name: "w1-1k", Size: 1024, Help: "the same with 1 KiB"},
	{Name: "w2", Size: 100, Sync: 1, Help: "one publisher, one message at a time"},
	{Name: "w2x64", Size: 100, Sync: 64, Help: "64 of them, a connection each"},
	{Name: "w2x64-unary", Size: 100, Sync: 64, Unary: true, Help: "the same by unary calls over HTTP/1.1"},
	{Name: "w3", Size: 100, Rate: 20_000, Consume: true, Help: "publish at a rate, deliver, ack each: latency end to end"},
	{Name: "w3max", Size: 100, Consume: true, Window: 1024, Help: "publish, deliver, ack each, as fast as possible"},
	{Name: "w4", Size: 100, Backlog: 300_000, Help: "consume a backlog, ack each"},
}

// ShapeNames lists the names.
func ShapeNames() string {
	names := make([]string, len(Shapes))
	for i, s := range Shapes {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}

// ShapeOf finds a shape and fills in what all have in common.
func ShapeOf(name string) (Shape, bool) {
	i := slices.IndexFunc(Shapes, func(s Shape) bool { return s.Name == name })
	if i < 0 {
		return Shape{}, false
	}
	s := Shapes[i]
	// So many that two messages of a key are hardly ever in hand at once: what
	// is measured is the broker, not the keys that wait for each other.
	s.Keys = 100_000
	s.Warmup, s.Time = time.Second, 5*time.Second
	return s, true
}

// fill puts what a shape says into a configuration.
func (s Shape) fill(c Config) Config {
	if c.Members == 0 {
		c.Members = 1
	}
	c.Keys, c.Size, c.Rate, c.Warmup, c.Duration, c.Producers = s.Keys, s.Size, s.Rate, s.Warmup, s.Time, max(1, s.Sync)
	c.Groups, c.Batch = 0, 1
	if s.Consume || s.Backlog > 0 {
		c.Groups = 1
	}
	return c
}

// Validate lists every fault of a shape with a configuration at once.
func (s Shape) Validate(c Config) error {
	faults := []error{s.fill(c).Validate()}
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	want(s.Sync >= 0 && s.Sync <= 1000, "publishers: %d; from 1 to 1,000", s.Sync)
	want(s.Keys <= MaxShapeKeys, "keys: %d; at most %d with a shape", s.Keys, MaxShapeKeys)
	want(s.Window >= 0 && s.Window <= 1_000_000, "window: %d; from 0 (none) to 1,000,000", s.Window)
	want(s.Backlog >= 0 && s.Backlog <= 100_000_000, "count: %d; from 0 to 100,000,000", s.Backlog)
	want(s.Sync == 0 || s.Rate == 0 && !s.Consume && s.Backlog == 0, "a shape of synchronous publishers has no rate, group or backlog")
	want(!c.GoClient || s.Sync == 0 && s.Rate == 0 && c.NoIDs && !c.Messages, "the Go client takes shapes without a rate, of one publisher, without ids")
	return errors.Join(faults...)
}
