package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// node is one broker node: a disk, a store, the partitions' core, the groups' shell,
// and a clock that may be wrong. It stands in for partition.Host's loop: it steps the
// core when something came, has at most two writes on their way to the disk, and
// tells the core when they are durable.
type node struct {
	s     *Sim
	id    partition.NodeID
	boot  int                              // counts; what was meant for an earlier one is void
	held  map[partition.PartitionID]*place // the replicas that it was told to have
	up    bool
	disk  *disk
	store *logstore.Store
	core  *partition.Node
	shell *consumer.Shell
	apps  map[partition.PartitionID]*app

	writes  []flight
	stalls  time.Duration // the disk takes so much longer for each write
	failing bool          // the next fsync fails
	busy    bool          // a step is to come
	wakeAt  time.Duration // 0: none is to come
	calls   []*pending    // of clients, in order
	ended   int           // of those

	heard map[partition.NodeID]time.Duration // when the others' last beats came
	hears map[partition.NodeID]bool          // what they said by then: that they hear this one
	there map[partition.NodeID]bool          // which of them the core takes for up

	broken  bool          // for good: nothing is demanded of it
	excused bool          // it may lag for ever
	told    time.Duration // the others that its disk hangs

	skew  float64 // the clock runs so much faster than time
	ahead time.Duration
	since time.Duration // when skew was last changed
}

// flight is a write on its way to the disk.
type flight struct {
	w     *partition.Write
	mark  mark
	at    time.Duration // when it is durable
	begun time.Duration
	lasts map[partition.PartitionID]written // of logs, by then
	then  func()
}

// written is how far a replica's log goes.
type written struct {
	id   partition.ReplicaID
	last partition.Index
}

// pending is a call that waits for an answer of the node.
type pending struct {
	done func(error)
	over bool
}

func (n *node) name() string {
	if n == nil {
		return "nobody"
	}
	return n.id.String()
}

// base is where every clock begins: long enough after zero that it can go back.
const base = 1_000_000 * time.Second

func (n *node) clock() partition.Millis {
	d := n.s.now - n.since
	return partition.Millis((base + n.s.now + n.ahead + time.Duration(float64(d)*n.skew)) / time.Millisecond)
}

// setClock moves the clock and sets its drift.
func (n *node) setClock(by time.Duration, skew float64) {
	n.ahead += time.Duration(float64(n.s.now-n.since)*n.skew) + by
	n.since, n.skew = n.s.now, skew
}

// start boots the node from its disk.
func (n *node) start() error {
	n.boot++
	n.disk = newDisk(n.disk.mem)
	n.disk.lies = n.s.options.Plant == "unsynced"
	var err error
	n.store, err = logstore.Open(logstore.Config{
		FS: n.disk, Dir: "data", CacheBytes: 1 << 20, MemTableBytes: n.s.plan.memTable, MinSyncInterval: -1,
		ScrubBytesPerSecond: -1, WitnessInterval: 10 * time.Second, StallAfter: time.Hour, StallStop: 2 * time.Hour,
	})
	if err != nil {
		return fmt.Errorf("%v does not come back: opening its store: %w", n.id, err)
	}
	n.disk.hold()
	n.s.planted.forgetVotes(n)
	n.apps = make(map[partition.PartitionID]*app)
	n.core, err = partition.OpenNode(partition.Config{
		Node: n.id, Store: n.store, Now: n.clock, Seed: n.s.plan.seed<<8 ^ uint64(n.id)<<4 ^ uint64(n.boot)<<16 | 1,
		Logger: n.s.logger(), CheckpointBytes: n.s.plan.checkpoint, TailCacheBytes: n.s.plan.tailCache, IDFilterBytes: 64 << 10,
		SendSnapshot: noSnapshots, FollowerBytes: n.s.plan.follower,
		NewApp: func(id partition.PartitionID, rows partition.Rows) (partition.App, error) { return n.newApp(id, rows) },
	}.WithBuckets(n.s.plan.buckets))
	if err != nil {
		return fmt.Errorf("%v does not come back: %w", n.id, err)
	}
	n.up, n.busy, n.wakeAt, n.failing = true, false, 0, false
	n.shell = consumer.NewShellOver(&edge{n, n.boot}, clusterSecret)
	n.shell.Now = n.clock
	n.core.OnSwitch = func(p partition.PartitionID) {
		n.s.planted.forgetIDs("snapshot-without-ids", n, p)
		n.switched(p)
	}
	for _, p := range n.s.parts() {
		n.switched(p)
	}
	if err := n.replicas(); err != nil {
		return fmt.Errorf("%v does not come back: %w", n.id, err)
	}
	for _, a := range n.apps {
		a.restoring = false
	}
	n.s.say("%v up, boot %d", n.id, n.boot)
	n.s.judge.restarted(n)
	n.heard, n.there = make(map[partition.NodeID]time.Duration), make(map[partition.NodeID]bool)
	n.hears = make(map[partition.NodeID]bool)
	n.ticking(n.boot)
	n.beating()
	n.kick()
	return nil
}

