package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// shelf is a broker's partitions as a publisher sees them: it knows producers'
// sequences, forgets them, refuses for now and for good, its answers get lost, and its
// topic is deleted and made anew.
type shelf struct {
	t     *rapid.T
	table *router.Table
	old   []map[uint32][]string // the logs of the topics before
	next  map[string]uint64     // partition/producer → next sequence
	where map[string]Receipt    // of a sequence
	logs  map[uint32][]string   // bodies
	bad   map[string]bool       // bodies that are refused for good, with their batch
}

func problemOf(reason string, retry int64) *strandmqv1.Problem {
	return &strandmqv1.Problem{Reason: reason, RetryAfterMs: retry}
}

// take judges one batch.
func (s *shelf) take(b *strandmqv1.PublishBatch, number uint64) *strandmqv1.PublishBatchResult {
	out := &strandmqv1.PublishBatchResult{Batch: number}
	records, err := s.table.Parse(b.GetRecordBatch(), b.GetPartition(), 1000)
	if errors.As(err, new(*router.ErrStaleRoute)) {
		out.Problem, out.Route = problemOf("STALE_ROUTE", 0), routeOf(s.table)
		return out
	}
	if err != nil {
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
		table := tableFor(t, 7, n)
		o := &outbox{topic: "t", producer: "p"}
		o.route(table, 1000)
		s := &shelf{t: t, table: table, next: map[string]uint64{}, where: map[string]Receipt{}, logs: map[uint32][]string{}, bad: map[string]bool{}}
		type sent struct {
			key, body string
			answers   int
			unknown   bool // it was stored, and the answer got lost
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
			for body := range s.stored() {
				var i int
				_, _ = fmt.Sscanf(body, "m%d", &i)
				all[i].unknown = all[i].unknown || all[i].answers == 0
			}
			settle(o.reopen())
		}
		reopen()
		step := func(quiet bool) {
			switch k := rapid.IntRange(0, 10).Draw(t, "step"); {
			case k <= 2 && !quiet: // a message
				m := &sent{key: rapid.StringMatching(`[a-f]?`).Draw(t, "key"), body: fmt.Sprint("m", len(all))}
				s.bad[m.body] = rapid.IntRange(0, 19).Draw(t, "bad") == 0
				all = append(all, m)
				o.most = rapid.IntRange(1, 200).Draw(t, "bytes")
				if err := o.put(&record.Record{HasKey: m.key != "", Key: []byte(m.key), Body: []byte(m.body)}, waiting{done: func(r Receipt, err error) {
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
			case k == 10 && !quiet && rapid.IntRange(0, 3).Draw(t, "delete") == 0: // another topic takes the name
				s.old = append(s.old, s.logs)
				s.logs = map[uint32][]string{}
				clear(s.next)
				s.table = tableFor(t, uint64(7+len(s.old)), rapid.IntRange(1, 4).Draw(t, "partitions"))
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
		in := s.stored()
		last := map[string]uint64{}
		for _, m := range all {
			places, topics := in[m.body], map[int]bool{}
			there := false // where its receipt says
			// The table of a topic in between may have had no place for a keyless message under
			// its sequence, when nobody had heard yet of the topic that stored it.
			between := func(topic int) bool { return m.key == "" && m.unknown && topic > 1 }
			for _, at := range places {
				if topics[at.topic] && !between(at.topic) {
					t.Fatalf("%s is stored twice in a topic: %v", m.body, places)
				}
				topics[at.topic] = true
				there = there || at.Partition == m.at.Partition && at.Offset == m.at.Offset
				if key := fmt.Sprint(at.topic, m.key); m.key != "" {
					if at.Offset < last[key] {
						t.Fatalf("%s of key %s is at %d, behind %d", m.body, m.key, at.Offset, last[key])
					}
					last[key] = at.Offset + 1
				}
			}
			switch {
			case m.answers != 1:
				t.Fatalf("%s has %d answers", m.body, m.answers)
			case m.err != nil:
				// It may be in a topic that was deleted before we heard of it.
				if !errors.Is(m.err, ErrBodyTooLarge) || topics[len(s.old)] && !between(len(s.old)) || len(places) > 0 && !m.unknown {
					t.Fatalf("%s was refused (%v) and is at %v", m.body, m.err, places)
				}
			case !there:
				t.Fatalf("%s is at %v, and its receipt says %v", m.body, places, m.at)
			case len(places) > 1 && !m.unknown:
				t.Fatalf("%s is at %v, although each answer was read", m.body, places)
			}
		}
	})
}

// kept is where a message stands, in which of the topics that had the name.
type kept struct {
	topic int
	Receipt
}

// stored is where each message stands, in the order of topics.
func (s *shelf) stored() map[string][]kept {
	in := map[string][]kept{}
	for i, logs := range append(slices.Clone(s.old), s.logs) {
		for p, log := range logs {
			for at, body := range log {
				in[body] = append(in[body], kept{i, Receipt{Partition: p, Offset: uint64(at)}})
			}
		}
	}
	return in
}

type fataler interface{ Fatal(args ...any) }

func tableFor(t fataler, seed uint64, n int) *router.Table {
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

func routeOf(t *router.Table) *strandmqv1.RouteResponse {
	out := &strandmqv1.RouteResponse{Topic: "t", Seed: t.Seed(), Revision: t.Revision(), MaxBodyBytes: 1000}
	for i := range t.Len() {
		owns := t.Target(i).Range
		out.Partitions = append(out.Partitions, &strandmqv1.RoutePartition{Partition: uint32(i), HashFirst: owns.First, HashLast: owns.Last})
	}
	return out
}
