package sim

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// What replicas say to each other is held against their disks: the simulator knows
// what of a log is durable where, whatever the broker believes.

// ballot is a replica's vote in a term.
type ballot struct {
	voter partition.ReplicaID
	term  uint64
}

// said judges a frame that leaves a node.
func (j *judge) said(n *node, f partition.Frame) {
	b := j.logs[f.Partition]
	if b == nil {
		return
	}
	info, err := n.core.Info(f.Partition)
	_, _, acks := f.Ack()
	_, _, _, votes := f.Vote()
	if err == nil && info.Fault != "" && !f.Ends() && (acks || votes || j.stopped[seenKey{n.id, f.Partition}] == n.boot) {
		j.s.fault("I7: %v of %v has stopped, and says %v", n.id, f.Partition, f)
	}
	if err == nil && info.Replica != f.From {
		j.s.fault("I8: %v speaks for %v on %v, where the replica is %v", f, f.From, n.id, info.Replica)
	}
	if voter, of, term, ok := f.Vote(); ok {
		j.vote(b, voter, of, term)
	}
	// What it said to the leader of an earlier term and replaced before the disk had it
	// is as if the disk had had it for a moment.
	if i, term, ok := f.Ack(); ok && err == nil && term == info.Term && i > j.durable[b.id][f.From] {
		j.s.fault("I5: replica %v of %v says that it has the log up to entry %d, and its disk has it up to %d", f.From, b.id, i, j.durable[b.id][f.From])
	}
}

// silenced takes note of replicas that have stopped: what they said in the step in which
// they did is out by now.
func (j *judge) silenced(n *node) {
	for _, p := range j.s.logs() {
		if info, err := n.core.Info(p); err == nil && info.Fault != "" {
			j.stopped[seenKey{n.id, p}] = n.boot
		} else {
			delete(j.stopped, seenKey{n.id, p})
		}
	}
}

// vote: one a term, whatever happens in between (I4). Who leads has its own.
func (j *judge) vote(b *book, voter, of partition.ReplicaID, term uint64) {
	k := ballot{voter, term}
	if was, voted := b.votes[k]; voted && was != of {
		j.s.fault("I4: replica %v of %v votes for %v in term %d, and has voted for %v", voter, b.id, of, term, was)
	}
	b.votes[k] = of
}

// remembers: how a replica voted before its node was started again is on its disk (I4).
func (j *judge) remembers(n *node) {
	for _, p := range n.s.logs() {
		b := j.logs[p]
		info, err := n.core.Info(p)
		if b == nil || err != nil || info.Fault != "" {
			continue
		}
		h, err := n.store.HardState(uint64(p))
		if err != nil {
			continue
		}
		said, of := ballot{info.Replica, h.Term}, partition.ReplicaID(0)
		for k, v := range b.votes {
			if k.voter == said.voter && k.term >= said.term {
				said, of = k, v
			}
		}
		if of != 0 && (said.term > h.Term || of != partition.ReplicaID(h.Vote)) {
			j.s.fault("I4: replica %v of %v voted for %v in term %d, and its disk has a vote for %v in term %d", said.voter, p, of, said.term, partition.ReplicaID(h.Vote), h.Term)
		}
	}
}

// onDisk takes note of how far a replica's log is durable.
func (j *judge) onDisk(p partition.PartitionID, id partition.ReplicaID, last partition.Index) {
	if j.durable[p] == nil {
		j.durable[p] = make(map[partition.ReplicaID]partition.Index)
	}
	j.durable[p][id] = last
}

// committed: what is applied is on the disks of a majority (I5): of the voters that
// the one who applied it has now or had, or of those that another one has. What was in
// the log before a change was applied is committed by those of before, and followers
// may hear so later. A replica whose disk is lost since had it.
func (j *judge) committed(n *node, b *book, at seen, info partition.Info, last partition.Index) {
	on := func(voters []partition.ReplicaID) bool {
		have := 0
		for _, v := range voters {
			if j.durable[b.id][v] >= last {
				have++
			}
		}
		return have > len(voters)/2
	}
	if on(info.Voters) || on(at.voters) || on(at.former) {
		return
	}
	for _, o := range j.s.nodes {
		if !o.up || o == n {
			continue
		}
		if x, err := o.core.Info(b.id); err == nil && on(x.Voters) {
			return
		}
	}
	disks := slices.Clone(info.Voters)
	j.s.fault("I5: %v has applied entry %d of %v, which is not on the disks of most of its voters %v: %v", n.id, last, b.id, disks, j.durable[b.id])
}
