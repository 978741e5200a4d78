//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestCases plays failures that users met in other brokers against the real
// binary, which is killed with kill -9 and started again where a case says so.
// docs/cases.md has each case in a sentence.
func TestCases(t *testing.T) {
	t.Parallel() // the cases wait more than they work
	binary := buildBroker(t)
	for _, c := range []scenario{
		{"c16_dedupe_over_kills", dedupeOverKills, nil},
		{"c1_nack_or_lapse", nackOrLapse, vanishing},
		{"c3_one_key_among_comers", oneKeyAmongComers, vanishing},
		{"c5_attempts_survive_restarts", attemptsSurviveRestarts, nil},
		{"c6_crash_and_hang_count", crashAndHangCount, vanishing},
		{"c7_stale_tokens", staleTokens, vanishing},
		{"c8_innocent_neighbours", innocentNeighbours, nil},
		{"c10_dead_letters_whole", deadLettersWhole, nil},
		{"c12_replay_in_order", replayInOrder, nil},
		{"c13_park_and_limit", parkAndLimit, nil},
		{"c14_state_over_elections", stateOverElections, nil},
		{"c15_success_is_kept", successIsKept, nil},
		{"c19_lag_and_retention", lagAndRetention, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t, newStage(t, newSoloWorld(t, binary, c.args...)))
		})
	}
}

// TestCasesOnThree plays those that are about who leads on three real brokers that are a
// cluster: who leads is killed, stopped in good order, paused, moved, cut off, and others
// take over. Each lane is a cluster, on which cases are played one after the other, and the
// lanes run beside each other in one turn of the tests', since they wait nearly always.
func TestCasesOnThree(t *testing.T) {
	if testing.Short() {
		t.Skip("nine processes, and race mode is ten times slower; TestCases plays the same on one")
	}
	t.Parallel()
	var lanes sync.WaitGroup
	for _, lane := range [][]scenario{
		{
			{"c6_crash_and_hang_count", crashAndHangCount, soonGone},
			{"c7_stale_tokens", staleTokens, soonGone},
			{"c5_attempts_survive_restarts", attemptsSurviveRestarts, soonGone},
		}, {
			{"c13_park_and_limit", parkAndLimit, nil},
			{"c14_state_over_elections", stateOverElections, nil},
			{"c12_replay_in_order", replayInOrder, nil},
		}, {
			{"c16_dedupe_over_kills", dedupeOverKills, nil},
			{"c15_success_is_kept", successIsKept, nil},
		},
	} {
		f := startSquadron(t, loopback(t, 3), lane[0].args...)
		lanes.Go(func() {
			for _, c := range lane {
				t.Run(c.name, func(t *testing.T) { c.play(t, newStage(t, newClusterWorld(t, f))) })
			}
		})
	}
	lanes.Wait()
}

// scenario is a case, and how the brokers that it is played on are started.
type scenario struct {
	name string
	play func(t *testing.T, s *stage)
	args []string // of serve
}

// vanishing is the shortest session, where a member goes without a word.
var vanishing = []string{"--session-timeout", "1s"}

// soonGone is the same where who leads changes, and calls take the longer for it.
var soonGone = []string{"--session-timeout", "5s"}

// The actions, shorter.
const (
	ack     = strandmqv1.SettleAction_SETTLE_ACTION_ACK
	nack    = strandmqv1.SettleAction_SETTLE_ACTION_NACK
	reject  = strandmqv1.SettleAction_SETTLE_ACTION_REJECT
	extend  = strandmqv1.SettleAction_SETTLE_ACTION_EXTEND
	release = strandmqv1.SettleAction_SETTLE_ACTION_RELEASE
)

// patience bounds every wait for something that should come at once. Nothing is
// asserted about how soon it comes: a wait ends with what it waits for, and minutes are
// more than a machine that does other things needs.
const patience = 3 * time.Minute

// never is an ack deadline, in milliseconds, that does not come within a case. Where one
// has to come, the member brings it near: see desk.lapse.
const never = 600_000

// millisecond is how much shorter than asked a wait may look from outside: the
// log's times are whole milliseconds, cut off.
const millisecond = time.Millisecond

// stage is the world that a case is played on, and clients that call any of it.
type stage struct {
	t *testing.T
	world
	api *clients
}

