package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/duty"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// replicas makes what the map wants here, and erases what it names as gone. It
// tells whether there is something to do yet.
func (a *agent) replicas(ctx context.Context, m *coordinator.Map, rot rotten, doing *sync.WaitGroup) (more bool) {
	for _, id := range a.b.host.Partitions() {
		if m.Deleted(id) {
			more = true
			a.do(ctx, doing, id, "erasing a partition whose topic was deleted", func(ctx context.Context) error { return a.b.host.Drop(ctx, id) })
		}
	}
	for p := range m.Partitions() {
		fn, what := a.replica(m, p, a.own(p, rot))
		if fn == nil {
			continue
		}
		more = true
		a.do(ctx, doing, p.ID, what, fn)
	}
	return more
}

// replica is what is to be done about the replica of one partition here; nil:
// nothing.
func (a *agent) replica(m *coordinator.Map, p *coordinator.Partition, own duty.Own) (do func(context.Context) error, what string) {
	host, id := a.b.host, p.ID
	t := duty.Replica(m, p, a.b.cfg.Node, own, a.isUp)
	a.noteDamage(p, own, t)
	switch t.Kind {
	case duty.Leave:
	case duty.Drop:
		return func(ctx context.Context) error { return host.Drop(ctx, id) }, "erasing a partition whose topic is being deleted"
	case duty.Erase:
		return func(ctx context.Context) error { return a.erase(ctx, id, t.Replica) }, "erasing a replica that left this node"
	case duty.Report:
		return func(ctx context.Context) error { return a.sayDamaged(ctx, id, t.Replica, t.Why) }, "telling of a damaged replica"
	case duty.Stop:
		return func(ctx context.Context) error { return host.Condemn(ctx, id, t.Replica, t.Why) }, "stopping a damaged replica"
	case duty.Create:
		return func(ctx context.Context) error { return host.CreateReplicas(ctx, id, t.Replica, t.Voters) }, "making a replica"
	case duty.Join:
		return func(ctx context.Context) error { return host.Join(ctx, id, t.Replica) }, "making a replica that is to be fed"
	}
	return nil, ""
}

// erase erases a replica that is out, and says so.
func (a *agent) erase(ctx context.Context, id partition.PartitionID, r partition.ReplicaID) error {
	info, err := a.b.host.Info(id)
	switch {
	case errors.As(err, new(*partition.ErrUnknownPartition)):
		// Erased before: that may yet be on its way to the disk.
	case err != nil:
		return err
	case info.Replica == 0 && info.Damaged && a.serves():
		// It does not know itself which it is. The map is as new as this start, and a
		// node has one replica at a time, so it is the one that the map says.
	case info.Replica != r:
		return &partition.ErrOtherReplica{Partition: id, Have: info.Replica, Want: r}
	}
	if err := a.b.host.Drop(ctx, id); err != nil {
		return err
	}
	return a.sayErased(ctx, id, r)
}

// sayErased tells the metadata log that a replica is erased.
func (a *agent) sayErased(ctx context.Context, id partition.PartitionID, r partition.ReplicaID) error {
	_, err := atMetadata(ctx, a.b, true, func(rm *remote) (*nodev1.ErasedResponse, error) {
		return rm.membership.Erased(ctx, &nodev1.ErasedRequest{Partition: uint64(id), Replica: uint64(r)})
	})
	return err
}

// created is Peers.Created: a leader that answers has a majority behind it.
func (a *agent) created(ctx context.Context, id partition.PartitionID) error {
	a.nudge()
	for {
		_, err := a.b.far.Info(ctx, id)
		if err == nil || !notTaken(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(agentPause): // between two looks
		case <-ctx.Done():
			return err
		}
	}
}

// dropped is Peers.Dropped. Every node erases its replica when its map says that
// the topic goes, or that it is gone; one that is away does it when it is back.
func (a *agent) dropped(ctx context.Context, id partition.PartitionID) error {
	return a.b.host.Drop(ctx, id)
}
