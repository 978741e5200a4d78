package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// command draws any command over few names, so that they collide, and over the
// ids handed out last, so that they mostly stand for something.
func command(t *rapid.T, next counters, m *Map) *storagev1.MetadataCommand {
	back := func(next uint64) uint64 { return next - min(next, rapid.Uint64Range(0, 3).Draw(t, "back")) }
	topic := func() uint64 { return back(uint64(next.topic)) }
	id := func() uint64 { return back(uint64(next.group)) }
	name := func() string { return rapid.SampledFrom([]string{"a", "b", "c", ".bad"}).Draw(t, "name") }
	session := func() uint64 { return back(next.session) }
	cmd := &storagev1.MetadataCommand{Rules: Rules, NowMs: rapid.Int64Range(0, 1000).Draw(t, "now")}
	switch kind := rapid.IntRange(0, 44).Draw(t, "kind"); kind {
	default:
		clusterCommand(t, next, m, cmd, kind)
	case 0:
		cmd.Command = &storagev1.MetadataCommand_Bootstrap{Bootstrap: &storagev1.Bootstrap{ClusterId: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "cluster"), TokenSecret: 5}}
	case 1, 2:
		cmd.Command = &storagev1.MetadataCommand_CreateTopic{CreateTopic: &storagev1.CreateTopic{Name: name(), Partitions: uint32(rapid.IntRange(0, 5).Draw(t, "n")), Seed: 3}}
	case 3, 4:
		cmd.Command = &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: topic()}}
	case 5:
		cmd.Command = &storagev1.MetadataCommand_AlterTopic{AlterTopic: &storagev1.AlterTopic{TopicId: topic(), Config: &strandmqv1.TopicConfig{RetentionMs: proto.Int64(rapid.Int64Range(-1, 3).Draw(t, "retention"))}}}
	case 6:
		cmd.Command = &storagev1.MetadataCommand_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: topic()}}
	case 7:
		cmd.Command = &storagev1.MetadataCommand_RemoveTopic{RemoveTopic: &storagev1.RemoveTopic{TopicId: topic()}}
	case 8, 9:
		cmd.Command = &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: topic(), Name: name()}}
	case 10:
		cmd.Command = &storagev1.MetadataCommand_AlterGroup{AlterGroup: &storagev1.AlterGroup{GroupId: id(), Revision: rapid.Uint64Range(0, 3).Draw(t, "revision"), Policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(rapid.Uint32Range(0, 2).Draw(t, "attempts"))}}}
	case 11:
		cmd.Command = &storagev1.MetadataCommand_PauseGroup{PauseGroup: &storagev1.PauseGroup{GroupId: id(), Paused: rapid.Bool().Draw(t, "paused")}}
	case 12, 13:
		cmd.Command = &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: id(), Revision: rapid.Uint64Range(0, 4).Draw(t, "revision")}}
	case 14:
		cmd.Command = &storagev1.MetadataCommand_DeleteGroup{DeleteGroup: &storagev1.DeleteGroup{GroupId: id()}}
	case 15:
		cmd.Command = &storagev1.MetadataCommand_RemoveGroup{RemoveGroup: &storagev1.RemoveGroup{GroupId: id()}}
	case 16, 17, 18:
		cmd.Command = &storagev1.MetadataCommand_Join{Join: &storagev1.Join{GroupId: id(), Member: name(), Keep: rapid.Bool().Draw(t, "keep")}}
	case 19:
		cmd.Command = &storagev1.MetadataCommand_Leave{Leave: &storagev1.Leave{GroupId: id(), Member: name(), Session: session(), Drain: rapid.Bool().Draw(t, "drain")}}
	case 20:
		var refs []*storagev1.SessionRef
		for range rapid.IntRange(0, 4).Draw(t, "refs") {
			refs = append(refs, &storagev1.SessionRef{GroupId: id(), Member: name(), Session: session()})
		}
		cmd.Command = &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: refs}}
	}
	return cmd
}

