package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
)

// TestScenarios runs the scripts in testdata. A script names a message by its
// key and how many of that key there were: a1, a2, b1. A delivery is named with
// the hand-out of that message that it was: a1 is the newest, a1#1 the first.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := newScenario(1)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			if err := s.check(); err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return out
		})
	})
}

type scenario struct {
	w      *world
	s      *Shell
	names  map[partition.PartitionID][]string // offset → a1
	counts map[string]int
	got    map[string][]Delivery // "1/a1" → hand-outs in group 1, in order
	groups map[GroupID]bool
}

func newScenario(n int) *scenario {
	w := newWorld(n)
	return &scenario{
		w: w, s: w.shell(), names: make(map[partition.PartitionID][]string), counts: make(map[string]int),
		got: make(map[string][]Delivery), groups: make(map[GroupID]bool),
	}
}

// check holds what must be true after every step: the counts of every group add
// up, and a restart from here gives the same state.
func (s *scenario) check() error {
	for _, id := range s.w.ids {
		p := s.w.parts[id]
		for g := range s.groups {
			st, err := s.s.Stats(context.Background(), id, g)
			if err != nil {
				var gone *ErrUnknownGroup
				if errors.As(err, &gone) {
					continue
				}
				return err
			}
			c := st.Counts
			sum := c.Ready + c.Blocked + c.InFlight + c.BackingOff + c.Parked + c.Dead + c.Acked + c.Skipped + c.NotScanned
			if want := uint64(len(p.msgs)) - uint64(st.Start); sum != want {
				return fmt.Errorf("group %v: counts add up to %d, not %d: %+v", g, sum, want, c)
			}
		}
		if diff := p.replayed(); diff != "" {
			return fmt.Errorf("a restart gives another state:\n%s", diff)
		}
	}
	return nil
}

// replayed compares an App restored from the last checkpoint, and one from a
// checkpoint made now, with the running one.
func (p *memPart) replayed() string {
	rows := p.rows.crash()
	again, err := newApp(p.id, rows, p.bounds)
	if err != nil {
		return err.Error()
	}
	for _, c := range p.cmds[p.checkpoint:] {
		if _, err := c.run(again, p); err != nil {
			return err.Error()
		}
	}
	if diff := cmp.Diff(p.app.dump(), again.dump()); diff != "" {
		return "replayed: " + diff
	}
	if err := again.Checkpoint(); err != nil {
		return err.Error()
	}
	restored, err := newApp(p.id, rows, p.bounds)
	if err != nil {
		return err.Error()
	}
	return cmp.Diff(again.dump(), restored.dump())
}

func (s *scenario) name(p partition.PartitionID, o partition.Offset) string { return s.names[p][o] }

