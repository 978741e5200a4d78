package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// leads does a leader's part for every partition that is led here: it finishes what
// the leader before left, and brings the voters to what the map wants. It tells
// whether there is something to do yet.
func (a *agent) leads(ctx context.Context, m *coordinator.Map, doing *sync.WaitGroup) (more bool) {
	for p := range m.Partitions() {
		info, err := a.b.host.Info(p.ID)
		if err != nil || !info.Leading || len(p.Replicas) == 0 {
			continue
		}
		if a.begins(p.ID) {
			more = true
			a.do(ctx, doing, p.ID, "taking over a partition", func(ctx context.Context) error { return a.begin(ctx, p.ID) })
			continue
		}
		if p.ID != partition.Metadata {
			if at, ok := m.Place(p.ID); !ok || at.Topic.Phase != coordinator.Ready {
				continue
			}
		}
		if p.ID == partition.Metadata && a.abandoned(m) {
			more = true
			a.do(ctx, doing, p.ID, "finishing topics and groups", a.b.reconcile)
			continue
		}
		w := a.membership(m, p, info)
		s := w.next()
		more = more || s.what != stepNone || s.waiting
		a.carry(ctx, doing, p, s)
	}
	return more
}

// abandoned tells whether something is unfinished for longer than whoever began it
// should take: a partition had no leader, or the call was given up.
func (a *agent) abandoned(m *coordinator.Map) bool {
	select {
	case <-a.ready:
	default:
		return false
	}
	u := m.Unfinished()
	switch {
	case len(u.Topics)+len(u.Groups) == 0:
		a.undone = time.Time{}
	case a.undone.IsZero():
		a.undone = time.Now()
	case time.Since(a.undone) > agentUndone:
		a.undone = time.Time{}
		return true
	}
	return false
}

// begins tells whether a partition began to be led here, and that is not attended
// to yet.
func (a *agent) begins(id partition.PartitionID) bool {
	select {
	case <-a.ready:
	default:
		return false // not before the node serves
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.led[id]
}

// begin is what a node does when it begins to lead a partition.
func (a *agent) begin(ctx context.Context, id partition.PartitionID) error {
	var err error
	if id == partition.Metadata {
		a.tellReached()
		err = a.b.LeadMetadata(ctx)
	} else {
		err = a.b.leadPartition(ctx, id)
	}
	if err == nil {
		a.mu.Lock()
		delete(a.led, id)
		a.mu.Unlock()
	}
	return err
}

// tellReached tells the metadata log, which is led here, of every node once.
func (a *agent) tellReached() {
	for n := range a.b.coord.View().Nodes() {
		if n.ID != a.b.cfg.Node {
			_ = a.b.coord.Reached(n.ID, a.isUp(n.ID))
		}
	}
}

// membership is what is known of a partition that is led here.
func (a *agent) membership(m *coordinator.Map, p *coordinator.Partition, info partition.Info) *membership {
	w := &membership{
		self: info.Replica, voters: p.Replicas, moving: p.Moving(), hasVoters: info.Voters, hasLearners: info.Learners,
		up:     a.isUp,
		caught: func(r partition.ReplicaID) bool { return r == info.Replica || a.caught(p.ID, info, r) },
	}
	w.lead = func(to partition.ReplicaID) bool {
		at, up := a.upSince(to.Node())
		n, ok := m.Node(to.Node())
		return up && time.Since(at) >= agentReturn && ok && n.State == coordinator.Active && w.caught(to)
	}
	for _, l := range p.Leaving {
		w.gone = append(w.gone, l.ID)
	}
	if p.ID != partition.Metadata {
		return w
	}
	// Every node has a replica of the metadata log, so that it has the map.
	for n := range m.Nodes() {
		r := n.ID.Replica()
		switch {
		case n.State == coordinator.Lost || n.State == coordinator.Removed:
			w.gone = append(w.gone, r)
		case !slices.Contains(p.Replicas, r):
			w.listeners = append(w.listeners, r)
		}
	}
	return w
}

// caught tells whether a replica has what the leader had when it looked first.
func (a *agent) caught(id partition.PartitionID, info partition.Info, r partition.ReplicaID) bool {
	i := slices.IndexFunc(info.Followers, func(f partition.Follower) bool { return f.Replica == r })
	if i < 0 {
		return false
	}
	f, in := info.Followers[i], fedReplica{id, r}
	a.mu.Lock()
	defer a.mu.Unlock()
	to, known := a.target[in]
	if !known {
		to = info.LastIndex
		a.target[in] = to
	}
	ok := f.Active && !f.Snapshot && f.Match >= to
	if ok {
		delete(a.target, in)
	}
	return ok
}

// carry takes one step, beside the goroutine that looks.
func (a *agent) carry(ctx context.Context, doing *sync.WaitGroup, p *coordinator.Partition, s step) {
	id := p.ID
	switch s.what {
	case stepNone:
	case stepChange:
		a.do(ctx, doing, id, "changing the replicas", func(ctx context.Context) error {
			err := a.b.host.Change(ctx, id, s.change)
			if err == nil {
				a.log.Info("replicas changed", "partition", a.b.partitionName(id), "change", s.change)
			}
			return err
		})
	case stepTransfer:
		a.do(ctx, doing, id, "handing a leadership over", func(ctx context.Context) error { return a.b.host.Transfer(ctx, id, s.to) })
	case stepSettle:
		placement := p.Placement
		a.do(ctx, doing, id, "saying that a placement is reached", func(ctx context.Context) error { return a.saySettled(ctx, id, placement) })
	}
}

// saySettled tells the metadata log that a partition's voters are those that are
// wanted.
func (a *agent) saySettled(ctx context.Context, id partition.PartitionID, placement uint64) error {
	if a.leadsMetadata() {
		_, err := a.b.coord.Settle(ctx, id, placement)
		return err
	}
	_, err := atMetadata(ctx, a.b, true, func(r *remote) (*nodev1.ReachedResponse, error) {
		return r.membership.Reached(ctx, &nodev1.ReachedRequest{Partition: uint64(id), Placement: placement})
	})
	return err
}

// handOver has others lead what this node leads, before it stops. It gives up soon:
// the others find out by themselves.
func (a *agent) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handOverTime)
	defer cancel()
	var doing sync.WaitGroup
	slots := make(chan struct{}, agentWork)
	for _, id := range a.b.host.Partitions() {
		info, err := a.b.host.Info(id)
		if err != nil || !info.Leading {
			continue
		}
		best := partition.Follower{}
		for _, f := range info.Followers {
			if f.Voter && f.Active && a.isUp(f.Replica.Node()) && (best.Replica == 0 || f.Match > best.Match) {
				best = f
			}
		}
		if best.Replica == 0 {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		doing.Go(func() {
			defer func() { <-slots }()
			if err := a.handTo(ctx, id, best.Replica); err != nil {
				a.log.Info("a leadership was not handed over", "partition", a.b.partitionName(id), "err", err)
			}
		})
	}
	doing.Wait()
}

// handTo hands a leadership over, and gives up when the other's node goes down.
func (a *agent) handTo(ctx context.Context, id partition.PartitionID, to partition.ReplicaID) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.b.host.Transfer(ctx, id, to) }() // it ends with ctx
	look := time.NewTicker(agentPause / 2)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
			if !a.isUp(to.Node()) {
				cancel()
			}
		}
	}
}

// handOverTime is how long a node that stops waits for others to lead.
const handOverTime = 2 * time.Second
