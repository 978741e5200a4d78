package partition

import "context"

// A replica that is not to be trusted any more, because some of what it has on its disk
// does not read although it came so far without it, is condemned: it stops, as if it had
// met the damage, and never votes, leads or acknowledges again, over restarts too. What
// it has stays until it is dropped.

// maxCondemned bounds what is written down of why.
const maxCondemned = 1 << 10

// Condemn stops this node's replica of a partition for good, and returns when that is
// on disk. One that has stopped already stays so. *ErrOtherReplica tells that another
// one is here.
func (h *Host) Condemn(ctx context.Context, id PartitionID, self ReplicaID, why string) error {
	return h.call(ctx, id, func(reply func(error)) {
		w, err := h.core.condemn(id, self, why)
		if err != nil || w == nil {
			reply(err)
			return
		}
		w.then = reply
		h.core.writes = append(h.core.writes, w)
	})
}

// CondemnNow is Condemn without the wait: nil when the replica has stopped before.
func (n *Node) CondemnNow(id PartitionID, self ReplicaID, why string) (*Write, error) {
	w, err := n.core.condemn(id, self, why)
	if w == nil || err != nil {
		return nil, err
	}
	return &Write{w}, nil
}

// condemn stops a replica for good. The write has to be synced like pump's.
func (c *core) condemn(id PartitionID, self ReplicaID, why string) (*write, error) {
	if r := c.replicas[id]; r != nil && r.fault != nil {
		return nil, nil
	}
	r, err := c.replica(id)
	if err != nil {
		return nil, err
	}
	if r.self != self {
		return nil, &ErrOtherReplica{Partition: id, Have: r.self, Want: self}
	}
	wb := c.store.NewBatch()
	if err := wb.SetMeta(uint64(id), metaCondemned, []byte(why[:min(len(why), maxCondemned)])); err != nil {
		wb.Close()
		return nil, err
	}
	p, err := c.store.Commit(wb)
	if err != nil {
		return nil, err
	}
	c.fail(r, &ErrDamaged{Partition: id, Why: why})
	return &write{pending: p}, nil
}
