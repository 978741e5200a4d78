package partition

import (
	"slices"

	"github.com/strandmq/strandmq/partition/logstore"
)

// Node is a Host without its goroutines: whoever owns it moves it, step by step,
// from one goroutine. It is what simulators run: with the same input in the same
// order it takes the same steps.
//
//	input (Host's PublishBatch, ProposeAsync, Post, Tell; Receive, Tick) ─► Step ─┬─► answers, called back
//	                                                                             └─► Write ─(sync)─► Durable ─► Frames
//
// The Host that it has takes input and answers reads as it always does. What waits
// for an answer (Publish, Propose, View, Create, Drop, Trim, Close) would wait for
// ever and must not be called.
type Node struct {
	*Host

	// OnSwitch hears of partitions in whose place a snapshot was put. Nil: nobody asks.
	OnSwitch func(PartitionID)

	halves map[PartitionID]*logstore.Import // snapshots of which some is here
}

// Write is what a step wrote, on its way to the disk. Writes become durable in the
// order of the steps.
type Write struct{ w *write }

// Synced tells whether there is something of it to sync. If not, it waits only for
// the writes before it.
func (w *Write) Synced() bool { return w.w.pending != nil }

// Reached waits until the disk was given all of it, whatever Durable will say.
func (w *Write) Reached() {
	if w.w.pending != nil {
		w.w.pending.Reached()
	}
}

// OpenNode restores what cfg.Store holds, like Open. Partitions with this node as
// their only voter lead after the next steps. Give a Seed.
func OpenNode(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := newHost(cfg.withDefaults())
	if err := h.restore(); err != nil {
		return nil, err
	}
	return &Node{Host: h, halves: make(map[PartitionID]*logstore.Import)}, nil
}

// CreateOn makes a partition with these voters, this node among them.
func (n *Node) CreateOn(id PartitionID, voters ...NodeID) error {
	var ids []ReplicaID
	for _, v := range voters {
		ids = append(ids, v.Replica())
	}
	if err := n.core.create(id, n.cfg.Node.Replica(), ids...); err != nil {
		return err
	}
	n.list(id)
	return nil
}

// Step feeds what came since the last one, gives everything that has something to do
// its turn and calls back who has an answer. The Write, if there is one, must be made
// durable: see Durable. An error is the store's; the node must be stopped then.
func (n *Node) Step(now Millis) (*Write, error) {
	in := n.inbox.take(nil)
	for i := range in {
		n.feed(&in[i])
	}
	n.core.due(now)
	if !n.core.ready() {
		return nil, nil
	}
	w, answers, err := n.core.pump(now)
	n.core.reply()
	n.callBack(answers)
	n.tellRoles(n.core.takeRoles())
	for i, sh := range n.core.taken {
		n.release(sh, proposalBytes)
		n.core.taken[i] = nil
	}
	n.core.taken = n.core.taken[:0]
	if err == nil {
		err = n.switchSnapshots()
	}
	if err != nil || w == nil {
		return nil, err
	}
	return &Write{w}, nil
}

// Busy tells whether a step would do something now.
func (n *Node) Busy() bool {
	n.inbox.mu.Lock()
	waits := len(n.inbox.in) > 0
	n.inbox.mu.Unlock()
	return waits || n.core.ready()
}

// Wake is when a step is wanted at the latest; false: not before something comes.
func (n *Node) Wake() (Millis, bool) {
	t := n.core.nextWake()
	return t, t != never
}

// Durable waits until a write is on disk, and goes on with what waited for it.
func (n *Node) Durable(w *Write) error {
	if err := n.wait(w.w); err != nil {
		return err
	}
	n.core.durable(w.w)
	return nil
}

// Frames returns what goes to other nodes.
func (n *Node) Frames() []Frame { return n.core.takeFrames() }

// Receive takes frames from another node.
func (n *Node) Receive(from NodeID, frames []Frame) {
	for _, f := range frames {
		if f.From.Node() == from {
			n.core.receive(f)
		}
	}
}

// Up tells that another node is there.
func (n *Node) Up(node NodeID) { n.core.up(node) }

// Down tells that another node is not there any more.
func (n *Node) Down(node NodeID) { n.core.down(node) }

// Tick is the raft clock: see Config.Tick.
func (n *Node) Tick() { n.core.tick() }

// Campaign makes this node try to lead a partition.
func (n *Node) Campaign(id PartitionID) error { return n.core.campaign(id) }

// Look is View without the wait: fn sees the App as it is, with every event that a
// step has fed.
func (n *Node) Look(id PartitionID, fn func(App, Position)) error { return n.core.view(id, fn) }

// TrimAsync is Trim without the wait, and without reading first what the App takes.
func (n *Node) TrimAsync(id PartitionID, t TrimTo, done func(any, error)) error {
	w, err := n.core.wouldTrim(id, t)
	if err != nil {
		return err
	}
	if w.to <= w.start {
		done(w.start, nil)
		return nil
	}
	return n.proposeAsync(id, Trim, t.encode(), done)
}

// CheckpointSoon makes a partition's next turn end with a checkpoint.
func (n *Node) CheckpointSoon(id PartitionID) error {
	r, err := n.core.replica(id)
	if err != nil {
		return err
	}
	r.checkpointDue = true
	n.core.touch(r)
	return nil
}

// Leads tells whether this node leads a partition and knows all that was committed
// before, and in which term.
func (n *Node) Leads(id PartitionID) (term uint64, leads bool) {
	r := n.core.replicas[id]
	if r == nil || r.fault != nil {
		return 0, false
	}
	return r.term, r.leading
}

// EachRow calls fn with a partition's rows of its App as the last checkpoint left
// them and what was written since, in order of keys.
func (n *Node) EachRow(id PartitionID, fn func(key, value []byte)) error {
	r, err := n.core.replica(id)
	if err != nil {
		return err
	}
	return r.rows.Scan(nil, nil, func(k, v []byte) bool { fn(k, v); return true })
}

// EachOwnRow calls fn with what a partition keeps beside its log and its App's rows,
// of what it still needs: its applied state, and the rows that find duplicates. They
// depend on the log alone.
func (n *Node) EachOwnRow(id PartitionID, fn func(key, value []byte)) error {
	r, err := n.core.replica(id)
	if err != nil {
		return err
	}
	st := r.log.state
	fn(nil, st.append(nil))
	if len(st.buckets) == 0 {
		return nil
	}
	for _, ns := range []logstore.Namespace{logstore.IDs, logstore.Producers} {
		err := n.cfg.Store.Iterate(ns, uint64(id), bucketKey(nil, st.buckets[0]), nil, func(k, v []byte) bool { fn(k, v); return true })
		if err != nil {
			return err
		}
	}
	return nil
}

// EachEntry calls fn with the entries that are applied, from an index on, as they
// stand in the log.
func (n *Node) EachEntry(id PartitionID, from Index, fn func(term uint64, at Index, data []byte)) error {
	r, err := n.core.replica(id)
	if err != nil {
		return err
	}
	from = max(from, Index(r.rlog.first))
	if from > r.log.Position().Index {
		return nil
	}
	return n.cfg.Store.Scan(uint64(id), uint64(from), uint64(r.log.Position().Index)+1, func(e logstore.Entry, _ uint32) bool {
		fn(e.Term, Index(e.Index), slices.Clone(e.Data))
		return true
	})
}

// Fail ends the node since its store has failed, as a host ends then: whoever waits
// gets an answer.
func (n *Node) Fail(err error) {
	n.fall(err, nil)
	answers, _, _ := n.back.take()
	n.callBack(answers)
}
