package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// What a leader handed out before it was lost comes from the next one, and costs its
// credit once: a member that handles it and gives the credit back gets what follows.
func TestAdoptedDeliveriesCostOneCredit(t *testing.T) {
	t.Parallel()
	for _, where := range []partition.NodeID{ownerNode, edgeNode} {
		t.Run(where.String(), func(t *testing.T) {
			t.Parallel()
			adoptedCostOneCredit(t, where)
		})
	}
}

func adoptedCostOneCredit(t *testing.T, where partition.NodeID) {
	t.Helper()
	c := startCluster(t, func(partition.PartitionID) partition.NodeID { return where })
	a := newAPI(t, c.owner.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	const credits, rounds = 4, 5
	for i := range credits * rounds {
		a.store(t, "t", msg(fmt.Sprint("k", i), "x"))
	}
	eventually(t, "the edge knows the group", func() bool { _, _, err := c.edge.group("t", "g"); return err == nil })
	mem, err := c.edge.memory.open()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	j, err := c.edge.join(ctx(t), c.edge.members.JoinStream, "t", "g", "m")
	if err != nil {
		t.Fatal(err)
	}
	topic, err := c.edge.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	shares := sharesOf(topic, []coordinator.Share{{Shares: 1}})
	req := consumer.StreamRequest{Group: consumer.GroupID(j.Group.ID), Member: "m", Session: j.Member.Session, MaxBytes: frameBytes}
	g, err := c.edge.far.gather(ctx(t), req, mem)
	if err != nil {
		t.Fatal(err)
	}
	defer g.detach()
	if where == edgeNode { // a stream adopts here only what it asked for before
		g.SetShares(shares)
		g.SetShares(nil)
	}
	lost, err := c.at(where).groups.Open(req)
	if err != nil {
		t.Fatal(err)
	}
	lost.SetShares(shares)
	lost.AddCredit(credits)
	for n := 0; n < credits; {
		hs, err := lost.Next(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		n += len(hs[0].Deliveries)
	}
	lost.Detach()

	g.AddCredit(credits)
	g.SetShares(shares)
	came := map[partition.Offset]bool{}
	for number := uint64(1); len(came) < credits*rounds; {
		n := uint64(0)
		eventually(t, fmt.Sprintf("the member's credits bring more than %d messages", len(came)), func() bool {
			hs, err := g.Poll(frameBytes)
			if err != nil {
				t.Fatal(err)
			}
			g.polled()
			for i := range hs {
				for _, d := range hs[i].Deliveries {
					came[d.Message.Offset] = true
					n++
				}
			}
			return n > 0
		})
		done := make(chan []consumer.SettleRunResult, 1)
		g.Settle(ctx(t), []consumer.SettleRun{{First: number, Last: number + n - 1, Action: consumer.Ack}}, func(r []consumer.SettleRunResult) { done <- r })
		if r := <-done; len(r) != 1 || r[0].Err != nil {
			t.Fatalf("%+v", r)
		}
		number += n
		g.AddCredit(int(n))
	}
}

// What is granted to an attachment that ended meanwhile stays with the stream.
func TestNoCreditForAnAttachmentThatIsOver(t *testing.T) {
	t.Parallel()
	a := newAttachment(nil, ownerNode)
	a.over = true
	if a.grant(3) || a.loan != 0 || a.grants != 0 {
		t.Errorf("it has %d credits, %d to be sent", a.loan, a.grants)
	}
}

// A loaned is what a test plays of a node that hands out: it has what the frames of its
// attachment grant.
type loaned struct {
	a      *attachment
	credit int
	heard  uint64 // all that was granted
	recall bool   // not answered
}

// hear takes what the attachment has to say.
func (l *loaned) hear() {
	for {
		f, _ := l.a.frame()
		if f == nil {
			return
		}
		l.credit += int(f.GetGrant())
		l.heard += uint64(f.GetGrant())
		l.recall = l.recall || f.GetRecall()
	}
}

// A creditWorld is a member's stream over three partitions that nodes of the test lead.
type creditWorld struct {
	*gather
	c      *cluster
	leads  []partition.NodeID // guarded by c.mu
	shares []consumer.Share
	nodes  []*loaned // that are attached
	fences uint64    // of the last hand-out
	size   int64     // of a message
	out    int       // deliveries that the member has
}

const creditOfAll = 4

// check tells that no credit is lost, and none made.
func (w *creditWorld) check(t rapid.TB, after string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := w.Lease(maxCredit)
	w.Stream.AddCredit(free)
	loans := 0
	for _, l := range w.nodes {
		loans += l.a.loaned()
	}
	given := 0
	if w.size > 0 {
		given = int(w.Waiting() / w.size)
	}
	if all := w.out + given + free + loans - w.owes; all != creditOfAll {
		t.Fatalf("after %s: the member has %d deliveries, %d wait, %d credits are free, %d on loan, %d owed: %d of %d", after, w.out, given, free, loans, w.owes, all, creditOfAll)
	}
}

// lead has a node lead a partition.
func (w *creditWorld) lead(p int, n partition.NodeID) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.leads[p] = n
}

// handOut makes deliveries of a partition as a node tells them.
func (w *creditWorld) handOut(t rapid.TB, p partition.PartitionID, n int, again bool) *nodev1.Handed {
	h := consumer.Handed{Partition: p, Again: again}
	for range n {
		w.fences++
		b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{Body: []byte{'x'}}}))
		if err != nil {
			t.Fatal(err)
		}
		d := consumer.StreamDelivery{Fence: w.fences, Attempt: 1}
		b.Each(func(_ int, r record.Raw) bool {
			w.size = int64(r.Size())
			d.Message = partition.RawMessage{Offset: partition.Offset(w.fences), Record: r}
			return true
		})
		h.Deliveries = append(h.Deliveries, d)
	}
	return handedTo([]consumer.Handed{h})[0]
}