func (s *scenario) offset(p partition.PartitionID, name string) partition.Offset {
	if n, err := strconv.ParseUint(name, 10, 64); err == nil {
		return partition.Offset(n)
	}
	for o, n := range s.names[p] {
		if n == name {
			return partition.Offset(o)
		}
	}
	panic("no message " + name)
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	ctx := context.Background()
	var (
		g       uint64 = 1
		p       uint64 = 1
		member         = "A"
		session uint64 = 1
		max            = 10
		request string
		share   uint32
		shares  uint32 = 1
		delay   int64
		reason  string
		n       int
	)
	d.MaybeScanArgs(t, "g", &g)
	d.MaybeScanArgs(t, "p", &p)
	d.MaybeScanArgs(t, "m", &member)
	d.MaybeScanArgs(t, "session", &session)
	d.MaybeScanArgs(t, "max", &max)
	d.MaybeScanArgs(t, "request", &request)
	d.MaybeScanArgs(t, "share", &share)
	d.MaybeScanArgs(t, "shares", &shares)
	d.MaybeScanArgs(t, "delay", &delay)
	d.MaybeScanArgs(t, "reason", &reason)
	d.MaybeScanArgs(t, "n", &n)
	gid, pid := GroupID(g), partition.PartitionID(p)
	what := func() []string { return strings.Fields(d.Input) }
	result := func(err error) string {
		if err != nil {
			return "error: " + err.Error()
		}
		return "ok"
	}
	switch d.Cmd {
	case "group":
		policy := Default()
		policy.AckDeadline, policy.Backoff = 5000, 1000
		policy = s.policy(t, d, policy)
		start := "0"
		d.MaybeScanArgs(t, "start", &start)
		s.groups[gid] = true
		return result(s.s.CreateGroup(ctx, pid, GroupSpec{ID: gid, Name: fmt.Sprintf("G%d", g), Policy: policy, Start: s.offset(pid, start)}))
	case "policy":
		var now Policy
		if err := s.s.view(ctx, pid, gid, func(g *group, _ partition.Position) error { now = g.policy; return nil }); err != nil {
			return result(err)
		}
		return result(s.s.SetPolicy(ctx, pid, gid, s.policy(t, d, now)))
	case "pause", "resume":
		return result(s.s.SetPaused(ctx, pid, gid, d.Cmd == "pause"))
	case "delete":
		return result(s.s.DeleteGroup(ctx, pid, gid))
	case "publish":
		for _, k := range what() {
			// a*200 is 200 of key a.
			key, times, many := strings.Cut(k, "*")
			count := 1
			if many {
				count, _ = strconv.Atoi(times)
			}
			keys := make([]string, count)
			for i := range keys {
				keys[i] = key
				s.counts[key]++
				s.names[pid] = append(s.names[pid], fmt.Sprintf("%s%d", key, s.counts[key]))
			}
			s.w.publish(pid, keys...)
		}
		return fmt.Sprintf("%d messages", len(s.w.parts[pid].msgs))
	case "receive":
		ds, idle, err := s.s.Receive(ctx, ReceiveRequest{
			Group: gid, Member: member, Session: session, Max: max, RequestID: request,
			Shares: []Share{{Partition: pid, Share: share, Shares: shares}},
		})
		if err != nil {
			return result(err)
		}
		if len(ds) == 0 {
			return "nothing: " + idle
		}
		var b strings.Builder
		for _, x := range ds {
			name := s.name(x.Partition, x.Message.Offset)
			at := fmt.Sprintf("%d/%s", g, name)
			if have := s.got[at]; len(have) == 0 || have[len(have)-1].Token != x.Token {
				s.got[at] = append(have, x)
			}
			fmt.Fprintf(&b, "%s attempt=%d", name, x.Attempt)
			if x.Token.Ordinal != x.Attempt {
				fmt.Fprintf(&b, " hand-out=%d", x.Token.Ordinal)
			}
			if x.Replayed {
				b.WriteString(" replayed")
			}
			b.WriteString("\n")
		}
		return b.String()
	case "ack", "nack", "reject", "extend", "release":
		actions := map[string]Action{"ack": Ack, "nack": Nack, "reject": Reject, "extend": Extend, "release": Release}
		var all []Settlement
		for _, name := range what() {
			name, nth, _ := strings.Cut(name, "#")
			have := s.got[fmt.Sprintf("%d/%s", g, name)]
			if len(have) == 0 {
				t.Fatalf("%s: %s was not received", d.Pos, name)
			}
			x := have[len(have)-1]
			if nth != "" {
				i, _ := strconv.Atoi(nth)
				x = have[i-1]
			}
			token, err := ParseToken(x.Token.String())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Settlement{Token: token, Action: actions[d.Cmd], Delay: partition.Millis(delay), Reason: reason})
		}
		var b strings.Builder
		for i, r := range s.s.Settle(ctx, gid, all) {
			var was *ErrStale
			fmt.Fprintf(&b, "%s: ", what()[i])
			switch {
			case errors.As(r.Err, &was):
				fmt.Fprintf(&b, "stale: %s", was.Why)
			case r.Err != nil:
				b.WriteString(r.Err.Error())
			case r.Dead:
				b.WriteString("ok, dead")
			case r.Deadline != 0:
				fmt.Fprintf(&b, "ok, until +%d", r.Deadline-s.w.now)
			default:
				b.WriteString("ok")
			}
			b.WriteString("\n")
		}
		return b.String()
	case "advance":
		s.w.advance(partition.Millis(n))
		return ""
	case "checkpoint":
		s.w.parts[pid].save()
		return ""
	case "restart":
		s.w.parts[pid].restart()
		return ""
	case "retain": // retention removes what is before, as far as the groups let it
		to := partition.Offset(len(s.w.parts[pid].msgs))
		if name := what()[0]; name != "end" {
			to = s.offset(pid, name)
		}
		start, err := s.w.parts[pid].trim(partition.TrimTo{To: to, Why: partition.BySize, Now: s.w.now, Done: d.HasArg("done"), Firm: d.HasArg("firm")})
		if err != nil {
			t.Fatal(err)
		}
		s.w.turn(s.w.parts[pid])
		if start == to {
			return ""
		}
		return fmt.Sprintf("from %d on is kept", start)
	case "kept": // what retention left of the group
		all, err := s.s.Kept(ctx, pid)
		if err != nil {
			return result(err)
		}
		k := all[gid]
		var b strings.Builder
		fmt.Fprintf(&b, "needs %d, %d expired, %d copies\n", k.Needs, k.Expired, k.Copies)
		for _, l := range k.Losses {
			fmt.Fprintf(&b, "lost %d of %d to %d by %s, +%d to +%d\n", l.Count, l.First, l.Last, l.Cause, l.From-1_000_000, l.Until-1_000_000)
		}
		return b.String()
	case "end-session":
		return result(s.s.EndSession(ctx, pid, gid, member, session))
	case "leave":
		return result(s.s.LeaveSession(ctx, pid, gid, member, session))
	case "reset":
		from, err := s.s.Reset(ctx, pid, gid, s.offset(pid, what()[0]))
		if err != nil {
			return result(err)
		}
		return fmt.Sprintf("from %d", from)
	case "dead":
		ds, err := s.s.DeadLetters(ctx, pid, gid, 0, 100)
		if err != nil {
			return result(err)
		}
		var b strings.Builder
		for _, x := range ds {
			full, err := s.s.DeadLetter(ctx, pid, gid, x.Offset)
			if err != nil {
				return result(err)
			}
			fmt.Fprintf(&b, "%s attempts=%d reason=%q replaying=%v:", s.name(pid, x.Offset), full.Attempts, full.Reason, full.Replaying)
			for _, a := range full.History {
				fmt.Fprintf(&b, " %d:%s:%s", a.Attempt, a.Member, a.Outcome)
			}
			b.WriteString("\n")
		}
		if b.Len() == 0 {
			return "none"
		}
		return b.String()
	case "replay", "discard":
		var sel Selector
		for _, x := range what() {
			key, byKey := strings.CutPrefix(x, "key=")
			switch {
			case x == "all":
				sel.All = true
			case byKey:
				sel = Selector{ByKey: true, HasKey: true, Key: []byte(key), KeyHash: keyspace.Hash(7, []byte(key))}
			default:
				sel.Offsets = append(sel.Offsets, s.offset(pid, x))
			}
		}
		if d.Cmd == "discard" {
			n, err := s.s.Discard(ctx, pid, gid, sel)
			if err != nil {
				return result(err)
			}
			return fmt.Sprintf("%d discarded", n)
		}
		n, already, err := s.s.Replay(ctx, pid, gid, sel)
		if err != nil {
			return fmt.Sprintf("%d replayed; error: %v", n, err)
		}
		return fmt.Sprintf("%d replayed, %d already", n, already)
	case "stats":
		st, err := s.s.Stats(ctx, pid, gid)
		if err != nil {
			return result(err)
		}
		return s.stats(st)
	case "state":
		var b strings.Builder
		for _, x := range what() {
			life, err := s.s.Trace(ctx, pid, s.offset(pid, x), Window{Last: 1000})
			if err != nil {
				return result(err)
			}
			for _, m := range life.States {
				fmt.Fprintf(&b, "%s %s: %s attempts=%d %s\n", x, m.Name, m.State, m.Attempts, m.Detail)
			}
		}
		return b.String()
	case "trace":
		var b strings.Builder
		life, err := s.s.Trace(ctx, pid, s.offset(pid, what()[0]), Window{Last: max})
		if err != nil {
			return result(err)
		}
		for _, e := range life.Events {
			fmt.Fprintf(&b, "+%d %v %s", e.Time-1_000_000, e.Group, e.What)
			if e.Member != "" {
				fmt.Fprintf(&b, " %s", e.Member)
			}
			if e.Attempt > 0 {
				fmt.Fprintf(&b, " attempt=%d", e.Attempt)
			}
			if e.Detail != "" {
				fmt.Fprintf(&b, " (%s)", e.Detail)
			}
			b.WriteString("\n")
		}
		if life.Cut > 0 {
			fmt.Fprintf(&b, "%d before these\n", life.Cut)
		}
		return b.String()
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
		return ""
	}
}

