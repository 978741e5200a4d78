package broker

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// membership is what a partition's replicas are to be, and what its leader knows
// of those that there are.
type membership struct {
	self      partition.ReplicaID
	voters    []partition.ReplicaID // wanted; the first is to lead
	listeners []partition.ReplicaID // wanted without a vote
	gone      []partition.ReplicaID // that the map names as leaving, or whose node is gone
	moving    bool                  // it was not said yet that the voters are those

	hasVoters, hasLearners []partition.ReplicaID

	up     func(partition.NodeID) bool       // this node counts as up
	caught func(partition.ReplicaID) bool    // has what the leader had when it looked first
	lead   func(to partition.ReplicaID) bool // a balanced leadership may move there now
}

// A step is the next thing to do about a partition's replicas.
type step struct {
	what    stepKind
	change  partition.Change
	to      partition.ReplicaID // of a transfer
	waiting bool                // with nothing to do now: something is not yet as it is wanted
}

type stepKind byte

const (
	stepNone     stepKind = iota
	stepChange            // change the replicas
	stepTransfer          // hand the leadership over
	stepSettle            // say that the placement is reached
)

// next is the next step: feed the new, give them votes, then take the votes of the
// old, and say so. Whoever is neither wanted nor named as leaving is left alone: the
// map that this node has may be older than what another leader did.
//
//	add ──► fed ──► promote ──► (lead elsewhere) ──► demote ──► remove ──► settle
func (m *membership) next() step {
	change := func(k partition.ChangeKind, r partition.ReplicaID) step {
		return step{what: stepChange, change: partition.Change{Kind: k, Replica: r}}
	}
	has := func(r partition.ReplicaID) bool {
		return slices.Contains(m.hasVoters, r) || slices.Contains(m.hasLearners, r)
	}
	waiting := false
	// A learner that leaves holds nobody up.
	for _, r := range m.gone {
		if slices.Contains(m.hasLearners, r) {
			return change(partition.Remove, r)
		}
	}
	for _, list := range [][]partition.ReplicaID{m.voters, m.listeners} {
		for _, r := range list {
			switch {
			case has(r):
			case m.up(r.Node()) && !m.onNode(r.Node()):
				return change(partition.AddLearner, r)
			default:
				waiting = true
			}
		}
	}
	all := true
	for _, r := range m.voters {
		if slices.Contains(m.hasVoters, r) {
			continue
		}
		all = false
		if has(r) && m.caught(r) {
			return change(partition.Promote, r)
		}
	}
	if !all {
		return step{waiting: true}
	}
	for _, r := range m.hasVoters {
		leaves := slices.Contains(m.gone, r)
		if !leaves && !slices.Contains(m.listeners, r) {
			continue
		}
		if r != m.self {
			return change(partition.Demote, r)
		}
		for _, to := range m.voters {
			if to != m.self && m.up(to.Node()) && m.caught(to) {
				return step{what: stepTransfer, to: to}
			}
		}
		return step{waiting: true}
	}
	if m.moving {
		return step{what: stepSettle}
	}
	if len(m.voters) > 0 && m.voters[0] != m.self && m.lead(m.voters[0]) {
		return step{what: stepTransfer, to: m.voters[0]}
	}
	return step{waiting: waiting}
}

// onNode tells whether a node has a replica already, an earlier one.
func (m *membership) onNode(n partition.NodeID) bool {
	on := func(r partition.ReplicaID) bool { return r.Node() == n }
	return slices.ContainsFunc(m.hasVoters, on) || slices.ContainsFunc(m.hasLearners, on)
}