const clusterSecret = 99

// later has something happen to this boot of the node.
func (n *node) later(d time.Duration, what string, do func()) {
	boot := n.boot
	n.s.after(d, what, func() {
		if n.up && n.boot == boot {
			do()
		}
	})
}

// ticking is the raft clock, which also looks whether a timer is due: a clock that
// was set is noticed by then.
func (n *node) ticking(boot int) {
	n.later(100*time.Millisecond, "tick", func() {
		if len(n.s.nodes) > 1 {
			n.listen()
			if n.hanging(); !n.up {
				return
			}
			n.core.Tick()
		}
		n.step()
		n.ticking(boot)
	})
}

// beating tells the other nodes every 200 ms that this one is there and whether it
// hears them, as the transport between nodes does: a node is up if both hear.
func (n *node) beating() {
	if len(n.s.nodes) == 1 {
		return
	}
	for _, to := range n.s.nodes {
		if to == n || n.s.net.cuts[[2]partition.NodeID{n.id, to.id}] || n.s.rand.net.Float64() < n.s.net.loss {
			continue
		}
		at, ever := n.heard[to.id]
		hears := ever && n.s.now-at < time.Second
		n.s.after(n.s.between(n.s.rand.net, 100*time.Microsecond, n.s.net.slow), "beat", func() {
			if to.up {
				to.heard[n.id], to.hears[n.id] = n.s.now, hears
			}
		})
	}
	n.later(200*time.Millisecond, "beating", n.beating)
}

// listen tells the core which nodes came and which have been silent for a second.
func (n *node) listen() {
	for _, p := range n.s.nodes {
		at, ever := n.heard[p.id]
		up := ever && n.s.now-at < time.Second && n.hears[p.id]
		if p == n || up == n.there[p.id] {
			continue
		}
		n.there[p.id] = up
		if up {
			n.core.Up(p.id)
		} else if !n.s.planted.is("never-down", 1) {
			n.core.Down(p.id)
		}
	}
}

// kick has the node take a step soon: others may come in before it.
func (n *node) kick() {
	if n.busy || !n.up {
		return
	}
	n.busy = true
	n.later(n.s.between(n.s.rand.node, 10*time.Microsecond, 200*time.Microsecond), "step", func() {
		n.busy = false
		n.step()
	})
}

// step is one turn of the host's loop.
func (n *node) step() {
	if len(n.writes) >= 2 {
		return // goes on when one of them is durable
	}
	w, err := n.core.Step(n.clock())
	if err != nil {
		n.broke(err)
		return
	}
	n.send()
	n.sendSnapshots()
	for _, a := range n.apps {
		a.restoring = false // a snapshot made some of them anew
	}
	if w != nil {
		n.fly(w, nil)
	}
	n.s.judge.look(n)
	if n.core.Busy() {
		n.kick()
	}
	n.arm()
}

