package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/duty"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// rotten says of partitions that have something on the disk that does not read what it is.
type rotten map[partition.PartitionID]string

// rotten is what reads and the scrub found. What a file may hold besides does not count:
// the scrub looks at it.
func (a *agent) rotten() rotten {
	var out rotten
	for _, d := range a.b.store.Damage() {
		if d.Bound {
			continue
		}
		if out == nil {
			out = rotten{}
		}
		for _, r := range d.Ranges {
			if id := partition.PartitionID(r.Partition); out[id] == "" {
				out[id] = d.What + ", " + r.Entries()
			}
		}
	}
	return out
}

// mending is what a node remembers of its damaged replicas, to tell of them once.
type mending struct {
	told map[partition.PartitionID]string              // why a damaged one stays as it is
	anew map[partition.PartitionID]partition.ReplicaID // those that are made anew
	done map[partition.PartitionID]time.Time           // when one was
}

// mendRest is how long a replica that was made anew is not found damaged: a read of what
// was there before may still be under way.
const mendRest = 10 * time.Second

// own is what this node knows of its replica of a partition.
func (a *agent) own(p *coordinator.Partition, rot rotten) duty.Own {
	info, err := a.b.host.Info(p.ID)
	if err != nil {
		return duty.Own{}
	}
	own := duty.Own{Here: true, ID: info.Replica, Leading: info.Leading, Stopped: info.Fault != ""}
	switch at, ok := a.mending.done[p.ID]; {
	case ok && time.Since(at) < mendRest:
	case info.Damaged:
		own.Damage = info.Fault
	case info.Fault == "" && info.Replica != 0: // else it is taking a snapshot, or a newer version wrote it
		own.Damage = rot[p.ID]
	}
	return own
}

// noteDamage tells what becomes of damaged replicas here.
func (a *agent) noteDamage(p *coordinator.Partition, own duty.Own, t duty.Task) {
	w, id := &a.mending, p.ID
	if w.told == nil {
		*w = mending{told: map[partition.PartitionID]string{}, anew: map[partition.PartitionID]partition.ReplicaID{}, done: map[partition.PartitionID]time.Time{}}
	}
	if stays := t.Kind == duty.Leave && t.Why != ""; !stays {
		delete(w.told, id)
	} else if w.told[id] != t.Why {
		w.told[id] = t.Why
		a.log.Warn("a damaged replica is not made anew from the others", "partition", a.b.partitionName(id), "replica", own.ID, "stopped", own.Stopped, "damage", own.Damage, "why", t.Why)
	}
	switch r := p.Rebuild.ID; {
	case r.Node() == a.b.cfg.Node && w.anew[id] != r:
		w.anew[id] = r
		a.log.Warn("a damaged replica is made anew from the others", "partition", a.b.partitionName(id), "replica", r, "damage", p.Rebuild.Why)
	case r.Node() != a.b.cfg.Node && w.anew[id] != 0:
		delete(w.anew, id)
		w.done[id] = time.Now()
		a.log.Info("a damaged replica was made anew", "partition", a.b.partitionName(id), "replica", own.ID)
	}
}

// sayDamaged tells the metadata log that a replica here is damaged.
func (a *agent) sayDamaged(ctx context.Context, id partition.PartitionID, r partition.ReplicaID, why string) error {
	_, err := atMetadata(ctx, a.b, true, func(rm *remote) (*nodev1.DamagedResponse, error) {
		return rm.membership.Damaged(ctx, &nodev1.DamagedRequest{Partition: uint64(id), Replica: uint64(r), Why: valid(why)})
	})
	return err
}

// rebuildText is what cluster status says of a damaged replica.
func rebuildText(p *coordinator.Partition) string {
	if p.Rebuild.ID == 0 {
		return ""
	}
	return fmt.Sprintf("the replica on node %v is damaged and made anew: %s", p.Rebuild.ID.Node(), p.Rebuild.Why)
}
