//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// storm is the workload, and the record of it.
type storm struct {
	t      *testing.T
	ctx    context.Context
	api    *clients
	seed   uint64
	groups []check.Group
	acked  func(partition uint32) // told of every receipt; may be nil
	keys   int                    // of each publisher; 0: 8
	pause  time.Duration          // the most between two batches of a publisher; 0: 4 ms
	unseen unseen

	mu     sync.Mutex
	calls  int
	events []check.Event
}

const stormTopic = "storm"

func (s *storm) random(n int) *rand.Rand { return rand.New(rand.NewPCG(s.seed, uint64(n))) }

// begin records the beginning of a call and gives its number.
func (s *storm) begin(e check.Event) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	e.Call = s.calls
	s.events = append(s.events, e)
	return e.Call
}

func (s *storm) end(e check.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *storm) setUp(partitions uint32) {
	if _, err := ask(s.ctx, s.api.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: stormTopic, Partitions: partitions}); err != nil {
		s.t.Fatal(err)
	}
	// One group meets failures, the other must not notice.
	s.groups = []check.Group{
		{Name: "work", MaxAttempts: 4, Keyed: true, Drained: true},
		{Name: "calm", MaxAttempts: 0, Keyed: true, Drained: true},
	}
	for _, g := range s.groups {
		if _, err := ask(s.ctx, s.api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{
			Topic: stormTopic, Group: g.Name, Policy: &strandmqv1.GroupPolicy{
				MaxAttempts: proto.Uint32(g.MaxAttempts), BackoffMs: proto.Int64(10), BackoffMaxMs: proto.Int64(50),
				AckDeadlineMs: proto.Int64(2000),
			},
		}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// goesOn waits until publishers and members have got some answers more. So many receipts
// are for more than a hundred messages, although some batches are sent twice.
func (s *storm) goesOn() {
	answers := func() (receipts, receives int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.events {
			switch {
			case e.Kind == check.PublishReturn && !e.Lost:
				receipts += len(e.Receipts)
			case e.Kind == check.ReceiveReturn && len(e.Deliveries) > 0:
				receives++
			}
		}
		return receipts, receives
	}
	p, r := answers()
	until(s.t, "the load goes on", func() bool {
		receipts, receives := answers()
		return receipts >= p+250 && receives >= r+20
	})
}

// publisher publishes small batches over its own keys, one after the other, and
// sends a batch again until it is answered.
func (s *storm) publisher(ctx context.Context, n int) {
	r := s.random(n)
	for count := 0; ctx.Err() == nil; {
		var list []check.Message
		for range 1 + r.IntN(20) {
			count++
			list = append(list, check.Message{
				Key: fmt.Sprintf("k%d-%d", n, r.IntN(cmp.Or(s.keys, 8))), ID: fmt.Sprintf("%d-%d", n, count), Body: fmt.Sprintf("body %d of %d", count, n),
			})
		}
		// Some are sent twice although they were answered.
		for again := true; again; again = again && r.IntN(20) == 0 {
			for !s.publish(s.api, list, 5*time.Second) {
				time.Sleep(5 * time.Millisecond) // the broker is away
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(cmp.Or(s.pause, 4*time.Millisecond))))) // spreads the load
	}
}

// publish sends one batch and records it. False: the outcome is unknown.
func (s *storm) publish(api *clients, list []check.Message, within time.Duration) bool {
	req := publishRequest(list)
	call := s.begin(check.Event{Kind: check.PublishCall, Messages: list})
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	res, err := api.publish.Publish(ctx, req)
	e := check.Event{Kind: check.PublishReturn, Call: call, Lost: err != nil}
	ok := err == nil
	for _, r := range res.GetResults() {
		if r.GetProblem() != nil {
			// Refused, or not known to be stored: as good as no answer.
			ok = false
			e.Lost = true
		} else if s.acked != nil {
			s.acked(r.GetReceipt().GetPartition())
		}
		e.Receipts = append(e.Receipts, check.Receipt{
			Place:     check.Place{Partition: r.GetReceipt().GetPartition(), Offset: r.GetReceipt().GetOffset()},
			Duplicate: r.GetReceipt().GetDuplicate(),
		})
	}
	s.end(e)
	return ok
}

// chance is a fixed property of a message, so that a poisonous one stays so.
func chance(id string, of uint32) bool {
	h := fnv.New32a()
	h.Write([]byte(id))
	return h.Sum32()%of == 0
}

// member works in a group until told to stop: it receives, settles, sometimes
// forgets everything and comes back, and sometimes uses tokens of the past.
func (s *storm) member(ctx context.Context, g check.Group, n int) {
	r := s.random(1000 + n)
	m := &member{api: s.api, topic: stormTopic, group: g.Name, name: fmt.Sprintf("%s-%d", g.Name, n)}
	rejoin := func() {
		for ctx.Err() == nil && m.join(ctx) != nil {
			time.Sleep(5 * time.Millisecond) // the broker is away
		}
	}
	rejoin()
	var past []check.Settlement
	request := newRequestID()
	for ctx.Err() == nil {
		got, err := s.receive(ctx, m, request)
		if isReason(err, "SESSION_ENDED") {
			rejoin()
			request = newRequestID()
			continue
		}
		if err != nil {
			time.Sleep(5 * time.Millisecond) // the broker is away; the request id stays
			continue
		}
		request = newRequestID()
		if len(got) > 0 && r.IntN(200) == 0 {
			rejoin() // crashed with work in its hands
			continue
		}
		var list []check.Settlement
		for _, d := range got {
			action := check.Ack
			if g.Name == "work" {
				switch {
				case chance(d.GetMessage().GetId(), 97):
					action = check.Nack // poison
				case d.GetAttempt() == 1 && chance(d.GetMessage().GetId(), 10):
					action = check.Nack
				case d.GetAttempt() == 1 && chance(d.GetMessage().GetId(), 211):
					action = check.Reject
				case r.IntN(50) == 0:
					action = check.Release
				}
			}
			list = append(list, check.Settlement{Token: d.GetToken(), Action: action})
		}
		for len(list) > 0 && ctx.Err() == nil && !s.settle(ctx, m, list) {
			time.Sleep(5 * time.Millisecond) // the broker is away
		}
		// Acks of the past: repeated ones that settled, and stale ones.
		if len(past) > 0 && r.IntN(10) == 0 {
			old := past[r.IntN(len(past))]
			old.Action = check.Ack
			s.settle(ctx, m, []check.Settlement{old})
		}
		past = append(past, list...)
		if len(past) > 500 {
			past = past[len(past)-500:]
		}
	}
}

func (s *storm) receive(ctx context.Context, m *member, request string) ([]*strandmqv1.Delivery, error) {
	call := s.begin(check.Event{Kind: check.ReceiveCall, Group: m.group, Member: m.name})
	e := check.Event{Kind: check.ReceiveReturn, Call: call, Group: m.group, Member: m.name}
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got, err := m.receive(limit, request, 20, 200*time.Millisecond)
	e.Lost = err != nil
	for _, d := range got {
		msg := d.GetMessage()
		e.Deliveries = append(e.Deliveries, check.Delivery{
			Place:   check.Place{Partition: d.GetPartition(), Offset: d.GetOffset()},
			Message: check.Message{Key: msg.GetKey(), ID: msg.GetId(), Body: msg.GetText()},
			Attempt: d.GetAttempt(), Token: d.GetToken(), Replayed: d.GetReplayed(),
		})
	}
	s.unseen.came(m.group, e.Deliveries)
	s.end(e)
	return got, err
}

// settle settles and records it. False: the outcome is unknown.
func (s *storm) settle(ctx context.Context, m *member, list []check.Settlement) bool {
	wire := make([]*strandmqv1.Settlement, len(list))
	for i, x := range list {
		wire[i] = &strandmqv1.Settlement{Token: x.Token, Reason: "the test says so", Action: map[check.Action]strandmqv1.SettleAction{
			check.Ack:     strandmqv1.SettleAction_SETTLE_ACTION_ACK,
			check.Nack:    strandmqv1.SettleAction_SETTLE_ACTION_NACK,
			check.Reject:  strandmqv1.SettleAction_SETTLE_ACTION_REJECT,
			check.Release: strandmqv1.SettleAction_SETTLE_ACTION_RELEASE,
		}[x.Action]}
	}
	call := s.begin(check.Event{Kind: check.SettleCall, Group: m.group, Member: m.name, Settlements: slices.Clone(list)})
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	results, err := m.settle(limit, wire)
	e := check.Event{Kind: check.SettleReturn, Call: call, Group: m.group, Member: m.name, Lost: err != nil}
	known := err == nil
	for _, r := range results {
		reason := r.GetProblem().GetReason()
		switch reason {
		case "", "STALE_DELIVERY", "SESSION_ENDED", "BAD_TOKEN", "UNKNOWN_MESSAGE":
		default:
			known, e.Lost = false, true // not known to be refused
		}
		if reason == "BAD_TOKEN" {
			s.t.Errorf("a token of the broker's own making was called bad: %s", r.GetProblem().GetMessage())
		}
		e.Settled = append(e.Settled, check.Settled{Refused: r.GetProblem() != nil, Dead: r.GetDeadLettered()})
	}
	s.end(e)
	return known
}

// drain waits until both groups have nothing left.
func (s *storm) drain() {
	for _, g := range s.groups {
		least, deadline := uint64(1)<<63, time.Now().Add(2*patience) // without a step; all of it takes some seconds
		for {
			res, err := ask(s.ctx, s.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: stormTopic, Group: g.Name})
			lag := res.GetCounts().GetLag()
			if err == nil && lag == 0 {
				break
			}
			if err == nil && lag < least {
				least, deadline = lag, time.Now().Add(2*patience)
			}
			if time.Now().After(deadline) {
				raw, _ := marshal(res)
				s.t.Fatalf("group %s does not drain: %v\n%s", g.Name, err, raw)
			}
			time.Sleep(50 * time.Millisecond) // between two looks
		}
	}
}

