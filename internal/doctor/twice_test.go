package doctor

import (
	"strings"
	"testing"
	"time"
)

// A message that came twice is stored twice, or was handed out again.
func TestWhyAMessageCameTwice(t *testing.T) {
	second := time.Second.Milliseconds()
	for _, c := range []struct {
		what  string
		plant func(f *Facts, m *Message)
		want  string
		says  []string
	}{
		{"it came once", func(_ *Facts, m *Message) { m.Courses = []Course{{Group: "billing", State: "acked", HandedOut: 1}} }, "", nil},
		{"published twice, without ids", func(_ *Facts, m *Message) {
			m.Copies = []Copy{{Offset: 5, Published: now - 63*second}}
		}, "PUBLISHED_TWICE", []string{"is stored 2 times", "without an id", "offset 5, published 3s before, no id", "trace orders --partition 2 --offset 5"}},
		{"with ids that differ", func(_ *Facts, m *Message) {
			m.ID, m.Copies = "a", []Copy{{Offset: 9, ID: "b", Published: now - 60*second}}
		}, "PUBLISHED_TWICE", []string{"an id of its own", "offset 9, published in the same moment, id b"}},
		{"once with an id", func(_ *Facts, m *Message) {
			m.ID, m.Copies = "a", []Copy{{Offset: 9, Published: now - 59*second}}
		}, "PUBLISHED_TWICE", []string{"not each with an id", "published 1s after"}},
		{"its ack came too late", func(f *Facts, m *Message) {
			f.Groups[0].Now.Stale, f.Groups[0].Now.Late = 2, 1
			f.Groups[0].Before = f.Groups[0].Now
			m.Courses = []Course{{Group: "billing", State: "acked", HandedOut: 2, Failed: []Attempt{{Member: "m", Took: 30 * time.Second, Ended: now, Outcome: "lapse", Late: 45 * time.Second}}}}
		}, "DELIVERED_AGAIN", []string{"was handed the message at offset 7", "2 times, since its ack came too late", "and acked it after 45s, too late", "2 settlements of the group", "acks after the deadline of 30s among them: 1", "--ack-deadline 1m30s"}},
		{"nobody knows how late", func(f *Facts, m *Message) {
			m.Courses = []Course{{Group: "billing", State: "acked", HandedOut: 2, Failed: []Attempt{{Member: "m", Took: 30 * time.Second, Ended: now, Outcome: "lapse"}}}}
		}, "DELIVERED_AGAIN", []string{"since its ack came too late, or never", "strandmq doctor --topic orders --group billing"}},
		{"the group was reset", func(_ *Facts, m *Message) {
			m.Courses = []Course{{Group: "billing", State: "acked", HandedOut: 2, Again: []Again{{What: "the group was reset", When: now, How: "to offset 0"}}}}
		}, "DELIVERED_AGAIN", []string{"2 times, since the group was reset", "at 2023-11-14T22:13:20Z the group was reset to offset 0"}},
		{"it failed, and was replayed", func(_ *Facts, m *Message) {
			nack := Attempt{Member: "m", Took: time.Second, Ended: now, Outcome: "nack", Reason: "no funds"}
			m.Courses = []Course{{Group: "billing", State: "acked", HandedOut: 3, Failed: []Attempt{nack, nack}, Again: []Again{{What: "it was replayed", When: 1000}, {What: "it was replayed", When: 2000}}}}
		}, "DELIVERED_AGAIN", []string{"3 times, since its handler gave it back and it was replayed", `("no funds")`}},
		{"published again under its id", func(_ *Facts, m *Message) {
			m.ID, m.Repeats = "a", 2
		}, "REPEAT_DROPPED", []string{"was published 2 times more under its id, and those stored nothing", "trace orders --partition 2 --offset 7"}},
		{"not all of its life was looked at", func(_ *Facts, m *Message) {
			m.Cut, m.Courses = 7, []Course{{Group: "billing", State: "acked", HandedOut: 2}}
		}, "DELIVERED_AGAIN", []string{"at least 2 times"}},
		{"both", func(_ *Facts, m *Message) {
			m.Copies = []Copy{{Offset: 5, Published: now - 63*second}}
			m.Courses = []Course{{Group: "billing", HandedOut: 2, Failed: []Attempt{{Outcome: "session-lost"}}}}
		}, "PUBLISHED_TWICE DELIVERED_AGAIN", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := three()
			m := Message{Place: Place{"orders", 2}, Offset: 7, Key: "k", Published: now - 60*second}
			c.plant(f, &m)
			f.Messages = []Message{m}
			var causes []string
			found := Diagnose(f, Options{})
			for _, x := range found {
				causes = append(causes, string(x.Cause))
			}
			if got := strings.Join(causes, " "); got != c.want {
				t.Fatalf("%q, want %q: %+v", got, c.want, found)
			}
			for _, want := range c.says {
				if got := found[0].Text + "\n" + strings.Join(append(found[0].Evidence, found[0].Next...), "\n"); !strings.Contains(got, want) {
					t.Errorf("it does not say %q:\n%s", want, got)
				}
			}
		})
	}
}

