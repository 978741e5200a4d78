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

// shed has the replica of the metadata log here let go of entries that do not read, once
// it has gone on from them: what a restart needs is in its rows. Of that log none is made
// anew, for a node without it has no map.
func (a *agent) shed(ctx context.Context, doing *sync.WaitGroup) (more bool) {
	var to partition.Index
	for _, d := range a.b.store.Damage() {
		for _, r := range d.Ranges {
			if r.Partition == uint64(partition.Metadata) && !d.Bound {
				to = max(to, partition.Index(r.High))
			}
		}
	}
	// The last entry stays, and the one before the first that stays has to read.
	info, err := a.b.host.Info(partition.Metadata)
	if err == nil {
		a.tellShed(info.FirstIndex)
	}
	if err != nil || info.Fault != "" || to < info.FirstIndex || to+2 > info.Position.Index {
		return false
	}
	a.shedding = max(a.shedding, to)
	return a.do(ctx, doing, partition.Metadata, "letting go of damaged entries", func(ctx context.Context) error {
		if err := a.b.host.Shed(ctx, partition.Metadata, to); err != nil {
			return err
		}
		for info.FirstIndex <= to {
			select {
			case <-time.After(agentPause): // between two looks
			case <-ctx.Done():
				return ctx.Err()
			}
			if info, err = a.b.host.Info(partition.Metadata); err != nil {
				return err
			}
		}
		return nil
	})
}

// tellShed tells of damaged entries that are gone, once: also of those that went when
// nobody waited for it any more.
func (a *agent) tellShed(first partition.Index) {
	to := a.shedding
	if to == 0 || first <= to {
		return
	}
	a.shedding = 0
	a.log.Info("damaged entries of the metadata log are gone: a restart does without them", "to", to)
	a.b.events.ofNode(coordinator.EntriesLetGo, fmt.Sprintf("entries of its copy of the metadata log did not read, and it goes on without those up to %d", to))
}

// mending is what a node remembers of its damaged replicas, to tell of them once.
type mending struct {
	told map[partition.PartitionID]string              // why a damaged one stays as it is
	anew map[partition.PartitionID]partition.ReplicaID // those that are made anew
	done map[partition.PartitionID]mended              // the last one that was
}

// mended is when a replica was made anew, and for how long it is not found damaged again.
type mended struct {
	at   time.Time
	rest time.Duration
}

// A replica that was made anew is not found damaged for a while: a read of what was there
// before may still be under way. One that is damaged again soon stands beside damage that
// erasing it does not remove, as where another partition's rows are in the same block: it
// rests twice as long each time, since all of it is sent for nothing.
const (
	mendRest    = 10 * time.Second
	mendRestMax = 6 * time.Hour
)

// again is the rest behind the next one, when one was made anew before.
func (d mended) again(now time.Time) mended {
	if d.at.IsZero() || now.Sub(d.at) > 2*d.rest+mendRestMax/6 {
		return mended{now, mendRest}
	}
	return mended{now, min(2*d.rest, mendRestMax)}
}

// own is what this node knows of its replica of a partition.
func (a *agent) own(p *coordinator.Partition, rot rotten) duty.Own {
	info, err := a.b.host.Info(p.ID)
	if err != nil {
		return duty.Own{}
	}
	own := duty.Own{Here: true, ID: info.Replica, Leading: info.Leading, Stopped: info.Fault != ""}
	switch last, ok := a.mending.done[p.ID]; {
	case ok && time.Since(last.at) < last.rest:
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
		*w = mending{told: map[partition.PartitionID]string{}, anew: map[partition.PartitionID]partition.ReplicaID{}, done: map[partition.PartitionID]mended{}}
	}
	if stays := t.Kind == duty.Leave && t.Why != ""; !stays {
		delete(w.told, id)
	} else if w.told[id] != t.Why {
		w.told[id] = t.Why
		a.b.events.note(happening{kind: coordinator.ReplicaKept, of: spot{id, true}, ours: true, text: "a damaged replica is not made anew from the others: " + t.Why + " (" + own.Damage + ")"})
		a.log.Warn("a damaged replica is not made anew from the others", "partition", a.b.partitionName(id), "replica", own.ID, "stopped", own.Stopped, "damage", own.Damage, "why", t.Why)
	}
	switch r := p.Rebuild.ID; {
	case r.Node() == a.b.cfg.Node && w.anew[id] != r:
		w.anew[id] = r
		a.log.Warn("a damaged replica is made anew from the others", "partition", a.b.partitionName(id), "replica", r, "damage", p.Rebuild.Why)
	case r.Node() != a.b.cfg.Node && w.anew[id] != 0:
		delete(w.anew, id)
		w.done[id] = w.done[id].again(time.Now())
		a.log.Info("a damaged replica was made anew", "partition", a.b.partitionName(id), "replica", own.ID, "again not before", w.done[id].rest)
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
