package partition

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/strandmq/strandmq/internal/histogram"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition/logstore"
)

// core is all partitions of a node as one passive object: it starts no
// goroutine, reads no clock, opens no socket. Whoever owns it gives it input
// (enqueue, post, receive, tick), calls pump, has what pump returns synced, and
// calls durable when it is. The host does so with a goroutine, tests and
// simulations step by step.
//
// One pump is one store batch for all partitions that have something to do.
type core struct {
	cfg      Config
	store    *logstore.Store
	replicas map[PartitionID]*replica
	order    []*replica // by id, so that equal input gives equal steps
	dirty    []*replica
	spare    []*replica
	timers   timers
	tail     tail
	seen     idFilter
	ids      uint64
	since    int64                // bytes behind the checkpoints of all replicas
	rows     int64                // bytes of their Apps' rows that wait for those
	now      Millis               // of the last look at the timers
	clock    time.Duration        // of the pump under way, since some beginning; 0: nobody measures
	commits  *histogram.Histogram // how long entries took that this node led: see commits.go

	stopping bool     // Apps get no more turns
	hangs    bool     // the disk does
	full     bool     // the disk has no room
	frail    uint64   // the disk hung lately: until that tick
	unfits   []NodeID // who is unfit, as OnUnfit heard last
	share    int      // of its queues that a replica may give in the pump under way: work

	needed   []neededSnapshot         // snapshots that are to be sent
	away     map[PartitionID]*replica // that are being switched to a snapshot
	switches []*replica               // of those, the ones that nobody works at yet
	unread   []PartitionID            // came with a snapshot: their message ids are not in the filter

	peers       map[NodeID]*peer
	ticks       uint64
	steps       uint64     // of raft's clock, in all replicas: what idle ones cost
	campaigners []*replica // wait for their turn
	campaigns   int        // begun since the last tick

	// What the pump under way gathers.
	wb        *logstore.Batch
	mustSync  bool
	vote      bool
	responses []response
	answers   []answer
	replies   []reply          // to calls that waited
	taken     []*shelf         // whose App took an event, once for each
	out       []Frame          // to other replicas
	roles     []role           // that OnRole is to hear of
	entries   []logstore.Entry // scratch
	payload   []byte           // scratch, of an entry that is proposed
	writes    []*write         // besides pump's, on their way to be synced
}

// response goes back to raft when a batch is durable.
type response struct {
	to   *replica
	msgs []*raftpb.Message
}

// write is a committed batch on its way to the disk. Writes become durable in
// the order in which pump returned them.
type write struct {
	pending   *logstore.Pending // nil: nothing of its own to sync, but what was before must be
	vote      bool              // the witness must know of it before anyone else does
	responses []response
	then      func(error)
}

func newCore(cfg Config) *core {
	return &core{
		cfg: cfg, store: cfg.Store, replicas: make(map[PartitionID]*replica), peers: make(map[NodeID]*peer), away: make(map[PartitionID]*replica),
		commits: newCommits(), tail: newTail(cfg.TailCacheBytes), seen: idFilter{bytes: cfg.IDFilterBytes}, ids: cfg.Seed,
	}
}

// nextID returns a proposal id. They come from a counter with a random start,
// mixed, so those of two runs or two nodes do not meet.
func (c *core) nextID() uint64 {
	c.ids++
	return keyspace.Mix(c.ids)
}

// retainedPayload is how large a payload's buffer is kept for the next one.
const retainedPayload = 2 << 20

// batch returns the store batch of the pump under way.
func (c *core) batch() *logstore.Batch {
	if c.wb == nil {
		c.wb = c.store.NewBatch()
	}
	return c.wb
}

// touch gives a replica a turn in the next pump.
func (c *core) touch(r *replica) {
	if !r.dirty && !r.gone && r.fault == nil {
		r.dirty = true
		c.dirty = append(c.dirty, r)
	}
}

// ready tells whether pump has something to do.
func (c *core) ready() bool { return len(c.dirty) > 0 || len(c.answers) > 0 }

// replica returns one that works.
func (c *core) replica(id PartitionID) (*replica, error) {
	r := c.replicas[id]
	if r == nil && c.away[id] != nil {
		return nil, &ErrNotLeader{Partition: id, Leader: c.away[id].leader.Node()}
	}
	if r == nil {
		return nil, &ErrUnknownPartition{Partition: id}
	}
	if r.fault != nil {
		return nil, r.fault
	}
	return r, nil
}

