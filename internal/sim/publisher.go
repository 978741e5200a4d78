package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// client is somebody who uses the broker.
type client interface {
	// heal has it do what it should from now on, and no more.
	heal()
	// undone says what it waits for; empty: nothing.
	undone() string
}

// message is one that a publisher sent.
type message struct {
	body, key, id, producer string
	seq                     uint64
	hash                    uint64
	part                    partition.PartitionID
	attempts                int
	carriedTwice            bool // by the network
	acked                   bool
	offset                  partition.Offset // if it was
	stood                   int              // so often it stands in the log
}

// publisher sends to one partition, with message ids, with a producer sequence, or
// with neither. What it knows again it sends again until it is told; what would be
// stored twice it gives up.
type publisher struct {
	s        *Sim
	r        *rand.Rand
	name     string
	part     partition.PartitionID
	how      string // ids, sequence, neither
	producer int    // counts its names
	next     uint64 // sequence
	count    int
	open     []*batch // not answered for good, in the order sent
	flying   int
	again    bool          // something of the window failed: all goes again
	reached  time.Duration // when the last one reached a node
	quiet    bool
	last     error // what it was told last
}

type batch struct {
	ms  []*message
	enc []byte
}

func (p *publisher) heal() { p.quiet = true }

func (p *publisher) undone() string {
	if len(p.open) > 0 {
		return fmt.Sprintf("%s waits for %d batches, the first is %q; %d are under way, the last answer was: %v", p.name, len(p.open), p.open[0].ms[0].body, p.flying, p.last)
	}
	return ""
}

// keyName names a key of a partition.
func keyName(p partition.PartitionID, i int) string { return fmt.Sprintf("k%d-%d", p, i) }

func (p *publisher) loop() {
	if p.quiet {
		return
	}
	window := 1
	if p.how == "sequence" {
		window = 3
	}
	if len(p.open) < window && !p.again {
		p.send(p.compose())
	}
	pause := p.s.plan.pause
	if p.count > p.s.plan.most {
		pause = max(pause, time.Second) // what there is has to be looked at often
	}
	p.s.after(p.s.between(p.r, time.Millisecond, 2*pause), p.name, p.loop)
}

func (p *publisher) compose() *batch {
	b := &batch{}
	meta := record.Meta{}
	if p.how == "sequence" {
		meta.ProducerID, meta.FirstSequence = fmt.Sprintf("%s-%d", p.name, p.producer), p.next
	}
	var recs []record.Record
	for range 1 + p.r.IntN(3) {
		p.count++
		m := &message{body: fmt.Sprintf("%s-%d", p.name, p.count), key: keyName(p.part, p.r.IntN(p.s.plan.keys)), part: p.part}
		m.hash = p.s.planted.hash(xxhash.Sum64String(m.key))
		if p.how == "ids" {
			m.id = "i" + m.body
		}
		if p.how == "sequence" {
			m.producer, m.seq = meta.ProducerID, p.next
			p.next++
		}
		p.s.sent[m.body] = m
		b.ms = append(b.ms, m)
		recs = append(recs, record.Record{KeyHash: m.hash, HasKey: true, Key: []byte(m.key), ID: m.id, Body: []byte(m.body)})
	}
	b.enc = record.Append(nil, meta, recs)
	p.open = append(p.open, b)
	return b
}

// send sends a batch to the leader, if there is one.
func (p *publisher) send(b *batch) {
	p.flying++
	for _, m := range b.ms {
		m.attempts++
	}
	answered := false
	answer := func(st []partition.Stored, err error) {
		if !answered {
			answered = true
			p.flying--
			p.told(b, st, err)
		}
	}
	lost := p.r.Float64() < p.s.plan.lossy
	unheard := p.r.Float64() < p.s.plan.lossy
	// One connection: what is sent first arrives first.
	p.reached = max(p.reached, p.s.now+p.s.between(p.r, 50*time.Microsecond, 5*time.Millisecond))
	if p.r.Float64() < p.s.plan.twice {
		for _, m := range b.ms {
			m.carriedTwice = true
		}
		p.s.after(p.reached-p.s.now+p.s.between(p.r, 0, 2*time.Second), "late", func() { p.arrive(b, func([]partition.Stored, error) {}) })
	}
	p.s.after(2*time.Second, "timeout", func() { answer(nil, &partition.ErrOutcomeUnknown{Partition: p.part, Why: "no answer"}) })
	if lost {
		return
	}
	p.s.after(p.reached-p.s.now, "publish", func() {
		p.arrive(b, func(st []partition.Stored, err error) {
			if !unheard {
				answer(st, err)
			}
		})
	})
}