// fly has a write on its way to the disk. then, if there is one, is called when it is
// there.
func (n *node) fly(w *partition.Write, then func()) {
	f := flight{w: w, at: n.s.now, begun: n.s.now, then: then}
	if w.Synced() {
		w.Reached()
		f.mark = n.disk.written()
		f.at += n.s.between(n.s.rand.disk, 300*time.Microsecond, 4*time.Millisecond) + n.stalls
		n.s.count.writes++
		f.lasts = make(map[partition.PartitionID]written)
		for _, p := range n.s.parts() {
			if info, err := n.core.Info(p); err == nil {
				f.lasts[p] = written{info.Replica, info.LastIndex}
			}
		}
	}
	if k := len(n.writes); k > 0 {
		f.at = max(f.at, n.writes[k-1].at)
	}
	n.writes = append(n.writes, f)
	n.later(f.at-n.s.now, "durable", n.durable)
}

// switched is a partition that is on disk as it is in memory: it was read from there,
// or a snapshot was put in its place.
func (n *node) switched(p partition.PartitionID) {
	for _, f := range n.writes {
		delete(f.lasts, p)
	}
	if info, err := n.core.Info(p); err == nil {
		n.s.judge.onDisk(p, info.Replica, info.LastIndex)
	}
}

// durable tells the core of its oldest write.
func (n *node) durable() {
	f := n.writes[0]
	if f.w.Synced() && n.failing {
		n.failing = false
		n.broke(n.failSync())
		return
	}
	if f.w.Synced() {
		if err := n.s.planted.settle(n, f.mark); err != nil {
			n.broke(err)
			return
		}
	}
	n.writes = n.writes[1:]
	if f.w.Synced() && n.disk.has(f.mark) {
		for _, p := range n.s.parts() {
			if w, ok := f.lasts[p]; ok {
				n.s.judge.onDisk(p, w.id, w.last)
			}
		}
	}
	if err := n.core.Durable(f.w); err != nil {
		n.broke(err)
		return
	}
	if f.then != nil {
		f.then()
	}
	n.send()
	n.kick()
}

// failSync has an fsync fail, and returns what the store makes of it. It is one of its
// own, which is waited for: when the store hears of one that it does not wait for is a
// matter of real time.
func (n *node) failSync() error {
	n.disk.fail()
	p, err := n.store.Commit(n.store.NewBatch())
	if err == nil {
		err = p.Wait()
	}
	if err == nil {
		err = errors.New("an fsync that fails was not noticed")
	}
	return err
}

// arm has a step come when the core asked for one.
func (n *node) arm() {
	wake, ok := n.core.Wake()
	if !ok {
		return
	}
	d := max(time.Duration(float64(wake-n.clock())/(1+n.skew)*float64(time.Millisecond)), time.Millisecond)
	if n.wakeAt > n.s.now && n.wakeAt <= n.s.now+d {
		return
	}
	at := n.s.now + d
	n.wakeAt = at
	n.later(d, "wake", func() {
		if n.wakeAt == at {
			n.wakeAt = 0
			n.step()
		}
	})
}

// broke is what a store that failed does to its node: it stops, and is started again
// from what the disk has.
func (n *node) broke(err error) {
	if n.store.Err() == nil {
		n.s.fault("%v stopped, and its store did not fail: %v", n.id, err)
	}
	n.s.say("%v stops: its store failed", n.id) // of which file is Pebble's affair
	n.core.Fail(err)
	n.off("fsync error", n.s.rand.fault.IntN(3))
	n.s.after(n.s.between(n.s.rand.fault, 100*time.Millisecond, 3*time.Second), "start", n.back)
}