func small() limits {
	return limits{topics: 2, partitions: 7, topicPartitions: 4, groups: 2, members: 2, nodes: 6, tokens: 2}
}

// describe prints all of a machine's state.
func describe(mc *machine) string {
	return fmt.Sprintf("clock %d, next %v, secret %d\n%s", mc.clock, mc.next, mc.m.Cluster.TokenSecret, dump(mc.m))
}

// outcome prints a result.
func outcome(r *result) string {
	s := fmt.Sprintf("existed %v, replaced %d, err %v", r.existed, r.replaced, r.err)
	if r.topic != nil {
		s += fmt.Sprintf(", topic %v %v", r.topic.ID, r.topic.Phase)
	}
	if r.group != nil {
		s += fmt.Sprintf(", group %v %v %d", r.group.ID, r.group.Phase, r.group.Revision)
	}
	if r.node != nil {
		s += fmt.Sprintf(", node %v %v", r.node.ID, r.node.State)
	}
	if r.token != nil {
		s += fmt.Sprintf(", token %x", r.token.Hash[:2])
	}
	if r.place != nil {
		s += ", place " + partitionText(r.place)
	}
	if r.member != nil {
		s += fmt.Sprintf(", member %s %d %v", r.member.Name, r.member.Session, r.member.Shares)
	}
	return s
}

// Data from before there were nodes opens, and its partitions are all on the first
// node, as the replicas that they always were.
func TestBeforeNodes(t *testing.T) {
	mc := newMachine()
	old := createTopic("a", 2)
	old.Rules = 1
	b, err := proto.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := mc.apply(1, b); err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	rows := memRows{}
	if err := mc.checkpoint(rows); err != nil {
		t.Fatal(err)
	}
	for k, v := range rows {
		// What version 1 wrote.
		switch k[0] {
		case rowCluster:
			var c storagev1.ClusterRow
			if err := proto.Unmarshal(v, &c); err != nil {
				t.Fatal(err)
			}
			c.Format, c.NextNode, c.Metadata, c.Placed = 1, 0, nil, 0
			v, err = proto.Marshal(&c)
		case rowTopic:
			var row storagev1.TopicRow
			if err := proto.Unmarshal(v, &row); err != nil {
				t.Fatal(err)
			}
			for i, p := range row.Partitions {
				row.Partitions[i] = &storagev1.PartitionRow{Id: p.Id, HashFirst: p.HashFirst, HashLast: p.HashLast}
			}
			row.Config.Replication = nil
			v, err = proto.Marshal(&row)
		}
		if err != nil {
			t.Fatal(err)
		}
		rows.Put([]byte(k), v)
	}
	back, err := restore(rows)
	if err != nil {
		t.Fatal(err)
	}
	back.at = 1
	p, _ := back.m.Partition(2)
	if len(p.Replicas) != 0 || back.m.Deleted(2) || !back.m.Deleted(0) == back.m.Deleted(3) {
		t.Errorf("opened as %s", describe(back))
	}
	r := must(t, back, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: 7, Address: &storagev1.NodeAddress{Store: "s"}}}})
	if r.err != nil || r.node.ID != 7 || back.next.node != 8 {
		t.Fatalf("%+v", r)
	}
	for id := range partition.PartitionID(3) {
		if p, _ := back.m.Partition(id); len(p.Replicas) != 1 || p.Replicas[0] != partition.ReplicaID(partition.NodeID(7)) || p.Moving() {
			t.Errorf("%v: %+v", id, p)
		}
	}
	if err := sound(back); err != nil {
		t.Error(err)
	}
}