// history reads the log and the dead letters back and closes the record.
func (s *storm) history() check.History {
	h := check.History{Events: s.events, Log: readBack(s.ctx, s.t, s.api, stormTopic), Groups: s.groups, Logged: s.logged}
	for i := range h.Groups {
		token := ""
		for {
			res, err := ask(s.ctx, s.api.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{
				Topic: stormTopic, Group: h.Groups[i].Name, PageSize: 1000, PageToken: token,
			})
			if err != nil {
				s.t.Fatal(err)
			}
			for _, d := range res.GetDeadLetters() {
				msg := d.GetMessage()
				h.Groups[i].Dead = append(h.Groups[i].Dead, check.Dead{
					Place:    check.Place{Partition: d.GetPartition(), Offset: d.GetOffset()},
					Message:  check.Message{Key: msg.GetKey(), ID: msg.GetId(), Body: msg.GetText()},
					Attempts: d.GetAttempts(),
				})
			}
			if token = res.GetNextPageToken(); token == "" {
				break
			}
		}
	}
	return h
}

// readBack reads every message of a topic with a group of its own.
func readBack(ctx context.Context, t *testing.T, api *clients, topic string) (log []check.Stored) {
	const group = "readback"
	if _, err := ask(ctx, api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{
		Topic: topic, Group: group, Policy: &strandmqv1.GroupPolicy{Mode: strandmqv1.GroupMode_GROUP_MODE_NONE, AtMostOnce: proto.Bool(true)},
	}); err != nil {
		t.Fatal(err)
	}
	m := &member{api: api, topic: topic, group: group, name: "reader", retryFor: patience} // a lead may move
	if err := m.join(ctx); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := m.receive(ctx, newRequestID(), 1000, 500*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			msg := d.GetMessage()
			log = append(log, check.Stored{
				Place:   check.Place{Partition: d.GetPartition(), Offset: d.GetOffset()},
				Message: check.Message{Key: msg.GetKey(), ID: msg.GetId(), Body: msg.GetText()},
			})
		}
		if len(got) > 0 {
			continue
		}
		res, err := ask(ctx, api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
		if err != nil {
			t.Fatal(err)
		}
		if res.GetCounts().GetLag() == 0 {
			break
		}
	}
	slices.SortFunc(log, func(a, b check.Stored) int {
		return cmp.Or(cmp.Compare(a.Place.Partition, b.Place.Partition), cmp.Compare(a.Place.Offset, b.Place.Offset))
	})
	return log
}