// arrive is a batch that reaches a node.
func (p *publisher) arrive(b *batch, done func([]partition.Stored, error)) {
	n := p.s.leader(p.part)
	if n == nil || p.r.IntN(20) == 0 {
		n = p.s.nodes[p.r.IntN(len(p.s.nodes))]
	}
	if !n.up {
		done(nil, &partition.ErrNotLeader{Partition: p.part})
		return
	}
	if n.low {
		done(nil, errLow)
		return
	}
	parsed, _, err := record.Parse(slices.Clone(b.enc))
	if err != nil {
		p.s.fault("%s: %v", p.name, err)
		return
	}
	if p.s.planted.is("unlogged-publish", 0.02) {
		st := make([]partition.Stored, len(b.ms))
		for i := range st {
			st[i].Offset = partition.Offset(len(p.s.judge.logs[p.part].messages) + i)
			p.s.judge.receipt(b.ms[i], st[i])
		}
		done(st, nil)
		return
	}
	c := n.call(func(err error) { done(nil, err) })
	err = n.core.PublishBatch(p.part, parsed, func(st []partition.Stored, err error) {
		if err == nil {
			// Heard or not, it is the node's word.
			for i := range st {
				if st[i].Err == nil {
					if p.s.planted.is("wrong-offset", 0.02) {
						st[i].Offset++
					}
					p.s.judge.receipt(b.ms[i], st[i])
				}
			}
		}
		if n.answered(c) {
			done(st, err)
		}
	})
	if err != nil {
		n.answered(c)
		done(nil, err)
		return
	}
	n.kick()
}

// told is an answer, or that there was none.
func (p *publisher) told(b *batch, st []partition.Stored, err error) {
	done, unknown := err == nil, false
	p.last = err
	for i := range st {
		p.last = errors.Join(p.last, st[i].Err)
	}
	var gap *partition.ErrSequenceGap
	var gone *partition.ErrExpired
	var past *partition.ErrSequenceExpired
	for i := range st {
		switch e := st[i].Err; {
		case e == nil:
		case (errors.As(e, &gone) || errors.As(e, &past)) && (b.ms[i].attempts > 1 || b.ms[i].carriedTwice): // stored once, and removed since
		case errors.As(e, &gap) && p.how == "sequence":
			done = false
			if name := b.ms[0].producer; gap.Expected == 0 && b.ms[0].seq > 0 && !p.forgotten(name) {
				// The judge looks when the step that answers is over.
				p.s.after(0, "gap", func() {
					if !p.forgotten(name) {
						p.s.fault("P9: %v, whose messages are kept", gap)
					}
				})
			}
			unknown = unknown || gap.Expected == 0
		default:
			p.s.fault("%s: %q, sent %d times, is refused: %v", p.name, b.ms[i].body, b.ms[i].attempts, e)
		}
	}
	var lost *partition.ErrOutcomeUnknown
	defer p.retry()
	switch {
	case !slices.Contains(p.open, b): // given up meanwhile; others may have waited for this answer
	case done, p.how == "neither" && errors.As(err, &lost):
		p.open = slices.DeleteFunc(p.open, func(x *batch) bool { return x == b })
	case unknown && p.open[0].ms[0].seq > 0:
		// All that it sent was removed: it is not known any more. While its first
		// batch is open, that one may only have been lost on the way.
		p.producer++
		p.next, p.open, p.again = 0, nil, false
	default:
		p.again = true
	}
}

// retry sends the window again once nothing of it is under way any more.
func (p *publisher) retry() {
	if p.again && p.flying == 0 {
		p.s.after(p.s.between(p.r, time.Millisecond, 200*time.Millisecond), p.name+" again", func() {
			if !p.again || p.flying > 0 {
				return
			}
			p.again = false
			for _, x := range slices.Clone(p.open) {
				p.send(x)
			}
		})
	}
}

// forgotten tells whether all that a producer sent may be gone.
func (p *publisher) forgotten(name string) bool {
	b := p.s.judge.logs[p.part]
	x, ok := b.seqs[name]
	return !ok || x.at < b.start
}