// Over any history: two machines agree on every answer and state, whenever one
// of them wrote its rows and was started again from them; older maps never
// change; the map's own counts and cross references hold; numbers are never
// used twice.
func TestMachineProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := newMachine(), newMachine()
		one.limits, two.limits = small(), small()
		rows := memRows{}
		saved, log := 0, [][]byte{}
		ids := make(map[string]string)
		type old struct {
			m    *Map
			text string
		}
		var history []old
		for i := range rapid.IntRange(1, 200).Draw(t, "commands") {
			b, err := proto.Marshal(command(t, one.next, one.m))
			if err != nil {
				t.Fatal(err)
			}
			log = append(log, b)
			at := partition.Index(i + 1)
			before := describe(one)
			was := one.m
			ra, err := one.apply(at, b)
			if err != nil {
				t.Fatal(err)
			}
			rb, err := two.apply(at, b)
			if err != nil {
				t.Fatal(err)
			}
			if outcome(ra) != outcome(rb) || describe(one) != describe(two) {
				t.Fatalf("the machines differ after entry %d:\n%s\n%s\n%s\n%s", at, outcome(ra), outcome(rb), describe(one), describe(two))
			}
			if (ra.err != nil || ra.existed) && one.m != was {
				t.Fatalf("a refusal, or what was so already, changed the map:\n%s\n%s", before, describe(one))
			}
			if err := sound(one); err != nil {
				t.Fatalf("%v\n%s", err, describe(one))
			}
			if err := unique(ids, one.m); err != nil {
				t.Fatal(err)
			}
			history = append(history, old{one.m, dump(one.m)})

			if rapid.IntRange(0, 5).Draw(t, "checkpoint") == 0 {
				if err := two.checkpoint(rows); err != nil {
					t.Fatal(err)
				}
				saved = len(log)
			}
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				// Only what the rows hold is left; the entries behind them are
				// applied again.
				two, err = restore(rows.clone())
				if err != nil {
					t.Fatal(err)
				}
				two.limits = small()
				for j := saved; j < len(log); j++ {
					if _, err := two.apply(partition.Index(j+1), log[j]); err != nil {
						t.Fatal(err)
					}
				}
				if describe(one) != describe(two) {
					t.Fatalf("after a restart from entry %d at %d:\n%s\n%s", saved, at, describe(one), describe(two))
				}
			}
		}
		for _, h := range history {
			if got := dump(h.m); got != h.text {
				t.Fatalf("a map that readers had was changed from\n%sto\n%s", h.text, got)
			}
		}
	})
}

// sound checks what must hold within a machine at any time.
func sound(mc *machine) error {
	m := mc.m
	if err := soundCluster(mc); err != nil {
		return err
	}
	if len(m.topics) > mc.limits.topics || m.partitions > mc.limits.partitions {
		return errors.New("beyond the limits")
	}
	partitions, sessions, groups := 0, 0, 0
	for _, t := range m.topics {
		if byID, ok := m.TopicByID(t.ID); !ok || byID != t {
			return fmt.Errorf("topic %s by id is another", t.Name)
		}
		partitions += len(t.Partitions)
		for _, g := range t.groups {
			groups++
			sessions += len(g.Members)
			if byID, ok := m.GroupByID(g.ID); !ok || byID != g || g.Topic != t.ID {
				return fmt.Errorf("group %s by id is another", g.Name)
			}
			if (t.Phase != Ready || g.Phase != Ready) && len(g.Members) > 0 {
				return fmt.Errorf("group %s has members in phase %v, topic %v", g.Name, g.Phase, t.Phase)
			}
			if g.Logged > g.Revision || g.Phase == Creating && g.Logged != 0 {
				return fmt.Errorf("group %s %v logged %d of %d", g.Name, g.Phase, g.Logged, g.Revision)
			}
			c := crew{}
			for _, mb := range g.Members {
				if !mb.Away && !mb.Draining {
					c[mb.Name] = mb.Shares
				} else if len(mb.Shares) > 0 {
					return fmt.Errorf("group %s: %s is away or drains, and has shares", g.Name, mb.Name)
				}
			}
			if err := covers(len(t.Partitions), c); err != nil {
				return fmt.Errorf("group %s: %w", g.Name, err)
			}
			if err := balanced(len(t.Partitions), c); err != nil {
				return fmt.Errorf("group %s: %w", g.Name, err)
			}
		}
		if len(t.groups) > mc.limits.groups {
			return errors.New("beyond the limit of groups")
		}
	}
	if len(m.topicsByID) != len(m.topics) || len(m.groupsByID) != groups || m.partitions != partitions || m.sessions != sessions {
		return fmt.Errorf("counts: %d topics by id, %d groups by id of %d, %d partitions of %d, %d sessions of %d", len(m.topicsByID), len(m.groupsByID), groups, m.partitions, partitions, m.sessions, sessions)
	}
	return nil
}

