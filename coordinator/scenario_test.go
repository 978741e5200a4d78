package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestScenarios runs testdata/scenarios over the whole coordinator on a log in
// memory. A command prints its answer, or "refused:" and the error.
//
//	bootstrap | map | unfinished
//	create-topic T [partitions=N] [retention=MS] [body=N]   finish-topic T
//	alter-topic T ...     delete-topic T [confirm=T]        remove-topic T
//	create-group T G [attempts=N]  finish-group T G [revision=N]
//	alter-group T G attempts=N     pause T G    resume T G
//	delete-group T G [confirm=G]   remove-group T G
//	join T G M   join-stream T G M   open T G M   heartbeat T G M session=N   leave T G M session=N
//	drain-member T G M session=N
//	pass MS             time goes by, with the turns that the leader asks for
//	jump MS             time goes by without any turn
//	lead                another leader takes over, which heard of nobody
//	checkpoint          write the rows
//	restart             come back from the rows and the log behind them
//	ended               the sessions that ended since the last such command
//
//	found [store=S]     node 1 begins the cluster
//	token [valid=MS]    make a join token; they count from 1
//	add-node [token=N] store=S [zone=Z] [boot=N] [peer=A]   by a token
//	update-node N store=S [boot=N] [zone=Z]
//	drain N   undrain N   lose N [confirm=N]   remove N [confirm=N]
//	place P N,N,...     settle P placement=N     left P REPLICA     damaged P REPLICA
//	settle-all          every partition on the move gets there, and all that left is erased
//	reach N...   miss N...   the leader hears that nodes came or went
//	plan [without=N [lost]]   what would be moved, and what is stuck
//	events [after=N]    what happened, as the log tells it
//	happened N boot=B batch=K KIND[:COUNT] [TOPIC[/PARTITION] [GROUP]]   a node tells of something
//	deleted P           whether a partition is known to be gone
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		h, c := newMemHost(t, 10_000)
		s := &scenario{t: t, h: h, c: c, seen: c.View()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := s.run(d)
			if h.quarrel != nil {
				d.Fatalf(t, "the leader was refused what it proposed: %v", h.quarrel)
			}
			if err != nil {
				return fmt.Sprintf("refused: %T: %v\n", err, err)
			}
			return out
		})
	})
}

type scenario struct {
	t    *testing.T
	h    *memHost
	c    *Coordinator
	seen *Map // at the last "ended"

	tokens [][]byte // secrets
}

