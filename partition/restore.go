package partition

import (
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/strandmq/strandmq/partition/logstore"
)

// open brings a partition that is in the store to life. One that is damaged
// comes up stopped, so that the others do. An error is the store's as a whole.
func (c *core) open(id PartitionID) error { return c.openOn(id, &shelf{id: id}) }

// openOn is open for one whose callers have its shelf already.
func (c *core) openOn(id PartitionID, sh *shelf) error {
	r := &replica{id: id, c: c, shelf: sh}
	err := c.guard(r, func() error { return c.restore(r) })
	if err != nil && c.store.Err() != nil {
		return c.store.Err()
	}
	c.replicas[id] = r
	at, _ := slices.BinarySearchFunc(c.order, id, func(r *replica, id PartitionID) int {
		return cmp.Compare(r.id, id)
	})
	c.order = slices.Insert(c.order, at, r)
	if err != nil {
		c.fail(r, err)
		return nil
	}
	r.publish()
	c.touch(r)
	return nil
}

// restore reads what is known of a partition and applies to the App again what
// its checkpoint does not include.
func (c *core) restore(r *replica) error {
	p := uint64(r.id)
	r.self = c.cfg.Node.Replica() // until it is known better
	b, err := c.store.Meta(p, metaReplica)
	if err != nil {
		return err
	}
	if r.self, err = decodeReplicaRow(b, c.cfg.Node); err != nil {
		return err
	}
	r.named = true
	if b, err = c.store.Meta(p, metaCondemned); err != nil {
		return err
	}
	if b != nil {
		return &ErrDamaged{Partition: r.id, Why: string(b)}
	}
	// Nothing depends on it: what does not read is not known, and the next leader's is.
	if b, err = c.store.Meta(p, metaLed); err == nil {
		r.led = b
	}
	if b, err = c.store.Meta(p, metaApplied); err != nil {
		return err
	}
	state, err := decodeAppliedRow(b)
	if err != nil {
		return err
	}
	if b, err = c.store.Meta(p, metaConf); err != nil {
		return err
	}
	conf, err := decodeConf(b, state.index == 0)
	if err != nil {
		return err
	}
	if b, err = c.store.Meta(p, metaCheckpoint); err != nil {
		return err
	}
	if r.checkpoint, err = decodeCheckpoint(b); err != nil {
		return err
	}
	if r.rlog, err = openRaftLog(r.id, c.store, conf); err != nil {
		return err
	}
	if uint64(state.index) > r.rlog.last || r.checkpoint.Index > state.index {
		return fmt.Errorf("entry %d is applied and %d in the checkpoint, but the log ends at %d", state.index, r.checkpoint.Index, r.rlog.last)
	}
	// What is applied was committed, whatever the hard state remembers.
	r.rlog.hard.Commit = max(r.rlog.hard.Commit, uint64(state.index))
	r.term = r.rlog.hard.Term
	r.log = newMessageLog(r.id, c.store, r.shelf, &c.tail, &c.seen, c.cfg.bucketOffsets, state)
	r.cut.start = r.checkpoint.Start
	// One damaged row of an id must not stop the partition: its reader will.
	some, _, err := r.log.read.ids(nil, 1)
	r.log.dup.covered = err == nil && len(some) == 0
	r.rows = appRows{id: r.id, store: c.store, over: overlay{total: &c.rows}}
	if r.app, err = c.cfg.NewApp(r.id, &r.rows); err != nil {
		return fmt.Errorf("restoring its state: %w", err)
	}
	if err := c.replay(r); err != nil {
		return err
	}
	r.rlog.done, r.rlog.sends = uint64(state.index), c.cfg.SendSnapshot != nil
	r.rlog.sizes.step = c.cfg.FollowerBytes / sizeMarks
	r.reconfigured()
	if r.rn, err = raft.NewRawNode(c.raftConfig(r, state.index)); err != nil {
		return err
	}
	if r.single {
		return r.rn.Campaign() // there is nobody to wait for
	}
	return nil
}

// replay gives the App the commands between its checkpoint and what is applied,
// each at the position that it had the first time.
func (c *core) replay(r *replica) error {
	at, to := r.checkpoint, r.log.state.index
	if at.Index == to {
		return nil
	}
	rows, err := r.log.read.indexesFrom(at.End, r.log.state.end)
	if err != nil {
		return err
	}
	var bad error
	err = c.store.Scan(uint64(r.id), uint64(at.Index)+1, uint64(to)+1, func(e logstore.Entry, _ uint32) bool {
		at.Index = Index(e.Index)
		r.since += int64(len(e.Data))
		if e.Type == byte(raftpb.EntryNormal) {
			bad = replayEntry(r.app, &at, e.Data, r.log.read)
		}
		for len(rows) > 0 && rows[0].index == at.Index {
			at.End, rows = rows[0].end, rows[1:]
		}
		if bad != nil {
			bad = damagedAt(r.id, at.Index, bad)
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	c.since += r.since
	if err == nil && at != r.log.Position() {
		err = fmt.Errorf("the offset index leads to %v, not to %v", at, r.log.Position())
	}
	return err
}

// replayEntry applies an entry's commands and trims again. at is moved as the
// first time.
func replayEntry(app App, at *Position, data []byte, read reader) error {
	it, err := openEntry(data)
	if err != nil || it.kind == Batches {
		return err
	}
	for {
		x, ok, err := it.next()
		if err != nil || !ok {
			return err
		}
		if it.kind == Trim {
			if at.Start, err = trimApp(app, *at, x.data, read); err != nil {
				return err
			}
			continue
		}
		if _, err := app.Apply(*at, append([]byte(nil), x.data...)); err != nil {
			return fmt.Errorf("applying a command again: %w", err)
		}
	}
}
