package doctor

import (
	"strings"
	"testing"
	"time"
)

// A rate is one of messages, whatever unit a span is kept in.
func TestPerSecond(t *testing.T) {
	for took, want := range map[time.Duration]string{
		211 * time.Millisecond: "4.7",
		15 * time.Second:       "0.067",
		time.Millisecond:       "1000",
		2 * time.Minute:        "0.0083",
	} {
		if got := perSecond(took); got != want {
			t.Errorf("%v: %s a second, want %s", took, got, want)
		}
	}
	f := three()
	g := &f.Groups[0]
	behind(g)
	g.Now.HandledMs, g.Before.HandledMs = 2110, 0
	g.Stalls = []Stall{{Reason: "IN_FLIGHT", Key: "a", Offset: 7, Waiting: 900, Attempts: 1}}
	found := Diagnose(f, Options{})
	if len(found) != 1 || found[0].Cause != HotKey || !strings.Contains(strings.Join(found[0].Evidence, "\n"), "no more than 4.7 a second") {
		t.Errorf("%+v", found)
	}
}

// One member with two workers, each of which takes 15 s for a message, and nothing comes:
// whenever one looks, the cause is the same, and what it says is true.
func TestSlowConsumerIsSteady(t *testing.T) {
	for what, look := range map[string]func(g *Group){
		"before the first ack":             func(*Group) {},
		"when nobody asked for long":       func(g *Group) { g.Stalls = unasked("m1") },
		"of several members, none named":   func(g *Group) { g.Stalls, g.Members = unasked(""), append(g.Members, Member{Name: "m2"}) },
		"while two are acked":              func(g *Group) { g.Now.Lag, g.Now.Acked, g.Now.HandledMs = 38, 2, 30_000 },
		"while one is acked, and one more": func(g *Group) { g.Now.Lag, g.Now.InFlight, g.Now.Acked, g.Now.HandledMs = 39, 1, 1, 15_000 },
		"between two acks": func(g *Group) {
			g.Now.Lag, g.Now.Acked, g.Now.HandledMs = 38, 2, 30_000
			g.Before = g.Now
		},
	} {
		f := three()
		f.Apart = 3 * time.Second
		g := &f.Groups[0]
		g.Oldest = now - 8000
		g.Now = Counts{Lag: 40, InFlight: 2, HandedOut: 2}
		g.Before = g.Now
		g.Members = []Member{{Name: "m1", InFlight: 2}}
		look(g)
		found := Diagnose(f, Options{Behind: 5 * time.Second})
		if len(found) != 1 || found[0].Cause != SlowHandlers || strings.Contains(found[0].Text, "slower than messages come") {
			t.Errorf("%s: %+v", what, found)
		}
		if g.Now.Acked > 0 && g.Now.InFlight == 2 && !strings.Contains(strings.Join(found[0].Evidence, "\n"), "at this rate it takes 4m45s more") {
			t.Errorf("%s: %+v", what, found)
		}
	}
}

func unasked(member string) []Stall {
	return []Stall{{Reason: "NO_MEMBER", Member: member, Offset: 2, Waiting: 38, Text: "no member asks for messages of this partition; 2 deliveries are out"}}
}

// Of two members that are named as not asking, the one that holds nothing is silent.
func TestSilentMemberBesideABusyOne(t *testing.T) {
	f := three()
	g := &f.Groups[0]
	behind(g)
	g.Members = []Member{{Name: "busy", InFlight: 2}, {Name: "hung"}, {Name: "gone", Away: true, InFlight: 1}}
	g.Stalls = append(unasked("busy"), unasked("hung")...)
	found := Diagnose(f, Options{})
	if len(found) != 1 || found[0].Cause != MemberSilent || !strings.Contains(found[0].Text, "member hung has a session") {
		t.Errorf("%+v", found)
	}
	g.Stalls = unasked("gone")
	if found := Diagnose(f, Options{}); len(found) != 1 || found[0].Cause != MemberSilent {
		t.Errorf("what a member holds that went away keeps nobody from asking: %+v", found)
	}
}

// A member that crashed has a session until it times out: that is not the cause.
func TestSilentMemberThatCrashed(t *testing.T) {
	for member, want := range map[string]string{"crashed": "CONSUMER_CRASHES MEMBER_SILENT", "hung": "MEMBER_SILENT CONSUMER_CRASHES"} {
		f := three()
		g := &f.Groups[0]
		behind(g)
		g.Members = []Member{{Name: member}}
		g.Stalls = unasked(member)
		for o := range uint64(3) {
			g.Suspects = append(g.Suspects, Letter{Offset: o, Attempts: 1, History: []Attempt{{Member: "crashed", Took: g.Deadline, Ended: now - 5000, Outcome: "lapse"}}})
		}
		var causes []string
		found := Diagnose(f, Options{})
		for _, x := range found {
			causes = append(causes, string(x.Cause))
		}
		if got := strings.Join(causes, " "); got != want || found[0].Severity != Warning || (found[1].Severity == Note) != (member == "crashed") {
			t.Errorf("%s: %s, want %s: %+v", member, got, want, found)
		}
	}
}

// Where messages lapse before they are handled, who is at work on them holds nothing.
func TestSilentMemberAtWorkOnWhatLapsed(t *testing.T) {
	f := three()
	g := &f.Groups[0]
	behind(g)
	g.Members, g.Stalls = []Member{{Name: "m"}}, unasked("")
	g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 3, 300_000, 3
	found := Diagnose(f, Options{})
	if len(found) != 2 || found[0].Cause != DeadlineTooShort || found[1].Cause != MemberSilent || found[1].Severity != Note {
		t.Errorf("%+v", found)
	}
}

// What is said of slow handlers goes with the figures beside it.
func TestSlowHandlersSayWhatIsSo(t *testing.T) {
	for _, c := range []struct {
		what                string
		lag, before, acked  uint64
		text, beside, never string
	}{
		{"more comes than goes", 1100, 1000, 10, "are slower than messages come", "110 new, and the backlog grows", ""},
		{"as much comes as goes", 1000, 1000, 10, "are no faster than messages come", "10 new, and the backlog stays", ""},
		{"more goes than comes, and not enough", 9990, 9995, 10, "work off slowly what waits", "5 new, and the backlog shrinks", "messages come"},
		{"nothing comes", 9990, 10_000, 10, "work off slowly what waits", "0 new, and the backlog shrinks", "messages come"},
		{"nothing goes or comes", 1000, 1000, 0, "work off slowly what waits", "0 messages acked, 0 new, and the backlog stays", "messages come"},
	} {
		f := three()
		g := &f.Groups[0]
		behind(g)
		g.Now.Lag, g.Before.Lag, g.Now.Acked = c.lag, c.before, 100+c.acked
		found := Diagnose(f, Options{})
		if len(found) != 1 || found[0].Cause != SlowHandlers || !strings.Contains(found[0].Text, c.text) ||
			!strings.Contains(strings.Join(found[0].Evidence, "\n"), c.beside) || c.never != "" && strings.Contains(found[0].Text, c.never) {
			t.Errorf("%s: %+v", c.what, found)
		}
	}
}
