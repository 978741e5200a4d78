package partition

import (
	"context"
	"fmt"
	"slices"
)

// CreateReplicas makes this node's replica of a new partition and returns when it
// is on disk. The nodes of all voters call it with the same voters; a majority of
// them can begin. Creating one that exists is success; one that exists under
// another id is *ErrOtherReplica.
func (h *Host) CreateReplicas(ctx context.Context, id PartitionID, self ReplicaID, voters []ReplicaID) error {
	if err := checkVoters(id, self, voters); err != nil {
		return err
	}
	return h.make(ctx, id, func() error { return h.core.create(id, self, voters...) })
}

// Join makes a replica that has nothing and waits to be fed by the partition's
// leader, which adds it as a learner. It returns when the replica is on disk.
// Joining twice is success.
func (h *Host) Join(ctx context.Context, id PartitionID, self ReplicaID) error {
	if !self.Valid() {
		return fmt.Errorf("partition %v: %d names no replica", id, uint64(self))
	}
	return h.make(ctx, id, func() error { return h.core.join(id, self) })
}

// make has the loop make a replica, and waits for the disk.
func (h *Host) make(ctx context.Context, id PartitionID, begin func() error) error {
	return h.call(ctx, id, func(reply func(error)) {
		if err := begin(); err != nil {
			reply(err)
			return
		}
		if r := h.list(id); r.fault != nil {
			reply(r.fault)
			return
		}
		// What is synced behind it takes it along.
		p, err := h.cfg.Store.Commit(h.cfg.Store.NewBatch())
		if err != nil {
			reply(err)
			return
		}
		h.core.writes = append(h.core.writes, &write{pending: p, then: reply})
	})
}

// Change changes a partition's replicas by one step and returns when that is
// applied here. Only the leader takes it. What is so already is success. If ctx
// ends first, or the leadership does, the error is *ErrOutcomeUnknown.
func (h *Host) Change(ctx context.Context, id PartitionID, ch Change) error {
	return h.call(ctx, id, func(reply func(error)) { h.core.change(id, ch, reply) })
}

// Transfer hands a partition's leadership over to another voter and returns when
// that leads. Until then proposals are refused. *ErrTransfer tells that it did
// not take over within a second and a half or so, and this node goes on.
func (h *Host) Transfer(ctx context.Context, id PartitionID, to ReplicaID) error {
	return h.call(ctx, id, func(reply func(error)) { h.core.transferTo(id, to, reply) })
}

// Receive takes frames from another node; those that a replica elsewhere sent do
// not count. It never blocks. What there is no room for is dropped, as a network
// does.
func (h *Host) Receive(from NodeID, frames []Frame) {
	var bytes int64
	for i := range frames {
		bytes += int64(frames[i].size())
	}
	if n := h.arriving.Add(bytes); n > h.cfg.ReceiveBytes && n > bytes {
		// Entries are what takes room. Without the small ones nothing would
		// ever get better: by them leaders live, and learn to send again.
		all := len(frames)
		frames = slices.DeleteFunc(slices.Clone(frames), func(f Frame) bool { return f.kind == frameAppend })
		h.dropped.Add(int64(all - len(frames)))
		h.arriving.Add(-bytes)
		bytes = 0
	}
	if err := h.give(input{what: inFrames, from: from, fs: frames, bytes: bytes}); err != nil {
		h.arriving.Add(-bytes)
	}
}

// Up tells that another node is there: something was heard of it. Until a node
// was told to be up once, partitions with a replica there never sleep.
func (h *Host) Up(node NodeID) { h.isUp(node, true) }

// Down tells that another node is silent. Others lead then what it led.
func (h *Host) Down(node NodeID) { h.isUp(node, false) }

func (h *Host) isUp(node NodeID, up bool) {
	h.mu.Lock()
	h.near[node] = up
	h.mu.Unlock()
	what := inDown
	if up {
		what = inUp
	}
	_ = h.give(input{what: what, from: node}) // a host that stops has no use for it
}

// neighbours are the other nodes that are up.
func (h *Host) neighbours() (out []NodeID) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for n, up := range h.near {
		if up && n != h.cfg.Node {
			out = append(out, n)
		}
	}
	return out
}

// sendBytes is about how much goes to a node in one call.
const sendBytes = 4 << 20

// flush sends what the core has for other nodes.
func (h *Host) flush() {
	fs := h.core.out
	if len(fs) == 0 {
		return
	}
	if h.cfg.Send != nil {
		for _, f := range fs {
			to := f.To.Node()
			h.byNode[to] = append(h.byNode[to], f)
		}
		for to, frames := range h.byNode {
			h.sendTo(to, frames)
			clear(frames)
			h.byNode[to] = frames[:0]
		}
	}
	clear(fs)
	h.core.out = fs[:0]
}

func (h *Host) sendTo(to NodeID, frames []Frame) {
	from, size := 0, 0
	for i := range frames {
		n := frames[i].size()
		if i > from && size+n > sendBytes {
			h.cfg.Send(to, frames[from:i])
			from, size = i, 0
		}
		size += n
	}
	if from < len(frames) {
		h.cfg.Send(to, frames[from:])
	}
}

// tellRoles has OnRole hear what changed.
func (h *Host) tellRoles(roles []role) {
	for _, r := range roles {
		h.cfg.OnRole(r.id, r.leader, r.leading, r.term)
	}
}
