package partition

import (
	"errors"
	"io"
)

// SnapshotNeeded is a snapshot that a node wants to be sent. SnapshotSent must follow.
type SnapshotNeeded struct {
	Partition PartitionID
	To        ReplicaID
	n         neededSnapshot
	node      *Node
}

// Snapshots returns the snapshots that are to be sent, if Config.SendSnapshot says
// that there is a way for them.
func (n *Node) Snapshots() (out []SnapshotNeeded) {
	for _, s := range n.core.takeNeeded() {
		out = append(out, SnapshotNeeded{s.id, s.to, s, n})
	}
	return out
}

// Read returns all of a snapshot, as it is now.
func (s SnapshotNeeded) Read() ([]byte, error) {
	e, err := s.n.export(&s.node.cfg)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	r, err := e.From(0)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// SnapshotSent tells what became of one.
func (n *Node) SnapshotSent(s SnapshotNeeded, ok bool) { n.core.snapshotSent(s.n, ok) }

// TakeSnapshot takes one that another node sent. done is called in one of the next
// steps, when the node's replica is that of the snapshot, or why it is not.
func (n *Node) TakeSnapshot(from NodeID, id PartitionID, r io.Reader, done func(error)) error {
	im, err := n.cfg.Store.NewImport(uint64(id))
	if err != nil {
		return err
	}
	err = im.Read(r)
	if err == nil {
		m, merr := checkStaged(id, from, im)
		if merr == nil {
			n.core.take(id, m, im, done)
			return nil
		}
		err = merr
	}
	im.Discard()
	return err
}

// switchSnapshots does what the host has a goroutine for.
func (n *Node) switchSnapshots() error {
	var errs []error
	for _, r := range n.core.takeSwitches() {
		errs = append(errs, n.core.switched(r, r.taking.change()))
	}
	n.core.unread = nil // a simulator's ids are few
	return errors.Join(errs...)
}
