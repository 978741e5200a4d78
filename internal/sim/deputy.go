package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/duty"
	"github.com/strandmq/strandmq/partition"
)

// deputy makes a node what its map says of it, as the broker's agent does: what to do
// is decided by the broker's own code, and done here without its goroutines.
type deputy struct {
	n      *node
	boot   int
	keeper duty.Keeper
	busy   map[partition.PartitionID]bool
	rest   map[partition.PartitionID]time.Duration // something failed; not before that
	said   bool                                    // where the node is
}

const (
	deputyRest = 500 * time.Millisecond
	deputyCall = 15 * time.Second
	// deputyStay is how long a node is up before leaderships go back to it.
	deputyStay = 5 * time.Second
)

func (n *node) deputize() {
	n.deputy = &deputy{n: n, boot: n.boot, busy: make(map[partition.PartitionID]bool), rest: make(map[partition.PartitionID]time.Duration)}
	if !n.first || n.boot > 1 {
		n.deputy.announce()
	}
}

func (d *deputy) alive() bool { return d.n.up && d.n.boot == d.boot }

// announce says where the node is, until that is known.
func (d *deputy) announce() {
	at := d.n.at
	at.Boot = uint64(d.boot)
	d.n.s.call(partition.Metadata, func(n *node) error {
		_, err := n.coord.UpdateNode(context.Background(), d.n.id, at)
		return err
	}, func(err error) {
		if err != nil && d.alive() {
			if !mayRefuse(err) {
				d.n.s.fault("%v says where it is: %v", d.n.id, err)
			}
			d.n.later(200*time.Millisecond, "announce", d.announce)
		}
	})
}

// role hears who leads.
func (n *node) role(id partition.PartitionID, _ partition.NodeID, leading bool, _ uint64) {
	if id != partition.Metadata || !leading {
		return
	}
	n.later(0, "leads the metadata", func() {
		for x := range n.coord.View().Nodes() {
			if x.ID != n.id {
				_ = n.coord.Reached(x.ID, n.there[x.ID]) // it may lead no more
			}
		}
	})
}

// pass looks at everything once.
func (d *deputy) pass() {
	n := d.n
	m := n.coord.View()
	if m.Cluster.ID == "" {
		return // the map has not come yet
	}
	if x, ok := m.Node(n.id); ok && (x.State == coordinator.Lost || x.State == coordinator.Removed) {
		n.outcast()
		return
	}
	here := n.core.Partitions()
	for _, id := range here {
		if m.Deleted(id) {
			d.do(id, func(done func(error)) { d.erase(id, 0, done) })
		}
	}
	others := duty.Others{
		Up:   func(o partition.NodeID) bool { return o == n.id || n.there[o] },
		Stay: func(o partition.NodeID) bool { return o == n.id || n.there[o] && n.s.now-n.upAt[o] >= deputyStay },
		Fit:  func(o partition.NodeID) bool { return !slices.Contains(n.core.Unfit(), o) },
	}
	for p := range m.Partitions() {
		d.task(p.ID, duty.Replica(m, p, n.id, d.own(p.ID), others.Up))
		if l, ok := p.Left(n.id); ok && !l.Out && n.s.planted.is("early-erase", 0.05) {
			d.task(p.ID, duty.Task{Kind: duty.Erase, Replica: l.ID})
		}
	}
	for p := range m.Partitions() {
		info, err := n.core.Info(p.ID)
		if err != nil || !info.Leading || len(p.Replicas) == 0 {
			continue
		}
		if at, ok := m.Place(p.ID); ok && at.Topic.Phase != coordinator.Ready {
			continue
		}
		d.step(p, d.keeper.Lead(m, p, info, others, n.rot[p.ID] || n.rotten(p.ID) != ""))
	}
}

// own is what the node knows of its replica of a partition.
func (d *deputy) own(id partition.PartitionID) duty.Own {
	info, err := d.n.core.Info(id)
	if err != nil {
		return duty.Own{}
	}
	own := duty.Own{Here: true, ID: info.Replica, Leading: info.Leading, Stopped: info.Fault != ""}
	switch {
	case info.Damaged:
		own.Damage = info.Fault
	case info.Fault == "" && d.n.rot[id]:
		own.Damage = "it was found damaged"
	case info.Fault == "" && info.Replica != 0:
		own.Damage = d.n.rotten(id)
	}
	return own
}

// do has one thing about a partition done, unless another one is or it has to wait.
func (d *deputy) do(id partition.PartitionID, fn func(done func(error))) {
	s := d.n.s
	if d.busy[id] || s.now < d.rest[id] {
		return
	}
	d.busy[id] = true
	over := false
	done := func(err error) {
		if over {
			return
		}
		over = true
		delete(d.busy, id)
		if err != nil {
			d.rest[id] = s.now + deputyRest
		}
	}
	d.n.later(deputyCall, "given up", func() { done(&partition.ErrOutcomeUnknown{Partition: id, Why: "no answer"}) })
	fn(done)
}

