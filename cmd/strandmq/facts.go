package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// inquiry asks a cluster for the facts that doctor and check judge. It makes each call
// once, with little patience: what does not answer is a fact, too.
type inquiry struct {
	way      *servers // what --server names
	asked    *clients // whoever answers, for what any node can tell
	server   string   // the node that answered first, and its address
	own      uint64
	id       string // of the cluster
	ctx      context.Context
	topic    string // only this; empty: all
	group    string
	apart    time.Duration // between two looks at what counts; 0: one look
	whole    bool          // also why, not just how much
	ahead    time.Duration // how far the broker's clock is ahead of ours
	patience time.Duration // how long one call may take

	// nodes and before change only while no calls run beside each other.
	nodes  map[uint64]*clients
	before map[[2]string]doctor.Counts // by topic and group, of the first look

	mu    sync.Mutex           // held for the rest by calls beside each other
	facts doctor.Facts         // but its nodes, topics and groups: each call fills one of its own
	slow  map[uint64][2]uint64 // slow writes and stalls of the first look, by node
}

func nodeWord(n uint64) string { return fmt.Sprintf("n%d", n) }

// noQuorum is the reason of what is refused since too few nodes are there.
const noQuorum = "NO_QUORUM"

// theGroups is the list of groups, as what did not answer.
const theGroups = "the groups"

const (
	// answerTime is how long one call may take. A node that is well answers in
	// milliseconds.
	answerTime = 5 * time.Second
	// briefly is that of check and doctor, which several calls may have to wait for.
	briefly = 3 * time.Second
	// beside is how many calls run at once.
	beside = 8
	// mostTopics and mostGroups bound what is looked at closely.
	mostTopics = 1000
	mostGroups = 200
	// mostLetters and mostTraces bound the messages of a group that are looked at.
	mostLetters, mostTraces = 50, 3
)

// one makes a call once; when whoever was asked is gone and another node can be, once more.
// It is for calls that only look.
func one[Req, Res any](q *inquiry, call func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	for first := true; ; first = false {
		ctx, cancel := context.WithTimeout(q.ctx, q.patience)
		res, err := call(ctx, req)
		cancel()
		var e *apiError
		if !first || !errors.As(err, &e) || !e.elsewhere || q.ctx.Err() != nil {
			return res, err
		}
	}
}

// each calls fn for each of n, some at once.
func (q *inquiry) each(n int, fn func(i int)) {
	var calls sync.WaitGroup
	gate := make(chan struct{}, beside)
	for i := range n {
		gate <- struct{}{}
		calls.Go(func() { fn(i); <-gate })
	}
	calls.Wait()
}

// unreached notes what did not answer.
func (q *inquiry) unreached(what string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.facts.Unreached = append(q.facts.Unreached, doctor.Unreached{What: what, Why: err.Error()})
}

