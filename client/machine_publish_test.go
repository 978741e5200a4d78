package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// shelf is a broker's partitions as a publisher sees them: it knows producers'
// sequences, forgets them, refuses for now and for good, and its answers get lost.
type shelf struct {
	t     *rapid.T
	next  map[string]uint64   // partition/producer → next sequence
	where map[string]Receipt  // of a sequence
	logs  map[uint32][]string // bodies
	bad   map[string]bool     // bodies that are refused for good, with their batch
}

func problemOf(reason string, retry int64) *strandmqv1.Problem {
	return &strandmqv1.Problem{Reason: reason, RetryAfterMs: retry}
}

// take judges one batch.
func (s *shelf) take(b *strandmqv1.PublishBatch, number uint64) *strandmqv1.PublishBatchResult {
	out := &strandmqv1.PublishBatchResult{Batch: number}
	records, rest, err := record.Parse(b.GetRecordBatch())
	if err != nil || len(rest) > 0 {
		s.t.Fatalf("a batch that is none: %v", err)
	}
	name, first := records.Producer()
	p := fmt.Sprint(b.GetPartition(), "/", string(name))
	var bodies []string
	records.Each(func(_ int, r record.Raw) bool {
		bodies = append(bodies, string(r.Body()))
		return true
	})
	for _, body := range bodies {
		if s.bad[body] {
			out.Problem = problemOf("BODY_TOO_LARGE", 0)
			return out
		}
	}
	if first > s.next[p] {
		for range bodies {
			out.Results = append(out.Results, &strandmqv1.PublishResult{Problem: problemOf("SEQUENCE_GAP", 0)})
		}
		return out
	}
	log := s.logs[b.GetPartition()]
	if first == s.next[p] {
		out.Run = &strandmqv1.ReceiptRun{Partition: b.GetPartition(), FirstOffset: uint64(len(log)), Count: uint32(len(bodies))}
	}
	for i, body := range bodies {
		seq := fmt.Sprint(p, "/", first+uint64(i))
		if first+uint64(i) < s.next[p] {
			at := s.where[seq]
			out.Results = append(out.Results, &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Partition: at.Partition, Offset: at.Offset, Duplicate: true}})
			continue
		}
		at := Receipt{Partition: b.GetPartition(), Offset: uint64(len(log))}
		log = append(log, body)
		s.where[seq], s.next[p] = at, first+uint64(i)+1
		out.Results = append(out.Results, &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Partition: at.Partition, Offset: at.Offset}})
	}
	if out.Run != nil {
		out.Results = nil
	}
	s.logs[b.GetPartition()] = log
	return out
}

