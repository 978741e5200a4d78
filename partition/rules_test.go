package partition

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// The rules of a host of raft nodes that scripts do not show.

// newRig makes nodes that know each other, and partitions with all of them as
// voters, the first of which leads.
func newRig(t *testing.T, nodes, partitions int) *rig {
	cryptotest.SetGlobalRandom(t, 1)
	r := &rig{t: t, now: 1000}
	t.Cleanup(r.close)
	r.begin(nodes)
	var voters []ReplicaID
	for _, n := range r.sorted() {
		voters = append(voters, n.id.Replica())
	}
	for _, n := range r.sorted() {
		for _, m := range r.sorted() {
			n.core.up(m.id)
		}
		for p := range partitions {
			r.must(n.core.create(PartitionID(p+1), n.id.Replica(), voters...))
		}
	}
	for p := range partitions {
		r.must(r.nodes[1].core.campaign(PartitionID(p + 1)))
	}
	r.settle()
	r.says("")
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// says looks at what was answered since the last look.
func (r *rig) says(want string) {
	r.t.Helper()
	if got := strings.TrimSpace(r.buf.String()); got != want {
		r.t.Fatalf("answers:\n%s\nwant:\n%s", got, want)
	}
	r.buf.Reset()
}

func (r *rig) publish(n *rigNode, p PartitionID, bodies ...string) {
	r.publishData(n, p, batch(bodies...))
}

// pass delivers what a node has to say to those who hear it.
func (r *rig) pass(n *rigNode) (kinds []string) {
	for _, f := range r.carried(n.core.takeFrames()) {
		kinds = append(kinds, fmt.Sprintf("%v to %v", frameNames[f.kind], f.To))
		if to := r.nodes[f.To.Node()]; !to.off {
			to.core.receive(f)
		}
	}
	return kinds
}

// A leader that goes in the moment in which it came is forgotten like any other: who
// heard of it, and had no turn since to take note, looks for another at once and not when
// raft's own patience ends. The one before it may be among them.
func TestLeaderOfAMoment(t *testing.T) {
	for what, goes := range map[string]func(from *rigNode, frames []Frame, to *rigNode){
		"down":    func(from *rigNode, _ []Frame, to *rigNode) { to.core.down(from.id) },
		"resigns": func(_ *rigNode, frames []Frame, to *rigNode) { deliverTo(to, frames) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, 3, 1)
			a, b, c := r.nodes[1], r.nodes[2], r.nodes[3]
			a.core.transferTo(1, b.id.Replica(), func(error) {})
			work := func(n *rigNode) {
				r.pump(n)
				for len(n.writes) > 0 {
					r.durable(n)
				}
				r.pump(n)
			}
			for _, n := range []*rigNode{a, b, a, c, b} {
				work(n)
				if n != b || !b.core.replicas[1].isLead {
					r.pass(n)
				}
			}
			if !b.core.replicas[1].isLead {
				t.Fatal("the leadership was not handed over")
			}
			r.pass(b) // its first entry
			b.core.replicas[1].resign()
			frames := r.carried(b.core.takeFrames())
			b.off = true
			for _, n := range []*rigNode{a, c} {
				goes(b, frames, n)
			}
			for range electionTicks - 1 {
				for _, n := range []*rigNode{a, c} {
					n.core.tick()
				}
				r.settle()
				if a.core.replicas[1].leading || c.core.replicas[1].leading {
					return
				}
			}
			t.Errorf("nobody leads after %d ticks", electionTicks-1)
		})
	}
}

// deliverTo delivers those of some frames that are to a node.
func deliverTo(n *rigNode, frames []Frame) {
	for _, f := range frames {
		if f.To.Node() == n.id {
			n.core.receive(f)
		}
	}
}