// off takes the power from the node. Of what waits for the disk nothing is kept, all,
// or a part that ends anywhere, in the middle of a write too.
func (n *node) off(why string, keep int) {
	if !n.up {
		return
	}
	n.s.judge.stopping(n)
	upTo := n.disk.kept()
	for _, f := range n.writes {
		if !f.w.Synced() {
			continue
		}
		switch {
		case f.mark.file != upTo.file || keep == 1:
			upTo = f.mark
		case keep == 2 && f.mark.to > upTo.to:
			upTo.to += n.s.rand.fault.Int64N(f.mark.to - upTo.to + 1)
		}
	}
	mem, err := n.disk.cut(upTo)
	if err != nil {
		n.s.fault("%v: the disk of the simulator: %v", n.id, err)
	}
	n.up = false
	n.s.say("%v off (%s), %d writes under way", n.id, why, len(n.writes))
	n.writes = nil
	if err := n.store.Close(); err != nil && !errors.As(err, new(*logstore.ErrFailed)) {
		n.s.say("%v: closing: %v", n.id, err)
	}
	n.disk = &disk{mem: mem}
	// Connections break.
	calls := n.calls
	n.calls, n.ended = nil, 0
	for _, c := range calls {
		if !c.over {
			c.over = true
			c.done(&partition.ErrOutcomeUnknown{Why: "the node is gone"})
		}
	}
}

// back starts a node that is off.
func (n *node) back() {
	if n.up || n.broken {
		return
	}
	if err := n.start(); err != nil {
		n.s.fault("%v", err)
	}
}

// call takes note of a call that the node has to answer. It returns how to answer it.
func (n *node) call(done func(error)) *pending {
	c := &pending{done: done}
	if n.ended > 64 && n.ended > len(n.calls)/2 {
		n.calls = slices.DeleteFunc(n.calls, func(c *pending) bool { return c.over })
		n.ended = 0
	}
	n.calls = append(n.calls, c)
	return c
}

func (n *node) answered(c *pending) bool {
	if c.over {
		return false
	}
	c.over = true
	n.ended++
	return true
}

// send gives the network what the core has for other nodes.
func (n *node) send() {
	if len(n.s.nodes) == 1 {
		return
	}
	for _, f := range n.core.Frames() {
		n.s.judge.said(n, f)
		n.s.planted.vouch(f)
		n.s.net.carry(n, f.To.Node(), partition.AppendFrames(nil, []partition.Frame{f}))
	}
}

// edge is the node as the groups' shell sees it.
type edge struct {
	n    *node
	boot int
}

func (e *edge) gone() error {
	if !e.n.up || e.n.boot != e.boot {
		return &partition.ErrStopped{}
	}
	return nil
}

// Propose waits, in a fiber.
func (e *edge) Propose(_ context.Context, id partition.PartitionID, cmd []byte) (res any, err error) {
	f, done := e.n.s.fiber, false
	bad := e.ProposeAsync(id, cmd, func(r any, er error) {
		res, err, done = r, er, true
		e.n.s.after(0, "resume", f.resume)
	})
	if bad != nil {
		return nil, bad
	}
	for !done {
		if !f.wait() {
			return nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "the run ended"}
		}
	}
	return res, err
}

func (e *edge) ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error {
	if err := e.gone(); err != nil {
		return err
	}
	if e.n.s.planted.lies(e.n, id, cmd, done) {
		return nil
	}
	c := e.n.call(func(err error) { done(nil, err) })
	err := e.n.core.ProposeAsync(id, slices.Clone(cmd), func(res any, err error) {
		if e.n.answered(c) {
			done(res, err)
		}
	})
	if err != nil {
		e.n.answered(c)
		return err
	}
	// What is sent again on the way comes twice, the second time late.
	if e.n.s.rand.net.Float64() < e.n.s.plan.twice {
		again := slices.Clone(cmd)
		e.n.later(e.n.s.between(e.n.s.rand.net, 0, 3*time.Second), "again", func() {
			if repeatable(again) {
				e.n.s.count.twice++
				_ = e.n.core.ProposeAsync(id, again, func(any, error) {})
				e.n.kick()
			}
		})
	}
	e.n.kick()
	return nil
}

