package partition

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition/logstore"
)

// open brings a partition that is in the store to life. One that is damaged
// comes up stopped, so that the others do. An error is the store's as a whole.
func (c *core) open(id PartitionID) error {
	g := &group{id: id, c: c, shelf: &shelf{id: id}}
	err := c.guard(g, func() error { return c.restore(g) })
	if err != nil && c.store.Err() != nil {
		return c.store.Err()
	}
	c.groups[id] = g
	at, _ := slices.BinarySearchFunc(c.order, id, func(g *group, id PartitionID) int {
		if g.id < id {
			return -1
		}
		return 1
	})
	c.order = slices.Insert(c.order, at, g)
	if err != nil {
		c.fail(g, err)
		return nil
	}
	g.publish()
	c.touch(g)
	return nil
}

// restore reads what is known of a partition and applies to the App again what
// its checkpoint does not include.
func (c *core) restore(g *group) error {
	p := uint64(g.id)
	b, err := c.store.Meta(p, metaConf)
	if err != nil {
		return err
	}
	conf := &raftpb.ConfState{}
	if b == nil {
		return errors.New("what replicas it has is not stored")
	}
	if err := proto.Unmarshal(b, conf); err != nil {
		return fmt.Errorf("what replicas it has does not read: %w", err)
	}
	if b, err = c.store.Meta(p, metaApplied); err != nil {
		return err
	}
	state, err := decodeAppliedRow(b)
	if err != nil {
		return err
	}
	if b, err = c.store.Meta(p, metaCheckpoint); err != nil {
		return err
	}
	if g.checkpoint, err = decodeCheckpoint(b); err != nil {
		return err
	}
	if g.rlog, err = openRaftLog(g.id, c.store, conf); err != nil {
		return err
	}
	if uint64(state.index) > g.rlog.last || g.checkpoint.Index > state.index {
		return fmt.Errorf("entry %d is applied and %d in the checkpoint, but the log ends at %d", state.index, g.checkpoint.Index, g.rlog.last)
	}
	// What is applied was committed, whatever the hard state remembers.
	g.rlog.hard.Commit = max(g.rlog.hard.Commit, uint64(state.index))
	g.term = g.rlog.hard.Term
	g.log = newMessageLog(g.id, c.store, g.shelf, &c.tail, state)
	g.rows = appRows{id: g.id, store: c.store}
	if g.app, err = c.cfg.NewApp(g.id, &g.rows); err != nil {
		return fmt.Errorf("restoring its state: %w", err)
	}
	if err := c.replay(g); err != nil {
		return err
	}
	g.single = soleVoter(conf, c.cfg.Node)
	if g.rn, err = raft.NewRawNode(c.raftConfig(g, state.index)); err != nil {
		return err
	}
	if g.single {
		return g.rn.Campaign() // there is nobody to wait for
	}
	return nil
}

// replay gives the App the commands between its checkpoint and what is applied,
// each at the position that it had the first time.
func (c *core) replay(g *group) error {
	at, to := g.checkpoint, g.log.state.index
	if at.Index == to {
		return nil
	}
	rows, err := g.log.read.indexesFrom(at.End, g.log.state.end)
	if err != nil {
		return err
	}
	var bad error
	err = c.store.Scan(uint64(g.id), uint64(at.Index)+1, uint64(to)+1, func(e logstore.Entry, _ uint32) bool {
		at.Index = Index(e.Index)
		g.since += int64(len(e.Data))
		if e.Type == byte(raftpb.EntryNormal) {
			bad = replayEntry(g.app, at, e.Data)
		}
		for len(rows) > 0 && rows[0].index == at.Index {
			at.End, rows = rows[0].end, rows[1:]
		}
		if bad != nil {
			bad = &ErrDamaged{Partition: g.id, From: at.Index, To: at.Index, Why: bad.Error()}
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	c.since += g.since
	if err == nil && at != g.log.Position() {
		err = fmt.Errorf("the offset index leads to %v, not to %v", at, g.log.Position())
	}
	return err
}

func replayEntry(app App, at Position, data []byte) error {
	it, err := openEntry(data)
	if err != nil || it.kind != Command {
		return err
	}
	for {
		x, ok, err := it.next()
		if err != nil || !ok {
			return err
		}
		if _, err := app.Apply(at, append([]byte(nil), x.data...)); err != nil {
			return fmt.Errorf("applying a command again: %w", err)
		}
	}
}

// indexEnd is what replay needs of an index row.
type indexEnd struct {
	index Index
	end   Offset
}

// indexesFrom returns where the batches from an offset on end.
func (r reader) indexesFrom(from, end Offset) ([]indexEnd, error) {
	var out []indexEnd
	var bad error
	next := from
	err := r.store.Iterate(logstore.Offsets, uint64(r.id), offsetKey(nil, from), offsetKey(nil, end), func(k, v []byte) bool {
		row, err := decodeIndexRow(k, v)
		if err == nil && row.base != next {
			err = fmt.Errorf("the offset index jumps from %d to %d", next, row.base)
		}
		if err != nil {
			bad = err
			return false
		}
		next = row.end()
		out = append(out, indexEnd{row.index, next})
		return true
	})
	if err == nil && bad == nil && next != end {
		bad = fmt.Errorf("the offset index ends at %d, not at %d", next, end)
	}
	if err == nil {
		err = bad
	}
	return out, err
}