// unique checks that no number ever stands for two things.
func unique(ids map[string]string, m *Map) error {
	for n := range m.Nodes() {
		if had, ok := ids[n.ID.String()]; ok && had != n.Store {
			return fmt.Errorf("%v was store %s and is %s", n.ID, had, n.Store)
		}
		ids[n.ID.String()] = n.Store
	}
	for _, t := range m.topics {
		claims := map[string]string{t.ID.String(): fmt.Sprint(t.Name, " of ", t.Partitions[0].ID)}
		for _, p := range t.Partitions {
			claims[p.ID.String()] = fmt.Sprint(t.ID, p.Range)
		}
		for _, g := range t.groups {
			claims[g.ID.String()] = fmt.Sprint(t.ID, g.Name)
			for _, mb := range g.Members {
				claims[fmt.Sprint("session ", mb.Session)] = fmt.Sprint(g.ID, mb.Name)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(claims)) {
			if had, ok := ids[id]; ok && had != claims[id] {
				return fmt.Errorf("%s was %s and is %s", id, had, claims[id])
			}
			ids[id] = claims[id]
		}
	}
	return nil
}

// must applies a command that may not be refused.
func must(t testing.TB, mc *machine, cmd *storagev1.MetadataCommand) *result {
	t.Helper()
	cmd.Rules = Rules
	b, err := proto.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mc.apply(mc.at+1, b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// first is the command that begins a cluster with node 1.
func first(store string) *storagev1.MetadataCommand {
	return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: 1, Address: &storagev1.NodeAddress{Store: store}}}}
}

func createTopic(name string, n uint32) *storagev1.MetadataCommand {
	return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateTopic{CreateTopic: &storagev1.CreateTopic{Name: name, Partitions: n}}}
}

func join(g uint64, member string) *storagev1.MetadataCommand {
	return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Join{Join: &storagev1.Join{GroupId: g, Member: member}}}
}

func TestLimits(t *testing.T) {
	mc := newMachine()
	mc.limits = limits{topics: 2, partitions: 5, topicPartitions: 4, groups: 1, members: 2}
	want := func(r *result, what string) {
		t.Helper()
		var limit *ErrLimit
		if what == "" && r.err != nil || what != "" && (!errors.As(r.err, &limit) || limit.What != what) {
			t.Errorf("got %v, want a limit of %q", r.err, what)
		}
	}
	want(must(t, mc, createTopic("a", 4)), "")
	want(must(t, mc, createTopic("b", 2)), "partitions")
	want(must(t, mc, createTopic("b", 1)), "")
	want(must(t, mc, createTopic("c", 1)), "topics")
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
	group := func(name string) *storagev1.MetadataCommand {
		return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: name}}}
	}
	want(must(t, mc, group("g")), "")
	want(must(t, mc, group("h")), "groups of a topic")
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
	want(must(t, mc, join(1, "x")), "")
	want(must(t, mc, join(1, "y")), "")
	want(must(t, mc, join(1, "z")), "members of a group")
	want(must(t, mc, join(1, "y")), "") // again, not one more
	// What is deleted makes room when it is gone, not before.
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: 2}}})
	want(must(t, mc, createTopic("c", 1)), "topics")
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveTopic{RemoveTopic: &storagev1.RemoveTopic{TopicId: 2}}})
	want(must(t, mc, createTopic("c", 1)), "")
}

// groupAlone is a machine with a topic of two partitions and a group, of id 1 each.
func groupAlone(t *testing.T) *machine {
	t.Helper()
	mc := newMachine()
	must(t, mc, createTopic("a", 2))
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: "g"}}})
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
	return mc
}