// newInquiry begins to ask a cluster. It fails if nothing answers at all.
func (a *app) newInquiry(ctx context.Context, topic, group string, patience time.Duration) (*inquiry, error) {
	q := &inquiry{
		patience: patience,
		asked:    dialAny(nil, a.servers...), ctx: ctx, topic: topic, group: group,
		nodes: map[uint64]*clients{}, before: map[[2]string]doctor.Counts{}, slow: map[uint64][2]uint64{},
	}
	own, err := one(q, q.asked.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
	if err != nil {
		return nil, err
	}
	// Ages go by the broker's clock, on which messages are stamped; by ours when it
	// does not tell, as an older one.
	if now := own.GetNow(); now != nil {
		q.ahead = time.Until(now.AsTime())
	}
	if own.GetNode() == 0 {
		return nil, errors.New("the broker is still reading its log: ask again when it has started")
	}
	at, err := q.asked.way.choose(ctx)
	if err != nil {
		return nil, err
	}
	q.way = q.asked.way
	q.own, q.id, q.server = own.GetNode(), own.GetCluster(), at.String()
	q.nodes[q.own] = dial(q.server)
	return q, nil
}

// inquire gathers the facts, within a time that the wait between two looks is not part
// of: what has not answered by then is a fact like what did not answer. It fails only if
// nothing answers at all.
func (a *app) inquire(ctx context.Context, topic, group string, apart, within time.Duration, whole bool) (*doctor.Facts, error) {
	asking, cancel := context.WithTimeout(ctx, apart+within)
	defer cancel()
	q, err := a.newInquiry(asking, topic, group, min(briefly, within))
	if err != nil {
		return nil, err
	}
	q.apart, q.whole, q.facts.Only = apart, whole, topic
	if apart > 0 {
		again := time.NewTimer(apart) // from now on: whoever hangs is not waited for twice
		defer again.Stop()
		began := time.Now()
		q.look(true)
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		q.facts.Apart = max(apart, time.Since(began))
		q.facts.Unreached = nil // who answers by now was asked
	}
	q.look(false)
	if whole {
		q.closely()
		q.events()
	}
	q.silent()
	q.facts.Now = time.Now().Add(q.ahead).UnixMilli()
	slices.SortFunc(q.facts.Unreached, func(a, b doctor.Unreached) int { return cmp.Compare(a.What, b.What) })
	return &q.facts, ctx.Err()
}

// silent notes the addresses that were named and do not answer, unless they are a node's,
// which is noted as such.
func (q *inquiry) silent() {
	for _, u := range q.way.unreached() {
		if !slices.ContainsFunc(q.facts.Nodes, func(n doctor.Node) bool {
			return strings.HasSuffix(u.What, "//"+n.API) || strings.HasSuffix(u.What, " "+n.API)
		}) {
			q.facts.Unreached = append(q.facts.Unreached, u)
		}
	}
}

// look takes one look: the first notes only what counts.
func (q *inquiry) look(first bool) {
	q.cluster()
	// Beside each other, since a node that hangs makes all three slow. Each fills facts
	// of its own.
	var parts sync.WaitGroup
	parts.Go(func() {
		q.each(len(q.facts.Nodes), func(i int) { q.node(&q.facts.Nodes[i], first) })
	})
	parts.Go(func() { q.groups(first) })
	if !first {
		parts.Go(q.topics)
	}
	parts.Wait()
	q.quorum()
}

// quorum takes the nodes' own word for it that nobody leads the metadata, where none of
// those that answered knows better. Right after a majority was lost that is all that can be
// had: calls that look for a leader do not come back in time.
func (q *inquiry) quorum() {
	why := ""
	for _, n := range q.facts.Nodes {
		if n.Answered && n.Leaderless == "" {
			return
		}
		why = cmp.Or(why, n.Leaderless)
	}
	q.facts.Cluster.Behind = cmp.Or(q.facts.Cluster.Behind, why)
}

// cluster asks which nodes there are.
func (q *inquiry) cluster() {
	q.facts.Nodes, q.facts.Cluster = nil, doctor.Cluster{}
	res, err := one(q, q.asked.cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		q.unreached("the cluster's nodes", err)
		if isReason(err, noQuorum) {
			q.facts.Cluster.Behind = err.Error()
		}
		for id := range q.nodes {
			q.facts.Nodes = append(q.facts.Nodes, doctor.Node{ID: id, API: q.server})
		}
		return
	}
	if res.GetBehind() != "" {
		res = q.elsewhere(res)
	}
	q.facts.Cluster = doctor.Cluster{Behind: res.GetBehind(), Moving: len(res.GetMoving())}
	for _, s := range res.GetStuck() {
		q.facts.Cluster.Stuck = append(q.facts.Cluster.Stuck, doctor.Stuck{Place: doctor.Place{Topic: s.GetTopic(), Number: s.GetPartition()}, Why: s.GetWhy(), Needs: s.GetNeeds()})
	}
	for _, n := range res.GetNodes() {
		state := "active"
		switch n.GetState() {
		case strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_DRAINING:
			state = "draining"
		case strandmqv1.ClusterNodeState_CLUSTER_NODE_STATE_LOST:
			state = "lost"
		}
		one := doctor.Node{ID: n.GetNode(), API: n.GetApiAddress(), State: state, Known: n.SilentMs != nil, Silent: span(n.GetSilentMs()), Replicas: int(n.GetReplicas())}
		if n.GetStopped() != nil && one.Silent > 0 {
			one.Left = unixMillis(n.GetStopped())
		}
		if one.ID == q.own {
			one.API = q.server // which is how it can be reached from here
		} else if one.API != "" && q.nodes[one.ID] == nil {
			q.nodes[one.ID] = dial(one.API)
		}
		q.facts.Nodes = append(q.facts.Nodes, one)
	}
}

// elsewhere looks for a node that is not behind, for the rest of the questions: whoever is
// cut off from the others knows little, and would call all of them gone.
func (q *inquiry) elsewhere(known *strandmqv1.DescribeClusterResponse) *strandmqv1.DescribeClusterResponse {
	answers := make([]*strandmqv1.DescribeClusterResponse, len(known.GetNodes()))
	others := make([]*clients, len(answers))
	q.each(len(answers), func(i int) {
		if at := known.GetNodes()[i].GetApiAddress(); at != "" && known.GetNodes()[i].GetNode() != q.own {
			others[i] = dial(at)
			answers[i], _ = one(q, others[i].cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
		}
	})
	for i, res := range answers {
		if res != nil && res.GetBehind() == "" && res.GetCluster() == known.GetCluster() {
			q.asked = others[i]
			return res
		}
	}
	return known
}

// waited is a time that was waited for an answer, as people read it.
func waited(d time.Duration) time.Duration {
	if d >= 100*time.Millisecond {
		return d.Round(100 * time.Millisecond)
	}
	return max(time.Millisecond, d.Round(time.Millisecond))
}

// node asks one how it does.
func (q *inquiry) node(n *doctor.Node, first bool) {
	to := q.nodes[n.ID]
	if to == nil {
		q.unreached("node "+nodeWord(n.ID), errors.New("it tells no address for clients"))
		return
	}
	began := time.Now()
	res, err := one(q, to.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
	if err != nil {
		// Nobody there is not the same as somebody who says nothing.
		var dialed *net.OpError
		switch {
		case errors.As(err, &dialed) && dialed.Op == "dial":
			err = fmt.Errorf("%s: %w", n.API, dialed.Err)
		case errors.Is(err, context.DeadlineExceeded) || deadlinePassed(err):
			n.Hangs = true
			err = fmt.Errorf("%s: no answer within %v", n.API, waited(time.Since(began)))
		}
		q.unreached("node "+nodeWord(n.ID), err)
		return
	}
	if res.GetCluster() != q.id {
		// What it says is of another broker.
		n.Foreign = true
		q.unreached("node "+nodeWord(n.ID), fmt.Errorf("%s: another cluster answers there", n.API))
		return
	}
	d := res.GetDisk()
	// Should whoever is asked be gone, the others know as much.
	q.asked.way.also(n.API)
	n.Answered, n.Leaderless = true, res.GetLeaderless()
	n.Disk = doctor.Disk{Total: d.GetTotalBytes(), Free: d.GetFreeBytes(), Reserve: d.GetReserveBytes(), Store: d.GetStoreBytes(), Low: d.GetLow(), Stuck: span(d.GetStuckMs())}
	for _, s := range res.GetStopped() {
		n.Stopped = append(n.Stopped, doctor.Stopped{Place: doctor.Place{Topic: s.GetTopic(), Number: s.GetPartition()}, Why: s.GetWhy(), Newer: s.GetReason() == "NEWER_FORMAT"})
	}
	for _, x := range res.GetDamage() {
		text := x.GetWhat()
		if x.GetFile() != "" {
			text = x.GetFile() + ": " + text
		}
		for _, r := range x.GetRanges() {
			topic, number := placeOf(r)
			text += ", " + topic + " partition " + number + " entries " + entries(r)
		}
		n.Damage = append(n.Damage, text)
	}
	for _, p := range res.GetPeers() {
		if p.GetClockOff() {
			n.ClocksOff = append(n.ClocksOff, doctor.Skew{Node: p.GetNode(), Ahead: span(p.GetSkewMs())})
		}
		if !p.GetUp() {
			n.Deaf = append(n.Deaf, p.GetNode())
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if first {
		q.slow[n.ID] = [2]uint64{d.GetSlowWrites(), d.GetWriteStalls()}
		return
	}
	n.SlowWrites, n.Stalls = d.GetSlowWrites(), d.GetWriteStalls()
	if was, ok := q.slow[n.ID]; ok { // a node that was started anew begins at 0
		n.SlowWrites -= min(was[0], n.SlowWrites)
		n.Stalls -= min(was[1], n.Stalls)
	}
}

func (q *inquiry) topics() {
	var names []string
	if q.topic != "" {
		names = []string{q.topic}
	} else {
		res, err := one(q, q.asked.topics.ListTopics, &strandmqv1.ListTopicsRequest{})
		if err != nil {
			q.unreached("the topics", err)
			return
		}
		for _, t := range res.GetTopics() {
			names = append(names, t.GetName())
		}
	}
	if len(names) > mostTopics {
		q.unreached("topics beyond the first 1,000", errors.New("too many to look at: name one with --topic"))
		names = names[:mostTopics]
	}
	found := make([]*doctor.Topic, len(names))
	q.each(len(names), func(i int) {
		res, err := one(q, q.asked.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: names[i]})
		if isReason(err, "UNKNOWN_TOPIC") && q.topic == "" {
			return // deleted meanwhile
		}
		if err != nil {
			q.unreached("topic "+names[i], err)
			return
		}
		c := res.GetTopic().GetConfig()
		t := &doctor.Topic{Name: names[i], Refuses: c.GetRefusePublishesAtHoldLimit(), Retention: span(c.GetRetentionMs())}
		for _, p := range res.GetPartitions() {
			t.Partitions = append(t.Partitions, doctor.Partition{
				Number: p.GetPartition(), Bytes: p.GetBytes(), Nodes: p.GetNodes(), Leader: p.GetLeader(),
				Fault: p.GetFault(), FaultReason: p.GetFaultReason(), HeldBy: p.GetHeldBy(), HeldBytes: p.GetHeldBytes(),
			})
		}
		found[i] = t
	})
	for _, t := range found {
		if t != nil {
			q.facts.Topics = append(q.facts.Topics, *t)
		}
	}
}

func (q *inquiry) groups(first bool) {
	res, err := one(q, q.asked.groups.ListGroups, &strandmqv1.ListGroupsRequest{Topic: q.topic})
	if err != nil {
		q.unreached(theGroups, err)
		return
	}
	for _, s := range res.GetGroups() {
		g, p := s.GetGroup(), s.GetGroup().GetPolicy()
		if q.group != "" && g.GetName() != q.group {
			continue
		}
		key := [2]string{g.GetTopic(), g.GetName()}
		if first {
			if s.GetCounts() != nil {
				q.before[key] = countsOf(s.GetCounts())
			}
			continue
		}
		one := doctor.Group{
			Topic: g.GetTopic(), Name: g.GetName(), Mode: modeText(p.GetMode()), Paused: g.GetPaused(),
			Holds:    p.GetRetention() == strandmqv1.GroupRetention_GROUP_RETENTION_HOLD,
			Deadline: span(p.GetAckDeadlineMs()), MaxAttempts: p.GetMaxAttempts(), InFlightMax: p.GetMaxInFlightPartition(),
			BreakerKeys: p.GetBreakerKeys(),
			Counted:     s.GetCounts() != nil, Now: countsOf(s.GetCounts()), Oldest: unixMillis(s.GetOldestPublished()),
		}
		// A partition that stopped, or was made anew, would look like work undone.
		if was, ok := q.before[key]; ok && was.HandedOut <= one.Now.HandedOut {
			one.Before, one.Compared = was, true
		}
		if !one.Counted {
			q.unreached("the counts of group "+one.Name+" of topic "+one.Topic, errors.New("a partition of the topic does not answer"))
		}
		q.facts.Groups = append(q.facts.Groups, one)
	}
}

func countsOf(c *strandmqv1.GroupCounts) doctor.Counts {
	return doctor.Counts{
		Lag: c.GetLag(), InFlight: c.GetInFlight(), Blocked: c.GetBlocked(), BackingOff: c.GetBackingOff(), Parked: c.GetParked(), Dead: c.GetDead(), Expired: c.GetExpired(),
		Acked: c.GetAcked(), HandedOut: c.GetHandedOut(), Nacked: c.GetNacked(), Rejected: c.GetRejected(), Lapsed: c.GetLapsed(), Lost: c.GetSessionsLost(),
		Late: c.GetLate(), Stale: c.GetStale(), HandledMs: c.GetHandledMs(), LateMs: c.GetLateMs(),
	}
}

func unixMillis(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixMilli()
}