// taker returns one that takes what is for the leader. Where one that stopped has others,
// one of those leads.
func (c *core) taker(id PartitionID) (*replica, error) {
	r, err := c.replica(id)
	if x := c.replicas[id]; err != nil && x != nil && x.shared() {
		err = &ErrNotLeader{Partition: id}
	}
	return r, err
}

// enqueue takes a proposal. It is answered in any case.
func (c *core) enqueue(id PartitionID, sh *shelf, p *proposal) {
	r, err := c.taker(id)
	if err != nil {
		c.answers = append(c.answers, answer{shelf: sh, p: p, err: err})
		return
	}
	switch p.kind {
	case Batches:
		r.lanes.push(p)
	case Command:
		r.commands.push(p)
	case Trim:
		r.trims.push(p)
	}
	if r.isLead {
		r.rouse()
	}
	c.touch(r)
}

// post takes an event for a partition's App; false if there is none to take it.
func (c *core) post(id PartitionID, ev any) bool {
	r, err := c.taker(id)
	if err != nil {
		unheard(ev, err)
		return false
	}
	r.events = append(r.events, ev)
	c.touch(r)
	return true
}

func unheard(ev any, err error) {
	if u, ok := ev.(Unheard); ok {
		u.Unheard(err)
	}
}

// view calls fn with a partition's App as it is, with every event taken.
func (c *core) view(id PartitionID, fn func(App, Position)) error {
	r, err := c.replica(id)
	if err != nil {
		return err
	}
	err = c.guard(r, func() error {
		r.takeEvents() // they came before
		fn(r.app, r.log.Position())
		return nil
	})
	if err != nil {
		c.fail(r, err)
		return r.fault
	}
	return nil
}

// learn puts message ids that a partition had before this core into the filter.
// last tells that with these all of them are in it.
func (c *core) learn(id PartitionID, keys []idKey, last bool) error {
	r, err := c.replica(id)
	if err != nil {
		return err
	}
	for _, k := range keys {
		c.seen.add(id, k)
	}
	r.log.dup.covered = r.log.dup.covered || last
	return nil
}

// relearn makes the filter of message ids anew, and returns the partitions whose
// ids have to be read for it. Until then theirs are looked up.
func (c *core) relearn() (ids []PartitionID) {
	c.seen.clear()
	for _, r := range c.order {
		if r.fault == nil && len(r.log.state.buckets) > 0 {
			r.log.dup.covered = false
			ids = append(ids, r.id)
		}
	}
	return ids
}

// receive takes a frame from another replica.
func (c *core) receive(f Frame) {
	switch f.kind {
	case frameStuck:
		c.stuck(f.From.Node())
		return
	case frameUnfit:
		c.saidUnfit(f.From.Node())
		return
	}
	r, err := c.replica(f.Partition)
	if err != nil || f.To != r.self {
		return // to one that is not here, or not any more
	}
	if r.taking != nil {
		return // raft is to have the snapshot alone
	}
	switch f.kind {
	case frameAppend, frameHeartbeat, frameSleep:
		// Who leads and is down is a leader no more, although some of what it says
		// still comes: it hears no answer, or its disk does not come back.
		n := f.From.Node()
		if known, up := c.heard(n); known && !up && (!c.peers[n].up || c.canDoWithout(r, n)) {
			return
		}
	}
	switch f.kind {
	case frameSnapshot:
		return // it comes with what it holds: see take
	case frameSleep:
		c.sleepy(r, f)
		return
	case frameResign:
		if leader, term := r.heard(); leader == f.From && term == f.m.GetTerm() {
			c.forget(r)
			c.runCampaigns()
		}
		return
	case frameHeard:
		// It says nothing that a leader that sleeps does not know.
	case framePreVote, frameVote:
		r.rouse()
		if leader, term := r.heard(); leader == f.From && f.m.GetTerm() > term {
			// Who asks for votes leads no more, whoever still believes it.
			c.forget(r)
		}
	default:
		r.rouse()
	}
	c.step(r, f.m)
}

func (c *core) step(r *replica, m *raftpb.Message) {
	err := c.guard(r, func() error {
		err := r.rn.Step(m)
		if errors.Is(err, raft.ErrStepPeerNotFound) || errors.Is(err, raft.ErrProposalDropped) {
			return nil // from a replica that is none any more: to be ignored
		}
		return err
	})
	if err != nil {
		c.fail(r, err)
		return
	}
	c.touch(r)
}