// A group tells when its partitions were assigned as they are, and why.
func TestWhyAssigned(t *testing.T) {
	mc := groupAlone(t)
	now := int64(1000)
	does := func(c *storagev1.MetadataCommand, want string) uint64 {
		t.Helper()
		now++
		c.NowMs = now
		r := must(t, mc, c)
		g, _ := mc.m.GroupByID(1)
		if g.Why != want || int64(g.Changed) != now {
			t.Errorf("assigned at %d, for %s; want %d, %s", g.Changed, g.Why, now, want)
		}
		if r.member != nil {
			return r.member.Session
		}
		return 0
	}
	leave := func(member string, session uint64, drain bool) *storagev1.MetadataCommand {
		return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Leave{Leave: &storagev1.Leave{GroupId: 1, Member: member, Session: session, Drain: drain}}}
	}
	expire := func(refs ...*storagev1.SessionRef) *storagev1.MetadataCommand {
		for _, r := range refs {
			r.GroupId = 1
		}
		return &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: refs}}}
	}
	does(join(1, "x"), `member "x" joined`)
	x := does(join(1, "x"), `member "x" joined anew`)
	y := does(join(1, "y"), `member "y" joined`)
	z := does(join(1, "z"), `member "z" joined`)
	does(leave("z", z, true), `member "z" drains`)
	does(leave("z", z, false), `member "z" left`)
	does(expire(&storagev1.SessionRef{Member: "x", Session: x}, &storagev1.SessionRef{Member: "y", Session: y}), `member "x" and 1 more are not heard of`)
	does(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Join{Join: &storagev1.Join{GroupId: 1, Member: "x", Keep: true, Session: x}}}, `member "x" is back`)
	does(expire(&storagev1.SessionRef{Member: "y", Session: y, Away: true}), `member "y" is not heard of`)
}

// An expiry is checked when it is applied: whatever happened between the
// leader's look at its clock and the commit wins.
func TestExpiryIsCheckedAtApply(t *testing.T) {
	mc := groupAlone(t)
	old := must(t, mc, join(1, "x")).member.Session
	other := must(t, mc, join(1, "y")).member.Session
	now := must(t, mc, join(1, "x")).member.Session
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: []*storagev1.SessionRef{
		{GroupId: 1, Member: "x", Session: old},
		{GroupId: 1, Member: "y", Session: other},
		{GroupId: 7, Member: "x", Session: now},
	}}}})
	g, _ := mc.m.GroupByID(1)
	x, _ := g.Member("x")
	y, _ := g.Member("y")
	if len(g.Members) != 2 || x.Session != now || x.Away || len(x.Shares) != 2 || y.Session != other || !y.Away || len(y.Shares) != 0 {
		t.Errorf("left are %s", dump(mc.m))
	}
	expire := func(refs ...*storagev1.SessionRef) {
		must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: refs}}})
		g, _ = mc.m.GroupByID(1)
	}
	// Named twice it is one silence, not two, in one entry or in several.
	for range 2 {
		expire(&storagev1.SessionRef{GroupId: 1, Member: "x", Session: now}, &storagev1.SessionRef{GroupId: 1, Member: "x", Session: now})
		if len(g.Members) != 2 {
			t.Errorf("left are %s", dump(mc.m))
		}
	}
	// Who came back since is not meant any more.
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Join{Join: &storagev1.Join{GroupId: 1, Member: "x", Keep: true, Session: now}}})
	expire(&storagev1.SessionRef{GroupId: 1, Member: "x", Session: now, Away: true})
	if x, _ := g.Member("x"); x == nil || x.Away {
		t.Errorf("left are %s", dump(mc.m))
	}
	expire(&storagev1.SessionRef{GroupId: 1, Member: "x", Session: now})
	// Each is away and is named as such: it goes.
	expire(&storagev1.SessionRef{GroupId: 1, Member: "x", Session: now, Away: true}, &storagev1.SessionRef{GroupId: 1, Member: "y", Session: other, Away: true})
	if len(g.Members) != 0 {
		t.Errorf("left are %s", dump(mc.m))
	}
}

