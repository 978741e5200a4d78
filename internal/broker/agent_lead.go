package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/duty"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// leads does a leader's part for every partition that is led here: it finishes what
// the leader before left, and brings the voters to what the map wants. It tells
// whether there is something to do yet.
func (a *agent) leads(ctx context.Context, m *coordinator.Map, rot rotten, doing *sync.WaitGroup) (more bool) {
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
		s := a.keeper.Lead(m, p, info, a.others(), rot[p.ID] != "")
		more = more || s.Kind != duty.Nothing || s.Waiting
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
	if !a.serves() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.led[id]
}

// serves tells whether the node has come up: its map is as new as its start.
func (a *agent) serves() bool {
	select {
	case <-a.ready:
		return true
	default:
		return false
	}
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

// others is what this node knows of the others.
func (a *agent) others() duty.Others {
	return duty.Others{Up: a.isUp, Fit: a.fit, Stay: func(n partition.NodeID) bool {
		at, up := a.upSince(n)
		return up && time.Since(at) >= agentReturn
	}}
}

// carry takes one step, beside the goroutine that looks.
func (a *agent) carry(ctx context.Context, doing *sync.WaitGroup, p *coordinator.Partition, s duty.Step) {
	id := p.ID
	switch s.Kind {
	case duty.Nothing:
	case duty.Change:
		a.do(ctx, doing, id, "changing the replicas", func(ctx context.Context) error {
			err := a.b.host.Change(ctx, id, s.Change)
			if err == nil {
				a.log.Info("replicas changed", "partition", a.b.partitionName(id), "change", s.Change)
			}
			return err
		})
	case duty.Transfer:
		a.do(ctx, doing, id, "handing a leadership over", func(ctx context.Context) error {
			unfit := !a.fit(a.b.cfg.Node)
			err := a.b.host.Transfer(ctx, id, s.To)
			if err == nil && unfit {
				a.b.events.note(happening{kind: coordinator.LeadGiven, of: spot{id, true}, ours: true,
					text: fmt.Sprintf("it handed a partition over to node %v, since its own disk is full, or hangs, or hung lately", s.To.Node())})
			}
			return err
		})
	case duty.Settle:
		placement := p.Placement
		a.do(ctx, doing, id, "saying that a placement is reached", func(ctx context.Context) error { return a.saySettled(ctx, id, placement) })
	}
}

// saySettled tells the metadata log that a partition's voters are those that are
// wanted.
func (a *agent) saySettled(ctx context.Context, id partition.PartitionID, placement uint64) error {
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
		best, fit := partition.Follower{}, false
		for _, f := range info.Followers {
			if !f.Voter || !f.Active || !a.isUp(f.Replica.Node()) {
				continue
			}
			is := a.fit(f.Replica.Node())
			if best.Replica == 0 || is && !fit || is == fit && f.Match > best.Match {
				best, fit = f, is
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
