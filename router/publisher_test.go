package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memLog is a log in memory. It answers at once, or when release is called.
type memLog struct {
	stored  map[uint64][]record.Record
	batches []record.Batch
	targets []uint64 // of batches
	tries   int
	refuse  func(try int) error // try number → not taken
	fail    func(try int) error // try number → taken and failed
	held    []func()
	hold    bool
}

func (l *memLog) PublishAsync(id uint64, b []byte, done func([]Stored, error)) error {
	number := l.tries
	l.tries++
	if l.refuse != nil {
		if err := l.refuse(number); err != nil {
			return err
		}
	}
	bt, rest, err := record.Parse(b)
	if err != nil || len(rest) != 0 {
		return fmt.Errorf("not one valid batch: %w, %d bytes behind it", err, len(rest))
	}
	l.batches = append(l.batches, bt)
	l.targets = append(l.targets, id)
	answer := func() {
		if l.fail != nil {
			if err := l.fail(number); err != nil {
				done(nil, err)
				return
			}
		}
		var out []Stored
		bt.Each(func(_ int, r record.Raw) bool {
			out = append(out, Stored{Offset: uint64(len(l.stored[id]))})
			l.stored[id] = append(l.stored[id], r.Record())
			return true
		})
		done(out, nil)
	}
	if l.hold {
		l.held = append(l.held, answer)
		return nil
	}
	answer()
	return nil
}

func newMemLog() *memLog { return &memLog{stored: make(map[uint64][]record.Record)} }

func evenTable(t testing.TB, n int) *Table {
	t.Helper()
	ts := make([]Target, n)
	for i, r := range keyspace.Ranges(n) {
		ts[i] = Target{ID: uint64(10 + i), Range: r}
	}
	table, err := NewTable(1, 42, ts)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func keyed(key, body string) record.Record {
	return record.Record{HasKey: true, Key: []byte(key), Body: []byte(body)}
}

// Whatever the mix of messages: every good one is stored once, in its key's
// partition, where its result says; the order of each key is the order of the
// calls; bad ones are refused alone.
func TestPublishProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ts := targets(t)
		table, err := NewTable(1, rapid.Uint64().Draw(t, "seed"), ts)
		if err != nil {
			t.Fatal(err)
		}
		log := newMemLog()
		log.hold = rapid.Bool().Draw(t, "hold")
		p := NewPublisher(log, Config{Seed: rapid.Uint64().Draw(t, "spread"), Now: func() int64 { return 77 }})
		type sent struct {
			rec  record.Record
			bad  bool
			call int
			at   int
		}
		var all []sent
		var calls []*Call
		n := 0
		for range rapid.IntRange(1, 4).Draw(t, "calls") {
			var recs []record.Record
			for i := range rapid.IntRange(1, 60).Draw(t, "messages") {
				r := record.Record{Body: fmt.Appendf(nil, "m%d", n)}
				n++
				s := sent{call: len(calls), at: i}
				switch rapid.IntRange(0, 5).Draw(t, "kind") {
				case 0: // keyless
				case 1: // keyless with an id
					r.ID = rapid.StringMatching(`id[0-9]`).Draw(t, "id")
				case 2:
					r.HasKey, s.bad = true, true // an empty key
				case 3:
					r.HasKey, r.Key = true, bytes.Repeat([]byte("k"), record.MaxKey+1)
					s.bad = true
				default:
					r.HasKey, r.Key = true, []byte(rapid.StringMatching(`k[0-9]`).Draw(t, "key"))
				}
				s.rec = r
				recs = append(recs, r)
				all = append(all, s)
			}
			c, err := p.Submit(Request{Table: table, Records: recs})
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, c)
		}
		for _, answer := range log.held {
			answer()
		}
		var results [][]Result
		for _, c := range calls {
			<-c.Done()
			results = append(results, c.Wait(context.Background()))
		}
		next := make(map[string]uint64) // key → least offset of its next message
		good := 0
		for _, s := range all {
			r := results[s.call][s.at]
			if s.bad {
				var bad *ErrMessage
				if !errors.As(r.Err, &bad) || bad.Field != "key" {
					t.Fatalf("a bad key gave %v", r.Err)
				}
				continue
			}
			good++
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			target := table.Target(r.Partition)
			got := log.stored[target.ID][r.Offset]
			if !bytes.Equal(got.Body, s.rec.Body) {
				t.Fatalf("at %d/%d is %q, want %q", r.Partition, r.Offset, got.Body, s.rec.Body)
			}
			if !target.Range.Contains(got.KeyHash) {
				t.Fatalf("hash %#x is not in %v", got.KeyHash, target.Range)
			}
			name := ""
			switch {
			case s.rec.HasKey:
				name = "key " + string(s.rec.Key)
				if want := keyspace.Hash(table.Seed(), s.rec.Key); got.KeyHash != want {
					t.Fatalf("key hash %#x, want %#x", got.KeyHash, want)
				}
			case s.rec.ID != "":
				name = "id " + s.rec.ID
				if want := keyspace.HashString(table.Seed(), s.rec.ID); got.KeyHash != want {
					t.Fatalf("id hash %#x, want %#x", got.KeyHash, want)
				}
			}
			if name != "" {
				if r.Offset < next[name] {
					t.Fatalf("%s: offset %d after %d", name, r.Offset, next[name])
				}
				next[name] = r.Offset + 1
			}
		}
		stored := 0
		for _, recs := range log.stored {
			stored += len(recs)
		}
		if stored != good {
			t.Fatalf("%d stored of %d", stored, good)
		}
		for _, b := range log.batches {
			if b.PublishTime() != 77 {
				t.Fatalf("publish time %d", b.PublishTime())
			}
		}
	})
}

