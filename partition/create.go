package partition

import (
	"fmt"
	"slices"

	"github.com/strandmq/strandmq/partition/logstore"
)

const (
	firstIndex = 1
	firstTerm  = 1
)

// create makes a partition's replica, beside those of the other voters, each of
// which does the same. A sole voter campaigns at once; others when the clock
// ticks.
func (c *core) create(id PartitionID, self ReplicaID, voters ...ReplicaID) error {
	if len(voters) == 0 {
		return fmt.Errorf("partition %v: no voters to begin with", id)
	}
	conf, err := encodeConf(voters)
	if err != nil {
		return err
	}
	// A log begins behind an entry that never was, so that a replica that
	// joins later, with nothing, is too far behind to be fed entries alone: it
	// needs the conf state too.
	made, err := c.begin(id, self, conf, logstore.HardState{Term: firstTerm, Commit: firstIndex})
	if err != nil || !made {
		return err
	}
	if r := c.replicas[id]; r.fault == nil && !r.single {
		r.campaignAt = c.ticks + 1 + rankTicks*uint64(c.rank(r))
	}
	return nil
}

// join makes a replica that has nothing, not even a part in votes, and waits for
// a leader to feed it.
func (c *core) join(id PartitionID, self ReplicaID) error {
	conf, err := encodeConf(nil)
	if err != nil {
		return err
	}
	_, err = c.begin(id, self, conf, logstore.HardState{})
	return err
}

// begin puts the rows of a replica that has applied nothing into the store,
// without a sync: what follows is synced, and takes them along. It is false if
// the replica was there before.
func (c *core) begin(id PartitionID, self ReplicaID, conf []byte, h logstore.HardState) (bool, error) {
	if self.Node() != c.cfg.Node {
		return false, fmt.Errorf("partition %v: replica %v does not belong on node %v", id, self, c.cfg.Node)
	}
	if c.away[id] != nil {
		return false, &ErrNotLeader{Partition: id} // in a moment it is there again
	}
	if r := c.replicas[id]; r != nil {
		switch {
		case r.self != self:
			return false, &ErrOtherReplica{Partition: id, Have: r.self, Want: self}
		case r.fault != nil:
			return false, r.fault
		}
		return false, nil
	}
	// One that is there and was not listed is damaged: it must not be made anew.
	if b, err := c.store.Meta(uint64(id), metaConf); err != nil {
		return false, storeError(id, err)
	} else if b != nil {
		return false, c.open(id)
	}
	wb := c.store.NewBatch()
	p := uint64(id)
	first := appliedRow{index: Index(h.Commit)}
	steps := []error{
		wb.ResetLog(p, h.Commit, h.Term),
		wb.SetHardState(p, h),
		wb.SetMeta(p, metaConf, conf),
		wb.SetMeta(p, metaApplied, first.append(nil)),
		wb.SetMeta(p, metaCheckpoint, appendCheckpoint(nil, first.position())),
	}
	if self.Incarnation() != 0 {
		steps = append(steps, wb.SetMeta(p, metaReplica, appendReplicaRow(nil, self)))
	}
	for _, err := range steps {
		if err != nil {
			wb.Close()
			return false, err
		}
	}
	if err := c.store.CommitNoSync(wb); err != nil {
		return false, err
	}
	return true, c.open(id)
}

// checkVoters refuses a list of voters that no partition can begin with.
func checkVoters(id PartitionID, self ReplicaID, voters []ReplicaID) error {
	nodes := make(map[NodeID]bool)
	for _, v := range voters {
		if !v.Valid() {
			return fmt.Errorf("partition %v: %d names no replica", id, uint64(v))
		}
		if nodes[v.Node()] {
			return fmt.Errorf("partition %v: two of its voters are on node %v: use one node for each", id, v.Node())
		}
		nodes[v.Node()] = true
	}
	if !slices.Contains(voters, self) {
		return fmt.Errorf("partition %v: replica %v is none of its voters %v", id, self, voters)
	}
	if len(voters) > maxReplicas {
		return fmt.Errorf("partition %v: %d voters; use at most %d", id, len(voters), maxReplicas)
	}
	return nil
}

// maxReplicas bounds the replicas of one partition.
const maxReplicas = 64
