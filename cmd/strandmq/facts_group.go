package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// closely looks at the groups in which something waits, failed or was lost, those with
// most before them first.
func (q *inquiry) closely() {
	var list []*doctor.Group
	for i := range q.facts.Groups {
		if g := &q.facts.Groups[i]; g.Counted && (g.Now.Lag > 0 || g.Now.Dead > 0 || g.Now.Expired > 0 || g.Now.Failed() > g.Before.Failed() || !g.Compared) {
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b *doctor.Group) int { return cmp.Compare(b.Now.Lag, a.Now.Lag) })
	if len(list) > mostGroups {
		q.unreached(fmt.Sprintf("%d groups of those in which something waits", len(list)-mostGroups), fmt.Errorf("too many to look at: name one with --topic and --group"))
		list = list[:mostGroups]
	}
	q.each(len(list), func(i int) { q.describe(list[i]) })
}

// between tells whether a partition was looked at between two hand-outs of a key: as many
// messages as make the most of its backlog wait behind a message that is neither out nor
// failed. No stall tells of it, as it is about to go.
func between(p *strandmqv1.GroupPartition) bool {
	c := p.GetCounts()
	blocked := c.GetBlocked()
	for _, s := range p.GetStalls() {
		switch s.GetReason() {
		case "IN_FLIGHT", "BACKING_OFF", "DEFERRED_KEY_LIMIT":
			blocked -= min(blocked, s.GetWaiting())
		case "PAUSED", "CIRCUIT_OPEN", "NO_MEMBER":
			return false // nothing is about to go
		}
	}
	cut := len(p.GetStalls()) >= consumer.MaxStalls
	return !cut && blocked > 0 && blocked >= c.GetLag()/2
}

const (
	// glances is how often a group is looked at until what holds a key is seen, and
	// glanceEvery how long after each other: about as long as a process takes to start,
	// which is where a handler's time between two messages goes.
	glances     = 10
	glanceEvery = 30 * time.Millisecond
)

// glance looks at a group when its keys are at work, not at an instant between.
func (q *inquiry) glance(g *doctor.Group) (res *strandmqv1.DescribeGroupResponse, err error) {
	for n := 1; ; n++ {
		res, err = one(q, q.asked.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: g.Topic, Group: g.Name})
		if err != nil || n == glances || !slices.ContainsFunc(res.GetPartitions(), between) {
			return res, err
		}
		select {
		case <-time.After(glanceEvery):
		case <-q.ctx.Done():
			return res, nil
		}
	}
}

func (q *inquiry) describe(g *doctor.Group) {
	res, err := q.glance(g)
	if isReason(err, "UNKNOWN_GROUP") || isReason(err, "UNKNOWN_TOPIC") {
		return // deleted meanwhile
	}
	if err != nil {
		q.unreached("group "+g.Name+" of topic "+g.Topic, err)
		return
	}
	g.Looked, g.Partitions = true, len(res.GetPartitions())
	for _, m := range res.GetMembers() {
		g.Members = append(g.Members, doctor.Member{Name: m.GetName(), Away: m.GetAway(), Draining: m.GetDraining(), InFlight: m.GetInFlight()})
	}
	for _, p := range res.GetPartitions() {
		if p.GetCircuit().GetOpen() {
			g.Circuits = append(g.Circuits, doctor.Circuit{Partition: p.GetPartition(), Opened: p.GetCircuit().GetOpened()})
		}
		for _, l := range p.GetLosses() {
			g.Losses = append(g.Losses, doctor.Loss{Partition: p.GetPartition(), First: l.GetFirst(), Last: l.GetLast(), Count: l.GetCount(), Cause: l.GetCause(), Until: unixMillis(l.GetUntil())})
		}
		for _, s := range p.GetStalls() {
			g.Stalls = append(g.Stalls, doctor.Stall{
				Partition: p.GetPartition(), Reason: s.GetReason(), Key: s.GetKey(), Offset: s.GetOffset(), Waiting: s.GetWaiting(),
				Attempts: s.GetAttempts(), Member: s.GetMember(), Text: s.GetText(),
			})
		}
	}
	q.suspects(g, res.GetPartitions())
	if g.Now.Dead > 0 {
		q.letters(g)
	}
}

