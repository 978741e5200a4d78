package broker

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// moving is a cluster of a topic with one partition, of which both nodes have a log
// and the test says who leads.
func moving(t *testing.T) (d *dispatch, id partition.PartitionID, lead func(partition.NodeID)) {
	t.Helper()
	var leader atomic.Uint64
	lead = func(n partition.NodeID) { leader.Store(uint64(n)) }
	lead(ownerNode)
	c := startCluster(t, func(partition.PartitionID) partition.NodeID { return partition.NodeID(leader.Load()) })
	newAPI(t, c.edge.URL()).topic(t, "t", 1)
	topic, err := c.edge.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	id = topic.Partitions[0].ID
	if err := c.edge.host.Create(ctx(t), id); err != nil {
		t.Fatal(err)
	}
	return c.edge.far, id, lead
}

// published is what became of a batch.
type published struct {
	stored []partition.Stored
	err    error
}

// send publishes one message, and gives where its answer comes.
func (d *dispatch) send(t *testing.T, id partition.PartitionID, text string) (<-chan published, error) {
	t.Helper()
	b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{ID: text, Body: []byte(text)}}))
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan published, 1)
	return answer, d.PublishBatch(uint64(id), b, func(stored []partition.Stored, err error) { answer <- published{stored, err} })
}

func (p published) at(t *testing.T, want partition.Offset) {
	t.Helper()
	if p.err != nil || p.stored[0].Offset != want {
		t.Fatalf("%v, %v; want offset %d", p.stored, p.err, want)
	}
}

// What a partition's leader has not answered may yet be refused: nothing goes to
// the next one before that is known, or it would be stored in front.
func TestLaneWaitsForItsAnswers(t *testing.T) {
	t.Parallel()
	d, id, lead := moving(t)
	first, err := d.send(t, id, "first") // it is answered; the test takes the lane from here
	if err != nil {
		t.Fatal(err)
	}
	(<-first).at(t, 0)

	// One batch is on its way to the owner when the partition moves to this node.
	refused := make(chan published, 1)
	b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{ID: "a", Body: []byte("a")}}))
	if err != nil {
		t.Fatal(err)
	}
	x := &parcel{number: 1, batch: b, sent: true, until: time.Now().Add(time.Hour), done: func(stored []partition.Stored, err error) { refused <- published{stored, err} }}
	l := &lane{d: d, id: id, queue: []*parcel{x}, sent: 1, to: ownerNode, next: 1, bytes: len(b.Bytes())}
	d.mu.Lock()
	d.lanes[id] = l
	d.queued += l.bytes
	d.mu.Unlock()
	lead(edgeNode)

	behind, err := d.send(t, id, "b")
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	sent := l.sent
	d.mu.Unlock()
	if sent != 1 {
		t.Fatalf("%d batches are on their way: the second went past the first, which may be refused", sent)
	}
	l.answer(x, nil, &partition.ErrNotLeader{Partition: id, Leader: edgeNode})
	(<-refused).at(t, 0)
	(<-behind).at(t, 1)
}

// A batch that goes to this node's own log may be refused, too, when another node
// comes to lead: what follows is held back until it has its answer.
func TestNothingPassesOwnBatches(t *testing.T) {
	t.Parallel()
	d, id, lead := moving(t)
	lead(edgeNode)
	held, begun := make(chan struct{}), make(chan struct{})
	viewed := make(chan error, 1)
	go func() {
		viewed <- d.b.host.View(ctx(t), id, func(partition.App, partition.Position) { close(begun); <-held })
	}()
	<-begun // the host takes nothing up meanwhile
	first, err := d.send(t, id, "a")
	if err != nil {
		t.Fatal(err)
	}
	lead(ownerNode)
	next, err := d.send(t, id, "b")
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	sent, aloft := d.lanes[id].sent, d.aloft[id].n
	d.mu.Unlock()
	if sent != 0 || aloft != 1 {
		t.Errorf("%d batches are on their way to the new leader, and %d to the old one, which may refuse it", sent, aloft)
	}
	close(held)
	if err := <-viewed; err != nil {
		t.Fatal(err)
	}
	(<-first).at(t, 0)
	(<-next).at(t, 0) // in the owner's log
	eventually(t, "the lane is gone", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.lanes) == 0 && len(d.aloft) == 0 && d.queued == 0
	})
}

// ownHost takes batches and has the test answer them.
type ownHost struct {
	outlet
	from  *source
	taken []func([]partition.Stored, error)
}

func (h *ownHost) PublishBatch(_ uint64, _ record.Batch, done func([]partition.Stored, error)) error {
	h.taken = append(h.taken, done)
	return nil
}

// give publishes one message by the host, with an id or without.
func (h *ownHost) give(t *testing.T, d *dispatch, id partition.PartitionID, text string, named bool) <-chan published {
	t.Helper()
	r := record.Record{Body: []byte(text)}
	if named {
		r.ID = text
	}
	b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{r}))
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan published, 1)
	if err := d.publish(h, h.from, uint64(id), b, func(stored []partition.Stored, err error) { answer <- published{stored, err} }); err != nil {
		t.Fatal(err)
	}
	return answer
}