// A follower says that it has an entry when it is on its disk, and the leader
// answers when a majority has: its own disk alone is not enough, nor is theirs
// for what it applies itself.
func TestAnswersWaitForDisks(t *testing.T) {
	r := newRig(t, 3, 1)
	a, b := r.nodes[1], r.nodes[2]
	r.nodes[3].off = true
	r.publish(a, 1, "k")
	r.pump(a)
	r.says("n1 writes")
	if got := r.pass(a); !slices.Equal(got, []string{"append to n2", "append to n3"}) {
		t.Fatalf("the leader sends %q", got)
	}
	r.pump(b)
	r.says("n2 writes")
	if got := r.pass(b); len(got) > 0 {
		t.Fatalf("before its disk has the entry, the follower says %q", got)
	}
	r.durable(a)
	r.pump(a)
	r.says("") // one disk of three
	r.durable(b)
	if got := r.pass(b); !slices.Equal(got, []string{"appended to n1"}) {
		t.Fatalf("the follower says %q", got)
	}
	r.pump(a)
	r.says("n1 answers: 0")

	// The other way round: two others have it, and the leader's disk does not.
	r.nodes[3].off = false
	r.settle()
	r.publish(a, 1, "l")
	r.pump(a)
	r.pass(a)
	for _, n := range []*rigNode{b, r.nodes[3]} {
		r.pump(n)
		r.durable(n)
		r.pass(n)
	}
	r.pump(a)
	r.buf.Reset()
	r.pump(a)
	r.says("")
	r.durable(a)
	r.pump(a)
	r.says("n1 answers: 1")
}

// A log that is full because nobody takes it is not a leadership that was lost:
// what is queued waits, and is stored in order when there is a majority again.
func TestFullIsNotLost(t *testing.T) {
	r := newRig(t, 3, 1)
	a := r.nodes[1]
	r.reopen(a, func(cfg *Config) { cfg.uncommittedBytes = 10_000 })
	r.must(a.core.campaign(1))
	r.settle()
	r.nodes[2].off, r.nodes[3].off = true, true
	const n = 12
	for i := range n {
		r.publish(a, 1, strings.Repeat(string(rune('a'+i)), 3000))
		r.settle()
	}
	r.says("")
	rep := a.core.replicas[1]
	if !rep.full || rep.queued() == false || rep.waiting.len() == n {
		t.Fatalf("full %v, %d are with raft: the test does not fill the log", rep.full, rep.waiting.len())
	}
	if kept := rep.rlog.last - uint64(rep.log.Position().Index); kept > 4 {
		t.Fatalf("%d entries of 3 kB are in a log that nobody takes", kept)
	}
	r.nodes[2].off = false
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("n1 answers: %d", i))
	}
	for range 40 { // heartbeats tell that someone is there again
		for _, n := range r.sorted() {
			n.core.tick()
		}
		r.settle()
	}
	r.says(strings.Join(want, "\n"))
}

// Raft puts an empty entry where it does not want a change, and says nothing. It is
// told from the change by its id.
func TestChangeThatRaftSwallows(t *testing.T) {
	r := newRig(t, 3, 1)
	a := r.nodes[1]
	rep := a.core.replicas[1]
	other := uint64(4)
	// One that the core does not know of is on its way.
	r.must(rep.rn.ProposeConfChange(&raftpb.ConfChangeV2{
		Changes: []*raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: &other}},
	}))
	a.core.change(1, Change{AddLearner, 5}, r.tell(a, "change"))
	r.settle()
	r.says("n1: change: partition p1: add n5 refused: an earlier change is not through yet: try again shortly")
	if got := rep.learners; !slices.Equal(got, []ReplicaID{4}) {
		t.Fatalf("the learners are %v", got)
	}
	a.core.change(1, Change{Remove, 4}, r.tell(a, "change"))
	r.settle()
	r.says("n1: change: done")
}

// Proposals and reads are not forwarded between nodes, whoever asks for it.
func TestNothingIsForwarded(t *testing.T) {
	for _, typ := range []raftpb.MessageType{
		raftpb.MsgProp, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTransferLeader, raftpb.MsgHup, raftpb.MsgStorageAppend,
	} {
		if f, ok := frameOf(1, &raftpb.Message{Type: typ.Enum()}); ok {
			t.Errorf("%v travels as %v", typ, f)
		}
	}
	r := newRig(t, 3, 1)
	b := r.nodes[2]
	r.publish(b, 1, "k")
	r.pump(b)
	r.says("n2 answers: partition p1 is led by node n1: ask there")
	if got := r.pass(b); len(got) > 0 {
		t.Fatalf("a follower passes on %q", got)
	}
}

