package client

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// Limits of one frame and of what it carries.
const (
	frameBatches = 1000
	frameBytes   = 1 << 20 // with one batch behind it, a frame is below the broker's 4 MiB
)

// waiting is a message that was accepted and has no answer.
type waiting struct {
	done       func(Receipt, error)
	size       int32  // as it counts for the bound on bytes in flight
	generation uint32 // of Flush
}

// heap is the messages of one partition that are not sent yet, by the batches that are made
// of them.
type heap struct {
	piles []pile
	last  int // bytes of the latest batch: the next one will have about as many
	count int // and messages
}

// pile is what one batch is made of. The records are encoded, since there are many.
type pile struct {
	recs record.Pile
	wait []waiting
}

// batch is a record batch that has no answer.
type batch struct {
	partition uint32
	bytes     []byte
	wait      []waiting
	epoch     int  // of its numbering
	tried     bool // it was sent, on this stream or one before
	answered  bool
}

// numbering is the producer's sequence in one partition. The sequence of a
// producer runs without gaps. When messages were refused for good, what comes
// after them is numbered anew under another producer id, its epoch. An epoch
// begins only when all before it has its answer: within one, the broker refuses
// what would overtake; between two, nothing would.
type numbering struct {
	epoch  int
	next   uint64
	flying int // batches on this stream without an answer, all of the epoch below
	of     int
}

func (n *numbering) begin() { n.epoch, n.next = n.epoch+1, 0 }

// answered is what became of messages: they fared alike, and their offsets follow each
// other.
type answered struct {
	wait    []waiting
	receipt Receipt // of the first
	err     error
}

// each gives every message's answer.
func (a *answered) each() {
	r := a.receipt
	for i := range a.wait {
		a.wait[i].done(r, a.err)
		r.Offset++
	}
}

// outbox decides what a publisher sends, and what an answer means. It is a value
// without lock, clock and network: the publisher owns it.
//
//	put ─► heaps ─take─► encode ─► add ─► queue ─frame─► stream
//	                                        ▲              │
//	                                        └── reopen ◄── broke
//	                     answered ◄──────── answer ◄───────┘
//
// The queue is in the order of sending. A batch stays in it, under the same
// sequence, until its answer is known; a new stream begins with all of them. So
// the order of a key is kept, and what was stored without our hearing of it is
// not stored again. The table of a topic that was made anew is turned to between
// two streams: see turn.
type outbox struct {
	topic    string
	producer string
	table    *router.Table
	maxBody  int
	most     int // bytes of a batch
	heaps    []heap
	parts    []numbering

	rotation uint64 // of keyless messages
	loose    int    // the partition that they go to now
	queue    []*batch
	next     int // of queue: the first that was not sent on this stream
	last     uint64
	sent     map[uint64]*batch // by number
	stuck    bool              // something was refused for now: the broker ends the stream
	redo     bool              // batches were numbered anew, or are to be: a new stream has to begin
	gather   int               // messages in heaps

	anew     *router.Table // the next stream goes by it; nil: by the present one
	anewBody int           // its topic's maxBody
}

// route takes the topic's routing table.
func (o *outbox) route(t *router.Table, maxBody int) {
	o.table, o.maxBody = t, maxBody
	o.heaps = append(o.heaps, make([]heap, max(0, t.Len()-len(o.heaps)))...)
	o.parts = append(o.parts, make([]numbering, max(0, t.Len()-len(o.parts)))...)
}

// put takes a message; its bytes are copied. An error refuses it.
func (o *outbox) put(r *record.Record, w waiting) error {
	if err := router.CheckRecord(r, o.maxBody); err != nil {
		return badMessage(err)
	}
	n, placed := o.table.Place(r)
	if !placed {
		if o.loose >= o.table.Len() {
			o.loose = 0
		}
		n = o.loose
		o.rotation++
		r.KeyHash = o.table.Loose(n, o.rotation)
	}
	h := &o.heaps[n]
	if k := len(h.piles); k == 0 || h.piles[k-1].recs.Len() >= record.MaxBatchRecords || h.piles[k-1].recs.Bytes()+recordSize(r) > o.most {
		h.piles = append(h.piles, pile{recs: record.NewPile(len(o.producer)+epochRoom, max(recordSize(r), h.last)), wait: make([]waiting, 0, max(1, h.count))})
	}
	p := &h.piles[len(h.piles)-1]
	p.recs.Add(r)
	p.wait = append(p.wait, w)
	o.gather++
	return nil
}

// epochRoom is how many digits, and what is before them, make a producer's id of that of
// its first epoch.
const epochRoom = 8