// keysOf are some keys for each of so many publishers, all of them in the partition that
// is the publisher's number by the number of partitions. Only the broker knows where a
// key goes, so it is asked by publishing.
func (s *storm) keysOf(partitions, publishers int) [][]string {
	const each = 8
	keys := make([][]string, publishers)
	for batch := 0; ; batch++ {
		var list []check.Message
		for i := range 500 {
			key := fmt.Sprintf("probe-%d-%d", batch, i)
			list = append(list, check.Message{Key: key, ID: "first", Body: "the first of " + key})
		}
		req := publishRequest(list)
		call := s.begin(check.Event{Kind: check.PublishCall, Messages: list})
		res, err := ask(s.ctx, s.api.publish.Publish, req)
		if err != nil {
			s.t.Fatal(err)
		}
		e := check.Event{Kind: check.PublishReturn, Call: call}
		missing := 0
		for i, r := range res.GetResults() {
			if r.GetProblem() != nil {
				s.t.Fatal(r.GetProblem())
			}
			p := int(r.GetReceipt().GetPartition())
			e.Receipts = append(e.Receipts, check.Receipt{
				Place:     check.Place{Partition: uint32(p), Offset: r.GetReceipt().GetOffset()},
				Duplicate: r.GetReceipt().GetDuplicate(),
			})
			for n := p; n < publishers; n += partitions {
				if len(keys[n]) < each {
					keys[n] = append(keys[n], list[i].Key)
					break
				}
			}
		}
		s.end(e)
		for _, k := range keys {
			missing += each - len(k)
		}
		if missing == 0 {
			return keys
		}
	}
}

func publishRequest(list []check.Message) *strandmqv1.PublishRequest {
	req := &strandmqv1.PublishRequest{Topic: stormTopic}
	for _, m := range list {
		req.Messages = append(req.Messages, &strandmqv1.Message{
			KeyKind: &strandmqv1.Message_Key{Key: m.Key}, Id: m.ID, Body: &strandmqv1.Message_Text{Text: m.Body},
		})
	}
	return req
}
