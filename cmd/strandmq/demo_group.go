package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/strandmq/strandmq/cmd/strandmq/sample"
	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// demoGroup is one group of the demo: its members, and the judge that watches
// all of them.
type demoGroup struct {
	d       *demo
	name    string
	size    int
	policy  *strandmqv1.GroupPolicy
	failing bool // some flights fail, and a member crashes
	members sync.WaitGroup

	mu       sync.Mutex
	order    *check.Order
	failures map[int]int // item: how often it failed so far
	acked    int
	dead     int
	nacked   int
	crashed  bool // it happened
	news     []string
}

func newDemoGroup(d *demo, name string, size int, policy *strandmqv1.GroupPolicy) *demoGroup {
	return &demoGroup{
		d: d, name: name, size: size, policy: policy,
		order: check.NewOrder(d.sample.items), failures: map[int]int{},
	}
}

// create makes the group, afresh when an earlier run left it.
func (g *demoGroup) create(ctx context.Context) error {
	groups := g.d.api.groups
	_, err := ask(ctx, groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: sample.Topic, Group: g.name})
	if err == nil {
		_, err = ask(ctx, groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: sample.Topic, Group: g.name, Confirm: g.name})
	}
	if err != nil && !isReason(err, "UNKNOWN_GROUP") {
		return err
	}
	_, err = ask(ctx, groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: sample.Topic, Group: g.name, Policy: g.policy})
	return err
}

// start runs the members until ctx ends. The first that fails ends the demo.
func (g *demoGroup) start(ctx context.Context, fail context.CancelCauseFunc) {
	for i := range g.size {
		g.members.Go(func() {
			name := fmt.Sprintf("%s-%d", g.name, i+1)
			if err := g.work(ctx, name); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("member %s: %w", name, err))
			}
		})
	}
}

// work is the life of one member. The one that crashes drops what it holds, as
// a killed process does, and comes back under its name: its new session ends
// the old one, so the broker hands the same messages out again at once.
func (g *demoGroup) work(ctx context.Context, name string) error {
	m := &member{api: g.d.api, topic: sample.Topic, group: g.name, name: name, retryFor: 10 * time.Second}
	if err := m.join(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		got, err := m.receive(ctx, newRequestID(), 100, time.Second)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		if len(got) == 0 {
			continue
		}
		list := g.handle(got)
		if g.crash(name, got) {
			select {
			case <-time.After(time.Second): // as long as a restart takes
			case <-ctx.Done():
				return nil
			}
			if err := m.join(ctx); err != nil {
				return err
			}
			continue
		}
		g.before(got, list)
		// The demo ends when the broker has settled all, which it may have done
		// before its answer came: the answer is waited for, and counted.
		results, err := m.settle(context.WithoutCancel(ctx), list)
		if err != nil {
			return err
		}
		if err := g.after(got, list, results); err != nil {
			return err
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	m.leave(leave)
	return nil
}

// handle judges the arrival of deliveries and decides what becomes of each.
func (g *demoGroup) handle(got []*strandmqv1.Delivery) []*strandmqv1.Settlement {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*strandmqv1.Settlement, len(got))
	for n, d := range got {
		s := &strandmqv1.Settlement{Token: d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
		list[n] = s
		i, ours := g.d.sample.index[d.GetMessage().GetId()]
		if !ours {
			continue // published to the topic by someone else
		}
		key, _ := messageKey(d.GetMessage())
		g.order.HandedOut(i, string(key), string(body(d.GetMessage())))
		if !g.failing {
			continue
		}
		switch times := g.d.sample.fails[i]; {
		case times == always:
			s.Action = strandmqv1.SettleAction_SETTLE_ACTION_NACK
			s.Reason = "more than 6 hours late: needs a person"
		case g.failures[i] < times:
			s.Action = strandmqv1.SettleAction_SETTLE_ACTION_NACK
			s.Reason = "the price service timed out"
		}
	}
	return list
}

// crash tells whether the member dies now: one, half way through the work, with a few
// messages in its hands. Whichever comes first: one that was named before may have done
// its share by then.
func (g *demoGroup) crash(name string, got []*strandmqv1.Delivery) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.failing || g.crashed || len(got) < 2 || g.acked < len(g.d.sample.items)/2 {
		return false
	}
	g.crashed = true
	g.news = append(g.news, fmt.Sprintf("%s crashes with %d messages in its hands; back in a second, it gets them again, each in its place", name, len(got)))
	return true
}

// final tells whether a settlement ends its message: an ack, or the last nack.
func (g *demoGroup) final(d *strandmqv1.Delivery, s *strandmqv1.Settlement) bool {
	return s.GetAction() == strandmqv1.SettleAction_SETTLE_ACTION_ACK || d.GetAttempt() >= g.policy.GetMaxAttempts()
}

// before tells the judge what is about to be settled.
func (g *demoGroup) before(got []*strandmqv1.Delivery, list []*strandmqv1.Settlement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, d := range got {
		if i, ours := g.d.sample.index[d.GetMessage().GetId()]; ours && g.final(d, list[n]) {
			g.order.Done(i)
		}
	}
}

// after counts what was settled.
func (g *demoGroup) after(got []*strandmqv1.Delivery, list []*strandmqv1.Settlement, results []*strandmqv1.SettleResult) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, r := range results {
		i, ours := g.d.sample.index[got[n].GetMessage().GetId()]
		if !ours {
			continue
		}
		nack := list[n].GetAction() == strandmqv1.SettleAction_SETTLE_ACTION_NACK
		switch {
		case r.GetProblem() != nil:
			// Too late: a slow machine let the delivery lapse.
			if g.final(got[n], list[n]) {
				g.order.Undone(i)
			}
		case nack:
			g.failures[i]++
			g.nacked++
			if r.GetDeadLettered() != g.final(got[n], list[n]) {
				return fmt.Errorf("attempt %d of %d/%d: dead letter %v, against the policy of %d attempts", got[n].GetAttempt(),
					got[n].GetPartition(), got[n].GetOffset(), r.GetDeadLettered(), g.policy.GetMaxAttempts())
			}
			if r.GetDeadLettered() {
				g.dead++
			}
		default:
			g.acked++
		}
	}
	return nil
}