func (s *scenario) run(d *datadriven.TestData) (string, error) {
	ctx := context.Background()
	var args []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			args = append(args, a.Key)
		}
	}
	arg := func(i int) string {
		if i >= len(args) {
			return ""
		}
		return args[i]
	}
	num := func(name string) *int64 {
		if !d.HasArg(name) {
			return nil
		}
		var n int64
		d.ScanArgs(s.t, name, &n)
		return &n
	}
	or0 := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	text := func(name string) string {
		var v string
		d.MaybeScanArgs(s.t, name, &v)
		return v
	}
	topicID := func() TopicID {
		t, _ := s.c.View().FindTopic(arg(0))
		if t == nil {
			return 0
		}
		return t.ID
	}
	group := func() *Group {
		if t, ok := s.c.View().FindTopic(arg(0)); ok {
			if g, ok := t.FindGroup(arg(1)); ok {
				return g
			}
		}
		return &Group{ID: 999}
	}
	topic := func(t *Topic, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v %v\n", t.ID, t.Phase), nil
	}
	grp := func(g *Group, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v %v revision %d logged %d\n", g.ID, g.Phase, g.Revision, g.Logged), nil
	}
	joined := func(j Joined, err error) (string, error) {
		if err != nil {
			return "", err
		}
		out := fmt.Sprintf("session %d %v", j.Member.Session, j.Member.Shares)
		if j.Replaced != 0 {
			out += fmt.Sprintf(" ended %d", j.Replaced)
		}
		return out + "\n", nil
	}
	config := &strandmqv1.TopicConfig{RetentionMs: num("retention"), MaxBodyBytes: num("body")}
	if n := num("replication"); n != nil {
		config.Replication = proto.Uint32(uint32(*n))
	}
	policy := &strandmqv1.GroupPolicy{}
	if n := num("attempts"); n != nil {
		policy.MaxAttempts = proto.Uint32(uint32(*n))
	}
	policy.MaxHoldMs = num("max-hold")

	switch d.Cmd {
	case "bootstrap":
		cl, err := s.c.Bootstrap(ctx, arg(0))
		return fmt.Sprintf("cluster %s\n", cl.ID), err
	case "map":
		return dump(s.c.View()), nil
	case "unfinished":
		u := s.c.View().Unfinished()
		var b strings.Builder
		for _, t := range u.Topics {
			fmt.Fprintf(&b, "%s %v\n", t.Name, t.Phase)
		}
		for _, g := range u.Groups {
			fmt.Fprintf(&b, "%v/%s %v revision %d logged %d\n", g.Topic, g.Name, g.Phase, g.Revision, g.Logged)
		}
		return b.String(), nil
	case "create-topic":
		t, existed, err := s.c.CreateTopic(ctx, TopicSpec{Name: arg(0), Partitions: int(or0(num("partitions"))), Config: config})
		out, err := topic(t, err)
		if existed {
			out = "existed " + out
		}
		return out, err
	case "finish-topic":
		return topic(s.c.FinishTopic(ctx, topicID()))
	case "alter-topic":
		return topic(s.c.AlterTopic(ctx, arg(0), config))
	case "delete-topic":
		return topic(s.c.DeleteTopic(ctx, arg(0), text("confirm")))
	case "remove-topic":
		return "", s.c.RemoveTopic(ctx, topicID())
	case "create-group":
		g, existed, err := s.c.CreateGroup(ctx, GroupSpec{Topic: arg(0), Name: arg(1), Policy: policy})
		out, err := grp(g, err)
		if existed {
			out = "existed " + out
		}
		return out, err
	case "finish-group":
		rev := uint64(or0(num("revision")))
		if rev == 0 {
			rev = group().Revision
		}
		return grp(s.c.FinishGroup(ctx, group().ID, rev))
	case "alter-group":
		return grp(s.c.AlterGroup(ctx, arg(0), arg(1), func(p *strandmqv1.GroupPolicy) error {
			proto.Merge(p, policy)
			return nil
		}))
	case "pause", "resume":
		return grp(s.c.SetPaused(ctx, arg(0), arg(1), d.Cmd == "pause"))
	case "delete-group":
		return grp(s.c.DeleteGroup(ctx, arg(0), arg(1), text("confirm")))
	case "remove-group":
		return "", s.c.RemoveGroup(ctx, group().ID)
	case "join":
		return joined(s.c.Join(ctx, arg(0), arg(1), arg(2)))
	case "join-stream":
		return joined(s.c.JoinStream(ctx, arg(0), arg(1), arg(2)))
	case "open":
		return joined(s.c.Open(ctx, arg(0), arg(1), arg(2)))
	case "heartbeat":
		m, err := s.c.Heartbeat(context.Background(), group().ID, arg(2), uint64(or0(num("session"))))
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v\n", m.Shares), nil
	case "miss-member":
		return "", s.c.Miss(group().ID, arg(2), uint64(or0(num("session"))), partition.Millis(or0(num("silent"))))
	case "drain-member":
		return "", s.c.Drain(ctx, group().ID, arg(2), uint64(or0(num("session"))))
	case "leave":
		return "", s.c.Leave(ctx, group().ID, arg(2), uint64(or0(num("session"))))
	case "pass", "jump":
		var ms int64
		if _, err := fmt.Sscan(arg(0), &ms); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		if d.Cmd == "pass" {
			s.h.pass(partition.Millis(ms))
		} else {
			s.h.now += partition.Millis(ms)
			s.h.drive()
		}
		return "", nil
	case "lead":
		s.h.app.Lead(false)
		s.h.lead()
		return "", nil
	case "checkpoint":
		return "", s.h.checkpoint()
	case "restart":
		before := dump(s.c.View()) + dumpEvents(s.c, 0)
		s.h.open(s.t)
		s.h.lead()
		s.c = New(s.h, s.h.app)
		if after := dump(s.c.View()) + dumpEvents(s.c, 0); after != before {
			d.Fatalf(s.t, "before the restart:\n%safter:\n%s", before, after)
		}
		return "", nil
	case "events":
		return dumpEvents(s.c, uint64(or0(num("after")))), nil
	case "happened":
		var node uint64
		if _, err := fmt.Sscan(arg(0), &node); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		kind, count, _ := strings.Cut(arg(1), ":")
		h := Happening{Kind: EventKind(kind), Node: partition.NodeID(node), Group: arg(3), Text: "as it was"}
		_, _ = fmt.Sscan(count, &h.Count)
		var in string
		if h.Topic, in, _ = strings.Cut(arg(2), "/"); in != "" {
			h.Partition = new(uint32)
			_, _ = fmt.Sscan(in, h.Partition)
		}
		return "", s.c.AddEvents(ctx, Batch{Node: h.Node, Boot: uint64(or0(num("boot"))), Number: uint64(or0(num("batch"))), Events: []Happening{h}})
	case "ended":
		var b strings.Builder
		now := s.c.View()
		for _, e := range EndedSessions(s.seen, now) {
			fmt.Fprintf(&b, "%v/%v %s session %d\n", e.Topic, e.Group, e.Member, e.Number)
		}
		s.seen = now
		return b.String(), nil
	}
	return s.cluster(d, arg, num, text)
}

// dumpEvents prints the events that changed after a change, and the totals.
func dumpEvents(c *Coordinator, after uint64) string {
	var b strings.Builder
	all, _ := c.Events()
	for _, e := range all.All() {
		if e.Change <= after {
			continue
		}
		about := ""
		if e.Topic != "" {
			about += " " + e.Topic
		}
		if e.Partition != nil {
			about += fmt.Sprintf("/%d", *e.Partition)
		}
		if e.Group != "" {
			about += " " + e.Group
		}
		if e.Node != 0 {
			about += " " + e.Node.String()
		}
		fmt.Fprintf(&b, "%d at %d: %d %s%s from %d to %d: %s\n", e.ID, e.Change, e.Count, e.Kind, about, e.First, e.Last, e.Text)
	}
	for _, t := range all.Totals() {
		fmt.Fprintf(&b, "%s=%d ", t.Kind, t.Count)
	}
	if b.Len() == 0 {
		return "none\n"
	}
	return strings.TrimSuffix(b.String(), " ") + "\n"
}
