package coordinator

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// eventLog is a machine with one node, and what it applied.
type eventLog struct {
	t    *testing.T
	mach *machine
	now  partition.Millis
	log  [][]byte
}

func newEventLog(t *testing.T) *eventLog {
	l := &eventLog{t: t, mach: newMachine(), now: 1_000_000}
	l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Bootstrap{Bootstrap: &storagev1.Bootstrap{ClusterId: "c"}}})
	l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: 1, Address: &storagev1.NodeAddress{Store: "s"}}}})
	return l
}

func (l *eventLog) apply(cmd *storagev1.MetadataCommand) *result {
	l.t.Helper()
	b, err := encode(cmd, Rules, l.now)
	if err != nil {
		l.t.Fatal(err)
	}
	l.log = append(l.log, b)
	r, err := l.mach.apply(partition.Index(len(l.log)), b)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (l *eventLog) add(boot, batch uint64, hs ...*storagev1.Happening) *result {
	l.t.Helper()
	return l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddEvents{AddEvents: &storagev1.AddEvents{Node: 1, Boot: boot, Batch: batch, Events: hs}}})
}

// A storm costs a bounded number of rows, on disk too, and what is let go is counted.
func TestEventsAreBounded(t *testing.T) {
	l, rows := newEventLog(t), memRows{}
	const batches = 12
	for i := range uint64(batches) {
		var hs []*storagev1.Happening
		for k := range maxHappenings {
			hs = append(hs, &storagev1.Happening{Kind: "KEY_PARKED", Topic: fmt.Sprintf("t%d-%d", i, k), Text: strings.Repeat("é", 2*maxEventText)})
		}
		if r := l.add(1, i+1, hs...); r.err != nil || r.existed {
			t.Fatalf("%+v", r)
		}
		if i%3 == 0 {
			if err := l.mach.checkpoint(rows); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 2 * maxEventTotals {
		l.now += 2 * eventWindow
		l.add(1, uint64(batches+1+i), &storagev1.Happening{Kind: "K" + strings.Repeat("X", i/26) + string(rune('A'+i%26))})
	}
	if err := l.mach.checkpoint(rows); err != nil {
		t.Fatal(err)
	}
	kept, all := 0, batches*maxHappenings+2*maxEventTotals
	for k := range maps.Keys(rows) {
		if k[0] == rowEvent {
			kept++
		}
	}
	e := &l.mach.events
	if kept != maxEvents || len(e.list) != maxEvents || e.change != uint64(all) || e.gone != uint64(all-maxEvents) {
		t.Errorf("%d rows, %d events, change %d, gone %d", kept, len(e.list), e.change, e.gone)
	}
	sum := uint64(0)
	for _, c := range e.totals {
		sum += c.Count
	}
	if len(e.totals) > maxEventTotals || sum != uint64(all) {
		t.Errorf("%d kinds with %d in all", len(e.totals), sum)
	}
	if n := len(e.list[0].Text); n > maxEventText || !strings.HasPrefix(e.list[0].Text, "é") {
		t.Errorf("a text of %d bytes", n)
	}
	if r := l.add(1, 1_000, make([]*storagev1.Happening, maxHappenings+1)...); r.err == nil {
		t.Error("a batch beyond the bound was taken")
	}
}

// Whoever applies the same entries has the same events, whether it comes back from its
// rows after each of them or not: a snapshot is made of rows.
func TestEventsAreTheSameFromRows(t *testing.T) {
	l := newEventLog(t)
	rows, twin := memRows{}, newMachine()
	follow := func(from int) {
		for i := from; i < len(l.log); i++ {
			if _, err := twin.apply(partition.Index(i+1), l.log[i]); err != nil {
				t.Fatal(err)
			}
			if err := twin.checkpoint(rows); err != nil {
				t.Fatal(err)
			}
			var err error
			if twin, err = restore(rows); err != nil {
				t.Fatal(err)
			}
		}
	}
	follow(0)
	for i := range uint64(120) {
		from := len(l.log)
		l.now += partition.Millis(i % 7 * 11_000)
		p := uint32(i % 3)
		r := l.add(1+i/40, i%40+1, &storagev1.Happening{Kind: "CIRCUIT_OPENED", Topic: fmt.Sprint("t", i%5), Partition: &p, Count: i}, &storagev1.Happening{Kind: "DISK_LOW", Node: 1})
		if r.err != nil || r.existed {
			t.Fatalf("%d: %+v", i, r)
		}
		l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_NoteNodes{NoteNodes: &storagev1.NoteNodes{
			Nodes: []*storagev1.NodeNote{{Node: 1, Presence: storagev1.NodePresence(i % 3)}},
		}}})
		follow(from)
		if !reflect.DeepEqual(twin.events, l.mach.events) || !reflect.DeepEqual(twin.sources, l.mach.sources) {
			t.Fatalf("after %d:\n%+v %+v\n%+v %+v", i, twin.events, twin.sources, l.mach.events, l.mach.sources)
		}
	}
	if n := len(l.mach.events.list); n < 50 {
		t.Errorf("only %d events: it is no test", n)
	}
}

