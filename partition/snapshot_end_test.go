package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/strandmq/strandmq/partition/logstore"
)

// away takes a partition out of turns, as for a snapshot that raft took, and has
// it dropped meanwhile. Nobody switches it.
func away(t *testing.T, h *Host, id PartitionID) (r *replica, dropped chan error) {
	t.Helper()
	err := h.call(within(t), id, func(reply func(error)) {
		im, err := h.cfg.Store.NewImport(uint64(id))
		if err == nil {
			r = h.core.replicas[id]
			r.taking = &takenSnapshot{im: im, reply: func(error) {}}
			h.core.leave(r)
			h.core.takeSwitches()
		}
		reply(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	dropped = make(chan error, 1)
	go func() { dropped <- h.Drop(context.Background(), id) }() // it has to end by itself
	until(t, "the drop waits", func() bool {
		n := 0
		_ = h.call(within(t), id, func(reply func(error)) { n = len(r.taking.dropped); reply(nil) })
		return n == 1
	})
	return r, dropped
}

func answered(t *testing.T, what string, ch chan error) error {
	t.Helper()
	select {
	case err := <-ch:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s: nobody answers", what)
		return nil
	}
}

// Who drops a partition while a snapshot takes its place is answered, however that
// ends: the node stops, its store fails before the switch is heard of, or then.
func TestDropBesideASwitch(t *testing.T) {
	var stopped *ErrStopped
	t.Run("the node stops", func(t *testing.T) {
		n := newNode(t, Config{})
		n.create(1)
		_, dropped := away(t, n.Host, 1)
		n.stop()
		if err := answered(t, "a drop", dropped); !errors.As(err, &stopped) {
			t.Errorf("got %v", err)
		}
	})
	failing := func(t *testing.T) (*Host, func()) {
		var armed atomic.Bool
		fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
				return errorfs.ErrInjected
			}
			return nil
		}))
		store, err := logstore.Open(storeConfig(fs))
		if err != nil {
			t.Fatal(err)
		}
		h, err := Open(Config{Node: 1, Store: store})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close(); _ = store.Close() }) // both have failed
		for id := range PartitionID(2) {
			if err := h.Create(within(t), id+1); err != nil {
				t.Fatal(err)
			}
		}
		return h, func() { armed.Store(true) }
	}
	t.Run("the store fails", func(t *testing.T) {
		h, arm := failing(t)
		_, dropped := away(t, h, 1)
		arm()
		if _, err := h.Publish(within(t), 2, batch("x")); err == nil {
			t.Fatal("a write that failed was answered")
		}
		if err := answered(t, "a drop", dropped); !errors.As(err, &stopped) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the switch finds a store that failed", func(t *testing.T) {
		h, arm := failing(t)
		r, dropped := away(t, h, 1)
		err := h.call(within(t), 1, func(reply func(error)) {
			// The loop hears of the failure when this is over.
			arm()
			b := h.cfg.Store.NewBatch()
			err := b.SetMeta(2, metaApplied, []byte("x"))
			if p, bad := h.cfg.Store.Commit(b); bad == nil {
				_ = p.Wait()
			}
			if h.core.switched(r, nil) == nil {
				err = errors.New("the store did not fail")
			}
			reply(err)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := answered(t, "a drop", dropped); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("got %v", err)
		}
	})
}

// half is a stream that breaks off in the middle.
type half struct {
	io.Reader
	atBreak func()
}

func (h half) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		h.atBreak()
		err = errors.New("the connection broke")
	}
	return n, err
}

