package partition

import "context"

// Entries are kept beyond what a restart needs for replicas that may have to be fed
// them. One that does not read feeds nobody: who lacks it gets a snapshot. So a replica
// that has such an entry behind it is well again as soon as its log begins later.

// Shed has this node's replica of a partition keep no entry up to one of them for other
// replicas, and make a checkpoint, with which all of them go that neither a restart nor
// a reader can ask for. It returns when that is asked for: Info.FirstIndex tells when it
// is done. Of messages that are kept, and of what is not applied, nothing goes.
func (h *Host) Shed(ctx context.Context, id PartitionID, to Index) error {
	return h.call(ctx, id, func(reply func(error)) { reply(h.core.shed(id, to)) })
}

func (c *core) shed(id PartitionID, to Index) error {
	r, err := c.replica(id)
	if err != nil {
		return err
	}
	// The chain goes on from the entry before the first that stays, so that must read.
	r.shed, r.checkpointDue = max(r.shed, to+1), true
	c.touch(r)
	return nil
}