func (s *scenario) policy(t *testing.T, d *datadriven.TestData, p Policy) Policy {
	for _, a := range d.CmdArgs {
		val := func() int64 {
			n, err := strconv.ParseInt(a.Vals[0], 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return n
		}
		switch a.Key {
		case "mode":
			p.Mode = map[string]Mode{"key": ByKey, "partition": ByPartition, "none": NoOrder}[a.Vals[0]]
		case "ack-deadline":
			p.AckDeadline = partition.Millis(val())
		case "max-hold":
			p.MaxHold = partition.Millis(val())
		case "max-attempts":
			p.MaxAttempts = uint32(val())
		case "backoff":
			p.Backoff = partition.Millis(val())
		case "max-in-flight-member":
			p.MaxInFlightMember = uint32(val())
		case "max-in-flight":
			p.MaxInFlightPartition = uint32(val())
		case "max-deferred":
			p.MaxDeferred = uint32(val())
		case "max-deferred-key":
			p.MaxDeferredKey = uint32(val())
		case "breaker":
			p.BreakerPercent, p.BreakerWindow = uint32(val()), 30_000
		case "breaker-keys":
			p.BreakerKeys = uint32(val())
		case "hold":
			p.Retention = Hold
		case "hold-bytes":
			p.HoldBytes = uint64(val())
		case "hold-age":
			p.HoldAge = partition.Millis(val())
		case "park":
			p.OnExhaustion = Park
		case "skip":
			p.OnExhaustion = Skip
		case "at-most-once":
			p.AtMostOnce = true
		}
	}
	return p
}

func (s *scenario) stats(st GroupState) string {
	var b strings.Builder
	c := st.Counts
	for _, x := range []struct {
		name string
		n    uint64
	}{
		{"ready", c.Ready}, {"blocked", c.Blocked}, {"in-flight", c.InFlight}, {"backing-off", c.BackingOff},
		{"parked", c.Parked}, {"dead", c.Dead}, {"acked", c.Acked}, {"skipped", c.Skipped}, {"expired", c.Expired},
		{"not-scanned", c.NotScanned}, {"replaying", c.Replaying},
	} {
		if x.n > 0 {
			fmt.Fprintf(&b, "%s=%d ", x.name, x.n)
		}
	}
	fmt.Fprintf(&b, "handed-out=%d retried=%d floor=%d scanned=%d epoch=%d\n", c.HandedOut, c.Retried, st.Floor, st.Scanned, st.Epoch)
	for _, m := range st.Members {
		fmt.Fprintf(&b, "member %s holds %d\n", m.Member, m.InFlight)
	}
	for _, x := range st.Stalls {
		fmt.Fprintf(&b, "stall %s", x.Reason)
		if x.OfKey {
			fmt.Fprintf(&b, " key=%s head=%d attempts=%d", x.Key, x.Offset, x.Attempts)
		} else {
			fmt.Fprintf(&b, " from=%d", x.Offset)
		}
		if x.Shares != 0 {
			fmt.Fprintf(&b, " share=%d/%d", x.Share, x.Shares)
		}
		if x.Until != 0 {
			fmt.Fprintf(&b, " until=+%d", x.Until-s.w.now)
		}
		if x.Member != "" {
			fmt.Fprintf(&b, " member=%s", x.Member)
		}
		fmt.Fprintf(&b, " waiting=%d\n", x.Waiting)
		if strings.HasSuffix(x.Reason, "_LIMIT") {
			fmt.Fprintf(&b, "  %s\n", x.Text)
		}
	}
	return b.String()
}