// Entries of rules from before there were events leave none, whoever applies them: the
// rows are the same on each replica, whatever version it was when it applied them first.
func TestEarlierRulesTellNothing(t *testing.T) {
	for _, rules := range []uint32{3, 4} {
		l := newEventLog(t)
		cmd := &storagev1.MetadataCommand{Rules: rules, NowMs: int64(l.now), Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: 1, Address: &storagev1.NodeAddress{Store: "s"}}}}
		b, err := proto.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.mach.apply(9, b); err != nil {
			t.Fatal(err)
		}
		l.mach.record(Happening{Kind: MemberAway})
		if got, want := len(l.mach.events.list), int(rules)-3; got != want {
			t.Errorf("rules %d: %d events, want %d", rules, got, want)
		}
	}
}

// A silence after a stop is told as that, one of a node that came up again since is not, and
// earlier rules do not tell them apart.
func TestSilenceAfterStop(t *testing.T) {
	l := newEventLog(t)
	silent := func(presence storagev1.NodePresence) string {
		l.now += 2 * partition.Millis(eventWindow)
		l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_NoteNodes{NoteNodes: &storagev1.NoteNodes{Nodes: []*storagev1.NodeNote{{Node: 1, Presence: presence}}}}})
		return l.mach.events.list[len(l.mach.events.list)-1].Text
	}
	stopped := func(want bool) {
		t.Helper()
		if at, is := l.mach.events.Stopped(1); is != want || is && at != l.now {
			t.Errorf("stopped: %v at %d of %d, want %v", is, at, l.now, want)
		}
	}
	tells := func(batch uint64, kind EventKind) {
		l.add(1, batch, &storagev1.Happening{Kind: string(kind), Node: 1, Count: 1})
	}
	stopped(false)
	tells(1, NodeStopped)
	tells(2, DiskLow)
	l.add(1, 3, &storagev1.Happening{Kind: string(NodeStarted), Node: 2, Count: 1}) // another one's
	stopped(true)
	if text := silent(storagev1.NodePresence_NODE_PRESENCE_SILENT); text != "it is not heard of, since it was stopped" {
		t.Error(text)
	}
	silent(storagev1.NodePresence_NODE_PRESENCE_UNSPECIFIED)
	stopped(false)
	tells(4, NodeStopped)
	stopped(true)
	l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_UpdateNode{UpdateNode: &storagev1.UpdateNode{Node: 1, Address: &storagev1.NodeAddress{Store: "s", Boot: 2, Peer: "n1:1", Rules: Rules}}}})
	stopped(true) // it said nothing of where other nodes reach it
	l.apply(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_UpdateNode{UpdateNode: &storagev1.UpdateNode{Node: 1, Address: &storagev1.NodeAddress{Store: "s", Boot: 3, Peer: "n1:1", Rules: Rules}}}})
	stopped(false)
	if text := silent(storagev1.NodePresence_NODE_PRESENCE_SILENT); !strings.Contains(text, "did not say that it stops: others lead what it led, where a majority") {
		t.Error(text)
	}
	l.mach.applied = newsRules - 1
	if text := l.mach.silentText(1); text != "it is not heard of: others lead what it led" {
		t.Error(text)
	}
}

// Those that read have what was, while the log goes on.
func TestEventsDoNotChange(t *testing.T) {
	l := newEventLog(t)
	l.add(1, 1, &storagev1.Happening{Kind: "DISK_LOW", Count: 1})
	l.add(1, 2, &storagev1.Happening{Kind: "DISK_ROOM", Count: 1})
	before := l.mach.events
	l.add(1, 3, &storagev1.Happening{Kind: "DISK_LOW", Count: 5})
	if len(before.list) != 2 || before.list[0].Kind != DiskLow || before.list[0].Count != 1 || before.totals[0].Count != 1 {
		t.Errorf("%+v", before.list[0])
	}
	if now := l.mach.events.list; len(now) != 2 || now[1].Kind != DiskLow || now[1].Count != 6 {
		t.Errorf("%+v", now)
	}
}

// A node's silence is told before it is told to be given up, also where news of another
// node were on their way until both were due.
func TestSilenceIsToldFirst(t *testing.T) {
	l := newEventLog(t)
	b := newBalancer(2, placement.Options{DeadAfter: 3_000})
	b.since[1], b.noted = l.now, l.now+2_900
	notes := func(now, wakes partition.Millis, want ...Presence) {
		t.Helper()
		cmd, wake := b.notes(now, l.mach.m, func(n partition.NodeID) Presence { return l.mach.sources[n].presence })
		var got []Presence
		for _, n := range cmd.GetNoteNodes().GetNodes() {
			got = append(got, Presence(n.GetPresence()))
		}
		if !slices.Equal(got, want) || wake != wakes {
			t.Errorf("at %d: %v, and again at %d; want %v at %d", now, got, wake, want, wakes)
		}
		if cmd != nil {
			l.apply(cmd)
		}
	}
	at := l.now
	notes(at+3_500, at+2_900+between)
	notes(at+4_000, at+4_000+between, Silent)
	notes(at+4_500, at+4_000+between)
	notes(at+5_000, at+5_000+between, GivenUp)
	notes(at+6_000, 0)
	list := l.mach.events.list
	if n := len(list); n < 2 || list[n-2].Kind != NodeSilent || list[n-1].Kind != NodeGivenUp {
		t.Errorf("%+v", list)
	}
}