// Findings of one group advise one deadline, with room for the latest ack that any knows of.
func TestOneDeadlineIsAdvised(t *testing.T) {
	late := []Attempt{{Member: "m", Took: 30 * time.Second, Ended: now, Outcome: "lapse", Late: 100 * time.Second}}
	soon := []Attempt{{Member: "m", Took: 30 * time.Second, Ended: now, Outcome: "lapse", Late: 40 * time.Second}}
	for what, plant := range map[string]func(g *Group, m *Message){
		"the message's": func(_ *Group, m *Message) { m.Courses[0].Failed = late },
		"a suspect's":   func(g *Group, _ *Message) { g.Suspects = []Letter{{Offset: 1, Attempts: 1, History: late}} },
		"a letter's":    func(g *Group, _ *Message) { g.Dead = []Letter{{Offset: 1, Attempts: 1, History: late}} },
		"on average":    func(g *Group, _ *Message) { g.Now.LateMs = 500_000 },
	} {
		f := three()
		g := &f.Groups[0]
		g.Now.Stale, g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 5, 5, 200_000, 5
		m := Message{Place: Place{"orders", 2}, Offset: 7, Key: "k", Published: now, Courses: []Course{{Group: "billing", State: "acked", HandedOut: 2, Failed: soon}}}
		plant(g, &m)
		f.Messages = []Message{m}
		advised := map[Cause]bool{}
		for _, x := range Diagnose(f, Options{}) {
			if x.Cause != DeliveredAgain && x.Cause != DeadlineTooShort {
				continue
			}
			if all := strings.Join(x.Next, "\n"); strings.Contains(all, "--ack-deadline 3m20s ") {
				advised[x.Cause] = true
			} else {
				t.Errorf("%s: %s advises\n%s", what, x.Cause, all)
			}
		}
		if len(advised) != 2 {
			t.Errorf("%s: %v", what, advised)
		}
	}
}

// Settlements that are refused as stale tell of what is handled twice; a few are a note, and
// those for a deadline that is too short are told as that.
func TestStaleAcks(t *testing.T) {
	for _, c := range []struct {
		what  string
		plant func(g *Group)
		want  string
	}{
		{"none within the watch", func(g *Group) { g.Now.Stale, g.Before.Stale = 9, 9 }, ""},
		{"a consumer was replaced", func(g *Group) { g.Now.Stale, g.Now.Lost, g.Before.Lost = 1, 1, 1 }, "note STALE_ACKS"},
		{"two have one name", func(g *Group) { g.Now.Stale, g.Now.Lost, g.Before.Lost = 5, 9, 9 }, "warning STALE_ACKS"},
		{"the deadline is too short", func(g *Group) { g.Now.Stale, g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 5, 5, 5000, 5 }, "warning DEADLINE_TOO_SHORT"},
	} {
		f := three()
		c.plant(&f.Groups[0])
		var got []string
		for _, x := range Diagnose(f, Options{}) {
			got = append(got, x.Severity.String()+" "+string(x.Cause))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %v, want %s", c.what, got, c.want)
		}
	}
}
