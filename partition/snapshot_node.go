package partition

import (
	"errors"
	"io"

	"github.com/strandmq/strandmq/partition/logstore"
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

// SnapshotExport is a snapshot that is sent.
type SnapshotExport struct{ e *logstore.Export }

// Open begins a snapshot, as the partition is now. It must be closed.
func (s SnapshotNeeded) Open() (SnapshotExport, error) {
	e, err := s.n.export(&s.node.cfg)
	return SnapshotExport{e}, err
}

// From returns the stream from a chunk on: all of it from 0.
func (x SnapshotExport) From(chunk uint64) ([]byte, error) {
	r, err := x.e.From(chunk)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Close ends it.
func (x SnapshotExport) Close() { x.e.Close() }

// SnapshotSent tells what became of one.
func (n *Node) SnapshotSent(s SnapshotNeeded, ok bool) { n.core.snapshotSent(s.n, ok) }

// TakeSnapshot takes one that another node sent. done is called in one of the next
// steps, when the node's replica is that of the snapshot, or why it is not. What came
// of one that broke off is kept, as a host keeps it: *ErrSnapshotGap tells where to go
// on. With *ErrSnapshotRefused nothing is.
func (n *Node) TakeSnapshot(from NodeID, id PartitionID, r io.Reader, done func(error)) error {
	im := n.halves[id]
	if im == nil {
		var err error
		if im, err = n.cfg.Store.NewImport(uint64(id)); err != nil {
			return err
		}
	}
	delete(n.halves, id)
	err := im.Read(r)
	var gap *ErrSnapshotGap
	var bad *logstore.ErrBadSnapshot
	switch {
	case err == nil:
		m, err := checkStaged(id, from, im)
		if err != nil {
			im.Discard()
			return err
		}
		n.core.take(id, m, im, done)
		return nil
	case errors.As(err, &gap):
		n.halves[id] = im
	case im.Broken() == nil:
		n.halves[id] = im
		return &ErrSnapshotGap{Partition: uint64(id), Stream: im.Head().Stream, Next: im.Next()}
	default:
		im.Discard()
		if errors.As(err, &bad) {
			return &ErrSnapshotRefused{Partition: id, Why: err.Error()}
		}
	}
	return err
}

// switchSnapshots does what the host has a goroutine for.
func (n *Node) switchSnapshots() error {
	var errs []error
	for _, r := range n.core.takeSwitches() {
		err := r.taking.change()
		errs = append(errs, n.core.switched(r, err))
		if err == nil && n.OnSwitch != nil {
			n.OnSwitch(r.id)
		}
	}
	n.core.unread = nil // a simulator's ids are few
	return errors.Join(errs...)
}