func newStage(t *testing.T, w world) *stage {
	t.Cleanup(func() {
		if t.Failed() {
			w.showLogs()
		}
	})
	return &stage{t: t, world: w, api: dial(w.url())}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to pass within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// dwindles waits until nothing is left, as long as it becomes less: many steps take as
// long as they take, and one does not take minutes.
func dwindles(t *testing.T, what string, left func() uint64) {
	t.Helper()
	least, deadline := left(), time.Now().Add(patience)
	for n := least; n > 0; n = left() {
		if n < least {
			least, deadline = n, time.Now().Add(patience)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d are left, and for %v nothing moves", what, n, patience)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// scene is a topic with the groups g1 and g2. What members were given is
// judged as it comes: see ledger.
type scene struct {
	t      *testing.T
	s      *stage
	topic  string
	g1, g2 *ledger
}

// scene makes the topic and its groups. Failures are told to t.
func (s *stage) scene(t *testing.T, topic string, partitions uint32, p1, p2 *strandmqv1.GroupPolicy) *scene {
	t.Helper()
	given(ask(t.Context(), s.api.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: topic, Partitions: partitions}))(t)
	y := &scene{t: t, s: s, topic: topic, g1: newLedger(t, "g1"), g2: newLedger(t, "g2")}
	for group, p := range map[string]*strandmqv1.GroupPolicy{"g1": p1, "g2": p2} {
		looks(t, s.api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: topic, Group: group, Policy: p})
	}
	return y
}

// named gives a message that is known by its name: a1 is of key a.
func named(name string) *strandmqv1.Message {
	return &strandmqv1.Message{
		KeyKind: &strandmqv1.Message_Key{Key: strings.TrimRight(name, "0123456789")}, Id: name,
		Headers: []*strandmqv1.Header{
			{Name: "name", ValueKind: &strandmqv1.Header_Value{Value: name}},
			{Name: "name", ValueKind: &strandmqv1.Header_Value{Value: "once more"}},
		},
		Body: &strandmqv1.Message_Text{Text: "body of " + name},
	}
}

// numbered lists names: numbered("a", 2, 4) is a2 a3 a4.
func numbered(key string, first, last int) (names []string) {
	for i := first; i <= last; i++ {
		names = append(names, fmt.Sprintf("%s%d", key, i))
	}
	return names
}

// publish stores messages, each new; where there are several nodes, what one sent on to a
// leader that went away meanwhile is told to be a duplicate, if it has an id.
func (y *scene) publish(messages ...*strandmqv1.Message) []*strandmqv1.Receipt {
	y.t.Helper()
	var receipts []*strandmqv1.Receipt
	insist(y.t, func() (*strandmqv1.PublishResponse, error) {
		receipts = nil
		res, err := once(y.t.Context(), y.s.api.publish.Publish, &strandmqv1.PublishRequest{Topic: y.topic, Messages: messages})
		for i, r := range res.GetResults() {
			if y.s.nodes() > 1 && again(r.GetProblem()) {
				return nil, errAgain
			}
			if r.GetProblem() != nil || r.GetReceipt().GetDuplicate() && y.s.nodes() == 1 {
				y.t.Fatalf("message %d was not stored anew: %v", i, r)
			}
			receipts = append(receipts, r.GetReceipt())
		}
		return res, err
	})
	return receipts
}

func (y *scene) publishNamed(names ...string) []*strandmqv1.Receipt {
	y.t.Helper()
	list := make([]*strandmqv1.Message, len(names))
	for i, n := range names {
		list[i] = named(n)
	}
	return y.publish(list...)
}

// group describes a group.
func (y *scene) group(group string) *strandmqv1.DescribeGroupResponse {
	y.t.Helper()
	res := looks(y.t, y.s.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: y.topic, Group: group})
	for _, p := range res.GetPartitions() {
		c := p.GetCounts()
		sum := c.GetReady() + c.GetBlocked() + c.GetInFlight() + c.GetBackingOff() + c.GetParked() +
			c.GetDead() + c.GetAcked() + c.GetSkipped() + c.GetNotScanned()
		if sum != p.GetEnd()-p.GetStart() {
			y.t.Errorf("group %s: the counts add up to %d, and there are %d messages: %v", group, sum, p.GetEnd()-p.GetStart(), c)
		}
	}
	return res
}

// counts are a group's, without those that each node counts by itself while it leads.
func (y *scene) counts(group string) *strandmqv1.GroupCounts {
	y.t.Helper()
	c := y.group(group).GetCounts()
	if c != nil {
		c.Stale, c.Late, c.LateMs = 0, 0, 0
	}
	return c
}

// standing is where a message stands in a group.
func (y *scene) standing(group, id string) *strandmqv1.TraceState {
	y.t.Helper()
	res := looks(y.t, y.s.api.trace.Trace, &strandmqv1.TraceRequest{Topic: y.topic, Which: &strandmqv1.TraceRequest_Id{Id: id}})
	for _, m := range res.GetMessages() {
		for _, s := range m.GetStates() {
			if s.GetGroup() == group {
				return s
			}
		}
	}
	y.t.Fatalf("trace says nothing of %s in %s", id, group)
	return nil
}

// deadLetters lists a group's dead letters by small pages.
func (y *scene) deadLetters(group string) (all []*strandmqv1.DeadLetter) {
	y.t.Helper()
	for token := ""; ; {
		res := looks(y.t, y.s.api.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{
			Topic: y.topic, Group: group, PageSize: 7, PageToken: token, BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		})
		all = append(all, res.GetDeadLetters()...)
		if token = res.GetNextPageToken(); token == "" {
			if int(res.GetTotal()) != len(all) {
				y.t.Errorf("group %s: %d dead letters are listed of %d", group, len(all), res.GetTotal())
			}
			return all
		}
	}
}

// deadLetter gets one with its history.
func (y *scene) deadLetter(group, id string) *strandmqv1.DeadLetter {
	y.t.Helper()
	return looks(y.t, y.s.api.dead.GetDeadLetter, &strandmqv1.GetDeadLetterRequest{
		Topic: y.topic, Group: group, Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Id{Id: id}},
	}).GetDeadLetter()
}