// repeatable commands do nothing more the second time: settlements. (Their kind is
// the second byte, see docs/format/delivery.md.)
func repeatable(cmd []byte) bool { return len(cmd) > 1 && cmd[1] == 9 }

func (e *edge) Post(id partition.PartitionID, ev any) error {
	if err := e.gone(); err != nil {
		return err
	}
	defer e.n.kick()
	return e.n.core.Post(id, ev)
}

func (e *edge) Tell(id partition.PartitionID, ev any) error {
	if err := e.gone(); err != nil {
		return err
	}
	defer e.n.kick()
	return e.n.core.Tell(id, ev)
}

func (e *edge) View(_ context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error {
	if err := e.gone(); err != nil {
		return err
	}
	return e.n.core.Look(id, func(x partition.App, at partition.Position) { fn(x.(*app).App, at) })
}

func (e *edge) ReadAt(id partition.PartitionID, os []partition.Offset) ([]partition.Message, error) {
	if err := e.gone(); err != nil {
		return nil, err
	}
	return e.n.core.ReadAt(id, os)
}

func (e *edge) ReadRawAt(id partition.PartitionID, os []partition.Offset, out []partition.RawMessage) ([]partition.RawMessage, error) {
	if err := e.gone(); err != nil {
		return out, err
	}
	return e.n.core.ReadRawAt(id, os, out)
}

func (e *edge) Scan(ctx context.Context, id partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error {
	if err := e.gone(); err != nil {
		return err
	}
	return e.n.core.Scan(ctx, id, from, fn)
}

func (e *edge) IndexOf(id partition.PartitionID, o partition.Offset) (partition.Index, error) {
	if err := e.gone(); err != nil {
		return 0, err
	}
	return e.n.core.IndexOf(id, o)
}

// app is the groups of a partition as a node has them, with what the simulator wants
// to know of them and what a planted fault does to them.
type app struct {
	*consumer.App
	n         *node
	id        partition.PartitionID
	restoring bool // applies again what the checkpoint does not have
}

func (n *node) newApp(id partition.PartitionID, rows partition.Rows) (partition.App, error) {
	inner, err := consumer.NewApp(id, n.s.planted.rows(n, rows))
	if err != nil {
		return nil, err
	}
	a := &app{App: inner, n: n, id: id, restoring: true}
	n.apps[id] = a
	return a, nil
}

// Apply implements partition.App.
func (a *app) Apply(at partition.Position, cmd []byte) (any, error) {
	if a.n.s.planted.skips(a, cmd) {
		return nil, nil
	}
	return a.App.Apply(at, cmd)
}

// net carries frames between nodes.
type net struct {
	s    *Sim
	cuts map[[2]partition.NodeID]bool // from, to: nothing comes through
	loss float64
	twin float64       // comes twice
	slow time.Duration // the most that a frame takes
}

func (t *net) carry(from *node, dest partition.NodeID, b []byte) {
	to := t.s.node(dest)
	if to == nil {
		return
	}
	times := 1
	if t.s.rand.net.Float64() < t.twin {
		times = 2
	}
	for range times {
		if t.cuts[[2]partition.NodeID{from.id, dest}] || t.s.rand.net.Float64() < t.loss {
			t.s.count.lost++
			continue
		}
		t.s.after(t.s.between(t.s.rand.net, 100*time.Microsecond, t.slow), "frame", func() {
			if !to.up || t.cuts[[2]partition.NodeID{from.id, dest}] {
				return
			}
			fs, err := partition.ParseFrames(b)
			if err != nil {
				t.s.fault("%v: %v", to.id, err)
			}
			to.core.Receive(from.id, fs)
			to.kick()
		})
	}
}

var _ vfs.FS = (*disk)(nil)