// Half of a snapshot whose rest does not come is removed, although no other comes.
func TestHalfASnapshotIsRemoved(t *testing.T) {
	c := newCluster(t, 2, Config{snapshotKept: 50 * time.Millisecond})
	c.create(1)
	c.fill(1, 0, 30, 200_000)
	lead := c.leader(1)
	other := c.nodes[2-lead.id]
	e, err := (neededSnapshot{1, lead.id.Replica(), other.id.Replica(), 1}).export(&lead.cfg)
	if err != nil {
		t.Fatal(err)
	}
	all := must(io.ReadAll(must(e.From(0))))
	e.Close()
	files := func() int { ls, _ := other.mem.List("store/incoming"); return len(ls) }
	staged := 0
	for range 2 { // the second time it goes on, and breaks off again
		err = other.ReceiveSnapshot(within(t), lead.id, 1, half{bytes.NewReader(all[:len(all)/2]), func() { staged = files() }})
		var gap *ErrSnapshotGap
		if !errors.As(err, &gap) {
			t.Fatal(err)
		}
	}
	if staged == 0 {
		t.Fatal("nothing was staged")
	}
	until(t, "half a snapshot is removed", func() bool { return files() == 0 })
	until(t, "and forgotten", func() bool {
		other.snaps.mu.Lock()
		defer other.snaps.mu.Unlock()
		return len(other.snaps.staged) == 0
	})
}

// Who throws a snapshot away again and again is not sent it for ever.
func TestSnapshotThrownAwayEnds(t *testing.T) {
	var n *node
	calls := 0
	send := func(_ context.Context, _ NodeID, id PartitionID, r io.Reader) error {
		if calls++; calls > 100 {
			return &ErrSnapshotRefused{id, "it has to end"}
		}
		im, err := n.store.NewImport(uint64(id))
		if err != nil {
			return err
		}
		defer im.Discard()
		_ = im.Read(io.LimitReader(r, 3<<20))
		return &ErrSnapshotGap{Partition: uint64(id), Stream: im.Head().Stream, Next: uint64(2 * (calls % 2))}
	}
	n = newNode(t, Config{Send: func(NodeID, []Frame) {}, SendSnapshot: send})
	n.create(1)
	for range 6 {
		n.publish(1, batch(strings.Repeat("x", 900_000)))
	}
	err := n.sendSnapshot(neededSnapshot{1, NodeID(1).Replica(), NodeID(2).Replica(), 2})
	var gap *ErrSnapshotGap
	if !errors.As(err, &gap) || calls > 2*snapshotTries {
		t.Errorf("after %d streams: %v", calls, err)
	}
}

// A snapshot that a replica's predecessor sends is not an answer for the one that
// the replica needs to have sent.
func TestSnapshotOfAnEarlierReplica(t *testing.T) {
	var sent atomic.Int64
	release := make(chan struct{})
	send := func(context.Context, NodeID, PartitionID, io.Reader) error {
		sent.Add(1)
		<-release
		return nil
	}
	n := newNode(t, Config{Send: func(NodeID, []Frame) {}, SendSnapshot: send})
	n.create(1)
	to := NodeID(2).Replica()
	n.queueSnapshot(neededSnapshot{1, NodeID(1).Replica(), to, 2})
	n.queueSnapshot(neededSnapshot{1, NodeID(1).Replica(), to, 3}) // its answer will do
	n.queueSnapshot(neededSnapshot{1, NewReplicaID(1, 1), to, 3})
	until(t, "both are sent", func() bool { return sent.Load() == 2 })
	close(release)
	n.stop()
	if sent.Load() != 2 {
		t.Errorf("%d were sent", sent.Load())
	}
}

// A replica without a leader stands in the line of those who campaign once,
// however often it hears that the leader is gone.
func TestCampaignersStandInLineOnce(t *testing.T) {
	r := newRig(t, 3, 9)
	n := r.nodes[2]
	n.core.campaigns = maxCampaigns // it is nobody's turn
	for range 3 {
		n.core.down(1)
	}
	seen := map[PartitionID]int{}
	for _, x := range n.core.campaigners {
		seen[x.id]++
	}
	for id, times := range seen {
		if times > 1 {
			t.Errorf("%v stands in line %d times", id, times)
		}
	}
	if len(seen) == 0 {
		t.Error("nobody stands in line")
	}
}
