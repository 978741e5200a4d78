package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

// twinRefusal is where settlements were refused.
type twinRefusal struct {
	group  GroupID
	offset partition.Offset
}

// noteRefused notes the settlements of a command that were refused, as their tokens were
// not current or their messages held for too long.
func (w *twinWorld) noteRefused(cmd []byte, res any) {
	r := reader{b: cmd}
	h := r.header()
	results, ok := res.([]SettleResult)
	if h.kind != cmdSettle || !ok {
		return
	}
	s := r.settlements()
	for _, x := range results {
		k, a, _, _, _ := s.next()
		var stale *ErrStale
		why := ""
		switch {
		case a == bury:
		case errors.As(x.Err, &stale):
			why = stale.Why
		case errors.As(x.Err, new(*ErrHeldTooLong)):
			why = heldLongest
		}
		if at := (twinRefusal{h.group, k.Offset}); why != "" {
			if w.refusals == nil {
				w.refusals = make(map[twinRefusal][]string)
			}
			w.refusals[at] = append(w.refusals[at], why)
		}
	}
}

// sameRefusal tells whether a trace tells why a settlement was refused. Some scripts make
// tokens up, of hand-outs that never were; nobody has such a token, and a trace takes it
// for an earlier one.
func sameRefusal(told, was string) bool {
	return told == was || was == "this hand-out never took effect" && told != ""
}

// judgeTraces traces every message and holds the traces against the state: each
// hand-out that was counted is told once, and every life ends where its message
// stands.
func (w *twinWorld) judgeTraces() {
	told := make(map[GroupID]uint64)
	refused := make(map[twinRefusal][]string)
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
			if e.What == "refused" {
				refused[twinRefusal{e.Group, o}] = append(refused[twinRefusal{e.Group, o}], e.Reason)
				continue // it changed nothing
			}
			last[e.Group] = e
			if e.What == "handed-out" {
				told[e.Group]++
			}
		}
		for i, g := range w.app.groups {
			w.judgeTrace(life.States[i], o, last[g.id], events)
		}
	}
	for at, whys := range w.refusals {
		exists := slices.ContainsFunc(w.app.groups, func(g *group) bool { return g.id == at.group })
		if exists && at.offset >= w.start && at.offset < partition.Offset(len(w.msgs)) && !w.twice[at.offset] && !slices.EqualFunc(refused[at], whys, sameRefusal) {
			w.fail("the trace of %d tells of refusals in group %v: %q, and there were %q", at.offset, at.group, refused[at], whys)
		}
		delete(refused, at)
	}
	for at, whys := range refused {
		w.fail("the trace of %d tells of refusals in group %v: %q, and there were none", at.offset, at.group, whys)
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
