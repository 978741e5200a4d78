package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// node is one broker node: a disk, a store, the partitions' core, the groups' shell,
// and a clock that may be wrong. It stands in for partition.Host's loop: it steps the
// core when something came, has at most two writes on their way to the disk, and
// tells the core when they are durable.
type node struct {
	s       *Sim
	id      partition.NodeID
	boot    int                              // counts; what was meant for an earlier one is void
	held    map[partition.PartitionID]*place // the replicas that it was told to have
	rot     map[partition.PartitionID]bool   // those that are said to be damaged
	flipped map[partition.PartitionID]bool   // those of which something is damaged, and that were not made anew since
	spoiled bool                             // something on its disk is or was damaged
	up      bool
	disk    *disk
	store   *logstore.Store
	core    *partition.Node
	shell   *consumer.Shell
	apps    map[partition.PartitionID]*app

	writes  []flight
	stalls  time.Duration // the disk takes so much longer for each write
	failing bool          // the next fsync fails
	filling bool          // the next write is refused
	room    room          // on the disk
	low     bool          // that is less than the reserve
	saidLow time.Duration // to the others
	busy    bool          // a step is to come
	wakeAt  time.Duration // 0: none is to come
	calls   []*pending    // of clients, in order
	ended   int           // of those

	heard map[partition.NodeID]time.Duration // when the others' last beats came
	hears map[partition.NodeID]bool          // what they said by then: that they hear this one
	there map[partition.NodeID]bool          // which of them the core takes for up

	at     coordinator.Address // of a node of a cluster
	first  bool                // the cluster began with it
	gone   bool                // the cluster has given it up
	board  *coordinator.Board
	coord  *coordinator.Coordinator
	deputy *deputy
	upAt   map[partition.NodeID]time.Duration // when the core took them for up

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

// storeConfig is how the node's store is opened.
func (n *node) storeConfig() logstore.Config {
	c := logstore.Config{
		FS: n.disk, Dir: "data", CacheBytes: 1 << 20, MemTableBytes: n.s.plan.memTable, MinSyncInterval: -1,
		ScrubBytesPerSecond: -1, WitnessInterval: 10 * time.Second, StallAfter: time.Hour, StallStop: 2 * time.Hour,
	}
	c.Simulated = n.s.plan.has("flip")
	return c
}

// start boots the node from its disk.
func (n *node) start() error {
	n.boot++
	n.disk = newDisk(n.disk.mem, &n.room)
	n.disk.lies = n.s.options.Plant == "unsynced"
	var err error
	n.store, err = logstore.Open(n.storeConfig())
	if err != nil {
		return fmt.Errorf("%v does not come back: opening its store: %w", n.id, err)
	}
	n.disk.hold()
	n.s.planted.forgetVotes(n)
	n.apps = make(map[partition.PartitionID]*app)
	n.board, n.coord = &coordinator.Board{}, nil
	n.heard, n.there = make(map[partition.NodeID]time.Duration), make(map[partition.NodeID]bool)
	n.hears, n.upAt = make(map[partition.NodeID]bool), make(map[partition.NodeID]time.Duration)
	n.core, err = partition.OpenNode(partition.Config{
		Node: n.id, Store: n.store, Now: n.clock, Seed: source(n.s.plan.seed, fmt.Sprintf("proposals of %v, boot %d", n.id, n.boot)).Uint64() | 1,
		Logger: n.s.logger(), CheckpointBytes: n.s.plan.checkpoint, TailCacheBytes: n.s.plan.tailCache, IDFilterBytes: 64 << 10,
		SendSnapshot: noSnapshots, OnRole: n.role, FollowerBytes: n.s.plan.follower,
		NewApp: func(id partition.PartitionID, rows partition.Rows) (partition.App, error) { return n.newApp(id, rows) },
	}.WithBuckets(n.s.plan.buckets))
	if err != nil {
		return fmt.Errorf("%v does not come back: %w", n.id, err)
	}
	n.up, n.busy, n.wakeAt, n.failing, n.filling = true, false, 0, false, false
	n.shell = consumer.NewShellOver(&edge{n, n.boot}, clusterSecret)
	n.shell.Now = n.clock
	n.core.OnSwitch = func(p partition.PartitionID) {
		n.s.planted.forgetIDs("snapshot-without-ids", n, p)
		n.switched(p)
	}
	for _, p := range n.s.logs() {
		n.switched(p)
	}
	comesBack := n.replicas
	if n.s.cluster != nil {
		comesBack = n.comesBack
	}
	if err := comesBack(); err != nil {
		return fmt.Errorf("%v does not come back: %w", n.id, err)
	}
	for _, a := range n.apps {
		a.restoring = false
	}
	n.s.say("%v up, boot %d", n.id, n.boot)
	n.s.judge.restarted(n)
	if n.s.cluster != nil {
		n.deputize()
	}
	n.low = false
	n.looksForRoom()
	n.ticking(n.boot)
	n.scrubs()
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
		n.looksForRoom()
		if n.s.several() {
			n.listen()
			if n.hanging(); !n.up {
				return
			}
			n.core.Tick()
			if n.deputy != nil {
				if n.deputy.pass(); !n.up {
					return
				}
			}
		}
		n.step()
		n.ticking(boot)
	})
}

// beating tells the other nodes every 200 ms that this one is there and whether it
// hears them, as the transport between nodes does: a node is up if both hear.
func (n *node) beating() {
	if !n.s.several() {
		return
	}
	for _, to := range n.s.nodes {
		if to == n || n.s.net.cuts[[2]partition.NodeID{n.id, to.id}] || n.s.rand.net.Float64() < n.s.net.loss {
			continue
		}
		at, ever := n.heard[to.id]
		hears := ever && n.s.now-at < time.Second
		n.s.after(n.s.between(n.s.rand.net, 100*time.Microsecond, n.s.net.slow), "beat", func() {
			if to.up && to.admits(n) {
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
			n.upAt[p.id] = n.s.now
			n.core.Up(p.id)
		} else if !n.s.planted.is("never-down", 1) {
			n.core.Down(p.id)
		}
		if n.coord != nil {
			_ = n.coord.Reached(p.id, up) // it may be that nobody leads here
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
		for _, p := range n.s.logs() {
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
	if f.w.Synced() && n.filling {
		n.filling = false
		n.broke(n.refused())
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
		for _, p := range n.s.logs() {
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
	n.off("its store failed", n.s.rand.fault.IntN(3))
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
	if err := n.start(); err != nil && !n.noRoom(err) && !n.unreadable(err) {
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
	if !n.s.several() {
		return
	}
	for _, f := range n.core.Frames() {
		n.s.judge.said(n, f)
		n.s.planted.vouch(f)
		n.s.net.carry(n, f.To.Node(), partition.AppendFrames(nil, []partition.Frame{f}))
	}
	n.s.judge.silenced(n)
}
