package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const now = 1_700_000_000_000

// three is a healthy cluster of three nodes with a topic of three replicas and a group.
func three() *Facts {
	f := &Facts{Now: now, Apart: time.Second}
	for id := range uint64(3) {
		f.Nodes = append(f.Nodes, Node{
			ID: id + 1, API: fmt.Sprintf("http://n%d", id+1), State: "active", Known: true, Answered: true,
			Disk: Disk{Total: 100 << 30, Free: 50 << 30, Reserve: 1 << 30},
		})
	}
	t := Topic{Name: "orders", Retention: 7 * 24 * time.Hour}
	for i := range uint32(4) {
		t.Partitions = append(t.Partitions, Partition{Number: i, Bytes: 1 << 30, Nodes: []uint64{1, 2, 3}, Leader: 1})
	}
	f.Topics = []Topic{t}
	f.Groups = []Group{{
		Topic: "orders", Name: "billing", Mode: "key", Deadline: 30 * time.Second, MaxAttempts: 5, Counted: true, Compared: true, Looked: true,
		Members: []Member{{Name: "m1"}}, Partitions: 4,
	}}
	return f
}

// behind is a group whose oldest message waits for an hour.
func behind(g *Group) {
	g.Oldest = now - time.Hour.Milliseconds()
	g.Now.Lag, g.Before.Lag, g.Now.Acked, g.Before.Acked, g.Now.HandledMs, g.Now.InFlight = 1000, 900, 110, 100, 2200, 5
}