// Members that are away do not keep others out of a full group: the one with the
// oldest session makes room. Those that are there do.
func TestAwayMakesRoom(t *testing.T) {
	mc := newMachine()
	mc.limits.members = 2
	must(t, mc, createTopic("a", 2))
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: "g"}}})
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
	y := must(t, mc, join(1, "y")).member.Session
	x := must(t, mc, join(1, "x")).member.Session
	must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: []*storagev1.SessionRef{
		{GroupId: 1, Member: "x", Session: x}, {GroupId: 1, Member: "y", Session: y},
	}}}})
	for i, left := range []string{"x z", "w z", "w z"} {
		r := must(t, mc, join(1, []string{"z", "w", "v"}[i]))
		if full := i == 2; (r.err != nil) != full {
			t.Errorf("join %d: %v", i, r.err)
		}
		g, _ := mc.m.GroupByID(1)
		if got := g.Members[0].Name + " " + g.Members[1].Name; len(g.Members) != 2 || got != left {
			t.Errorf("left are %s, want %s", dump(mc.m), left)
		}
		if err := sound(mc); err != nil {
			t.Error(err)
		}
	}
}

// The log's clock only goes forward.
func TestClock(t *testing.T) {
	mc := newMachine()
	cmd := createTopic("a", 1)
	cmd.NowMs = 500
	must(t, mc, cmd)
	cmd = createTopic("b", 1)
	cmd.NowMs = 400
	if r := must(t, mc, cmd); r.topic.Created != 500 {
		t.Errorf("created at %d", r.topic.Created)
	}
}

func TestNewerIsRefused(t *testing.T) {
	var bad *ErrFormat
	for what, cmd := range map[string]*storagev1.MetadataCommand{
		"newer rules": {Rules: Rules + 1, Command: &storagev1.MetadataCommand_Bootstrap{Bootstrap: &storagev1.Bootstrap{ClusterId: "x"}}},
		"no rules":    {Command: &storagev1.MetadataCommand_Bootstrap{Bootstrap: &storagev1.Bootstrap{ClusterId: "x"}}},
		"no command":  {Rules: Rules},
	} {
		b, _ := proto.Marshal(cmd)
		mc := newMachine()
		_, err := mc.apply(9, b)
		if !errors.As(err, &bad) || bad.At != 9 {
			t.Errorf("%s: %v", what, err)
		}
		newerOnly(t, err, what == "newer rules")
	}
	rows := memRows{}
	for _, version := range []uint32{0, rowFormat + 1} {
		b, _ := proto.Marshal(&storagev1.ClusterRow{Format: version})
		rows.Put([]byte("c"), b)
		_, err := restore(rows)
		if !errors.As(err, &bad) {
			t.Errorf("rows of format %d: %v", version, err)
		}
		newerOnly(t, err, version > rowFormat)
	}
}

// newerOnly holds that an error says either that a newer version is to be run,
// or that a copy is to be restored.
func newerOnly(t *testing.T, err error, newer bool) {
	t.Helper()
	if errors.As(err, new(*format.ErrNewer)) != newer ||
		strings.Contains(err.Error(), "run that version or newer") != newer || strings.Contains(err.Error(), "restore") == newer {
		t.Errorf("newer %v: %v", newer, err)
	}
}

func FuzzApply(f *testing.F) {
	for i := range 40 {
		cmd := rapid.Custom(func(t *rapid.T) *storagev1.MetadataCommand {
			return command(t, counters{topic: 2, partition: 4, group: 2, session: 2, node: 3}, &Map{})
		}).Example(i)
		b, err := proto.Marshal(cmd)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		mc := newMachine()
		mc.limits = limits{topics: 2, partitions: 40, topicPartitions: 16, groups: 2, members: 2, nodes: 3, tokens: 2}
		must(t, mc, createTopic("a", 3))
		must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
		must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: "g"}}})
		must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
		must(t, mc, join(1, "x"))
		must(t, mc, first("s1"))
		r, err := mc.apply(mc.at+1, b)
		var format *ErrFormat
		if err != nil {
			if !errors.As(err, &format) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if r == nil {
			t.Fatal("neither result nor error")
		}
		if err := sound(mc); err != nil {
			t.Fatalf("%v\n%s", err, describe(mc))
		}
		rows := memRows{}
		if err := mc.checkpoint(rows); err != nil {
			t.Fatal(err)
		}
		back, err := restore(rows)
		if err != nil {
			t.Fatal(err)
		}
		if describe(back) != describe(mc) {
			t.Fatalf("rows lose something:\n%s\n%s", describe(mc), describe(back))
		}
	})
}

