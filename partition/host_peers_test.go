package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// roles remembers what OnRole heard.
type roles struct {
	mu   sync.Mutex
	last map[string]string // by node and partition
}

func (r *roles) hear(n NodeID) func(PartitionID, NodeID, bool, uint64) {
	return func(id PartitionID, leader NodeID, leading bool, term uint64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.last == nil {
			r.last = make(map[string]string)
		}
		r.last[fmt.Sprintf("%v %v", n, id)] = fmt.Sprintf("%v %v", leader, leading)
	}
}

func (r *roles) of(n NodeID, id PartitionID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[fmt.Sprintf("%v %v", n, id)]
}

// A leadership is handed over while messages are published; everybody hears who
// leads, and nothing is lost or there twice. A leader that is stopped in good order
// hands over, too.
func TestLeadershipMoves(t *testing.T) {
	var heard roles
	c := newCluster(t, 3, Config{})
	c.with = func(m *member, cfg *Config) { cfg.OnRole = heard.hear(m.id) }
	for _, m := range c.nodes {
		m.stop()
		m.start()
	}
	for _, m := range c.nodes {
		c.isUp(m.id, true)
	}
	c.create(1)
	var want []string
	for i := range 6 {
		lead := c.leader(1)
		for j := range 5 {
			want = append(want, fmt.Sprintf("%d-%d", i, j))
			c.publish(1, want[len(want)-1])
		}
		to := c.nodes[int(lead.id)%3]
		if i == 5 {
			lead.stop()
			c.isUp(lead.id, false)
		} else {
			was := must(lead.Info(1)).Term
			lead = c.byLeader(1, "the lead is handed over", func(m *member) error {
				was, to = must(m.Info(1)).Term, c.nodes[int(m.id)%3]
				return m.Transfer(within(t), 1, to.id.Replica())
			})
			// Of the term that the transfer made; a later one would be another move.
			if info := must(lead.Info(1)); info.Term <= was || info.Term == was+1 && (info.Leader != to.id || info.Leading) {
				t.Fatalf("after the transfer to %v in term %d: %+v", to.id, was, info)
			}
		}
	}
	want = append(want, "last")
	c.publish(1, "last")
	c.agree(1, want)
	lead := c.leader(1)
	for _, m := range c.nodes {
		if m.Host != nil {
			until(t, fmt.Sprintf("%v hears that %v leads", m.id, lead.id), func() bool {
				return heard.of(m.id, 1) == fmt.Sprintf("%v %v", lead.id, m == lead)
			})
		}
	}
}