// due gives the replicas whose App asked for a turn by now one. When the clock
// was set back, the times that they asked for mean nothing any more: each of
// them gets a turn and asks anew.
func (c *core) due(now Millis) {
	if now < c.now {
		for _, r := range c.order {
			if r.wake != 0 && r.fault == nil {
				r.driveDue = true
				c.touch(r)
			}
		}
	}
	c.now = now
	for {
		r := c.timers.due(now)
		if r == nil {
			return
		}
		r.timer = 0
		if r.wake == 0 || r.gone || r.fault != nil {
			continue
		}
		if r.wake <= now {
			c.touch(r)
		} else {
			c.arm(r)
		}
	}
}

// arm makes sure that the core looks at a replica's wake in time.
func (c *core) arm(r *replica) {
	if r.wake != 0 && (r.timer == 0 || r.wake < r.timer) {
		r.timer = r.wake
		c.timers.push(timer{r.wake, r})
	}
}

// nextWake returns when due has something to do; never if nothing is asked for.
func (c *core) nextWake() Millis { return c.timers.next() }

// pump gives every replica that has something to do its turn, and commits what
// they wrote as one batch. Of what is queued, each takes its share (see turns.go) and
// has another turn in the next pump. The answers are true as soon as it returns: what they
// tell was on disk before. The write must be synced and then given to durable;
// it is nil when nothing waits for the disk.
func (c *core) pump(now Millis) (*write, []answer, error) {
	turns, full := c.dirty, 0
	for _, r := range turns {
		if r.queued() {
			full++
		}
	}
	c.share = shareOf(full)
	c.dirty, c.spare = c.spare[:0], nil
	for _, r := range turns {
		r.dirty = false
		if r.gone || r.fault != nil {
			continue
		}
		if err := c.guard(r, func() error { return r.turn(now) }); err != nil {
			if c.store.Err() != nil {
				return nil, c.takeAnswers(), c.store.Err()
			}
			c.fail(r, err)
		}
		c.arm(r)
	}
	w, err := c.commit()
	if err != nil {
		return nil, c.takeAnswers(), err
	}
	for i, r := range turns {
		if !r.gone && r.fault == nil {
			r.committed()
			if r.takes(); r.taking != nil {
				c.leave(r)
			}
		}
		r.tellRole()
		turns[i] = nil
	}
	c.spare = turns[:0]
	c.tail.trim()
	c.limitReplay()
	c.limitRows()
	return w, c.takeAnswers(), nil
}

// commit ends the batch under way.
func (c *core) commit() (*write, error) {
	var w *write
	if len(c.responses) > 0 {
		w = &write{responses: c.responses, vote: c.vote}
	}
	wb, sync := c.wb, c.mustSync
	c.wb, c.mustSync, c.vote, c.responses = nil, false, false, nil
	if wb == nil {
		return w, nil
	}
	if !sync {
		return w, c.store.CommitNoSync(wb)
	}
	p, err := c.store.Commit(wb)
	if err != nil {
		return nil, err
	}
	if w == nil {
		w = &write{}
	}
	w.pending = p
	return w, nil
}

func (c *core) takeAnswers() []answer {
	a := c.answers
	c.answers = nil
	return a
}

// durable tells that a write, and every one before it, is on disk.
func (c *core) durable(w *write) {
	for _, resp := range w.responses {
		r := resp.to
		for _, m := range resp.msgs {
			if r.gone || r.fault != nil {
				break
			}
			if ReplicaID(m.GetTo()) == r.self {
				c.step(r, m)
			} else {
				r.send(m)
			}
		}
	}
	if w.then != nil {
		w.then(nil)
	}
}

// reply answers calls that waited.
func (c *core) reply() {
	for i, r := range c.replies {
		c.replies[i] = reply{}
		r.fn(r.err)
	}
	c.replies = c.replies[:0]
}

// takeFrames returns what goes to other replicas.
func (c *core) takeFrames() []Frame {
	fs := c.out
	c.out = nil
	return fs
}

// limitReplay keeps what a restart has to apply again within the node's bound:
// the replica that would take longest makes its checkpoint.
func (c *core) limitReplay() {
	if c.since >= c.cfg.NodeCheckpointBytes {
		c.checkpointMost(func(r *replica) int64 { return r.since })
	}
}

// limitRows keeps the rows that wait in memory within the node's bound.
func (c *core) limitRows() {
	if c.rows >= c.cfg.NodeRowBytes {
		c.checkpointMost(func(r *replica) int64 { return r.rows.over.bytes })
	}
}

