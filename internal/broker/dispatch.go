package broker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// How long a call looks for the leader of a partition, if its caller gives it so
// long, and how long it waits between two looks.
const (
	leaderPatience = 5 * time.Second
	firstLook      = 10 * time.Millisecond
	lastLook       = 250 * time.Millisecond
)

// dispatch asks every partition where it is led. What was not taken, since a
// leader changed, is asked again for a while, and so is, after a connection that
// broke, what is harmless twice; of everything else it is said that nobody knows.
type dispatch struct {
	b     *Broker
	own   own
	peers *Peers

	mu     sync.Mutex
	hints  map[partition.PartitionID]partition.NodeID // guarded by mu: who was said to lead, where no replica here knows
	turn   uint64                                     // guarded by mu: of replicas to ask
	nodes  map[partition.NodeID]*remote               // guarded by mu
	pipes  map[partition.NodeID]*pipe                 // guarded by mu
	lanes  map[partition.PartitionID]*lane            // guarded by mu: with batches on their way elsewhere
	aloft  map[partition.PartitionID]ownFlight        // guarded by mu: batches on their way to this node's host
	queued int                                        // guarded by mu: bytes in lanes
	shut   bool                                       // guarded by mu: the node stops
}

var _ partitions = (*dispatch)(nil)

func newDispatch(b *Broker, peers *Peers) *dispatch {
	return &dispatch{
		b: b, own: own{b}, peers: peers, hints: map[partition.PartitionID]partition.NodeID{}, nodes: map[partition.NodeID]*remote{},
		pipes: map[partition.NodeID]*pipe{}, lanes: map[partition.PartitionID]*lane{}, aloft: map[partition.PartitionID]ownFlight{},
	}
}

// leader is who leads a partition, as far as is known here; 0: nobody to ask.
func (d *dispatch) leader(id partition.PartitionID) partition.NodeID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leader1(id)
}

// leader1 is leader with mu held.
func (d *dispatch) leader1(id partition.PartitionID) partition.NodeID {
	if d.peers.Leader != nil {
		if n := d.peers.Leader(id); n != 0 {
			return n
		}
	} else if info, err := d.b.host.Info(id); err == nil && info.Fault == "" && info.Leader != 0 {
		return info.Leader
	}
	if n := d.hints[id]; n != 0 {
		return n
	}
	replicas := d.peers.Replicas(id)
	if len(replicas) == 0 {
		return 0
	}
	d.turn++
	return replicas[d.turn%uint64(len(replicas))]
}

// here tells whether a partition is led by this node.
func (d *dispatch) here(id partition.PartitionID) bool { return d.leader(id) == d.b.cfg.Node }

// learn takes from an error who leads a partition.
func (d *dispatch) learn(id partition.PartitionID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learn1(id, err)
}

// learn1 is learn with mu held.
func (d *dispatch) learn1(id partition.PartitionID, err error) {
	var not *partition.ErrNotLeader
	if errors.As(err, &not) && not.Leader != 0 {
		d.hints[id] = not.Leader
		return
	}
	delete(d.hints, id)
}

// notLed is the refusal of a partition that nobody is known to lead.
func notLed(id partition.PartitionID) error { return &partition.ErrNotLeader{Partition: id} }