// A replica is moved from one node to another, with everything that was stored
// before, while the old one's node is gone; and the moved partition lives on.
func TestReplicaMoves(t *testing.T) {
	c := newCluster(t, 4, Config{})
	voters := []ReplicaID{1, 2, 3}
	for _, m := range c.nodes[:3] {
		if err := m.CreateReplicas(within(t), 1, m.id.Replica(), voters); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	publish := func(n int) {
		for range n {
			want = append(want, fmt.Sprint(len(want)))
			c.publish(1, want[len(want)-1])
		}
	}
	publish(10)
	lead := c.leader(1)
	gone := c.nodes[int(lead.id)%3]
	gone.kill()
	// Until there are snapshots the log is whole, and a replica that knows the same
	// beginning can be fed from it.
	fresh := c.node(4)
	done := make(chan error, 1)
	if err := fresh.give(input{what: inCall, call: func() {
		err := fresh.core.create(1, NewReplicaID(4, 7), voters...)
		if err == nil {
			fresh.list(1)
		}
		done <- err
	}}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	change := func(kind ChangeKind, id ReplicaID) {
		t.Helper()
		c.byLeader(1, "the replicas are changed", func(lead *member) error { return lead.Change(within(t), 1, Change{kind, id}) })
	}
	change(AddLearner, NewReplicaID(4, 7))
	until(t, "the learner has caught up", func() bool {
		info, err := c.leader(1).Info(1)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(info.Followers, func(f Follower) bool {
			return f.Replica == NewReplicaID(4, 7) && !f.Voter && f.Active && f.Match == info.LastIndex
		})
	})
	change(Promote, NewReplicaID(4, 7))
	change(Demote, gone.id.Replica())
	change(Remove, gone.id.Replica())
	publish(10)
	c.agree(1, want)

	// Its id, and whose it is, are known after a restart.
	fresh.stop()
	fresh.start()
	c.isUp(4, true)
	info, err := fresh.Info(1)
	if err != nil || info.Replica != NewReplicaID(4, 7) || len(info.Voters) != 3 || slices.Contains(info.Voters, gone.id.Replica()) {
		t.Fatalf("after a restart: %+v, %v", info, err)
	}
	publish(3)
	c.agree(1, want)
	if err := fresh.CreateReplicas(within(t), 1, NewReplicaID(4, 8), []ReplicaID{NewReplicaID(4, 8)}); !errors.As(err, new(*ErrOtherReplica)) {
		t.Fatalf("the next replica beside the one that is there: %v", err)
	}
}

// What cannot be a partition's voters is refused, whole, and the node goes on.
func TestVotersThatCannotBe(t *testing.T) {
	n := newNode(t, Config{})
	for want, c := range map[string]struct {
		self   ReplicaID
		voters []ReplicaID
	}{
		"is none of its voters": {1, []ReplicaID{2, 3}},
		"names no replica":      {1, []ReplicaID{1, NewReplicaID(0, 3)}},
		"are on node n2":        {1, []ReplicaID{1, 2, NewReplicaID(2, 1)}},
		"does not belong on":    {2, []ReplicaID{1, 2}},
		"use at most":           {1, make([]ReplicaID, maxReplicas+1)},
	} {
		for i := range c.voters {
			if c.voters[i] == 0 {
				c.voters[i] = ReplicaID(i + 1)
			}
		}
		if err := n.CreateReplicas(within(t), 1, c.self, c.voters); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v of %v: %v, want %q", c.self, c.voters, err, want)
		}
	}
	if err := n.Join(within(t), 1, 0); err == nil || !strings.Contains(err.Error(), "names no replica") {
		t.Errorf("joining as nobody: %v", err)
	}
	n.create(1)
	n.publish(1, batch("a"))
}

// What comes from other nodes is bounded: without room entries are dropped, and
// what keeps leaders alive is not. What is not one's own to say is not heard.
func TestArrivalsAreBounded(t *testing.T) {
	n := newNode(t, Config{ReceiveBytes: 10_000})
	in, free := make(chan struct{}), make(chan struct{})
	if err := n.give(input{what: inCall, call: func() { close(in); <-free }}); err != nil {
		t.Fatal(err)
	}
	<-in // the loop stands still
	all := someFrames()
	for range 1000 {
		n.Receive(1, all)
	}
	if got := n.arriving.Load(); got > 10_000 {
		t.Errorf("%d bytes wait, the bound is 10000", got)
	}
	if n.dropped.Load() == 0 {
		t.Error("nothing was dropped")
	}
	n.inbox.mu.Lock()
	last := n.inbox.in[len(n.inbox.in)-1].fs
	n.inbox.mu.Unlock()
	if len(last) == 0 || slices.ContainsFunc(last, func(f Frame) bool { return f.kind == frameAppend }) {
		t.Errorf("without room it keeps %v", last)
	}
	close(free)
	until(t, "there is room again", func() bool { return n.arriving.Load() == 0 })

	n.create(9)
	if err := n.call(within(t), 9, func(reply func(error)) {
		defer reply(nil)
		h := n.core.replicas[9]
		f := ourFrame(9, frameResign, h.self, h.self, h.term, 0)
		n.feed(&input{what: inFrames, from: 2, fs: []Frame{f}}) // of n1, says n2
		if !h.isLead || h.leader != h.self {
			t.Error("a node spoke for another one's replica")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A leader whose disk hangs is there, by its transport, and leads nothing any more:
// the others take over, and take it back as a follower when its disk does.
func TestLeadersDiskHangs(t *testing.T) {
	var hold atomic.Pointer[chan struct{}]
	c := newCluster(t, 3, Config{})
	lame := c.node(1)
	lame.stop()
	lame.fs = errorfs.Wrap(lame.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if gate := hold.Load(); gate != nil && sync && strings.HasSuffix(op.Path, ".log") {
			<-*gate
		}
		return nil
	}))
	lame.stallAfter = 200 * time.Millisecond // longer than a write in memory takes on a busy machine
	lame.start()
	c.isUp(1, true)
	c.create(1)
	c.leadBy(1, lame)
	c.publish(1, "before")

	gate := make(chan struct{})
	hold.Store(&gate)
	outcome := make(chan error, 1)
	if err := lame.PublishAsync(1, withIDs("hangs"), func(_ []Stored, err error) { outcome <- err }); err != nil {
		outcome <- err // it leads no more, if the machine was busy for long
	}
	until(t, "another node leads", func() bool {
		for _, m := range c.nodes[1:] {
			if info, err := m.Info(1); err == nil && info.Leading {
				return true
			}
		}
		return false
	})
	until(t, "the node says that its disk hangs", func() bool { return c.stuck.Load() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	until(t, "it is published", func() bool {
		for _, m := range c.nodes[1:] {
			if info, _ := m.Info(1); info.Leading {
				_, err := m.Publish(ctx, 1, withIDs("after"))
				return c.took(err)
			}
		}
		return false
	})
	hold.Store(nil)
	close(gate)
	if err := <-outcome; !c.took(err) && !errors.As(err, new(*ErrOutcomeUnknown)) && !errors.As(err, new(*ErrNotLeader)) {
		t.Fatalf("what hung gives %v", err)
	}
	var read []string
	until(t, "the lame node follows", func() bool {
		ms, err := lame.Read(1, 0, 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		read = bodies(ms)
		return slices.Contains(read, "after")
	})
	c.agree(1, read)
}

// Who waits at a leader whose disk hangs gets an answer while it does, long before it
// counts as stuck, and is told who leads; and the others know that it should not lead.
func TestLeaderThatHangsLetsGo(t *testing.T) {
	var hold atomic.Pointer[chan struct{}]
	c := newCluster(t, 3, Config{HangAfter: 200 * time.Millisecond}) // longer than a write in memory takes on a busy machine
	var heard [2]atomic.Pointer[[]NodeID]
	c.with = func(m *member, cfg *Config) {
		if m.id <= 2 {
			cfg.OnUnfit = func(nodes []NodeID) { heard[m.id-1].Store(&nodes) }
		}
	}
	lame, other := c.node(1), c.node(2)
	lame.stop()
	other.stop()
	lame.fs = errorfs.Wrap(lame.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if gate := hold.Load(); gate != nil && sync && strings.HasSuffix(op.Path, ".log") {
			<-*gate
		}
		return nil
	}))
	lame.start()
	other.start()
	c.isUp(1, true)
	c.isUp(2, true)
	c.create(1)
	c.leadBy(1, lame)
	c.publish(1, "before")

	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open() // the host waits for it when it closes
	hold.Store(&gate)
	const sent = 4
	outcomes := make(chan error, sent)
	for i := range sent {
		if err := lame.PublishAsync(1, withIDs(fmt.Sprintf("hangs %d", i)), func(_ []Stored, err error) { outcomes <- err }); err != nil {
			outcomes <- err
		}
	}
	for range sent {
		select {
		case err := <-outcomes:
			if !errors.As(err, new(*ErrOutcomeUnknown)) && !errors.As(err, new(*ErrNotLeader)) {
				t.Errorf("who waits for a disk that hangs is told %v", err)
			}
		case <-time.After(soon):
			t.Fatal("who waits for a disk that hangs is told nothing")
		}
	}
	if _, err := c.leader(1).Publish(within(t), 1, withIDs("after")); err != nil && !errors.As(err, new(*ErrNotLeader)) {
		t.Fatal(err)
	}
	until(t, "the node that hangs says who leads", func() bool {
		var elsewhere *ErrNotLeader
		err := lame.PublishAsync(1, withIDs("late"), func([]Stored, error) {})
		return errors.As(err, &elsewhere) && elsewhere.Leader != 0 && elsewhere.Leader != 1
	})
	for i := range heard {
		until(t, fmt.Sprintf("node %d knows that node 1 should not lead", i+1), func() bool {
			nodes := heard[i].Load()
			return nodes != nil && slices.Equal(*nodes, []NodeID{1})
		})
	}
	hold.Store(nil)
	open()
	c.publish(1, "last")
	until(t, "the lame node follows", func() bool {
		ms, err := lame.Read(1, 0, 100, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(bodies(ms), "last")
	})
	ms, err := other.Read(1, 0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c.agree(1, bodies(ms))
}

// A replica that joins is on disk when Join returns, and waits: it takes nothing in,
// and is made as no other.
func TestJoinWaits(t *testing.T) {
	n := newNode(t, Config{})
	id := NewReplicaID(1, 3)
	for range 2 {
		if err := n.Join(within(t), 5, id); err != nil {
			t.Fatal(err)
		}
	}
	fs := n.fs.CrashClone(cleanCut)
	n.stop()
	n.fs = fs
	n.start()
	if info, err := n.Info(5); err != nil || info.Fault != "" || info.Replica != id || info.Position != (Position{}) || len(info.Voters) > 0 {
		t.Fatalf("after a power cut: %+v, %v", info, err)
	}
	if _, err := n.Publish(within(t), 5, batch("a")); !errors.As(err, new(*ErrNotLeader)) {
		t.Fatalf("it answers %v", err)
	}
	var other *ErrOtherReplica
	if err := n.Create(within(t), 5); !errors.As(err, &other) || other.Have != id || other.Want != 1 {
		t.Fatalf("made once more, as a sole voter: %v", err)
	}
	if err := n.Drop(within(t), 5); err != nil {
		t.Fatal(err)
	}
	n.create(5)
	n.publish(5, batch("a"))
}