func (d *deputy) task(id partition.PartitionID, t duty.Task) {
	n := d.n
	switch t.Kind {
	case duty.Leave:
	case duty.Drop:
		d.do(id, func(done func(error)) { d.erase(id, 0, done) })
	case duty.Erase:
		d.do(id, func(done func(error)) {
			d.erase(id, t.Replica, func(err error) {
				if err != nil {
					done(err)
					return
				}
				d.ask(done, func(l *node) error { return l.coord.Left(context.Background(), id, t.Replica) })
			})
		})
	case duty.Report:
		d.do(id, func(done func(error)) {
			n.s.say("%v says that replica %v of %v is damaged", n.id, t.Replica, id)
			d.ask(done, func(l *node) error {
				_, err := l.coord.Damaged(context.Background(), id, t.Replica, t.Why)
				return err
			})
		})
	case duty.Stop:
		d.do(id, func(done func(error)) {
			n.s.say("%v stops replica %v of %v: %s", n.id, t.Replica, id, t.Why)
			w, err := n.core.CondemnNow(id, t.Replica, t.Why)
			if err != nil || w == nil {
				done(err)
				return
			}
			n.fly(w, func() { done(nil) })
			n.send()
		})
	case duty.Create:
		d.do(id, func(done func(error)) {
			var voters []partition.NodeID
			for _, r := range t.Voters {
				voters = append(voters, r.Node())
			}
			n.held[id] = &place{id: t.Replica}
			done(n.core.CreateOn(id, voters...))
			n.kick()
		})
	case duty.Join:
		d.do(id, func(done func(error)) {
			n.s.say("%v makes replica %v of %v", n.id, t.Replica, id)
			n.s.count.placed["join"]++
			if err := n.join(id, t.Replica, done); err != nil {
				n.broke(err)
			}
		})
	}
}

// join makes a replica that is to be fed.
func (n *node) join(id partition.PartitionID, r partition.ReplicaID, done func(error)) error {
	pl := &place{id: r}
	n.held[id] = pl
	w, err := n.core.JoinAs(id, r)
	if err != nil {
		return err
	}
	n.fly(w, func() { pl.made = true; done(nil) })
	n.kick()
	return nil
}

// erase erases a replica; 0 is whichever is there. It may be gone already.
func (d *deputy) erase(id partition.PartitionID, r partition.ReplicaID, done func(error)) {
	n := d.n
	info, err := n.core.Info(id)
	switch {
	case err != nil:
		// Erased before: that may yet be on its way to the disk.
	case r != 0 && info.Replica != r:
		done(&partition.ErrOtherReplica{Partition: id, Have: info.Replica, Want: r})
		return
	}
	if err == nil {
		n.s.judge.erasing(n, id, info.Replica)
		n.s.say("%v erases replica %v of %v", n.id, info.Replica, id)
		n.s.count.placed["erase"]++
	}
	pl := n.held[id]
	if pl != nil {
		pl.out = true
	}
	w, err := n.core.DropNow(id)
	if err != nil {
		n.broke(err)
		return
	}
	delete(n.apps, id)
	gone := func() {
		if n.held[id] == pl {
			delete(n.held, id)
			delete(n.rot, id)
			delete(n.flipped, id)
		}
		done(nil)
	}
	n.fly(w, gone)
	n.send()
}

// ask asks the metadata log, and hears the answer if this node is still there.
func (d *deputy) ask(done func(error), do func(*node) error) {
	d.n.s.call(partition.Metadata, do, func(err error) {
		if err != nil && !mayRefuse(err) {
			d.n.s.fault("%v tells the metadata log: %v", d.n.id, err)
		}
		if d.alive() {
			done(err)
		}
	})
}

// step takes one step of a leader.
func (d *deputy) step(p *coordinator.Partition, x duty.Step) {
	n, id := d.n, p.ID
	switch x.Kind {
	case duty.Nothing:
	case duty.Change:
		d.do(id, func(done func(error)) {
			n.s.say("%v asks: %v of %v", n.id, x.Change, id)
			c := n.call(func(error) {})
			n.core.ChangeAsync(id, x.Change, func(err error) {
				if !n.answered(c) {
					return
				}
				n.s.say("%v of %v: %v", x.Change, id, err)
				if err == nil {
					n.s.count.placed[x.Change.Kind.String()]++
					n.s.judge.changed(n, id, x.Change)
				}
				done(err)
			})
			n.kick()
		})
	case duty.Transfer:
		d.do(id, func(done func(error)) {
			n.s.say("%v asks: %v leads %v", n.id, x.To, id)
			c := n.call(func(error) {})
			n.core.TransferAsync(id, x.To, func(err error) {
				if n.answered(c) {
					if err == nil {
						n.s.count.placed["transfer"]++
					}
					done(err)
				}
			})
			n.kick()
		})
	case duty.Settle:
		placement := p.Placement
		d.do(id, func(done func(error)) {
			d.ask(done, func(l *node) error {
				_, err := l.coord.Settle(context.Background(), id, placement)
				return err
			})
		})
	}
}

// comesBack brings what a node of a cluster holds to what its disk has, at its start:
// every node has a replica of the metadata log from its first start on.
func (n *node) comesBack() error {
	for _, p := range n.s.logs() {
		pl := n.held[p]
		info, err := n.core.Info(p)
		switch {
		case pl == nil:
			continue
		case err != nil && pl.made && !pl.out:
			n.s.fault("I9: %v: replica %v of %v was on disk and is not there after a restart: %v", n.id, pl.id, p, err)
		case err != nil:
			delete(n.held, p) // it had not come to the disk, or erasing it had
			delete(n.rot, p)
			delete(n.flipped, p)
		case info.Damaged && n.spoiled && p == partition.Metadata:
			return &partition.ErrDamaged{Partition: p, Why: info.Fault}
		case info.Fault != "" && !n.rot[p] && !(n.spoiled && info.Damaged):
			return fmt.Errorf("%v: partition %v came back stopped: %s", n.id, p, info.Fault)
		default:
			pl.out = false
		}
	}
	if n.held[partition.Metadata] != nil {
		return nil
	}
	if n.first {
		n.held[partition.Metadata] = &place{id: n.id.Replica()}
		return n.core.CreateOn(partition.Metadata, n.id)
	}
	return n.join(partition.Metadata, n.id.Replica(), func(error) {})
}