// suspects traces the messages at the heads of what waits that failed most often, and the
// oldest ones where something failed.
func (q *inquiry) suspects(g *doctor.Group, partitions []*strandmqv1.GroupPartition) {
	var heads []doctor.Stall
	for _, s := range g.Stalls {
		switch s.Reason {
		case "BACKING_OFF", "IN_FLIGHT", "DEFERRED_KEY_LIMIT":
			if s.Attempts > 1 || s.Reason == "BACKING_OFF" {
				heads = append(heads, s)
			}
		}
	}
	slices.SortStableFunc(heads, func(a, b doctor.Stall) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(b.Waiting, a.Waiting))
	})
	heads = heads[:min(len(heads), mostTraces)]
	for _, p := range partitions {
		c := p.GetCounts()
		known := func(s doctor.Stall) bool { return s.Partition == p.GetPartition() && s.Offset == p.GetOldest() }
		if len(heads) < mostTraces && c.GetLag() > 0 && c.GetRetried() > 0 && !slices.ContainsFunc(heads, known) {
			heads = append(heads, doctor.Stall{Partition: p.GetPartition(), Offset: p.GetOldest()})
		}
	}
	// Where a circuit is open nearly all failed, mostly once or twice each: what several
	// messages came to tells why.
	for after := range uint64(mostTraces) {
		for _, p := range partitions {
			o := p.GetOldest() + after
			if len(heads) < 2*mostTraces && p.GetCircuit().GetOpen() && o < p.GetScanned() &&
				!slices.ContainsFunc(heads, func(s doctor.Stall) bool { return s.Partition == p.GetPartition() && s.Offset == o }) {
				heads = append(heads, doctor.Stall{Partition: p.GetPartition(), Offset: o})
			}
		}
	}
	older := false // whether a node of an older version told of one
	for _, s := range heads {
		l := doctor.Letter{Partition: s.Partition, Offset: s.Offset, Key: s.Key, Attempts: s.Attempts, Waiting: s.Waiting}
		res, err := one(q, q.asked.trace.Trace, &strandmqv1.TraceRequest{Topic: g.Topic, Which: &strandmqv1.TraceRequest_Place{
			Place: &strandmqv1.MessagePlace{Partition: s.Partition, Offset: s.Offset},
		}})
		if err != nil {
			q.unreached(fmt.Sprintf("what became of offset %d of partition %d of topic %s", s.Offset, s.Partition, g.Topic), err)
		}
		for _, m := range res.GetMessages() {
			if withoutReasons(m) {
				older = true
			}
			l.ID, l.Key, l.History = m.GetMessage().GetId(), keyText(m.GetMessage()), attemptsOf(m, g.Name)
			for _, s := range m.GetStates() {
				if s.GetGroup() == g.Name {
					l.Attempts = max(l.Attempts, s.GetAttempts())
				}
			}
		}
		for _, h := range l.History {
			l.Reason = cmp.Or(h.Reason, l.Reason)
		}
		if len(l.History) > 0 || l.Attempts > 0 {
			g.Suspects = append(g.Suspects, l)
		}
	}
	if older {
		q.unreached("why deliveries of group "+g.Name+" of topic "+g.Topic+" failed", errors.New(olderTells))
	}
}

// olderTells is why reasons of failures are missing.
const olderTells = "a node of an older version tells it, and not with reasons"

// withoutReasons tells whether a message's life is told by a node of an older version: its
// events have no terms, and reasons only in words.
func withoutReasons(m *strandmqv1.MessageTrace) bool {
	return slices.ContainsFunc(m.GetEvents(), func(e *strandmqv1.TraceEvent) bool { return e.GetTerm() == 0 })
}