func TestDiagnose(t *testing.T) {
	for _, c := range []struct {
		what  string
		plant func(f *Facts, g *Group)
		want  string // causes in order
		says  string // of the first
	}{
		{"healthy", func(*Facts, *Group) {}, "", ""},
		{"busy", func(_ *Facts, g *Group) {
			behind(g)
			g.Oldest = now - 2000 // a large backlog, and none of it old
		}, "", ""},
		{"slow handlers", func(_ *Facts, g *Group) { behind(g) }, "SLOW_HANDLERS", "takes 220ms on average"},
		{"catching up", func(_ *Facts, g *Group) { behind(g); g.Before.Lag = 2000 }, "CATCHING_UP", "done in 1s"},
		{"a backlog that shrinks too slowly", func(_ *Facts, g *Group) { behind(g); g.Before.Lag = 1001 }, "SLOW_HANDLERS", "shrinks"},
		{"behind for no reason", func(_ *Facts, g *Group) {
			behind(g)
			g.Now.InFlight, g.Now.Acked, g.Before.Acked, g.Now.HandledMs = 0, 0, 0, 0
		}, "FALLING_BEHIND", "1,000 messages"},
		{"expires soon", func(f *Facts, g *Group) {
			behind(g)
			f.Topics[0].Retention = 70 * time.Minute
		}, "SLOW_HANDLERS EXPIRES_SOON", ""},
		{"a group that holds expires never", func(f *Facts, g *Group) {
			behind(g)
			g.Holds, f.Topics[0].Retention = true, 70*time.Minute
		}, "SLOW_HANDLERS", ""},
		{"a loss long ago", func(_ *Facts, g *Group) {
			g.Losses = []Loss{{First: 1, Last: 5, Count: 5, Cause: "age", Until: now - 30*24*time.Hour.Milliseconds()}}
		}, "EXPIRED", "lost 5 messages to the topic's retention"},
		{"one message kills whoever takes it", func(_ *Facts, g *Group) {
			g.Now.Lag = 1
			lost := Attempt{Member: "m", Ended: now - 1000, Outcome: "session-lost"}
			g.Suspects = []Letter{{Offset: 7, Attempts: 3, History: []Attempt{lost, lost, lost}}}
		}, "POISON_MESSAGE", "loses its consumer each time"},
		{"lapses of several messages", func(_ *Facts, g *Group) {
			g.Now.Lag = 2
			lapsed := []Attempt{{Member: "m", Ended: now - 1000, Outcome: "lapse"}}
			g.Suspects = []Letter{{Offset: 7, Attempts: 1, History: lapsed}, {Offset: 8, Attempts: 1, History: lapsed}}
		}, "CONSUMER_CRASHES", "never answer"},
		{"failures of long ago", func(_ *Facts, g *Group) {
			lost := []Attempt{{Member: "m", Ended: now - time.Hour.Milliseconds(), Outcome: "session-lost"}}
			g.Now.Dead, g.Dead = 2, []Letter{{History: lost, Reason: "bad"}, {History: lost, Reason: "bad"}}
		}, "DEAD_LETTERS", "2 dead letters"},
		{"all members drain, and one is silent", func(_ *Facts, g *Group) {
			g.Now.Lag, g.Members = 1, []Member{{Name: "m", Draining: true, InFlight: 1}, {Name: "n", Away: true}}
		}, "NO_MEMBERS", "1 member made no call for the session timeout and lost its partitions;1 member about to leave, finishing what it holds"},
		{"nothing but parked messages waits, and no member is there", func(_ *Facts, g *Group) {
			behind(g)
			g.Now.Lag, g.Now.Parked, g.Now.Dead, g.Members = 3, 3, 1, nil
			g.Stalls = append(unasked("m"), Stall{Reason: "PARKED", Key: "a", Waiting: 3})
		}, "PARKED", "3 messages of group billing"},
		{"nor does one that is there ask", func(_ *Facts, g *Group) {
			behind(g)
			g.Now.Lag, g.Now.Parked, g.Now.Dead = 3, 3, 1
			g.Stalls = append(unasked("m"), Stall{Reason: "PARKED", Key: "a", Waiting: 3})
		}, "PARKED", "3 messages of group billing"},
		{"something else waits, too", func(_ *Facts, g *Group) {
			g.Now.Lag, g.Now.Parked, g.Now.Dead, g.Members = 4, 3, 1, nil
		}, "NO_MEMBERS PARKED", "nobody takes its messages"},
		{"a node is away", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Minute}
			f.Nodes[0].Deaf, f.Nodes[1].Deaf = []uint64{3}, []uint64{3}
		}, "NODE_DOWN", "nobody has heard of it for 1m, since " + clock(now-60_000) + ", and it did not say that it stops"},
		{"a node was stopped", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Minute, Left: now - 61_000}
			f.Nodes[0].Deaf, f.Nodes[1].Deaf = []uint64{3}, []uint64{3}
		}, "NODE_DOWN", "it was stopped cleanly at " + clock(now-61_000) + ", 1m1s ago: start it again or"},
		{"a node went before all that is kept", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Hour}
			f.Events = []Event{{Kind: "MEMBER_AWAY", Topic: "orders", Group: "billing", Count: 1, First: now - 60_000, Last: now - 60_000}}
		}, "NODE_DOWN", "whether it said that it stops is not among the events any more"},
		{"a node went, and that is kept", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Hour}
			f.Events = []Event{{Kind: "NODE_SILENT", Node: 3, Count: 1, First: now - 3_590_000, Last: now - 3_590_000}}
		}, "NODE_DOWN", "it did not say that it stops"},
		{"another cluster at a node's address", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Minute, Foreign: true}
			f.Nodes[0].Deaf, f.Nodes[1].Deaf = []uint64{3}, []uint64{3}
		}, "NODE_DOWN", "another cluster answers at its address"},
		{"a node stands still", func(f *Facts, _ *Group) { f.Nodes[2] = Node{ID: 3, Known: true, Hangs: true} }, "NODE_STUCK", "does not answer"},
		{"a node was given up", func(f *Facts, _ *Group) {
			f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Minute, State: "lost"}
			f.Cluster.Stuck = []Stuck{{Place: Place{Topic: "orders"}, Why: "node n3 is lost", Needs: "one more node"}}
		}, "UNDER_REPLICATED UNDER_REPLICATED", ""},
		{"no quorum", func(f *Facts, _ *Group) {
			f.Nodes[1], f.Nodes[2] = Node{ID: 2, Known: true, Silent: time.Minute}, Node{ID: 3, Known: true, Silent: time.Minute}
			f.Cluster.Behind = "of the metadata this is what node n1 holds"
		}, "NO_QUORUM NODE_DOWN NODE_DOWN", "n2 and n3 are away"},
		{"partitions without a quorum", func(f *Facts, _ *Group) { f.Topics[0].Partitions[1].FaultReason = "NO_QUORUM" }, "NO_QUORUM", "some partitions"},
		{"cut off in one direction", func(f *Facts, _ *Group) { f.Nodes[0].Deaf = []uint64{3} }, "NODES_CUT_OFF", "n1 does not hear of n3"},
		{"cut off from all", func(f *Facts, _ *Group) {
			f.Nodes[2].Silent = time.Minute
			f.Nodes[0].Deaf, f.Nodes[1].Deaf, f.Nodes[2].Deaf = []uint64{3}, []uint64{3}, []uint64{1, 2}
		}, "NODES_CUT_OFF", "node n3 answers"},
		{"one clock is off", func(f *Facts, _ *Group) {
			f.Nodes[0].ClocksOff = []Skew{{2, time.Minute}}
			f.Nodes[1].ClocksOff = []Skew{{1, -time.Minute}, {3, -time.Minute}}
			f.Nodes[2].ClocksOff = []Skew{{2, time.Minute}}
		}, "CLOCK_OFF", "clock of node n2 is off by 1m"},
		{"clocks of two differ", func(f *Facts, _ *Group) {
			f.Nodes = f.Nodes[:2]
			f.Nodes[0].ClocksOff = []Skew{{2, time.Minute}}
		}, "CLOCK_OFF", "clocks of n1 and n2 differ by 1m"},
		{"the disk fills", func(f *Facts, g *Group) {
			f.Nodes[1].Disk.Free = 5 << 30
			f.Topics[0].Partitions[2].HeldBy, f.Topics[0].Partitions[2].HeldBytes = "billing", 512<<20
		}, "DISK_FILLING", "5.0 GiB free"},
		{"the disk is full and stuck", func(f *Facts, _ *Group) {
			f.Nodes[1].Disk.Low, f.Nodes[1].Disk.Stuck = true, 5*time.Second
		}, "DISK_STUCK DISK_FULL", ""}, // that one is a warning: it leads nothing
		{"the disk is slow", func(f *Facts, _ *Group) { f.Nodes[1].SlowWrites = 2 }, "DISK_SLOW", "disk of node n2 is slow"},
		{"slow long ago", func(f *Facts, _ *Group) { f.Apart, f.Nodes[1].SlowWrites = 0, 2 }, "", ""},
		{"damage", func(f *Facts, _ *Group) {
			f.Nodes[1].Stopped = []Stopped{{Place: Place{"orders", 2}, Why: "a checksum"}}
			f.Topics[0].Partitions[2].FaultReason = "PARTITION_DAMAGED"
		}, "DAMAGED", "node n2 is damaged"},
		{"damage of a node that was not asked", func(f *Facts, _ *Group) { f.Topics[0].Partitions[2].FaultReason = "PARTITION_DAMAGED" }, "DAMAGED", "partition 2 of topic orders"},
		{"one node is older", func(f *Facts, _ *Group) {
			f.Nodes[1].Stopped = []Stopped{{Place: Place{Topic: "orders", Number: 2}, Why: "row of format 3", Newer: true}}
			f.Topics[0].Partitions[2].FaultReason = "NEWER_FORMAT"
		}, "NEWER_FORMAT", "nothing is damaged"},
		{"a newer format", func(f *Facts, _ *Group) { f.Topics[0].Partitions[2].FaultReason = "NEWER_FORMAT" }, "NEWER_FORMAT", "newer version"},
		{"near what is held", func(_ *Facts, g *Group) {
			g.Now.Lag = 1
			g.Stalls = []Stall{{Reason: "HOLD_ALARM", Text: "90 %"}}
		}, "HOLD_LIMIT", "is near the limit"},
		{"not counted", func(_ *Facts, g *Group) { behind(g); g.Counted = false }, "", ""},
		{"the heavier of two groups first", func(f *Facts, g *Group) {
			g.Paused, g.Now.Lag = true, 1
			other := *g
			other.Name, other.Now.Lag = "heavier", 100
			f.Groups = append(f.Groups, other)
		}, "PAUSED PAUSED", "group heavier"},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := three()
			c.plant(f, &f.Groups[0])
			found := Diagnose(f, Options{})
			var causes []string
			for _, x := range found {
				causes = append(causes, string(x.Cause))
				if x.Text == "" || x.About == "" || x.Cause != CatchingUp && len(x.Next) == 0 || !slices.Contains(Causes(), x.Cause) {
					t.Errorf("not whole: %+v", x)
				}
			}
			if got := strings.Join(causes, " "); got != c.want {
				t.Fatalf("%q, want %q: %+v", got, c.want, found)
			}
			if len(found) > 0 && !strings.Contains(found[0].Text+strings.Join(found[0].Evidence, ";"), c.says) {
				t.Errorf("%+v does not say %q", found[0], c.says)
			}
		})
	}
}

