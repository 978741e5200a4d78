package consumer

import (
	"context"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

// judgeTraces traces every message and holds the traces against the state: each
// hand-out that was counted is told once, and every life ends where its message
// stands.
func (w *twinWorld) judgeTraces() {
	told := make(map[GroupID]uint64)
	whole := w.start == 0
	for o := w.start; o < partition.Offset(len(w.msgs)); o++ {
		if w.twice[o] {
			whole = false
			continue
		}
		life, err := w.shell.Trace(context.Background(), twinPart, o, Window{Last: 100_000})
		events := life.Events
		if err != nil || life.Cut > 0 {
			w.fail("trace of %d: %+v, %v", o, life, err)
			return
		}
		last := make(map[GroupID]TraceEvent)
		for _, e := range events {
			last[e.Group] = e
			if e.What == "handed-out" {
				told[e.Group]++
			}
		}
		for i, g := range w.app.groups {
			w.judgeTrace(life.States[i], o, last[g.id], events)
		}
	}
	for _, g := range w.app.groups {
		if whole && told[g.id] != g.handedOut {
			w.fail("traces tell %d hand-outs in group %v, which counted %d", told[g.id], g.id, g.handedOut)
		}
	}
}

func (w *twinWorld) judgeTrace(s MessageInGroup, o partition.Offset, last TraceEvent, all []TraceEvent) {
	ends := func(whats ...string) bool {
		for _, x := range whats {
			if last.What == x {
				return true
			}
		}
		return false
	}
	ok, once := true, last.What == "handed-out" && last.Detail == "at most once"
	switch s.State {
	case "in-flight":
		ok = ends("handed-out", "extended") && last.Attempt == s.Attempts
	case "backing-off":
		attempt := s.Attempts
		if strings.Contains(last.Detail, "not charged") { // it failed while the circuit was open
			attempt++
		}
		ok = ends("nacked", "lapsed", "session-lost") && last.Attempt == attempt
	case "dead":
		ok = ends("dead-lettered", "reset")
	case "acked":
		ok = (ends("acked") || once) && last.Attempt == s.Attempts
	case "not-scanned":
		ok = ends("", "reset", "replayed", "discarded")
	case "ready", "blocked", "parked":
		ok = !ends("handed-out", "extended", "acked", "dead-lettered") || once
	default:
	}
	if !ok {
		w.fail("message %d is %s in group %v after %d attempts, and its trace ends with %q, attempt %d:\n%+v",
			o, s.State, s.Group, s.Attempts, last.What, last.Attempt, all)
	}
}