// attemptsOf reads a message's attempts in a group from its life.
func attemptsOf(m *strandmqv1.MessageTrace, group string) (out []doctor.Attempt) {
	outcomes := map[string]string{"nacked": "nack", "rejected": "reject", "lapsed": "lapse", "session-lost": "session-lost"}
	var handed *strandmqv1.TraceEvent
	began := map[uint32]*strandmqv1.TraceEvent{} // the hand-outs that lapsed, by attempt
	at := map[uint32]int{}                       // and where they stand in out
	for i, e := range m.GetEvents() {
		if m.GetCut() > 0 && i == int(m.GetCutAt()) {
			handed = nil // how that ended is not told
		}
		if e.GetGroup() != group {
			continue
		}
		if e.GetWhat() == "handed-out" {
			handed = e
			continue
		}
		// Which settlement it was is only in the words. An extend that was refused says nothing of
		// how long the work takes: it went on.
		acked := e.GetWhat() == "refused" && strings.HasPrefix(e.GetDetail(), "ack: ")
		if h := began[e.GetAttempt()]; acked && h != nil && h.GetMember() == e.GetMember() {
			out[at[e.GetAttempt()]].Late = e.GetTime().AsTime().Sub(h.GetTime().AsTime())
			delete(began, e.GetAttempt())
			continue
		}
		outcome, ended := outcomes[e.GetWhat()]
		if !ended || handed == nil {
			continue
		}
		out = append(out, doctor.Attempt{
			Member: cmp.Or(e.GetMember(), handed.GetMember()), Took: e.GetTime().AsTime().Sub(handed.GetTime().AsTime()), Ended: unixMillis(e.GetTime()),
			Outcome: outcome, Reason: e.GetReason(),
		})
		if n := e.GetAttempt(); outcome == "lapse" {
			began[n], at[n] = handed, len(out)-1
		}
		handed = nil
	}
	return out
}

// letters looks at dead letters, the newest of those that one page has.
func (q *inquiry) letters(g *doctor.Group) {
	res, err := one(q, q.asked.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{Topic: g.Topic, Group: g.Name, PageSize: mostLetters})
	if err != nil {
		q.unreached("the dead letters of group "+g.Name+" of topic "+g.Topic, err)
		return
	}
	list := res.GetDeadLetters()
	slices.SortStableFunc(list, func(a, b *strandmqv1.DeadLetter) int {
		return cmp.Compare(unixMillis(b.GetDeadSince()), unixMillis(a.GetDeadSince()))
	})
	for i, d := range list {
		l := doctor.Letter{
			Partition: d.GetPartition(), Offset: d.GetOffset(), Key: keyText(d.GetMessage()), ID: d.GetMessage().GetId(),
			Attempts: d.GetAttempts(), Dead: true, Reason: d.GetReason(),
		}
		if i < mostTraces {
			one, err := one(q, q.asked.dead.GetDeadLetter, &strandmqv1.GetDeadLetterRequest{Topic: g.Topic, Group: g.Name, Which: &strandmqv1.DeadLetterSelector{
				Which: &strandmqv1.DeadLetterSelector_Place{Place: &strandmqv1.MessagePlace{Partition: l.Partition, Offset: l.Offset}},
			}})
			if err == nil { // else it was replayed or discarded meanwhile
				for _, h := range one.GetDeadLetter().GetHistory() {
					l.History = append(l.History, doctor.Attempt{
						Member: h.GetMember(), Took: h.GetEnded().AsTime().Sub(h.GetHandedOut().AsTime()), Ended: unixMillis(h.GetEnded()),
						Outcome: h.GetOutcome(), Reason: h.GetReason(),
					})
				}
			}
		}
		g.Dead = append(g.Dead, l)
	}
}

// events asks what happened before: a look at the present does not tell since when.
func (q *inquiry) events() {
	res, err := one(q, q.asked.cluster.ListEvents, &strandmqv1.ListEventsRequest{})
	if err != nil && !notThere(err) {
		q.unreached("the events", err)
	}
	for _, e := range res.GetEvents() {
		q.facts.Events = append(q.facts.Events, doctor.Event{
			Kind: e.GetKind(), Topic: e.GetTopic(), Group: e.GetGroup(), Node: e.GetNode(), Count: e.GetCount(),
			First: unixMillis(e.GetFirst()), Last: unixMillis(e.GetLast()),
		})
	}
}
