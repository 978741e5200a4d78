package loadtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/quantity"
)

// Config is a load. Zero means the default, unless it says otherwise.
type Config struct {
	// Topic to use; empty: a new one of a name of its own. A topic that is there
	// already is used as it is, from its end, and never deleted.
	Topic      string
	Partitions uint32 // of a new topic; 0: 8

	Producers int // each has one batch on its way at a time over unary calls; 0: 4
	Groups    int // each gets everything; may be 0: then nothing is judged
	Members   int // of each group; 0: 4

	Keys uint32 // how many there are; 0: 10,000
	// Skew of the keys: 0 draws all alike; s draws key n in proportion to 1/n^s.
	// 1 is the classic, 0.99 what caches are tested with.
	Zipf float64
	Size int // of a body in bytes, at least MinSize; 0: 100

	Rate  int // messages a second by schedule, all producers together; 0: as fast as possible
	Batch int // the most messages of one publish, 1 to 1,000; 0: 100
	Take  int // the most messages of one receive, 1 to 1,000; 0: 500, with Work as many as Workers

	// Without a rate: how many messages the producers may be ahead of the slowest
	// group; 0: without limit.
	Ahead int

	Work    time.Duration // how long a member's handler takes for each message; 0: no time
	Workers int           // how many handlers a member runs at once, with Work; 0: 1

	Warmup   time.Duration // before the figures begin; what comes in it is judged too; may be 0
	Duration time.Duration // of the figures; 0: 30 s

	Nack  float64       // percent of deliveries that are nacked
	Lapse float64       // percent of deliveries that are neither acked nor nacked
	Crash time.Duration // every so often a member drops what it holds; 0: never
	Leave time.Duration // every so often a member gives back what it holds and leaves; 0: never
	Away  time.Duration // for how long it is away, either way; 0: 1 s

	AckDeadline time.Duration // of the groups; 0: 30 s, or 2 s with lapses
	Backoff     time.Duration // the first wait after a failure; 0: 200 ms
	MaxAttempts uint32        // then a message is a dead letter; 0: never

	NoIDs bool // without message ids; an unknown outcome then stays unknown
	// Publish with a producer's sequence, which tells a repeat like an id, for a
	// row of each batch instead of each message. Record batches only.
	Sequences bool
	// Over streams: the most messages of a partition that wait for their receipt;
	// 0: 512.
	InFlight int
	// Over streams: send readable messages instead of record batches.
	Messages bool
	// Of a shape that has no rate: publish and consume by the Go client, as a program does,
	// instead of bare streams.
	GoClient bool
	// Of a shape: URLs of further nodes of the broker. The synchronous publishers
	// connect to all of them in turn, as clients of a cluster do; the rest of a run is
	// at the first node.
	Others []string

	// URLs of further nodes of the broker: a run is at the first that can be reached.
	Fallback []string

	RetryFor time.Duration // how long to repeat a call while the broker is away; 0: 1 min
	DrainFor time.Duration // how long nothing may move before waiting for the groups ends; 0: 30 s
	Keep     bool          // leave topic and groups on the broker

	Seed uint64 // of keys and failures; bodies are always new
	Name string // of the run, in the names of topic and groups; empty: made from the time

	Tick time.Duration // between two calls of Tell; 0: 1 s
	Tell func(Progress)
}

// MaxMemory bounds what a run keeps for its keys.
const MaxMemory = 1 << 30

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	set(&c.Partitions, 8)
	set(&c.Producers, 4)
	set(&c.Members, 4)
	set(&c.Keys, 10_000)
	set(&c.Size, 100)
	set(&c.Batch, 100)
	set(&c.Workers, 1)
	if c.Work > 0 {
		set(&c.Take, min(c.Workers, 1000))
	}
	set(&c.Take, 500)
	set(&c.Duration, 30*time.Second)
	set(&c.Away, time.Second)
	if c.Lapse > 0 {
		set(&c.AckDeadline, 2*time.Second)
	}
	set(&c.AckDeadline, 30*time.Second)
	set(&c.Backoff, 200*time.Millisecond)
	set(&c.RetryFor, time.Minute)
	set(&c.DrainFor, 30*time.Second)
	set(&c.Tick, time.Second)
	set(&c.InFlight, 512)
	return c
}

func set[T comparable](field *T, otherwise T) {
	var zero T
	if *field == zero {
		*field = otherwise
	}
}