// FuzzRestore gives one row any bytes: restore answers an error or a sound
// machine, and never panics.
func FuzzRestore(f *testing.F) {
	mc := newMachine()
	must(f, mc, createTopic("a", 3))
	must(f, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishTopic{FinishTopic: &storagev1.FinishTopic{TopicId: 1}}})
	must(f, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_CreateGroup{CreateGroup: &storagev1.CreateGroup{TopicId: 1, Name: "g"}}})
	must(f, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_FinishGroup{FinishGroup: &storagev1.FinishGroup{GroupId: 1, Revision: 1}}})
	must(f, mc, join(1, "x"))
	must(f, mc, first("s1"))
	hash := HashToken([]byte("a secret"))
	for _, cmd := range []*storagev1.MetadataCommand{
		{Command: &storagev1.MetadataCommand_SetAuthority{SetAuthority: &storagev1.SetAuthority{Certificate: []byte("c"), Key: []byte("k")}}},
		{Command: &storagev1.MetadataCommand_CreateJoinToken{CreateJoinToken: &storagev1.CreateJoinToken{Hash: hash[:], ExpiresMs: 1000}}},
		{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{TokenHash: hash[:], Address: &storagev1.NodeAddress{Store: "s2"}}}},
		{Command: &storagev1.MetadataCommand_PlaceReplicas{PlaceReplicas: &storagev1.PlaceReplicas{Placements: []*storagev1.Placement{{PartitionId: 2, Placement: uint64(mc.at) - 3, Nodes: []uint64{2}}}}}},
	} {
		if r := must(f, mc, cmd); r.err != nil && cmd.GetPlaceReplicas() == nil {
			f.Fatal(r.err)
		}
	}
	rows := memRows{}
	if err := mc.checkpoint(rows); err != nil {
		f.Fatal(err)
	}
	keys := slices.Sorted(maps.Keys(rows))
	for i, k := range keys {
		f.Add(i, rows[k])
		f.Add(i, []byte{})
		f.Add(i, []byte{0xff})
	}
	f.Fuzz(func(t *testing.T, which int, value []byte) {
		rows := rows.clone()
		rows[keys[uint(which)%uint(len(keys))]] = value
		back, err := restore(rows)
		var format *ErrFormat
		if err != nil {
			if !errors.As(err, &format) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		_ = dump(back.m)
		for range 2 {
			// A machine that was restored must go on without a panic.
			must(t, back, join(1, "y"))
			must(t, back, first("s1"))
			for id := range uint64(4) {
				must(t, back, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_LoseNode{LoseNode: &storagev1.LoseNode{Node: id}}})
				must(t, back, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_RemoveNode{RemoveNode: &storagev1.RemoveNode{Node: id}}})
				p, ok := back.m.Partition(partition.PartitionID(id))
				if !ok {
					continue
				}
				must(t, back, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_PlaceReplicas{PlaceReplicas: &storagev1.PlaceReplicas{Placements: []*storagev1.Placement{placementOf(p, []partition.NodeID{2})}}}})
				p, _ = back.m.Partition(partition.PartitionID(id))
				must(t, back, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_SettleReplicas{SettleReplicas: &storagev1.SettleReplicas{Settled: []*storagev1.Settled{{PartitionId: id, Placement: p.Placement}}}}})
			}
			_, _ = newBalancer(1, placement.Options{}.WithDefaults()).turn(1, back.m)
		}
	})
}