// remote finds another node.
func (d *dispatch) remote(n partition.NodeID) (*remote, error) {
	client, url := d.peers.Client(n)
	if client == nil {
		return nil, &errUnreached{node: n, err: errors.New("its address is not known")}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remote1(n, client, url), nil
}

func (d *dispatch) remote1(n partition.NodeID, client *http.Client, url string) *remote {
	if r := d.nodes[n]; r != nil && r.url == url && r.http == client {
		return r
	}
	r := newRemote(n, client, url)
	d.nodes[n] = r
	return r
}

// patience is a wait between looks for a leader, a little longer each time.
type patience struct {
	end  time.Time
	next time.Duration
}

func newPatience(ctx context.Context) *patience {
	p := &patience{end: time.Now().Add(leaderPatience), next: firstLook}
	if at, ok := ctx.Deadline(); ok && at.Before(p.end) {
		p.end = at
	}
	return p
}

// wait is false when there is no time for another look.
func (p *patience) wait(ctx context.Context) bool {
	if time.Now().Add(p.next).After(p.end) {
		return false
	}
	timer := time.NewTimer(p.next)
	defer timer.Stop()
	p.next = min(2*p.next, lastLook)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ask asks a partition where it is led. twice tells that the call is harmless when
// it was done already.
func ask[T any](ctx context.Context, d *dispatch, id partition.PartitionID, twice bool, call func(asked) (T, error)) (T, error) {
	p := newPatience(ctx)
	for {
		out, err := askOnce(d, id, call)
		if err == nil {
			return out, nil
		}
		if !notTaken(err) && !(twice && errors.As(err, new(*partition.ErrOutcomeUnknown))) {
			return out, err
		}
		d.learn(id, err)
		if !p.wait(ctx) {
			return out, refused(id, err)
		}
	}
}

func askOnce[T any](d *dispatch, id partition.PartitionID, call func(asked) (T, error)) (out T, err error) {
	switch n := d.leader(id); n {
	case 0:
		return out, notLed(id)
	case d.b.cfg.Node:
		out, err = call(d.own)
		return out, d.misled(id, err)
	default:
		r, err := d.remote(n)
		if err != nil {
			return out, err
		}
		return call(r)
	}
}

// misled makes of the error of a node without a replica what it means for a
// partition that the map has: it is led elsewhere.
func (d *dispatch) misled(id partition.PartitionID, err error) error {
	if err == nil || !errors.As(err, new(*partition.ErrUnknownPartition)) {
		return err
	}
	if _, known := d.b.coord.View().Place(id); !known {
		return err
	}
	return notLed(id)
}

// refused words the error of a node that could not be asked as what it means to
// the caller: the partition has no leader that is reached.
func refused(id partition.PartitionID, err error) error {
	if errors.As(err, new(*errUnreached)) {
		return notLed(id)
	}
	return err
}

// Info implements partitionReader.
func (d *dispatch) Info(ctx context.Context, id partition.PartitionID) (partitionInfo, error) {
	return look(ctx, d, id, func(a asked) (partitionInfo, error) { return a.Info(ctx, id) })
}

// Position implements partitionReader.
func (d *dispatch) Position(ctx context.Context, id partition.PartitionID) (partition.Position, error) {
	return look(ctx, d, id, func(a asked) (partition.Position, error) { return a.Position(ctx, id) })
}

// OffsetAt implements partitionReader.
func (d *dispatch) OffsetAt(ctx context.Context, id partition.PartitionID, t partition.Millis) (partition.Offset, error) {
	return look(ctx, d, id, func(a asked) (partition.Offset, error) { return a.OffsetAt(ctx, id, t) })
}

// FindByMessageID implements partitionReader.
func (d *dispatch) FindByMessageID(ctx context.Context, id partition.PartitionID, messageID string) ([]partition.Offset, error) {
	return look(ctx, d, id, func(a asked) ([]partition.Offset, error) { return a.FindByMessageID(ctx, id, messageID) })
}

// Read implements partitionReader. Who reads comes again, so that one partition
// without a leader does not hold up the others.
func (d *dispatch) Read(ctx context.Context, id partition.PartitionID, from partition.Offset, most, maxBytes int) (stretch, error) {
	out, err := askOnce(d, id, func(a asked) (stretch, error) { return a.Read(ctx, id, from, most, maxBytes) })
	if err == nil || ctx.Err() != nil || !notTaken(err) && !errors.As(err, new(*partition.ErrOutcomeUnknown)) {
		return out, err
	}
	d.learn(id, err)
	return out, notLed(id)
}

// Life implements partitionReader.
func (d *dispatch) Life(ctx context.Context, id partition.PartitionID, o partition.Offset, show consumer.Window) (life, error) {
	return look(ctx, d, id, func(a asked) (life, error) { return a.Life(ctx, id, o, show) })
}

type nothing struct{}

// LogGroup implements groupKeeper.
func (d *dispatch) LogGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupSpec, isNew bool) error {
	_, err := ask(ctx, d, id, true, func(a asked) (nothing, error) { return nothing{}, a.LogGroup(ctx, id, g, isNew) })
	return err
}

// DeleteGroup implements groupKeeper.
func (d *dispatch) DeleteGroup(ctx context.Context, id partition.PartitionID, g consumer.GroupID) error {
	_, err := ask(ctx, d, id, true, func(a asked) (nothing, error) { return nothing{}, a.DeleteGroup(ctx, id, g) })
	return err
}

// Groups implements groupKeeper.
func (d *dispatch) Groups(ctx context.Context, id partition.PartitionID) ([]consumer.GroupID, error) {
	return ask(ctx, d, id, true, func(a asked) ([]consumer.GroupID, error) { return a.Groups(ctx, id) })
}

// Reset implements groupKeeper. Done twice it would tell another floor.
func (d *dispatch) Reset(ctx context.Context, id partition.PartitionID, g consumer.GroupID, to partition.Offset) (partition.Offset, error) {
	return ask(ctx, d, id, false, func(a asked) (partition.Offset, error) { return a.Reset(ctx, id, g, to) })
}

// Stats implements groupKeeper.
func (d *dispatch) Stats(ctx context.Context, id partition.PartitionID, g consumer.GroupID) (groupState, error) {
	return look(ctx, d, id, func(a asked) (groupState, error) { return a.Stats(ctx, id, g) })
}

// EndSession implements groupKeeper.
func (d *dispatch) EndSession(ctx context.Context, id partition.PartitionID, g consumer.GroupID, member string, before uint64, lost bool) error {
	_, err := ask(ctx, d, id, true, func(a asked) (nothing, error) {
		return nothing{}, a.EndSession(ctx, id, g, member, before, lost)
	})
	return err
}

// DeadLetters implements deadKeeper.
func (d *dispatch) DeadLetters(ctx context.Context, id partition.PartitionID, g consumer.GroupID, from partition.Offset, most int) ([]consumer.DeadLetter, error) {
	return look(ctx, d, id, func(a asked) ([]consumer.DeadLetter, error) { return a.DeadLetters(ctx, id, g, from, most) })
}

// DeadLetter implements deadKeeper.
func (d *dispatch) DeadLetter(ctx context.Context, id partition.PartitionID, g consumer.GroupID, o partition.Offset) (consumer.DeadLetter, error) {
	return look(ctx, d, id, func(a asked) (consumer.DeadLetter, error) { return a.DeadLetter(ctx, id, g, o) })
}

// CopiesOf implements deadKeeper.
func (d *dispatch) CopiesOf(ctx context.Context, id partition.PartitionID, g consumer.GroupID, messageID string) ([]partition.Offset, error) {
	return look(ctx, d, id, func(a asked) ([]partition.Offset, error) { return a.CopiesOf(ctx, id, g, messageID) })
}

// Replay implements deadKeeper. Done twice it adds nothing, and counts otherwise.
func (d *dispatch) Replay(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (replayed, already int, err error) {
	n, err := ask(ctx, d, id, false, func(a asked) ([2]int, error) {
		n, m, err := a.Replay(ctx, id, g, which)
		return [2]int{n, m}, err
	})
	return n[0], n[1], err
}

// Discard implements deadKeeper.
func (d *dispatch) Discard(ctx context.Context, id partition.PartitionID, g consumer.GroupID, which consumer.Selector) (int, error) {
	return ask(ctx, d, id, false, func(a asked) (int, error) { return a.Discard(ctx, id, g, which) })
}

// byLeader divides shares by who leads their partitions; 0: nobody known.
func (d *dispatch) byLeader(shares []consumer.Share) map[partition.NodeID][]consumer.Share {
	out := map[partition.NodeID][]consumer.Share{}
	for _, s := range shares {
		n := d.leader(s.Partition)
		out[n] = append(out[n], s)
	}
	return out
}

// inOrder lists nodes, this one first.
func (d *dispatch) inOrder(of map[partition.NodeID][]consumer.Share) []partition.NodeID {
	out := make([]partition.NodeID, 0, len(of))
	for n := range of {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b partition.NodeID) int {
		switch {
		case a == b:
			return 0
		case a == d.b.cfg.Node || b != d.b.cfg.Node && a < b:
			return -1
		}
		return 1
	})
	return out
}