// Memory is what the run keeps for its keys, in bytes.
func (c Config) Memory() uint64 {
	c = c.withDefaults()
	return uint64(c.Keys)*uint64(max(c.Producers, 0))*8 +
		uint64(max(c.Groups, 0))*check.StrandsMemory(c.Keys, uint32(max(c.Producers, 0)))
}

// Validate lists every fault at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	if c.Topic != "" {
		if err := names.Topic(c.Topic); err != nil {
			faults = append(faults, err)
		}
	}
	want(c.Producers >= 1 && c.Producers <= 1000, "producers: %d; from 1 to 1,000", c.Producers)
	want(c.Groups >= 0 && c.Groups <= 100, "groups: %d; from 0 to 100", c.Groups)
	want(c.Members >= 1 && c.Members <= 1000, "members: %d; from 1 to 1,000", c.Members)
	want(c.Zipf >= 0 && c.Zipf <= 10, "zipf: %v; from 0 (all keys alike) to 10", c.Zipf)
	want(c.Size >= MinSize && c.Size <= 1<<20, "size: %d; from %d, which the judge needs, to 1 MiB", c.Size, MinSize)
	want(c.Rate >= 0 && c.Rate <= 10_000_000, "rate: %d; from 0 (as fast as possible) to 10,000,000", c.Rate)
	want(c.Batch >= 1 && c.Batch <= 1000, "batch: %d; from 1 to 1,000", c.Batch)
	want(c.Take >= 1 && c.Take <= 1000, "take: %d; from 1 to 1,000", c.Take)
	want(c.Batch < 1 || c.Batch > 1000 || c.Size > 1<<20 || c.Batch*(c.Size+200) <= 4<<20,
		"batch and size: %d messages of %d bytes are more than the 4 MiB of one publish", c.Batch, c.Size)
	want(c.InFlight >= 1 && c.InFlight <= 100_000, "in-flight: %d; from 1 to 100,000", c.InFlight)
	want(!c.Sequences || !c.Messages, "sequences and messages: a producer's sequence needs record batches, since all messages of a call must have one key otherwise")
	want(c.Ahead >= 0, "ahead: %d; from 0 (without limit)", c.Ahead)
	want(c.Ahead == 0 || c.Rate == 0, "ahead and rate: a schedule waits for nobody; leave one of them out")
	want(c.Ahead == 0 || c.Groups > 0, "ahead: without groups there is nobody to be ahead of")
	want(c.Work >= 0, "work: %v; from 0 (no time)", c.Work)
	want(c.Workers >= 1 && c.Workers <= 1000, "workers: %d; from 1 to 1,000", c.Workers)
	want(c.Workers == 1 || c.Work > 0, "workers: handlers take no time without work")
	// Three times what it takes at once may wait before a message: in the handlers,
	// behind them, and on its way.
	want(c.Work == 0 || c.Work*time.Duration(3*c.Take/max(c.Workers, 1)+1) < c.AckDeadline,
		"work: handlers that take %v each, and %d messages taken at once for %d of them, would let some lapse: the ack-deadline is %v", c.Work, c.Take, c.Workers, c.AckDeadline)
	want(c.Warmup >= 0 && c.Duration > 0, "warmup and duration must not be negative")
	want(c.Nack >= 0 && c.Lapse >= 0 && c.Nack+c.Lapse < 100, "nack and lapse: %v and %v percent; together below 100, or nothing is ever done", c.Nack, c.Lapse)
	want(c.Crash == 0 || c.Crash >= 10*time.Millisecond, "crash: every %v; at least every 10ms", c.Crash)
	want(c.Leave == 0 || c.Leave >= 10*time.Millisecond, "leave: every %v; at least every 10ms", c.Leave)
	want(c.Crash == 0 && c.Leave == 0 || c.Groups > 0, "crash and leave: there are no members without groups")
	want(c.Nack == 0 && c.Lapse == 0 || c.Groups > 0, "nack and lapse: without groups there are no deliveries")
	want(c.AckDeadline >= 100*time.Millisecond, "ack-deadline: %v; at least 100ms", c.AckDeadline)
	want(c.Away > 0 && c.Backoff > 0 && c.RetryFor > 0 && c.DrainFor > 0, "spans of time must not be negative")
	if m := c.Memory(); m > MaxMemory {
		want(false, "keys, producers and groups: judging them takes %s; %s at most: fewer of one of them",
			quantity.RoughSize(m), quantity.RoughSize(MaxMemory))
	}
	return errors.Join(faults...)
}