// state is a snapshot for the progress display.
func (g *demoGroup) state() (acked, nacked, dead, missing int, news []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	news, g.news = g.news, nil
	return g.acked, g.nacked, g.dead, g.order.Left(), news
}

// empty asks the broker whether the group has nothing left. A message whose last
// delivery lapsed is dead without any member being told.
func (g *demoGroup) empty(ctx context.Context) bool {
	res, err := ask(ctx, g.d.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: sample.Topic, Group: g.name})
	return err == nil && res.GetCounts().GetLag() == 0
}

// buried asks the broker which items are dead letters.
func (g *demoGroup) buried(ctx context.Context) (map[int]bool, error) {
	dead := map[int]bool{}
	token := ""
	for {
		res, err := ask(ctx, g.d.api.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{
			Topic: sample.Topic, Group: g.name, PageSize: 1000, PageToken: token,
		})
		if err != nil {
			return nil, err
		}
		for _, l := range res.GetDeadLetters() {
			if i, ours := g.d.sample.index[l.GetMessage().GetId()]; ours {
				dead[i] = true
			}
		}
		if token = res.GetNextPageToken(); token == "" {
			return dead, nil
		}
	}
}

// result asks the broker for the group's counts and dead letters, and compares
// them with what its members saw and with the data.
func (g *demoGroup) result(ctx context.Context) (groupResult, error) {
	dead, err := g.buried(ctx)
	if err != nil {
		return groupResult{Group: g.name}, err
	}
	res, err := ask(ctx, g.d.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: sample.Topic, Group: g.name})
	if err != nil {
		return groupResult{Group: g.name}, err
	}
	n := res.GetCounts()
	g.mu.Lock()
	defer g.mu.Unlock()
	missing := g.order.Finish(func(i int) bool { return dead[i] })
	out := groupResult{
		Group: g.name, Members: g.size, Acked: n.GetAcked(), Retried: n.GetRetried(), Dead: n.GetDead(),
		Violations: g.order.Count(),
	}
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("group %s "+format, append([]any{g.name}, args...)...))
		}
	}
	fault(missing > 0, "lost %d flights: neither acked nor dead", missing)
	fault(len(dead) < g.dead, "has %d dead letters, and its members were told of %d", len(dead), g.dead)
	// Others may have published to the topic; their messages are acked too.
	fault(out.Acked < uint64(g.acked), "counts %d acked messages, and its members acked %d", out.Acked, g.acked)
	fault(g.acked+len(dead) != len(g.d.sample.items), "acked %d and has %d dead letters, of %d flights", g.acked, len(dead), len(g.d.sample.items))
	for _, v := range g.order.Violations() {
		fault(true, "%s", v.Text)
	}
	return out, errors.Join(faults...)
}
