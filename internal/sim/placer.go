package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// placer looks after a partition's replicas, as the cluster's metadata and the nodes'
// agents do together: it adds, promotes, demotes and removes, hands leaderships over,
// and has erased what was removed. While there are faults it does as it likes, but
// replaces what is lost; afterwards it brings three voters about.
type placer struct {
	s     *Sim
	r     *rand.Rand
	part  partition.PartitionID
	inc   uint32 // of the newest replica
	busy  int    // changes that are not answered
	quiet bool   // only what has to be is done
}

func (o *placer) heal() { o.quiet = true }

func (o *placer) undone() string {
	l := o.s.leader(o.part)
	if l == nil {
		return fmt.Sprintf("nobody leads %v", o.part)
	}
	info, err := l.core.Info(o.part)
	if err != nil {
		return err.Error()
	}
	if o.busy > 0 {
		return fmt.Sprintf("a change of the replicas of %v is not answered", o.part)
	}
	if ch, need := o.repair(info); need {
		return fmt.Sprintf("%v has voters %v and learners %v: %s", o.part, info.Voters, info.Learners, ch)
	}
	for _, n := range o.s.nodes {
		if pl := n.held[o.part]; pl != nil && !n.broken && (pl.out || !o.has(info, pl.id)) {
			return fmt.Sprintf("%v still has replica %v of %v", n.id, pl.id, o.part)
		}
	}
	return ""
}

func (o *placer) loop() {
	o.see()
	if o.busy == 0 || o.r.IntN(20) == 0 && !o.quiet {
		o.do()
	}
	most := 4 * time.Second
	if o.quiet {
		most = 500 * time.Millisecond
	}
	o.s.after(o.s.between(o.r, 20*time.Millisecond, most), "placer", o.loop)
}

func (o *placer) has(info partition.Info, id partition.ReplicaID) bool {
	return slices.Contains(info.Voters, id) || slices.Contains(info.Learners, id)
}

// see takes note of what a leader has applied: who is a replica, and who is none any
// more. A leader of old does not know of those that were added since.
func (o *placer) see() {
	l := o.s.leader(o.part)
	if l == nil {
		return
	}
	info, err := l.core.Info(o.part)
	if err != nil {
		return
	}
	for _, n := range o.s.nodes {
		pl := n.held[o.part]
		switch {
		case pl == nil:
		case o.has(info, pl.id):
			if !pl.added {
				pl.added, pl.addedAt = true, info.Position.Index
			}
			if pl.out {
				o.s.fault("H7: replica %v of %v was removed, and is one again on %v", pl.id, o.part, l.id)
			}
		case pl.added && info.Position.Index > pl.addedAt:
			pl.out = true
		case o.quiet && o.busy == 0 && pl.made && !pl.added:
			if _, need := o.repair(info); !need {
				pl.out = true // nobody wants it any more
			}
		}
		if pl != nil && pl.out && (o.quiet || o.r.IntN(3) == 0) {
			n.erase(o.part)
		}
	}
}

// step is what repair wants: a change, or that somebody else leads, or that a node
// makes a replica.
type step struct {
	change   partition.Change
	transfer partition.ReplicaID
	join     *node
	why      string
}

func (x step) String() string { return x.why }

// goal is how many voters there should be.
const goal = 3

