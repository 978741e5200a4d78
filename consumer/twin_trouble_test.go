package consumer

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/partition"
)

// crash restarts the node: of what was proposed, a prefix is in the log.
func (w *twinWorld) crash(op twinOp) {
	w.cutPending(op.a)
	w.lead(false)
	w.restart()
	if w.fault != nil {
		return
	}
	w.leading = false
	w.applyOld()
	w.lead(true)
}

// changeLeader ends or begins leading. Of what was proposed, a prefix comes
// through; the rest is lost.
func (w *twinWorld) changeLeader(op twinOp) {
	if !w.leading {
		w.applyOld()
		w.lead(true)
		return
	}
	w.cutPending(op.a)
	w.lead(false)
	w.dropCalls()
	if op.b%4 != 0 {
		w.applyOld()
		w.lead(true)
	}
}

func (w *twinWorld) cutPending(n int) {
	w.pending = w.pending[:n%(len(w.pending)+1)]
}

// applyOld applies what an earlier leader proposed, before a new one begins.
func (w *twinWorld) applyOld() {
	for len(w.pending) > 0 && w.fault == nil {
		w.applyNext()
	}
}

// rogue applies what a leader would not propose unless much had changed on the
// way: hand-outs of anything to anybody, lapses of everything that is out, from
// this epoch or the last one. Apply has to void what does not hold.
func (w *twinWorld) rogue(g *twinGroup, op twinOp) {
	tw := g.tw
	tw.ruled = tw.step // a call under way may find what its share would not have given it
	epoch := tw.epoch
	if op.c%8 == 7 && epoch > 0 {
		epoch--
	}
	var lapses []lapse
	for _, m := range tw.msgs {
		if len(m.outs) > 0 && op.b%2 == 0 {
			lapses = append(lapses, lapse{m.off, m.outs[len(m.outs)-1-op.c%len(m.outs)].num})
		}
	}
	if len(lapses) > 0 {
		w.apply(twinEntry{cmd: encodeLapses(w.now, g.id, epoch, lapses), now: w.now, from: "drive"})
	}
	var p planWriter
	p.reset(max(tw.scanned, partition.Offset(op.b%3)) - partition.Offset(op.b%3))
	for _, name := range twinMembers {
		p.table = append(p.table, planMember{name: name, session: g.session(name) - uint64(op.c/8%2)})
	}
	for i, m := range tw.msgs {
		if (i+op.a)%3 != 0 {
			p.redeliver(m.off, (i*op.b+op.a)%len(p.table))
		}
	}
	for i, m := range tw.msgs[p.base:min(len(tw.msgs), int(p.base)+op.a%5)] {
		if (int(p.base)+i+op.a)%3 != 0 {
			w.twice[m.off] = true
		}
		p.pass(m.key, uint32(m.size), int32((int(m.off)+op.a)%(len(p.table)+1))-1)
	}
	w.apply(twinEntry{cmd: p.encode(w.now, g.id, epoch, 1<<40, 0, 0), now: w.now, from: "drive"})
}

// loseReply settles with a reply that is lost, and asks again: after that the
// outcome is the same as if it had been asked once.
func (w *twinWorld) loseReply(g *twinGroup, op twinOp) {
	t, ok := w.token(g, op.b*256+op.c)
	if !ok {
		return
	}
	s := Settlement{Token: t, Action: []Action{Ack, Nack}[op.a%2]}
	w.fate = []twinFate{fateUnknownApplied, fateUnknownLost}[op.a/2%2]
	applied := w.fate == fateUnknownApplied
	res := w.shell.Settle(context.Background(), g.id, []Settlement{s})
	w.fate = fateApplied
	var unknown *partition.ErrOutcomeUnknown
	if len(res) != 1 || !errors.As(res[0].Err, &unknown) {
		w.fail("a lost reply: %v", res)
		return
	}
	if applied {
		w.tick(g)
		g.tw.settle(s.Token, s.Action, s.Delay)
		w.observe("shell")
	}
	res = w.shell.Settle(context.Background(), g.id, []Settlement{s})
	w.tick(g)
	w.judgeSettle(g, s, res[0])
	w.observe("shell")
}