// tell is a frame of a node.
func (w *creditWorld) tell(t rapid.TB, l *loaned, f *nodev1.AttachResponse) {
	if err := l.a.take(f); err != nil {
		t.Fatal(err)
	}
}

// poll gives the member what came.
func (w *creditWorld) poll(t rapid.TB) {
	hs, err := w.Poll(frameBytes)
	if err != nil {
		t.Fatal(err)
	}
	for i := range hs {
		w.out += len(hs[i].Deliveries)
	}
}

// settle has the member give back credit.
func (w *creditWorld) settle(n int) {
	w.out -= n
	w.AddCredit(n)
}

// creditWorlds makes worlds in which three nodes lead a partition each.
func creditWorlds(t *testing.T) func(t rapid.TB) *creditWorld {
	t.Helper()
	c := startCluster(t, nil)
	a := newAPI(t, c.owner.URL())
	a.topic(t, "t", 3)
	a.group(t, "t", "g", patient())
	eventually(t, "the edge knows the group", func() bool { _, _, err := c.edge.group("t", "g"); return err == nil })
	topic, err := c.edge.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	_, group, err := c.edge.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	shares := sharesOf(topic, []coordinator.Share{{Partition: 0, Shares: 1}, {Partition: 1, Shares: 1}, {Partition: 2, Shares: 1}})
	return func(t rapid.TB) *creditWorld {
		w := &creditWorld{c: c, leads: slices.Clone(creditNodes), shares: shares}
		c.mu.Lock()
		c.leads = func(p partition.PartitionID) partition.NodeID {
			return w.leads[slices.IndexFunc(shares, func(s consumer.Share) bool { return s.Partition == p })]
		}
		c.mu.Unlock()
		var err error
		if w.gather, err = c.edge.far.gather(context.Background(), consumer.StreamRequest{Group: consumer.GroupID(group.ID), Member: "m", Session: 1}, nil); err != nil {
			t.Fatal(err)
		}
		w.attach = func(a *attachment) { w.nodes = append(w.nodes, &loaned{a: a}) }
		// Nothing is placed anew but by the script.
		w.timer = time.NewTimer(time.Hour)
		w.timer.Stop()
		return w
	}
}

var creditNodes = []partition.NodeID{ownerNode, 3, 4} //nolint:gochecknoglobals // a constant

// A node may say that it is hungry while a grant is on its way to it. It is not believed:
// what it does not use then is called back for another one.
func TestHungerOfBeforeAGrant(t *testing.T) {
	t.Parallel()
	w := creditWorlds(t)(t)
	defer w.detach()
	w.SetShares(w.shares[:2])
	w.AddCredit(creditOfAll) // half for each
	busy, idle := w.nodes[0], w.nodes[1]
	w.tell(t, idle, &nodev1.AttachResponse{Hungry: true, Heard: new(uint64(0))})
	idle.hear()
	busy.hear()
	if idle.credit != creditOfAll/2 || busy.credit != creditOfAll/2 {
		t.Fatalf("the nodes have %d and %d credits", busy.credit, idle.credit)
	}
	w.tell(t, busy, &nodev1.AttachResponse{Recalled: true, Handed: []*nodev1.Handed{w.handOut(t, w.shares[0].Partition, busy.credit, false)}})
	w.tell(t, busy, &nodev1.AttachResponse{Hungry: true, Heard: new(busy.heard)})
	idle.hear()
	if !idle.recall {
		t.Error("the node that has credit and no use for it is not asked to give it back")
	}
	w.check(t, "the script")
}

