package sim

import (
	"testing"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// alone is a run of one partition in which nothing happens by itself.
func alone() *Sim {
	s := &Sim{plan: plan{nodes: 1, parts: 1}, nodes: []*node{{id: 1}}}
	s.judge = s.newJudge()
	return s
}

// TestCallsDieWithTheirNode: a call that was under way on a node that lost its power
// is over for its member, whatever the node had reserved for it. Who waits for it asks
// nobody else any more.
func TestCallsDieWithTheirNode(t *testing.T) {
	s := alone()
	m := &member{s: s, r: source(1, "member"), asks: true}
	l := &link{m: m, parts: s.parts(), node: s.nodes[0], st: &consumer.Stream{}, ask: &consumer.Asking{}}
	l.turn()
	if l.st != nil || l.ask != nil {
		t.Fatalf("its node is off, and it still has the stream %v and the call %v", l.st != nil, l.ask != nil)
	}
}

// producing is a publisher of a sequence with two batches on their way.
func producing(s *Sim) (p *publisher, first, second *batch) {
	p = &publisher{s: s, r: source(1, "publisher"), name: "p", part: 1, how: "sequence", flying: 2, next: 2}
	first = &batch{ms: []*message{{producer: "p-0", seq: 0, attempts: 1}}}
	second = &batch{ms: []*message{{producer: "p-0", seq: 1, attempts: 1}}}
	p.open = []*batch{first, second}
	return p, first, second
}

var (
	noAnswer = &partition.ErrOutcomeUnknown{Partition: 1, Why: "no answer"}
	unknown  = []partition.Stored{{Err: &partition.ErrSequenceGap{Partition: 1, Producer: "p-0", Got: 1, Expected: 0}}}
)

// TestFirstBatchLost: a producer that nobody knows is not forgotten while its first
// batch is on its way. All goes again, in order.
func TestFirstBatchLost(t *testing.T) {
	s := alone()
	p, first, second := producing(s)
	p.flying--
	p.told(second, unknown, nil)
	p.flying--
	p.told(first, nil, noAnswer)
	if len(p.open) != 2 || p.open[0] != first || !p.again || p.producer != 0 || len(s.heap) != 1 {
		t.Fatalf("%d batches open, again %v, producer %d, %d events: want both, true, 0, 1", len(p.open), p.again, p.producer, len(s.heap))
	}
}

// TestLastAnswerIsOfAnother: what waits until nothing is on its way any more goes
// again, also when the last answer is of a batch that was given up.
func TestLastAnswerIsOfAnother(t *testing.T) {
	s := alone()
	p, old, second := producing(s)
	p.open = []*batch{second} // the first was acknowledged, and removed since
	s.judge.logs[1].start = 1
	p.flying--
	p.told(second, unknown, nil)
	if p.producer != 1 || len(p.open) != 0 {
		t.Fatalf("it is producer %d with %d batches open: want a new one with none", p.producer, len(p.open))
	}
	p.open, p.flying = []*batch{{ms: []*message{{producer: "p-1"}}}}, 2
	p.flying--
	p.told(p.open[0], nil, &partition.ErrNotLeader{Partition: 1})
	if len(s.heap) != 0 {
		t.Fatal("it goes again while another batch is on its way: their order may turn")
	}
	p.flying--
	p.told(old, nil, noAnswer)
	if len(s.heap) != 1 || !p.again {
		t.Fatalf("again %v, %d events: want true, 1", p.again, len(s.heap))
	}
}