// Notes are no fault.
func TestWorst(t *testing.T) {
	f := three()
	behind(&f.Groups[0])
	f.Groups[0].Before.Lag = 2000
	if found := Diagnose(f, Options{}); len(found) != 1 || Worst(found) != Note {
		t.Errorf("%+v", found)
	}
}

// What fills a disk is named, the heaviest first, and of this node only.
func TestDiskHolders(t *testing.T) {
	f := three()
	f.Topics = append(f.Topics, Topic{Name: "small", Partitions: []Partition{{Bytes: 1, Nodes: []uint64{2}}}}, Topic{Name: "elsewhere", Partitions: []Partition{{Bytes: 1 << 40, Nodes: []uint64{1}}}})
	f.Topics[0].Partitions[2].HeldBy, f.Topics[0].Partitions[2].HeldBytes = "billing", 512<<20
	f.Nodes[1].Disk.Low, f.Nodes[1].Disk.Store = true, 6<<30
	got := strings.Join(Diagnose(f, Options{})[0].Evidence, "\n")
	want := "group billing of topic orders holds 512.0 MiB beyond the topic's limits\ntopic orders takes 4.0 GiB\ntopic small takes 1 B\nthe node's store takes 6.0 GiB in all"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestCheck(t *testing.T) {
	l := Limits{Lag: [2]uint64{10, 100}, Age: [2]time.Duration{time.Minute, time.Hour}, Dead: [2]uint64{1, 0}, Disk: [2]uint64{20, 10}}
	for _, c := range []struct {
		what  string
		plant func(f *Facts, g *Group)
		state State
		text  string
	}{
		{"healthy", func(*Facts, *Group) {}, OK, "3 nodes, 1 group, lag 0"},
		{"a lag", func(_ *Facts, g *Group) { g.Now.Lag = 10 }, Warned, "group billing of topic orders has a lag of 10 messages"},
		{"a large lag", func(_ *Facts, g *Group) { g.Now.Lag = 100 }, Failed, "has a lag of 100"},
		{"an old message", func(_ *Facts, g *Group) { behind(g); g.Now.Lag = 1 }, Failed, "is 1h behind"},
		{"a dead letter", func(_ *Facts, g *Group) { g.Now.Dead = 1000 }, Warned, "1,000 dead letters"},
		{"half a disk", func(f *Facts, _ *Group) { f.Nodes[0].Disk.Free = 15 << 30 }, Warned, "15% free"},
		{"a full disk", func(f *Facts, _ *Group) { f.Nodes[0].Disk.Low = true }, Failed, "publishes are refused"},
		{"a disk that does not say", func(f *Facts, _ *Group) { f.Nodes[0].Disk = Disk{} }, OK, ""},
		{"a node away", func(f *Facts, _ *Group) { f.Nodes[2].Silent, f.Nodes[2].Answered = time.Minute, false }, Failed, "n3 was not heard of for 1m"},
		{"no quorum", func(f *Facts, _ *Group) { f.Cluster.Behind = "who is away" }, Failed, "NO_QUORUM: who is away"},
		{"clocks", func(f *Facts, _ *Group) { f.Nodes[0].ClocksOff = []Skew{{2, time.Minute}} }, Warned, "clock"},
		{"not asked", func(f *Facts, _ *Group) { f.Unreached = []Unreached{{"node n2", "no answer"}} }, Unknown, "node n2: no answer"},
		{"not asked and bad", func(f *Facts, g *Group) { g.Now.Dead = 1; f.Unreached = []Unreached{{"node n2", "no answer"}} }, Warned, "(and 1 more)"},
	} {
		f := three()
		c.plant(f, &f.Groups[0])
		if v := Check(f, l); v.State != c.state || !strings.Contains(v.Text, c.text) {
			t.Errorf("%s: %+v, want %v and %q", c.what, v, c.state, c.text)
		}
	}
}

// What happened before is told of the finding that it explains, and of no other.
func TestHistory(t *testing.T) {
	minute := time.Minute.Milliseconds()
	f := three()
	f.Events = []Event{
		{Kind: "CIRCUIT_OPENED", Topic: "orders", Group: "billing", Count: 2, First: now - 40*minute, Last: now - 39*minute},
		{Kind: "CIRCUIT_OPENED", Topic: "orders", Group: "billing", Count: 10, First: now - 20*minute, Last: now - 3*minute},
		{Kind: "CIRCUIT_OPENED", Topic: "orders", Group: "other", Count: 5, First: now, Last: now},
		{Kind: "CIRCUIT_CLOSED", Topic: "orders", Group: "billing", Count: 5, First: now, Last: now},
		{Kind: "NODE_SILENT", Node: 3, Count: 1, First: now - minute, Last: now - minute},
		{Kind: "NODE_SILENT", Node: 2, Count: 1, First: now - 60*minute, Last: now - 60*minute},
		{Kind: "OF_A_LATER_VERSION", Count: 1},
	}
	says := func(cause Cause, want ...string) {
		t.Helper()
		for _, x := range Diagnose(f, Options{}) {
			if x.Cause != cause {
				continue
			}
			evidence := strings.Join(x.Evidence, "\n")
			for _, w := range want {
				if !strings.Contains(evidence, w) {
					t.Errorf("%s does not say %q:\n%s", cause, w, evidence)
				}
			}
			if n := strings.Count(evidence, "strandmq events"); n > 1 {
				t.Errorf("%s is told of %d times:\n%s", cause, n, evidence)
			}
			return
		}
		t.Errorf("no %s", cause)
	}
	g := &f.Groups[0]
	g.Now.Lag, g.Circuits = 5, []Circuit{{}}
	says(CircuitOpen, "CIRCUIT_OPENED 12 since 40m ago, the last 3m ago: strandmq events --kind CIRCUIT_OPENED --topic orders --group billing")
	g.Circuits = nil
	g.Compared, g.Now.Lost, g.Before.Lost = true, 3, 0
	says(ConsumerCrashes, "not heard of 1m ago: n3; ")
	f.Nodes[2] = Node{ID: 3, Known: true, Silent: 62 * time.Second}
	says(NodeDown, "NODE_SILENT once 1m ago: strandmq events --kind NODE_SILENT --node n3")
	// Alone it is no fault: it is over.
	past := three()
	past.Events = f.Events
	if found := Diagnose(past, Options{}); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

// Of a node that is away only what happened since it went is told.
func TestHistoryOfThisOutage(t *testing.T) {
	second := time.Second.Milliseconds()
	for _, c := range []struct {
		what   string
		node   Node
		events []Event
		want   string // the lines, or none
	}{
		{"an earlier outage, and no event of this one", Node{Silent: 100 * time.Second}, []Event{{Kind: "NODE_SILENT", Count: 1, First: now - 227*second, Last: now - 227*second}}, ""},
		{"an earlier one, and this one", Node{Silent: 100 * time.Second}, []Event{
			{Kind: "NODE_SILENT", Count: 1, First: now - 227*second, Last: now - 227*second}, {Kind: "NODE_SILENT", Count: 1, First: now - 97*second, Last: now - 97*second},
		}, "NODE_SILENT once 1m37s ago"},
		{"both in one event", Node{Silent: 100 * time.Second}, []Event{{Kind: "NODE_SILENT", Count: 2, First: now - 227*second, Last: now - 97*second}}, "NODE_SILENT once 1m37s ago"},
		{"it had said that it stops", Node{Silent: 100 * time.Second, Left: now - 120*second}, []Event{
			{Kind: "NODE_STOPPED", Count: 1, First: now - 120*second, Last: now - 120*second}, {Kind: "NODE_STOPPED", Count: 1, First: now - 900*second, Last: now - 900*second},
		}, "NODE_STOPPED once 2m ago"},
		{"it hangs, and the others hear of it", Node{Hangs: true}, []Event{{Kind: "NODE_SILENT", Count: 1, First: now - 227*second, Last: now - 227*second}}, ""},
		{"it answers, and nobody hears of it", Node{Silent: 100 * time.Second, Answered: true}, []Event{{Kind: "NODE_SILENT", Count: 1, First: now - 227*second, Last: now - 227*second}}, ""},
	} {
		f := three()
		c.node.ID, c.node.Known = 3, true
		f.Nodes[2] = c.node
		for _, e := range c.events {
			e.Node = 3
			f.Events = append(f.Events, e)
		}
		found := Diagnose(f, Options{})
		if len(found) != 1 {
			t.Fatalf("%s: %+v", c.what, found)
		}
		got := ""
		for _, e := range found[0].Evidence {
			if before, _, ok := strings.Cut(e, ": strandmq events"); ok {
				got += before
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// Sessions that ended with a node are no crashes, and one that ended by itself is one.
func TestSessionsThatEndWithANode(t *testing.T) {
	minute := time.Minute.Milliseconds()
	for _, c := range []struct {
		what  string
		ended []int64
		kind  string
		want  Severity
		says  string
	}{
		{"a node was stopped", []int64{now - 2*minute, now - 2*minute}, "NODE_STOPPED", Note, "lost their sessions as n3 stopped or was cut off"},
		{"a node was not heard of", []int64{now - 2*minute - 3000, now - 2*minute + 30_000}, "NODE_SILENT", Note, "nobody need have crashed"},
		{"and one crashed besides", []int64{now - 2*minute, now - 4*minute}, "NODE_STOPPED", Warning, "sessions end while they hold messages"},
		{"another kind", []int64{now - 2*minute, now - 2*minute}, "NODE_FIT", Warning, "sessions end while they hold messages"},
	} {
		f := three()
		g := &f.Groups[0]
		g.Now.Lag, g.Before.Lag = 2, 2
		for i, at := range c.ended {
			g.Suspects = append(g.Suspects, Letter{Offset: uint64(i), Attempts: 1, History: []Attempt{{Member: "m", Ended: at, Outcome: "session-lost"}}})
		}
		f.Events = []Event{{Kind: c.kind, Node: 3, Count: 1, First: now - 2*minute, Last: now - 2*minute}}
		found := Diagnose(f, Options{})
		if len(found) != 1 || found[0].Cause != ConsumerCrashes || found[0].Severity != c.want || !strings.Contains(found[0].Text, c.says) {
			t.Errorf("%s: %+v", c.what, found)
		}
		if c.kind != "NODE_FIT" && !strings.Contains(strings.Join(found[0].Evidence, ";"), "a node that stopped, or was cut off") {
			t.Errorf("%s: %+v", c.what, found)
		}
	}
}

// A command that nobody can decide on is not advised.
func TestAdviceWithoutAQuorum(t *testing.T) {
	for _, behind := range []string{"", "too few nodes are there"} {
		f := three()
		f.Cluster.Behind = behind
		f.Nodes[1] = Node{ID: 2, Known: true, Silent: time.Minute, Left: now - 61_000}
		f.Nodes[2] = Node{ID: 3, Known: true, Silent: time.Minute}
		var next []string
		for _, x := range Diagnose(f, Options{}) {
			next = append(next, x.Next...)
		}
		all := strings.Join(next, "\n")
		for _, c := range []string{"cluster drain 2", "cluster replace 3"} {
			if strings.Contains(all, c) != (behind == "") {
				t.Errorf("with %q it advises:\n%s", behind, all)
			}
		}
	}
}

// A node is started again where clients find it, and only on its own folder.
func TestNodesAreStartedOnTheirFolder(t *testing.T) {
	for what, n := range map[string]Node{
		"away":    {Silent: time.Minute},
		"stopped": {Silent: time.Minute, Left: now - 61_000},
		"foreign": {Silent: time.Minute, Foreign: true},
	} {
		f := three()
		n.ID, n.Known, n.API = 3, true, "http://127.0.0.1:7173"
		f.Nodes[2] = n
		next := strings.Join(Diagnose(f, Options{})[0].Next, "\n")
		if !strings.Contains(next, "strandmq serve --existing --data FOLDER --listen 127.0.0.1:7173 ") {
			t.Errorf("%s: %s", what, next)
		}
	}
	f := three()
	f.Cluster.Behind = "of the metadata this is what node n1 holds"
	if next := strings.Join(Diagnose(f, Options{})[0].Next, "\n"); !strings.Contains(next, "strandmq serve --existing --data FOLDER --listen ADDRESS ") {
		t.Error(next)
	}
}
