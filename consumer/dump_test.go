package consumer

import (
	"fmt"
	"slices"
	"strings"
)

// dump prints all replicated state that is held in memory, in one order, for
// tests: two Apps with equal rows and equal dumps behave alike.
func (a *App) dump() string {
	var b strings.Builder
	for _, g := range a.groups {
		g.dump(&b)
	}
	fmt.Fprintf(&b, "deleted %v\n", a.deleted)
	return b.String()
}

func (g *group) dump(b *strings.Builder) {
	fmt.Fprintf(b, "%v %q start=%d scanned=%d kept=%d epoch=%d handouts=%d clock=%d paused=%v\n",
		g.id, g.name, g.start, g.scanned, g.kept, g.epoch, g.handOuts, g.clock, g.paused)
	fmt.Fprintf(b, " policy %+v\n", g.policy)
	fmt.Fprintf(b, " count %v dead=%d acked=%d skipped=%d expired=%d replaying=%d ahead=%d again=%d handed-out=%d retried=%d outcomes=%v parking=%d ended=%d\n",
		g.count, g.dead, g.acked, g.skipped, g.expired, g.replaying, g.ahead, g.again, g.handedOut, g.retried, g.outcomes, g.parking, g.ended)
	fmt.Fprintf(b, " breaker %+v\n", g.breaker)
	fmt.Fprintf(b, " disk %v loose=%+v cold=%d wakes=%d leapt=%d\n", g.disk, g.loose, g.cold, g.wakes, g.leapt)
	var live []*entry
	for i := range g.entries {
		if g.entries[i].at != vacant {
			live = append(live, &g.entries[i])
		}
	}
	slices.SortFunc(live, func(x, y *entry) int { return int(int64(x.offset) - int64(y.offset)) })
	for _, e := range live {
		holder := ""
		if e.at == inFlight {
			holder = g.members[e.member].name
		}
		fmt.Fprintf(b, " %d hash=%x at=%d until=%d attempts=%d ordinal=%d handout=%d by=%q/%d/%x at=%d first=%d last=%d size=%d replayed=%v history=%v\n",
			e.offset, e.keyHash, e.at, e.until, e.attempts, e.ordinal, e.handOut, holder, e.session, e.request,
			e.handedAt, e.firstSeen, e.last, e.size, e.replayed, e.history)
	}
	var keys []*keyState
	for i := range g.keys {
		if ks := &g.keys[i]; ks.head != none || len(ks.blockers) > 0 {
			keys = append(keys, ks)
		}
	}
	slices.SortFunc(keys, func(x, y *keyState) int {
		if x.hash < y.hash {
			return -1
		}
		return 1
	})
	for _, ks := range keys {
		fmt.Fprintf(b, " key %x in-flight=%d blockers=%v queue=[", ks.hash, ks.inFlight, ks.blockers)
		for i := ks.head; i != none; i = g.entries[i].next {
			fmt.Fprintf(b, " %d", g.entries[i].offset)
		}
		fmt.Fprintf(b, " ] %+v\n", ks.queue)
	}
	var names []string
	for i := range g.members {
		if m := &g.members[i]; m.held > 0 || m.sessions > 0 {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		m := &g.members[g.names[name]]
		fmt.Fprintf(b, " member %q sessions=%d held=[", name, m.sessions)
		for i := m.head; i != none; i = g.entries[i].nextHeld {
			fmt.Fprintf(b, " %d", g.entries[i].offset)
		}
		fmt.Fprintf(b, " ]\n")
	}
}