// recordSize is about what a record takes in a batch.
func recordSize(r *record.Record) int {
	n := 24 + len(r.Key) + len(r.ID) + len(r.Body)
	for i := range r.Headers {
		n += 4 + len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// full tells whether some partition has a whole batch.
func (o *outbox) full() bool {
	for i := range o.heaps {
		if p := o.heaps[i].piles; len(p) > 1 || len(p) == 1 && (p[0].recs.Bytes() >= o.most || p[0].recs.Len() >= record.MaxBatchRecords) {
			return true
		}
	}
	return false
}

// A portion is what is made a record batch, outside of the publisher's lock.
type portion struct {
	partition uint32
	epoch     int
	meta      record.Meta
	pile      pile
}

// take takes at most one batch for each partition, and numbers it.
func (o *outbox) take() (out []portion) {
	for i := range o.heaps {
		h := &o.heaps[i]
		if len(h.piles) == 0 {
			continue
		}
		p := portion{partition: uint32(i), epoch: o.parts[i].epoch, pile: h.piles[0]}
		n := p.pile.recs.Len()
		p.meta.ProducerID, p.meta.FirstSequence = o.number(uint32(i), n)
		h.piles = slices.Delete(h.piles, 0, 1)
		h.last, h.count = p.pile.recs.Bytes(), n
		o.gather -= n
		out = append(out, p)
	}
	o.loose++
	return out
}

// number gives the next n places of a partition's sequence.
func (o *outbox) number(partition uint32, n int) (producer string, first uint64) {
	p := &o.parts[partition]
	first = p.next
	p.next += uint64(n)
	return fmt.Sprintf("%s-%d", o.producer, p.epoch), first
}

// encode makes a portion a batch.
func (p *portion) encode() *batch {
	return &batch{partition: p.partition, epoch: p.epoch, bytes: p.pile.recs.Batch(p.meta), wait: p.pile.wait}
}

// add queues a batch. They come in the order in which take gave them.
func (o *outbox) add(b *batch) {
	if b.epoch != o.parts[b.partition].epoch {
		o.again(b) // what was before it has been numbered anew meanwhile
	}
	o.queue = append(o.queue, b)
}

// reopen begins a stream. What another table's topic does not take comes back, refused.
// No portion is out.
func (o *outbox) reopen() (out []answered) {
	if o.anew != nil {
		out = o.turn()
	}
	o.queue = slices.DeleteFunc(o.queue, func(b *batch) bool { return b.answered })
	o.next, o.last, o.stuck, o.redo = 0, 0, false, false
	o.sent = make(map[uint64]*batch)
	for i := range o.parts {
		o.parts[i].flying = 0
	}
	return out
}

// holds tells whether nothing may be sent on this stream any more.
func (o *outbox) holds() bool { return o.stuck || o.redo || o.anew != nil }

// frame gives the next batches to send; nil: there are none.
func (o *outbox) frame() *strandmqv1.PublishStreamRequest {
	if o.holds() {
		return nil
	}
	var f *strandmqv1.PublishStreamRequest
	for size := 0; o.next < len(o.queue); o.next++ {
		b := o.queue[o.next]
		if f != nil && (size+len(b.bytes) > frameBytes || len(f.Batches) == frameBatches) {
			break
		}
		p := &o.parts[b.partition]
		if p.flying > 0 && p.of != b.epoch {
			break
		}
		p.flying, p.of = p.flying+1, b.epoch
		out := &strandmqv1.PublishBatch{RecordBatch: b.bytes, Partition: b.partition}
		if o.last == 0 {
			out.Topic = o.topic
		}
		o.last++
		o.sent[o.last], b.tried = b, true
		if f == nil {
			f = &strandmqv1.PublishStreamRequest{}
		}
		f.Batches = append(f.Batches, out)
		size += len(b.bytes)
	}
	return f
}

// answer takes the answer for one batch. What has its final answer comes back;
// a batch that was refused for now keeps its place, and is sent again on the next
// stream. An error ends the stream: another one begins if it passes; otherwise the
// broker does not keep to the protocol.
func (o *outbox) answer(a *strandmqv1.PublishBatchResult) ([]answered, error) {
	b := o.sent[a.GetBatch()]
	if b == nil {
		return nil, &Error{Message: fmt.Sprintf("the broker answered batch %d, which waits for no answer", a.GetBatch())}
	}
	delete(o.sent, a.GetBatch())
	if err := o.look(a); err != nil {
		return nil, err
	}
	out, err := o.judge(b, a)
	if o.anew != nil && len(o.sent) == 0 {
		o.redo = true // all is told that this stream had to tell
	}
	return out, err
}

// judge is answer for a batch.
func (o *outbox) judge(b *batch, a *strandmqv1.PublishBatchResult) ([]answered, error) {
	if run := a.GetRun(); run != nil && int(run.GetCount()) == len(b.wait) {
		o.drop(b)
		return []answered{{wait: b.wait, receipt: Receipt{Partition: run.GetPartition(), Offset: run.GetFirstOffset()}}}, nil
	}
	if p := a.GetProblem(); p != nil {
		return o.refuse(b, p)
	}
	if len(a.GetResults()) != len(b.wait) {
		return nil, &Error{Message: fmt.Sprintf("the broker answered for %d messages of %d", len(a.GetResults()), len(b.wait))}
	}
	out := make([]answered, len(b.wait))
	for i, r := range a.GetResults() {
		out[i].wait = b.wait[i : i+1]
		p := r.GetProblem()
		if p == nil {
			out[i].receipt = Receipt{Partition: r.GetReceipt().GetPartition(), Offset: r.GetReceipt().GetOffset(), Duplicate: r.GetReceipt().GetDuplicate()}
			continue
		}
		if p.GetReason() == "SEQUENCE_GAP" || p.GetReason() == "UNKNOWN_PARTITION" || passing(p) {
			return o.refuse(b, p)
		}
		out[i].err = refusedMessage(p)
	}
	o.drop(b)
	return out, nil
}

// passing tells whether a refusal passes with time.
func passing(p *strandmqv1.Problem) bool {
	switch p.GetReason() {
	case "NOT_SENT", string(ErrOutcomeUnknown), "NOT_LEADER", string(ErrNotReady), "STORE_FAILED":
		return true
	case "INTERNAL":
		return true // it may be stored: only the same sequence is safe
	}
	return p.GetRetryAfterMs() > 0
}

// refuse judges a batch of which nothing, or not all, was stored.
func (o *outbox) refuse(b *batch, p *strandmqv1.Problem) ([]answered, error) {
	reason := p.GetReason()
	switch {
	case passing(p):
		o.stuck = true
		return nil, nil
	case reason == "UNKNOWN_PARTITION":
		// Its topic went after the broker had looked for it. What the name means now,
		// nothing or another topic, the next stream tells.
		return nil, refused(p, true)
	case o.anew != nil && (reason == "SEQUENCE_GAP" || reason == string(ErrStaleRoute)):
		return nil, nil // it goes by the other table
	case reason == "SEQUENCE_GAP":
		// One before it was refused, and is sent again or given up: its fate
		// decides. If there is none, the broker has forgotten the producer, since
		// all that it stored has been removed: another one begins.
		if o.first(b.partition) == b {
			o.renumber(b)
		}
		o.stuck = true
		return nil, nil
	}
	// Of what comes behind it in the partition nothing is stored, since it leaves
	// a gap.
	o.drop(b)
	if o.anew == nil {
		o.renumber(b)
	}
	return []answered{{wait: b.wait, err: refusedMessage(p)}}, nil
}

// first is the first batch of a partition that has no answer.
func (o *outbox) first(partition uint32) *batch {
	for _, b := range o.queue {
		if b.partition == partition && !b.answered {
			return b
		}
	}
	return nil
}

// renumber begins a new epoch in a batch's partition, with what has no answer
// from that batch on. What is of another epoch already does not hang on that one,
// and may be stored.
func (o *outbox) renumber(from *batch) {
	p := &o.parts[from.partition]
	var rest []*batch
	for _, b := range o.queue[slices.Index(o.queue, from):] {
		if b.partition == from.partition && b.epoch == from.epoch && !b.answered {
			rest = append(rest, b)
		}
	}
	if len(rest) == 0 && p.epoch != from.epoch {
		return
	}
	p.begin()
	for _, b := range rest {
		o.again(b)
		o.redo = true
	}
}

// again gives a batch the next places of its partition's sequence.
func (o *outbox) again(b *batch) {
	old, _, err := record.View(b.bytes)
	if err != nil {
		return // we made it
	}
	var m record.Meta
	b.epoch = o.parts[b.partition].epoch
	m.ProducerID, m.FirstSequence = o.number(b.partition, len(b.wait))
	var w record.Builder
	w.Reset(make([]byte, 0, len(b.bytes)+8), m)
	old.Each(func(_ int, r record.Raw) bool { w.Add(r); return true })
	b.bytes = w.Seal()
}

// drop notes that a batch has its answer. Its place in the queue says what was
// sent behind it, until tidy.
func (o *outbox) drop(b *batch) {
	b.answered = true
	o.parts[b.partition].flying--
}

// tidy removes what is answered from the front of the queue.
func (o *outbox) tidy() {
	n := 0
	for n < o.next && o.queue[n].answered {
		o.queue[n] = nil
		n++
	}
	o.queue, o.next = o.queue[n:], o.next-n
}

// unanswered counts the messages without an answer, but for portions.
func (o *outbox) unanswered() int {
	n := o.gather
	for _, b := range o.queue {
		if !b.answered {
			n += len(b.wait)
		}
	}
	return n
}

// rest gives up all that has no answer: sent, and not sent.
func (o *outbox) rest(sent, unsent error) (out []answered) {
	for _, b := range o.queue {
		if !b.answered {
			out = append(out, answered{wait: b.wait, err: sent})
		}
	}
	for i := range o.heaps {
		for _, p := range o.heaps[i].piles {
			out = append(out, answered{wait: p.wait, err: unsent})
		}
		o.heaps[i] = heap{}
	}
	o.queue, o.next, o.gather = nil, 0, 0
	return out
}