// Whatever becomes of the nodes that hand out, the credit of a member stays what it was:
// with the member, in the stream, or on loan. And in the end a node that is hungry gets
// some, again and again.
func TestCreditIsNeitherLostNorMade(t *testing.T) {
	t.Parallel()
	world := creditWorlds(t)
	rapid.Check(t, func(t *rapid.T) {
		w := world(t)
		defer w.detach()
		w.AddCredit(creditOfAll)
		w.SetShares(w.shares)
		w.check(t, "the start")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			what := rapid.SampledFrom([]string{"hear", "hear", "hand", "hand", "again", "return", "recalled", "hungry", "ended", "broken", "moved", "place", "poll", "settle", "withdrawn"}).Draw(t, "what")
			var l *loaned
			if len(w.nodes) > 0 {
				l = w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node")]
			}
			p := rapid.IntRange(0, len(w.shares)-1).Draw(t, "partition")
			switch {
			case what == "poll":
				w.poll(t)
			case what == "settle" && w.out > 0:
				w.settle(rapid.IntRange(1, w.out).Draw(t, "n"))
			case what == "moved":
				w.lead(p, rapid.SampledFrom(creditNodes).Draw(t, "to"))
			case what == "place":
				w.SetShares(w.shares)
			case what == "withdrawn":
				w.SetShares(slices.Delete(slices.Clone(w.shares), p, p+1))
			case l == nil:
			case what == "hear":
				l.hear()
			case what == "hand" && l.credit > 0:
				n := rapid.IntRange(1, l.credit).Draw(t, "n")
				l.credit -= n
				w.tell(t, l, &nodev1.AttachResponse{Handed: []*nodev1.Handed{w.handOut(t, w.shares[p].Partition, n, false)}})
			case what == "again":
				w.tell(t, l, &nodev1.AttachResponse{Handed: []*nodev1.Handed{w.handOut(t, w.shares[p].Partition, rapid.IntRange(1, 5).Draw(t, "n"), true)}})
			case what == "recalled" && l.recall:
				n := rapid.IntRange(0, l.credit).Draw(t, "n")
				l.credit, l.recall = l.credit-n, false
				w.tell(t, l, &nodev1.AttachResponse{Recalled: true, Returned: uint32(n)})
			case what == "hungry" && l.credit == 0:
				w.tell(t, l, &nodev1.AttachResponse{Hungry: true, Heard: new(l.heard)})
			case what == "ended":
				w.tell(t, l, &nodev1.AttachResponse{Ended: []*nodev1.ShareEnded{{Partition: uint64(w.shares[p].Partition), Failure: w.c.edge.failureOn(context.Background(), notLed(w.shares[p].Partition))}}})
			case what == "broken":
				l.a.end(errors.New("it broke"))
				w.nodes = slices.DeleteFunc(w.nodes, func(x *loaned) bool { return x == l })
			}
			w.check(t, what)
		}
		w.recover(t, creditNodes[0], rapid.Bool().Draw(t, "all"))
	})
}

// recover has one node lead a partition, or all, of which much can be handed out, and
// the others answer. It tells whether the node hands out on and on.
func (w *creditWorld) recover(t rapid.TB, n partition.NodeID, all bool) {
	w.lead(0, n)
	for p := 1; all && p < len(w.leads); p++ {
		w.lead(p, n)
	}
	const enough = 10 * creditOfAll
	handed := 0
	for round := 0; handed < enough; round++ {
		if round == 10*enough {
			t.Fatalf("the node that leads got credit for %d deliveries, and no more", handed)
		}
		w.SetShares(w.shares)
		for _, l := range slices.Clone(w.nodes) {
			l.hear()
			if l.recall {
				back := l.credit
				l.credit, l.recall = 0, false
				w.tell(t, l, &nodev1.AttachResponse{Recalled: true, Returned: uint32(back)})
			}
			switch {
			case l.a.node != n:
			case l.credit > 0:
				handed += l.credit
				w.tell(t, l, &nodev1.AttachResponse{Handed: []*nodev1.Handed{w.handOut(t, w.shares[0].Partition, l.credit, false)}})
				l.credit = 0
			default:
				w.tell(t, l, &nodev1.AttachResponse{Hungry: true, Heard: new(l.heard)})
			}
		}
		w.poll(t)
		if w.out > 0 {
			w.settle(w.out)
		}
		w.check(t, "the recovery")
	}
}