// repair is the next step to as many voters as there should be, all of which can be
// counted on, and nobody else.
func (o *placer) repair(info partition.Info) (step, bool) {
	good := func(id partition.ReplicaID) bool { return o.s.holdsOf(o.part, id) != nil }
	fit := 0 // nodes that can have a replica
	for _, n := range o.s.nodes {
		if !n.broken {
			fit++
		}
	}
	change := func(k partition.ChangeKind, id partition.ReplicaID, why string) (step, bool) {
		return step{change: partition.Change{Kind: k, Replica: id}, why: why}, true
	}
	voters, learners := 0, 0
	for _, id := range info.Voters {
		if good(id) {
			voters++
		}
	}
	for _, id := range info.Learners {
		if !good(id) {
			return change(partition.Remove, id, "a learner is lost")
		}
		learners++
	}
	if fit < goal {
		return step{}, false // three are better than two, even if one of them is lost
	}
	const want = goal
	if voters < want {
		for _, f := range info.Followers {
			if !f.Voter && good(f.Replica) && f.Active && !f.Snapshot && f.Match+20 >= info.LastIndex {
				return change(partition.Promote, f.Replica, "a learner has caught up")
			}
		}
		if voters+learners < want {
			for _, n := range o.s.nodes {
				if pl := n.held[o.part]; pl != nil && pl.made && !pl.added && !n.broken {
					if i := slices.IndexFunc(info.Voters, func(id partition.ReplicaID) bool { return id.Node() == n.id }); i < 0 {
						return change(partition.AddLearner, pl.id, "a replica waits to be added")
					}
				}
			}
			for _, n := range o.s.nodes {
				taken := slices.ContainsFunc(info.Voters, func(id partition.ReplicaID) bool { return id.Node() == n.id })
				if n.up && !n.broken && n.held[o.part] == nil && !taken {
					return step{join: n, why: "there are too few replicas"}, true
				}
			}
		}
	}
	for _, id := range info.Voters {
		// With nobody to take its place there must be room for that first.
		if !good(id) && (voters >= want || voters+learners < want) {
			return change(partition.Demote, id, "a voter is lost")
		}
	}
	if voters > want {
		id := info.Voters[len(info.Voters)-1]
		if id == info.Replica {
			id = info.Voters[0]
		}
		return change(partition.Demote, id, "there are too many voters")
	}
	if voters < want {
		return step{why: "a learner has to catch up"}, true
	}
	if learners > 0 {
		return change(partition.Remove, info.Learners[0], "there are learners")
	}
	return step{}, false
}

// do takes one step.
func (o *placer) do() {
	l := o.s.leader(o.part)
	if l == nil {
		return
	}
	info, err := l.core.Info(o.part)
	if err != nil {
		return
	}
	x, need := o.repair(info)
	for _, n := range o.s.nodes {
		if pl := n.held[o.part]; pl != nil && pl.out && o.s.planted.is("removed-again", 0.5) {
			o.change(partition.Change{Kind: partition.AddLearner, Replica: pl.id})
			return
		}
	}
	if !o.quiet && (!need || o.r.IntN(3) == 0) {
		x = o.whim(info)
	}
	switch {
	case x.join != nil:
		o.join(x.join)
	case x.transfer != 0:
		o.transfer(x.transfer)
	case x.change.Kind != 0:
		o.change(x.change)
	}
}

// whim is a step that nothing asks for, which a broker may take or refuse. Two voters
// are the fewest: with one, a disk that is lost would be the last.
func (o *placer) whim(info partition.Info) (x step) {
	any := func(ids []partition.ReplicaID) partition.ReplicaID {
		if len(ids) == 0 {
			return 0
		}
		return ids[o.r.IntN(len(ids))]
	}
	switch k := o.r.IntN(8); {
	case k < 2 && o.s.plan.has("transfer"):
		x.transfer = any(info.Voters)
	case !o.s.plan.has("change"):
	case k < 4:
		for _, i := range o.r.Perm(len(o.s.nodes)) {
			n := o.s.nodes[i]
			if pl := n.held[o.part]; pl == nil && n.up {
				x.join = n
				break
			} else if pl != nil && pl.made && !pl.added {
				x.change = partition.Change{Kind: partition.AddLearner, Replica: pl.id}
				break
			}
		}
	case k < 6:
		if id := any(info.Learners); id != 0 && o.s.holdsOf(o.part, id) != nil {
			x.change = partition.Change{Kind: partition.Promote, Replica: id}
		}
	case k < 7:
		lost := slices.ContainsFunc(info.Voters, func(id partition.ReplicaID) bool { return o.s.holdsOf(o.part, id) == nil })
		if id := any(info.Voters); id != 0 && len(info.Voters) > 2 && !lost {
			x.change = partition.Change{Kind: partition.Demote, Replica: id}
		}
	default:
		if id := any(info.Learners); id != 0 {
			x.change = partition.Change{Kind: partition.Remove, Replica: id}
		}
	}
	return x
}