// wantDead says that a group has these dead letters and no others.
func (y *scene) wantDead(group string, names ...string) {
	y.t.Helper()
	var got []string
	for _, d := range y.deadLetters(group) {
		got = append(got, nameOf(d.GetMessage()))
	}
	if !slices.Equal(got, names) {
		y.t.Errorf("dead letters of %s: %v, want %v", group, got, names)
	}
}

// wantHistory says how a dead letter's attempts ended.
func (y *scene) wantHistory(group, id string, outcomes ...string) {
	y.t.Helper()
	d := y.deadLetter(group, id)
	var got []string
	for _, a := range d.GetHistory() {
		got = append(got, a.GetOutcome())
	}
	if int(d.GetAttempts()) != len(outcomes) || !slices.Equal(got, outcomes) {
		y.t.Errorf("dead letter %s of %s: attempts %d, %v; want %v", id, group, d.GetAttempts(), got, outcomes)
	}
}

// keyed selects the dead letters of a key.
func keyed(key string) *strandmqv1.DeadLetterSelector {
	return &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Key{Key: key}}
}

// replay replays a key in g1, and checks how many were newly set and already. Whether a
// replay that is not answered was made, its repetition does not tell.
func (y *scene) replay(key string, replayed, already uint64) {
	y.t.Helper()
	calls := 0
	res := insist(y.t, func() (*strandmqv1.ReplayDeadLettersResponse, error) {
		calls++
		return once(y.t.Context(), y.s.api.dead.ReplayDeadLetters, &strandmqv1.ReplayDeadLettersRequest{Topic: y.topic, Group: "g1", Which: keyed(key)})
	})
	if calls > 1 && y.s.nodes() > 1 && res.GetReplayed()+res.GetAlready() == replayed+already {
		return
	}
	if res.GetReplayed() != replayed || res.GetAlready() != already {
		y.t.Errorf("replay of key %s: %d newly and %d already, want %d and %d", key, res.GetReplayed(), res.GetAlready(), replayed, already)
	}
}

// discard discards a key's dead letters in g1, and checks how many there were.
func (y *scene) discard(key string, want uint64) {
	y.t.Helper()
	calls := 0
	res := insist(y.t, func() (*strandmqv1.DiscardDeadLettersResponse, error) {
		calls++
		return once(y.t.Context(), y.s.api.dead.DiscardDeadLetters, &strandmqv1.DiscardDeadLettersRequest{Topic: y.topic, Group: "g1", Which: keyed(key)})
	})
	if res.GetDiscarded() != want && !(calls > 1 && y.s.nodes() > 1 && res.GetDiscarded() == 0) {
		y.t.Errorf("%d dead letters of key %s discarded, want %d", res.GetDiscarded(), key, want)
	}
}

// same says that a group's counters did not move.
func (y *scene) same(group, during string, before *strandmqv1.GroupCounts) {
	y.t.Helper()
	if now := y.counts(group); !proto.Equal(before, now) {
		y.t.Errorf("counters of %s moved during %s:\nbefore %v\nafter  %v", group, during, before, now)
	}
}

// given gives a call's answer, or ends the test.
func given[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