// What this node refuses since it lost the lead is stored where it is led now, in the
// order in which it came, and so is what came behind; then the lead comes back.
func TestOwnBatchesFollowTheLead(t *testing.T) {
	t.Parallel()
	d, id, lead := moving(t)
	lead(edgeNode)
	h := &ownHost{}
	var answers []<-chan published
	for _, text := range []string{"a", "b", "c"} {
		answers = append(answers, h.give(t, d, id, text, true))
	}
	lead(ownerNode)
	answers = append(answers, h.give(t, d, id, "d", true))
	if len(h.taken) != 3 {
		t.Fatalf("the host was given %d", len(h.taken))
	}
	moved := &partition.ErrNotLeader{Partition: id, Leader: ownerNode}
	h.taken[1](nil, moved)
	h.taken[0](nil, moved)
	// The last one may be stored, or not; with an id it can go again.
	h.taken[2](nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "it lost the lead"})
	for i, answer := range answers {
		(<-answer).at(t, partition.Offset(i))
	}
	back, err := d.send(t, id, "e")
	if err != nil {
		t.Fatal(err)
	}
	(<-back).at(t, 4)
	lead(edgeNode)
	for i := range 3 { // its own log, which has nothing yet
		own, err := d.send(t, id, string(rune('f'+i)))
		if err != nil {
			t.Fatal(err)
		}
		(<-own).at(t, partition.Offset(i))
	}
}

// Of a batch without an id nobody knows whether it was stored: it does not go again,
// and what stands behind it is refused, not stored. What was before it is.
func TestOwnBatchesBehindAnUnknownOne(t *testing.T) {
	t.Parallel()
	d, id, lead := moving(t)
	lead(edgeNode)
	h := &ownHost{}
	before, unknown, behind := h.give(t, d, id, "a", true), h.give(t, d, id, "b", false), h.give(t, d, id, "c", true)
	lead(ownerNode)
	waiting := h.give(t, d, id, "d", true)
	moved := &partition.ErrNotLeader{Partition: id, Leader: ownerNode}
	h.taken[0](nil, moved)
	h.taken[1](nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "it lost the lead"})
	if p := <-unknown; !errors.As(p.err, new(*partition.ErrOutcomeUnknown)) {
		t.Errorf("the unknown one: %v, %v", p.stored, p.err)
	}
	h.taken[2](nil, moved)
	for _, answer := range []<-chan published{behind, waiting} {
		if p := <-answer; !errors.As(p.err, new(*partition.ErrNotLeader)) {
			t.Errorf("behind the unknown one: %v, %v", p.stored, p.err)
		}
	}
	(<-before).at(t, 0)
	next, err := d.send(t, id, "e")
	if err != nil {
		t.Fatal(err)
	}
	(<-next).at(t, 1)
}

// What the host refuses for the batch's own sake is its answer, and holds up nothing.
func TestOwnRefusalsAreAnswers(t *testing.T) {
	t.Parallel()
	d, id, lead := moving(t)
	lead(edgeNode)
	h := &ownHost{}
	first, second := h.give(t, d, id, "a", true), h.give(t, d, id, "b", true)
	h.taken[0](nil, &partition.ErrDamaged{})
	if p := <-first; !errors.As(p.err, new(*partition.ErrDamaged)) {
		t.Errorf("%v", p.err)
	}
	h.taken[1]([]partition.Stored{{Offset: 7}}, nil)
	(<-second).at(t, 7)
	if len(d.lanes) != 0 || len(d.aloft) != 0 {
		t.Errorf("%d lanes, %d on their way", len(d.lanes), len(d.aloft))
	}
}

// A stream hears that a batch was refused a moment after that, and may give another one
// in between, as here: it is refused, or it would be stored before the first, which is
// sent again. What others send is taken.
func TestNothingPassesWhatASourceLost(t *testing.T) {
	t.Parallel()
	batch := func(r record.Record) record.Batch {
		b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{r}))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		what string
		id   string // of the first message
		own  bool   // it went to this node's host
		why  func(partition.PartitionID) error
	}{
		{"no leader was found in time", "a", false, func(p partition.PartitionID) error { return &partition.ErrNotLeader{Partition: p} }},
		{"nobody knows whether the leader stored it", "", false, func(p partition.PartitionID) error { return &partition.ErrOutcomeUnknown{Partition: p} }},
		{"nobody knows whether this node stored it", "", true, func(p partition.PartitionID) error { return &partition.ErrOutcomeUnknown{Partition: p} }},
		{"this node has no room", "a", true, func(p partition.PartitionID) error { return &partition.ErrFull{Partition: p} }},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d, id, lead := moving(t)
			stream := d.From(7).(farSource)
			heard, behind := make(chan error, 1), make(chan error, 1)
			first := batch(record.Record{ID: c.id, Body: []byte("a")})
			done := func(_ []partition.Stored, err error) { // nobody has told the stream yet
				heard <- err
				behind <- stream.PublishBatch(uint64(id), batch(record.Record{ID: "b", Body: []byte("b")}), func([]partition.Stored, error) {})
			}
			if c.own {
				lead(edgeNode)
				h := &ownHost{from: stream.from}
				if err := d.publish(h, h.from, uint64(id), first, done); err != nil {
					t.Fatal(err)
				}
				h.taken[0](nil, c.why(id))
			} else {
				x := &parcel{number: 1, batch: first, from: stream.from, sent: true, until: time.Now().Add(-time.Hour), done: done}
				l := &lane{d: d, id: id, queue: []*parcel{x}, sent: 1, to: ownerNode, next: 1, bytes: len(first.Bytes())}
				d.mu.Lock()
				d.lanes[id] = l
				d.queued += l.bytes
				d.mu.Unlock()
				l.answer(x, nil, c.why(id))
			}
			if err := <-heard; err == nil {
				t.Error("the first one was stored")
			}
			if err := <-behind; err == nil || !passes(err) || errors.As(err, new(*partition.ErrOutcomeUnknown)) {
				t.Errorf("the one behind it: %v", err)
			}
			other, err := d.send(t, id, "c")
			if err != nil {
				t.Fatal(err)
			}
			(<-other).at(t, 0)
		})
	}
}
