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
// comes to lead: what follows is held back until its publisher has heard.
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
	if _, err := d.send(t, id, "b"); !errors.As(err, new(*partition.ErrFull)) {
		t.Errorf("%v: it goes to the new leader, and may be stored before what the old one refuses", err)
	}
	close(held)
	if err := <-viewed; err != nil {
		t.Fatal(err)
	}
	(<-first).at(t, 0)
	waitFor(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.aloft[id] == 0
	})
	next, err := d.send(t, id, "b")
	if err != nil {
		t.Fatal(err)
	}
	(<-next).at(t, 0) // in the owner's log
}