// A replica that was cut off and campaigned all the while disturbs nobody when it
// is back, and a leader that is cut off knows it in the end.
func TestVotesDisturbNobody(t *testing.T) {
	r := newRig(t, 3, 1)
	a, c := r.nodes[1], r.nodes[3]
	ticks := func(n int) {
		for range n {
			for _, n := range r.sorted() {
				n.core.tick()
			}
			r.settle()
		}
	}
	term := a.core.replicas[1].term
	c.off = true
	for range 500 { // alone with its clock
		c.core.tick()
		r.pump(c)
		for len(c.writes) > 0 {
			r.durable(c)
		}
		c.core.takeFrames()
		ticks(1)
	}
	c.off = false
	ticks(maxPatience + 5*rankTicks) // it asks less and less often
	if rep := a.core.replicas[1]; !rep.leading || rep.term != term || c.core.replicas[1].leader != 1 {
		t.Fatalf("n1 leads %v in term %d, began with %d; n3 follows %v", rep.leading, rep.term, term, c.core.replicas[1].leader)
	}
	a.off = true
	a.core.down(2) // which wakes it
	a.core.down(3)
	for range 2 * electionTicks {
		a.core.tick()
		r.pump(a)
		for len(a.writes) > 0 {
			r.durable(a)
		}
		a.core.takeFrames()
	}
	if a.core.replicas[1].isLead {
		t.Fatal("a leader whom nobody hears believes in itself")
	}
}

// An App that asked for a turn while its replica led has none when another leads, and
// the node does not wake for it again and again.
func TestFormerLeaderRests(t *testing.T) {
	r := newRig(t, 3, 1)
	a, b := r.nodes[1].core, r.nodes[2].core
	for _, n := range r.sorted() {
		n.core.replicas[1].app.(*counter).drive = func(_ *counter, now Millis, _ Log) ([][]byte, Millis) { return nil, now + 10 }
	}
	r.publish(r.nodes[1], 1, "k")
	r.settle()
	r.says("n1 answers: 0")
	if a.nextWake() != r.now+10 || b.nextWake() != never {
		t.Fatalf("n1 wakes at %v, n2 at %v; it is %v", a.nextWake(), b.nextWake(), r.now)
	}
	a.transferTo(1, NodeID(2).Replica(), func(error) {})
	r.settle()
	if !b.replicas[1].leading {
		t.Fatal("n2 does not lead")
	}
	for range 3 {
		r.now += 20
		for _, n := range r.sorted() {
			n.core.due(r.now)
		}
		r.settle()
	}
	if a.nextWake() != never || b.nextWake() != r.now+10 {
		t.Fatalf("n1 wakes at %v, n2 at %v; it is %v", a.nextWake(), b.nextWake(), r.now)
	}
	b.transferTo(1, NodeID(1).Replica(), func(error) {})
	r.settle()
	if a.nextWake() != r.now+10 || b.replicas[1].wake != 0 {
		t.Fatalf("n1 leads again, and wakes at %v; it is %v", a.nextWake(), r.now)
	}
}

// A replica that lost what it had acknowledged stops, alone: its neighbours on the
// node and the other replicas go on.
func TestLostLogStopsItsReplica(t *testing.T) {
	r := newRig(t, 3, 2)
	a, c := r.nodes[1], r.nodes[3]
	old := c.fs.CrashClone(vfs.CrashCloneCfg{})
	r.publish(a, 1, "k")
	r.settle()
	r.says("n1 answers: 0")
	c.store.Close()
	c.fs = old
	r.open(c)
	for range 30 {
		for _, n := range r.sorted() {
			n.core.tick()
		}
		r.settle()
	}
	if f := c.core.replicas[1].fault; f == nil {
		t.Error("a replica that lost an entry that it had acknowledged goes on")
	}
	r.publish(a, 1, "l")
	r.publish(a, 2, "m")
	r.settle()
	r.says("n1 answers: 1\nn1 answers: 0")
	if f := c.core.replicas[2].fault; f != nil || c.core.replicas[2].log.Position().End != 1 {
		t.Errorf("its neighbour: %v, at %v", f, c.core.replicas[2].log.Position())
	}
}

