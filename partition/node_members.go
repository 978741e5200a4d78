package partition

import (
	"maps"
	"slices"
)

// What changes the replicas of a Node's partitions, as the Host's calls do, without
// their wait.

// JoinAs is Join without the wait: the replica is there when the Write is durable.
func (n *Node) JoinAs(id PartitionID, self ReplicaID) (*Write, error) {
	if err := n.core.join(id, self); err != nil {
		return nil, err
	}
	n.list(id)
	p, err := n.cfg.Store.Commit(n.cfg.Store.NewBatch())
	if err != nil {
		return nil, err
	}
	return &Write{&write{pending: p}}, nil
}

// DropNow is Drop without the wait: the replica is gone when the Write is durable.
func (n *Node) DropNow(id PartitionID) (*Write, error) {
	n.mu.Lock()
	delete(n.shelves, id)
	n.mu.Unlock()
	w, err := n.core.drop(id)
	if err != nil {
		return nil, err
	}
	return &Write{w}, nil
}

// ChangeAsync is Change without the wait.
func (n *Node) ChangeAsync(id PartitionID, ch Change, done func(error)) {
	n.core.change(id, ch, done)
}

// TransferAsync is Transfer without the wait.
func (n *Node) TransferAsync(id PartitionID, to ReplicaID, done func(error)) {
	n.core.transferTo(id, to, done)
}

// Vote tells who gave a vote to whom, in which term, if that is what a frame says.
func (f Frame) Vote() (voter, candidate ReplicaID, term uint64, ok bool) {
	if f.kind != frameVoted || f.m.GetReject() {
		return 0, 0, 0, false
	}
	return f.From, f.To, f.m.GetTerm(), true
}

// Ack tells up to which entry a replica says that it has the log of a term's leader on
// its disk, if that is what a frame says.
func (f Frame) Ack() (at Index, term uint64, ok bool) {
	if f.kind != frameAppended || f.m.GetReject() {
		return 0, 0, false
	}
	return Index(f.m.GetIndex()), f.m.GetTerm(), true
}

// Ends tells whether a frame only says that a replica leads no more, which a stopped
// one says, too.
func (f Frame) Ends() bool { return f.kind == frameResign }

// Hangs tells that the disk does not come back from a write: the node does not try to
// lead meanwhile, and answers who waits at the next tick.
func (n *Node) Hangs(on bool) { n.core.hangs = on }

// Full tells that the disk has no room, or has again, as Host.SetFull does.
func (n *Node) Full(on bool) { n.core.full = on }

// Unfit are the nodes that should lead nothing that another can: see Config.OnUnfit.
func (n *Node) Unfit() []NodeID { return n.core.unfitNodes() }

// StuckFrames tell the other nodes that this one's disk hangs, as the host does.
func (n *Node) StuckFrames() []Frame { return n.ofDisk(frameStuck) }

// UnfitFrames tell the other nodes that this one's disk is full, as the host does.
func (n *Node) UnfitFrames() []Frame { return n.ofDisk(frameUnfit) }

func (n *Node) ofDisk(kind frameKind) (fs []Frame) {
	for _, to := range slices.Sorted(maps.Keys(n.core.peers)) {
		if n.core.peers[to].up {
			fs = append(fs, ourFrame(Metadata, kind, n.cfg.Node.Replica(), to.Replica(), 0, 0))
		}
	}
	return fs
}

// WithBuckets returns the configuration with rows that find duplicates in buckets of
// at least so many offsets, so that a few messages make many. All nodes need the same.
func (c Config) WithBuckets(least Offset) Config {
	c.bucketOffsets = least
	return c
}