// checkpointMost makes the replica that has most of something make its checkpoint.
func (c *core) checkpointMost(of func(*replica) int64) {
	var most *replica
	for _, r := range c.order {
		if r.fault == nil && (most == nil || of(r) > of(most)) {
			most = r
		}
	}
	if most == nil || of(most) == 0 {
		return
	}
	most.checkpointDue = true
	c.touch(most)
}

// guard runs a replica's code. What panics there ends that replica only.
func (c *core) guard(r *replica, fn func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if p, ok := v.(*raftPanic); ok {
			err = errors.New(p.why)
		} else if e, ok := v.(error); ok && c.store.Err() != nil {
			err = e
		} else {
			err = fmt.Errorf("panic: %v", v)
			c.cfg.Logger.Error("a partition panicked", "partition", c.cfg.Name(r.id), "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return fn()
}

// fail stops a replica whose state cannot be trusted any more. What it applied
// completely stays applied.
func (c *core) fail(r *replica, err error) {
	d := Damaged(r.id, storeError(r.id, err))
	r.fault = d
	c.cfg.Logger.Error("a partition stopped", "partition", c.cfg.Name(r.id), "entries", d.Entries(), "why", d.Why)
	if c.cfg.OnStop != nil {
		c.cfg.OnStop(r.id, d.Why)
	}
	if r.log != nil && r.unsaved {
		// The rows of the entries that were applied are in the batch; how far
		// they reach must be there too, or a restart would apply them twice.
		// An error here is the batch's, and the commit will tell it.
		st := r.log.flushed
		_ = c.batch().SetMeta(uint64(r.id), metaApplied, st.append(nil))
		r.unsaved = false
	}
	if r.leading {
		r.leading = false
		err := c.guard(r, func() error {
			if b, ok := r.app.(Breaker); ok && !r.shared() {
				b.Break(d)
			}
			r.app.Lead(false)
			return nil
		})
		if err != nil {
			c.cfg.Logger.Warn("a stopped partition's app complained", "partition", r.id.String(), "err", err)
		}
	}
	r.resign()
	queued := error(d)
	if r.shared() {
		queued = &ErrNotLeader{Partition: r.id} // the others go on, and one of them leads
	}
	r.stop(queued, &ErrOutcomeUnknown{Partition: r.id, Why: "the partition stopped"})
	r.tellRole()
	r.shelf.mu.Lock()
	r.shelf.fault = queued
	r.shelf.info.Fault, r.shelf.info.Damaged = d.Why, d.Newer == nil
	r.shelf.info.Leader, r.shelf.info.Leading = 0, false
	if r.named {
		r.shelf.info.Replica = r.self
	}
	r.shelf.mu.Unlock()
	c.since -= r.since
	r.since = 0
	r.rows.over.leave()
}

// shared tells whether there are other replicas, which go on when this one stops.
func (r *replica) shared() bool { return len(r.members) > 1 }

// drop deletes a partition. The write has to be synced like pump's.
func (c *core) drop(id PartitionID) (*write, error) {
	r := c.replicas[id]
	if r == nil {
		// It may have been dropped a moment ago, by a call that was given up: who asks
		// again has to wait for the disk, too.
		p, err := c.store.Commit(c.store.NewBatch())
		if err != nil {
			return nil, err
		}
		return &write{pending: p}, nil
	}
	wb := c.store.NewBatch()
	if err := wb.DropPartition(uint64(id)); err != nil {
		wb.Close()
		return nil, err
	}
	p, err := c.store.Commit(wb)
	if err != nil {
		return nil, err
	}
	if r.leading && r.fault == nil {
		if err := c.guard(r, func() error { r.app.Lead(false); return nil }); err != nil {
			c.cfg.Logger.Warn("a dropped partition's app complained", "partition", id.String(), "err", err)
		}
	}
	r.resign()
	r.gone = true
	gone := &ErrUnknownPartition{Partition: id}
	r.stop(gone, &ErrOutcomeUnknown{Partition: id, Why: "the partition was dropped"})
	c.tail.drop(r.shelf)
	c.since -= r.since
	r.rows.over.leave()
	delete(c.replicas, id)
	c.order = slices.DeleteFunc(c.order, func(x *replica) bool { return x == r })
	return &write{pending: p}, nil
}

// checkpointAll ends the core's life: every replica's checkpoint in one batch.
func (c *core) checkpointAll() (*write, error) {
	for _, r := range c.order {
		if r.fault != nil {
			continue
		}
		if err := c.guard(r, r.makeCheckpoint); err != nil {
			c.fail(r, err)
		}
	}
	return c.commit()
}