// A thousand partitions that have nothing to say cost nothing. When the node that
// leads them dies, and the transport says so after a second, they take writes
// again within three.
func TestThousandSleepers(t *testing.T) {
	const partitions = 1000
	r := newRig(t, 3, partitions)
	for range 2 * sleepAfter {
		for _, n := range r.sorted() {
			n.core.tick()
		}
		r.settle()
	}
	steps := func() (n uint64) {
		for _, n1 := range r.sorted() {
			n += n1.core.steps
		}
		return n
	}
	before := steps()
	for range 100 {
		for _, n := range r.sorted() {
			n.core.tick()
			if n.core.ready() || len(n.core.out) > 0 {
				t.Fatalf("%v has something to do", n.id)
			}
		}
	}
	if n := steps() - before; n > 0 {
		t.Fatalf("the clock of idle partitions was moved %d times", n)
	}

	r.nodes[1].off = true
	tick := 0
	for ; tick < 30; tick++ { // three seconds
		if tick == 10 {
			r.nodes[2].core.down(1)
			r.nodes[3].core.down(1)
		}
		for _, n := range r.sorted()[1:] {
			n.core.tick()
		}
		r.settle()
		led := map[NodeID]int{}
		for _, n := range r.sorted()[1:] {
			for _, rep := range n.core.order {
				if rep.leading {
					led[n.id]++
				}
			}
		}
		if led[2]+led[3] == partitions {
			if min(led[2], led[3]) < partitions/3 {
				t.Errorf("the load is not shared: %v", led)
			}
			break
		}
	}
	if tick == 30 {
		t.Fatal("not all partitions are led after three seconds")
	}
	for p := range partitions {
		id := PartitionID(p + 1)
		n := r.nodes[2]
		if !n.core.replicas[id].leading {
			n = r.nodes[3]
		}
		r.publish(n, id, "k")
	}
	r.settle()
	if n := strings.Count(r.buf.String(), "answers: 0\n"); n != partitions {
		t.Fatalf("%d of %d partitions take writes", n, partitions)
	}
}

// What goes to a node that is down is little, and all that it missed comes when it
// is back.
func TestDeadFollowerIsNotFed(t *testing.T) {
	r := newRig(t, 3, 1)
	a := r.nodes[1]
	r.nodes[3].off = true
	a.core.down(3)
	sent := 0
	const n = 50
	for i := range n {
		r.publish(a, 1, fmt.Sprint("m", i))
		for a.core.ready() || r.nodes[2].core.ready() {
			for _, n := range r.sorted()[:2] {
				r.pump(n)
				for len(n.writes) > 0 {
					r.durable(n)
				}
				for _, f := range n.core.takeFrames() {
					if f.kind == frameAppend && f.To.Node() == 3 && len(f.m.GetEntries()) > 0 {
						sent++
					}
					if to := r.nodes[f.To.Node()]; !to.off {
						to.core.receive(f)
					}
				}
			}
		}
	}
	if sent > 1 {
		t.Errorf("%d messages with entries went to a node that is down", sent)
	}
	r.nodes[3].off = false
	a.core.up(3)
	for range 2 * heartbeatTicks {
		a.core.tick()
		r.settle()
	}
	if at := r.nodes[3].core.replicas[1].log.Position(); at.End != n {
		t.Errorf("it is back and has %v", at)
	}
}

// A change of replicas that a follower has applied is on its disk: who led may be lost
// with its disk, and count among the voters of before, without whom nobody would lead.
func TestAppliedChangeIsOnDisk(t *testing.T) {
	r := newRig(t, 3, 1)
	a := r.nodes[1]
	a.core.change(1, Change{Demote, NodeID(3).Replica()}, r.tell(a, "change"))
	r.settle()
	for range 10 {
		for _, n := range r.sorted() {
			n.core.tick()
		}
		r.settle()
	}
	r.says("n1: change: done")
	want := []ReplicaID{NodeID(1).Replica(), NodeID(2).Replica()}
	for _, n := range r.sorted() {
		if got := n.core.replicas[1].voters; !slices.Equal(got, want) {
			t.Fatalf("%v has applied the voters %v", n.id, got)
		}
		disk := n.fs.CrashClone(vfs.CrashCloneCfg{})
		n.store.Close()
		n.fs = disk
		r.open(n)
		if got := n.core.replicas[1].voters; !slices.Equal(got, want) {
			t.Errorf("after a power cut the voters are %v on %v", got, n.id)
		}
	}
}

// Who drops a partition again that another call has dropped a moment ago waits for the
// disk, too: a power cut could bring it back until then.
func TestDropAgainWaits(t *testing.T) {
	n := newRig(t, 1, 1).nodes[1]
	first, err := n.core.drop(1)
	if err != nil || first.pending == nil {
		t.Fatalf("%v, %v", first, err)
	}
	again, err := n.core.drop(1)
	if err != nil || again == nil || again.pending == nil {
		t.Fatalf("the second call waits for %v, %v: want a write to be synced", again, err)
	}
	for _, w := range []*write{first, again} {
		if err := w.pending.Wait(); err != nil {
			t.Error(err)
		}
	}
}