// join has a node make a replica that never was.
func (o *placer) join(n *node) {
	o.inc++
	pl := &place{id: partition.NewReplicaID(n.id, o.inc)}
	n.held[o.part] = pl
	o.s.say("%v makes replica %v of %v", n.id, pl.id, o.part)
	o.s.count.placed["join"]++
	if err := n.make(o.part, pl); err != nil {
		if n.store.Err() == nil {
			o.s.fault("%v does not take replica %v of %v: %v", n.id, pl.id, o.part, err)
		}
		n.broke(err)
	}
	n.kick()
}

// ask has a partition's leader do something, after the network's time.
func (o *placer) ask(what string, do func(n *node, done func(error)), over func(*node, error)) {
	o.busy++
	answered := false
	answer := func(n *node, err error) {
		if !answered {
			answered = true
			o.busy--
			over(n, err)
		}
	}
	o.s.after(o.s.between(o.r, 50*time.Microsecond, 5*time.Millisecond), what, func() {
		n := o.s.leader(o.part)
		if n == nil {
			answer(nil, &partition.ErrNotLeader{Partition: o.part})
			return
		}
		c := n.call(func(err error) { answer(n, err) })
		do(n, func(err error) {
			if n.answered(c) {
				answer(n, err)
			}
		})
		n.kick()
	})
}

func (o *placer) change(ch partition.Change) {
	kind := ch.Kind.String()
	o.s.say("asked: %v of %v", ch, o.part)
	o.ask(kind, func(n *node, done func(error)) { n.core.ChangeAsync(o.part, ch, done) }, func(n *node, err error) {
		o.s.say("%v of %v: %v", ch, o.part, err)
		var refused *partition.ErrChange
		if err != nil {
			if !retriable(err) && !errors.As(err, &refused) {
				o.s.fault("%v of %v: %v", ch, o.part, err)
			}
			return
		}
		o.s.count.placed[kind]++
		// Whoever answers has applied it (H12).
		info, err := n.core.Info(o.part)
		if err != nil {
			return
		}
		voter, learner := slices.Contains(info.Voters, ch.Replica), slices.Contains(info.Learners, ch.Replica)
		if voter != (ch.Kind == partition.Promote) || learner != (ch.Kind == partition.AddLearner || ch.Kind == partition.Demote) {
			o.s.fault("H12: %v of %v was confirmed by %v, where the voters are %v and the learners %v", ch, o.part, n.id, info.Voters, info.Learners)
		}
		if pl := o.s.holdsOf(o.part, ch.Replica); pl != nil && !pl.added && ch.Kind == partition.AddLearner {
			pl.added, pl.addedAt = true, info.Position.Index
		}
	})
}

func (o *placer) transfer(to partition.ReplicaID) {
	o.s.say("asked: %v leads %v", to, o.part)
	o.ask("transfer", func(n *node, done func(error)) { n.core.TransferAsync(o.part, to, done) }, func(_ *node, err error) {
		o.s.say("%v leads %v: %v", to, o.part, err)
		var refused *partition.ErrTransfer
		if err != nil && !retriable(err) && !errors.As(err, &refused) {
			o.s.fault("transfer of %v to %v: %v", o.part, to, err)
		}
		if err == nil {
			o.s.count.placed["transfer"]++
		}
	})
}

// placers begin when there are several nodes, if anything moves at all.
func (s *Sim) placers() {
	if len(s.nodes) == 1 || !s.plan.has("change") && !s.plan.has("transfer") && !s.plan.has("lose") {
		return
	}
	for _, p := range s.parts() {
		o := &placer{s: s, r: source(s.plan.seed, fmt.Sprintf("placer of %d", p)), part: p}
		s.clients = append(s.clients, o)
		s.after(2*time.Second, "placer", o.loop)
	}
}
