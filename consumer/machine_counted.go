package consumer

// counted is what the command under way did, for who counts: App.Settled, App.Finished.
// Neighbours that are alike are one run, since nearly all are acks of a first hand-out.
//
// Only who leads takes note, and it leads when everything of earlier terms is applied.
// So nothing is noted twice, here or on another node; what is applied while nobody leads
// is noted by nobody.
type counted struct {
	settled  []settledRun
	finished []finishedRun
}

type settledRun struct {
	action Action
	dead   bool
	n      int
}

type finishedRun struct {
	handOuts uint32
	n        int
}

// countSettled notes a settlement that took effect.
func (g *group) countSettled(a Action, r SettleResult) {
	if g.hand == nil || r.Err != nil || r.Again || a == bury {
		return
	}
	runs := g.counted.settled
	if n := len(runs); n > 0 && runs[n-1].action == a && runs[n-1].dead == r.Dead {
		runs[n-1].n++
		return
	}
	g.counted.settled = append(runs, settledRun{a, r.Dead, 1})
}

// finish notes that a message is acked or dead, after so many hand-outs since it was
// published, those included that were released. A dead letter that is replayed is
// finished again.
func (g *group) finish(handOuts uint32) {
	if g.hand == nil {
		return
	}
	runs := g.counted.finished
	if n := len(runs); n > 0 && runs[n-1].handOuts == handOuts {
		runs[n-1].n++
		return
	}
	g.counted.finished = append(runs, finishedRun{handOuts, 1})
}

// tellCounted tells what an entry did.
func (a *App) tellCounted(g *group) {
	if g == nil || len(g.counted.settled)+len(g.counted.finished) == 0 {
		return
	}
	for _, r := range g.counted.settled {
		if a.Settled != nil {
			a.Settled(g.id, r.action, r.dead, r.n)
		}
	}
	for _, r := range g.counted.finished {
		if a.Finished != nil {
			a.Finished(g.id, r.handOuts, r.n)
		}
	}
	const keep = 64
	if cap(g.counted.settled) > keep || cap(g.counted.finished) > keep {
		g.counted = counted{}
	}
	g.counted.settled, g.counted.finished = g.counted.settled[:0], g.counted.finished[:0]
}