// Whatever the broker refuses, forgets or does not answer: each message has one
// answer; one with a receipt is stored once, where it says, behind what was put
// before it of its key; one with a refusal is not stored.
func TestOutbox(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "partitions")
		targets := make([]router.Target, n)
		for i, r := range keyspace.Ranges(n) {
			targets[i] = router.Target{ID: uint64(i), Range: r}
		}
		table, err := router.NewTable(1, 7, targets)
		if err != nil {
			t.Fatal(err)
		}
		o := &outbox{topic: "t", producer: "p"}
		o.route(table, 1000)
		s := &shelf{t: t, next: map[string]uint64{}, where: map[string]Receipt{}, logs: map[uint32][]string{}, bad: map[string]bool{}}
		type sent struct {
			key, body string
			answers   int
			at        Receipt
			err       error
		}
		var all []*sent
		settle := func(out []answered) {
			for _, a := range out {
				a.each()
			}
		}
		// One stream: what was sent on it and not looked at by the broker, and answers
		// that were not read.
		var way []*strandmqv1.PublishBatch
		var number uint64
		var answers []*strandmqv1.PublishBatchResult
		stops := false // the broker reads no more of it
		reopen := func() {
			// What was on the way may still arrive, or not; its answers are lost.
			for _, b := range way[:rapid.IntRange(0, len(way)).Draw(t, "arrive")] {
				if stops {
					break
				}
				s.take(b, 1)
			}
			way, answers, number, stops = nil, nil, 0, false
			o.reopen()
		}
		reopen()
		step := func(quiet bool) {
			switch k := rapid.IntRange(0, 9).Draw(t, "step"); {
			case k <= 2 && !quiet: // a message
				m := &sent{key: rapid.StringMatching(`[a-f]`).Draw(t, "key"), body: fmt.Sprint("m", len(all))}
				s.bad[m.body] = rapid.IntRange(0, 19).Draw(t, "bad") == 0
				all = append(all, m)
				o.most = rapid.IntRange(1, 200).Draw(t, "bytes")
				if err := o.put(&record.Record{HasKey: true, Key: []byte(m.key), Body: []byte(m.body)}, waiting{done: func(r Receipt, err error) {
					m.answers++
					m.at, m.err = r, err
				}}); err != nil {
					t.Fatal(err)
				}
			case k <= 4 || quiet && k <= 5: // send
				ps := o.take()
				if rapid.Bool().Draw(t, "meanwhile") && len(answers) > 0 && !o.redo {
					out, err := o.answer(answers[0]) // while the portions are encoded
					if err != nil {
						t.Fatal(err)
					}
					answers = answers[1:]
					settle(out)
				}
				for i := range ps {
					o.add(ps[i].encode())
				}
				if f := o.frame(); f != nil {
					way = append(way, f.GetBatches()...)
				}
			case k <= 6: // the broker takes one
				if len(way) == 0 || stops {
					return
				}
				b := way[0]
				way = way[1:]
				number++
				if !quiet && rapid.IntRange(0, 14).Draw(t, "full") == 0 {
					answers = append(answers, &strandmqv1.PublishBatchResult{Batch: number, Problem: problemOf("DISK_FULL", 100)})
					stops = true // and what is behind it is not stored
					return
				}
				answers = append(answers, s.take(b, number))
			case k <= 8: // an answer comes
				if len(answers) == 0 {
					if stops || o.redo || o.stuck {
						reopen()
					}
					return
				}
				i := rapid.IntRange(0, len(answers)-1).Draw(t, "which")
				out, err := o.answer(answers[i])
				if err != nil {
					t.Fatal(err)
				}
				answers = append(answers[:i], answers[i+1:]...)
				settle(out)
				if o.redo {
					reopen()
				}
				o.tidy()
			case k == 9 && !quiet: // the stream breaks; perhaps the broker has forgotten everybody
				reopen()
				if o.unanswered() == 0 && rapid.IntRange(0, 3).Draw(t, "forget") == 0 {
					clear(s.next)
				}
			}
		}
		for range rapid.IntRange(10, 150).Draw(t, "steps") {
			step(false)
		}
		for range 5000 {
			if o.unanswered() == 0 {
				break
			}
			step(true)
		}
		if o.unanswered() > 0 {
			t.Fatalf("%d messages have no answer", o.unanswered())
		}
		in := map[string][]Receipt{}
		for p, log := range s.logs {
			for i, body := range log {
				in[body] = append(in[body], Receipt{Partition: p, Offset: uint64(i)})
			}
		}
		last := map[string]uint64{}
		for _, m := range all {
			switch {
			case m.answers != 1:
				t.Fatalf("%s has %d answers", m.body, m.answers)
			case m.err != nil:
				if !errors.Is(m.err, ErrBodyTooLarge) || len(in[m.body]) > 0 {
					t.Fatalf("%s was refused (%v) and is at %v", m.body, m.err, in[m.body])
				}
			case len(in[m.body]) != 1:
				t.Fatalf("%s is stored at %v", m.body, in[m.body])
			default:
				at := in[m.body][0]
				if r := m.at; r.Partition != at.Partition || r.Offset != at.Offset {
					t.Fatalf("%s is at %v, and its receipt says %v", m.body, at, r)
				}
				if at.Offset < last[m.key] {
					t.Fatalf("%s of key %s is at %d, behind %d", m.body, m.key, at.Offset, last[m.key])
				}
				last[m.key] = at.Offset + 1
			}
		}
	})
}

// A topic that was made anew has another table: what was on its way is refused,
// what was not sent goes by the new one.
func TestOutboxOfATopicMadeAnew(t *testing.T) {
	table := func(seed uint64, n int) *router.Table {
		targets := make([]router.Target, n)
		for i, r := range keyspace.Ranges(n) {
			targets[i] = router.Target{ID: uint64(i), Range: r}
		}
		out, err := router.NewTable(seed, seed, targets)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	o := &outbox{topic: "t", producer: "p", most: 1 << 20}
	o.route(table(1, 8), 1000)
	o.reopen()
	put := func(n int) {
		for i := range n {
			if err := o.put(&record.Record{HasKey: true, Key: fmt.Append(nil, "k", i)}, waiting{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func() *strandmqv1.PublishStreamRequest {
		for _, p := range o.take() {
			o.add(p.encode())
		}
		return o.frame()
	}
	put(50)
	f := send()
	put(50)
	out, err := o.answer(&strandmqv1.PublishBatchResult{Batch: 1 + rand.Uint64N(uint64(len(f.Batches))), Problem: problemOf("STALE_ROUTE", 0)})
	gone := 0
	for _, a := range out {
		gone += len(a.wait)
	}
	if err != nil || gone != 50 || !errors.Is(out[0].err, ErrStaleRoute) || !o.redo {
		t.Fatalf("%d answers, %v; a new stream: %t", gone, err, o.redo)
	}
	if out := o.reroute(table(2, 2), 1000); len(out) > 0 {
		t.Fatalf("%d were refused", len(out))
	}
	o.reopen()
	n := 0
	for _, b := range send().GetBatches() {
		got, err := o.table.Parse(b.GetRecordBatch(), b.GetPartition(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if _, first := got.Producer(); first != 0 {
			t.Errorf("a sequence begins at %d", first)
		}
		n += got.Len()
	}
	if n != 50 {
		t.Errorf("%d messages were sent, want 50", n)
	}
}