// Calls of keyless messages take the partitions in turn, and within a call each
// message has a hash of its own, so that a group need not take them one at a
// time.
func TestKeylessSpread(t *testing.T) {
	log := newMemLog()
	p := NewPublisher(log, Config{Seed: 5})
	table := evenTable(t, 4)
	for range 8 {
		recs := make([]record.Record, 50)
		if _, err := p.Publish(context.Background(), Request{Table: table, Records: recs}); err != nil {
			t.Fatal(err)
		}
	}
	if len(log.batches) != 8 {
		t.Fatalf("%d batches for 8 calls", len(log.batches))
	}
	for i := range 4 {
		recs := log.stored[table.Target(i).ID]
		if len(recs) != 100 {
			t.Errorf("partition %d has %d of 400", i, len(recs))
		}
		hashes := make(map[uint64]bool)
		for _, r := range recs {
			hashes[r.KeyHash] = true
		}
		if len(hashes) != len(recs) {
			t.Errorf("partition %d: %d hashes for %d messages", i, len(hashes), len(recs))
		}
	}
}

func TestSplitAtLimits(t *testing.T) {
	log := newMemLog()
	p := NewPublisher(log, Config{})
	recs := make([]record.Record, 10)
	for i := range recs {
		recs[i] = keyed("k", strings.Repeat("x", record.MaxBody))
	}
	res, err := p.Publish(context.Background(), Request{Table: evenTable(t, 1), Records: recs, ProducerID: "p", FirstSequence: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res {
		if r.Err != nil || r.Offset != uint64(i) {
			t.Errorf("message %d: %+v", i, r)
		}
	}
	// Three of 1 MiB fit into 4 MiB with their framing; a fourth does not.
	var firsts []uint64
	for _, b := range log.batches {
		_, first := b.Producer()
		firsts = append(firsts, first)
		if len(b.Bytes()) > record.MaxBatchBytes {
			t.Errorf("a batch of %d bytes", len(b.Bytes()))
		}
	}
	if got := fmt.Sprint(firsts); got != "[99 102 105 108]" {
		t.Errorf("batches begin at sequences %s", got)
	}
}

var errFull = errors.New("full")

// A batch that is not taken holds back what must come after it in its
// partition, and nothing else.
func TestRefusalHoldsBackItsPartition(t *testing.T) {
	table := evenTable(t, 2)
	var keys [2]string // one key per partition
	for i := 0; keys[0] == "" || keys[1] == ""; i++ {
		k := fmt.Sprint("k", i)
		keys[table.Lookup(keyspace.Hash(table.Seed(), []byte(k)))] = k
	}
	log := newMemLog()
	log.refuse = func(try int) error {
		if try == 1 {
			return errFull
		}
		return nil
	}
	p := NewPublisher(log, Config{})
	big := strings.Repeat("x", record.MaxBody)
	res, err := p.Publish(context.Background(), Request{Table: table, Records: []record.Record{
		keyed(keys[0], big), keyed(keys[0], big), keyed(keys[0], big), // first batch: stored
		keyed(keys[0], big), keyed(keys[0], big), keyed(keys[0], big), // second: refused
		keyed(keys[0], big), // would overtake
		keyed(keys[1], "other"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res {
		var held *ErrNotSent
		switch {
		case i < 3 && r.Err == nil:
		case i < 6 && errors.Is(r.Err, errFull) && !errors.As(r.Err, &held):
		case i == 6 && errors.As(r.Err, &held) && held.Earlier == 3 && errors.Is(r.Err, errFull):
		case i == 7 && r.Err == nil:
		default:
			t.Errorf("message %d: %+v", i, r)
		}
	}
}

func TestBadMessageInASequence(t *testing.T) {
	log := newMemLog()
	p := NewPublisher(log, Config{})
	recs := []record.Record{keyed("k", "a"), keyed("k", strings.Repeat("x", 11)), keyed("k", "c")}
	res, err := p.Publish(context.Background(), Request{Table: evenTable(t, 3), Records: recs, ProducerID: "p", FirstSequence: 1, MaxBody: 10})
	if err != nil {
		t.Fatal(err)
	}
	var large *ErrTooLarge
	var held *ErrNotSent
	if res[0].Err != nil || !errors.As(res[1].Err, &large) || large.Size != 11 || large.Limit != 10 {
		t.Errorf("%+v", res)
	}
	if !errors.As(res[2].Err, &held) || held.Earlier != 1 {
		t.Errorf("what follows in the sequence: %+v", res[2])
	}
	if log.batches[0].Len() != 1 {
		t.Errorf("%d records were sent", log.batches[0].Len())
	}
}

// A producer's keyless messages always meet in one partition, where its
// sequence is known.
func TestKeylessSequence(t *testing.T) {
	log := newMemLog()
	p := NewPublisher(log, Config{})
	for i := range 10 {
		if _, err := p.Publish(context.Background(), Request{Table: evenTable(t, 16), Records: make([]record.Record, 1), ProducerID: "p", FirstSequence: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(log.stored) != 1 {
		t.Errorf("spread over %d partitions", len(log.stored))
	}
}

func TestBadCalls(t *testing.T) {
	table := evenTable(t, 2)
	two := func(a, b record.Record) []record.Record { return []record.Record{a, b} }
	for want, req := range map[string]Request{
		"messages: there are none":          {},
		"messages: there are 1001":          {Records: make([]record.Record, 1001)},
		"first_sequence: it is set without": {Records: make([]record.Record, 1), FirstSequence: 1},
		"producer_id: producer id":          {Records: make([]record.Record, 1), FirstSequence: 1, ProducerID: "a b"},
		"first_sequence: 0":                 {Records: make([]record.Record, 1), ProducerID: "p"},
		"first_sequence: 18446744073709551": {Records: make([]record.Record, 1), ProducerID: "p", FirstSequence: math.MaxUint64},
		"messages[1].key: it differs":       {Records: two(keyed("a", ""), keyed("b", "")), ProducerID: "p", FirstSequence: 1},
		"messages[1].key: it":               {Records: two(keyed("a", ""), record.Record{}), ProducerID: "p", FirstSequence: 1},
		"messages[0].id: a message without": {Records: two(record.Record{ID: "x"}, record.Record{}), ProducerID: "p", FirstSequence: 1},
	} {
		req.Table = table
		log := newMemLog()
		_, err := NewPublisher(log, Config{}).Publish(context.Background(), req)
		var bad *ErrCall
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if len(log.batches) > 0 {
			t.Errorf("%q: something was sent", want)
		}
	}
}

func TestBadMessages(t *testing.T) {
	many := make([]record.Header, record.MaxHeaders+1)
	for i := range many {
		many[i].Name = "h"
	}
	for field, r := range map[string]record.Record{
		"key":             {HasKey: true},
		"id":              {ID: "a\nb"},
		"headers[0].name": {Headers: []record.Header{{Name: "a:b"}}},
		"headers":         {Headers: many, Body: make([]byte, record.MaxBody+1)},
		"body":            {Body: make([]byte, record.MaxBody+1)},
	} {
		res, err := NewPublisher(newMemLog(), Config{}).Publish(context.Background(), Request{Table: evenTable(t, 1), Records: []record.Record{{}, r, {}}})
		if err != nil {
			t.Fatal(err)
		}
		var bad *ErrMessage
		if !errors.As(res[1].Err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, res[1].Err)
		}
		if res[0].Err != nil || res[2].Err != nil {
			t.Errorf("%s: its neighbours: %v, %v", field, res[0].Err, res[2].Err)
		}
	}
}

// Who stops waiting is told that the outcome is unknown, and answers that come
// later touch nothing.
func TestGivingUp(t *testing.T) {
	log := newMemLog()
	log.hold = true
	c, err := NewPublisher(log, Config{}).Submit(Request{Table: evenTable(t, 1), Records: []record.Record{keyed("k", "a"), {HasKey: true}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	res := c.Wait(ctx)
	var unknown *ErrOutcomeUnknown
	var bad *ErrMessage
	if !errors.As(res[0].Err, &unknown) || !errors.Is(res[0].Err, context.Canceled) || !errors.As(res[1].Err, &bad) {
		t.Fatalf("%+v", res)
	}
	log.held[0]()
	<-c.Done()
	if !errors.As(res[0].Err, &unknown) {
		t.Errorf("a late answer changed the result: %+v", res[0])
	}
}

func TestLogErrors(t *testing.T) {
	log := newMemLog()
	log.fail = func(int) error { return errFull }
	p := NewPublisher(log, Config{})
	res, err := p.Publish(context.Background(), Request{Table: evenTable(t, 1), Records: []record.Record{keyed("k", "a")}})
	if err != nil || !errors.Is(res[0].Err, errFull) {
		t.Errorf("%v, %+v", err, res)
	}
	// A log that answers too few results is not believed.
	res, err = NewPublisher(shortLog{}, Config{}).Publish(context.Background(), Request{Table: evenTable(t, 1), Records: []record.Record{keyed("k", "a")}})
	var unknown *ErrOutcomeUnknown
	if err != nil || !errors.As(res[0].Err, &unknown) {
		t.Errorf("%v, %+v", err, res)
	}
}

type shortLog struct{}

func (shortLog) PublishAsync(_ uint64, _ []byte, done func([]Stored, error)) error {
	done(nil, nil)
	return nil
}

// Answers come on other goroutines while Submit still runs.
func TestAnswersFromElsewhere(t *testing.T) {
	p := NewPublisher(elsewhere{}, Config{})
	table := evenTable(t, 8)
	for range 50 {
		recs := make([]record.Record, 100)
		for i := range recs {
			recs[i] = keyed(fmt.Sprint("k", i), "")
		}
		res, err := p.Publish(context.Background(), Request{Table: table, Records: recs})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range res {
			if r.Err != nil {
				t.Fatalf("message %d: %v", i, r.Err)
			}
		}
	}
}

type elsewhere struct{}

func (elsewhere) PublishAsync(_ uint64, b []byte, done func([]Stored, error)) error {
	bt, _, err := record.Parse(b)
	if err != nil {
		return err
	}
	go done(make([]Stored, bt.Len()), nil)
	return nil
}

// nowhere takes everything and keeps nothing.
type nowhere struct{ answers []Stored }

func (n nowhere) PublishAsync(_ uint64, b []byte, done func([]Stored, error)) error {
	bt, _, err := record.View(b)
	if err != nil {
		return err
	}
	done(n.answers[:bt.Len()], nil)
	return nil
}

// What the router costs per message: checks, hash, grouping, framing, merging.
func BenchmarkPublish(b *testing.B) {
	for _, partitions := range []int{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const n = 500
			p := NewPublisher(nowhere{make([]Stored, n)}, Config{})
			table := evenTable(b, partitions)
			recs := make([]record.Record, n)
			for i := range recs {
				recs[i] = keyed(fmt.Sprint("key-", i%100), strings.Repeat("x", 100))
			}
			b.SetBytes(n * 100)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Publish(context.Background(), Request{Table: table, Records: recs}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/msg")
		})
	}
}
