package duty

import (
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// Membership is what a partition's replicas are to be, and what its leader knows
// of those that there are.
type Membership struct {
	self      partition.ReplicaID
	voters    []partition.ReplicaID // wanted; the first is to lead
	listeners []partition.ReplicaID // wanted without a vote
	gone      []partition.ReplicaID // that the map names as leaving, or knows of no more; or whose node is gone
	moving    bool                  // it was not said yet that the voters are those
	damaged   bool                  // some of what the leader has does not read
	mends     bool                  // and it can be made anew, as far as the map tells

	hasVoters, hasLearners []partition.ReplicaID

	up     func(partition.NodeID) bool       // this node counts as up
	fit    func(partition.NodeID) bool       // it may lead where another can
	caught func(partition.ReplicaID) bool    // has what the leader had when it looked first
	lead   func(to partition.ReplicaID) bool // a balanced leadership may move there now
}

// A Step is the next thing to do about a partition's replicas.
type Step struct {
	Kind    StepKind
	Change  partition.Change
	To      partition.ReplicaID // of a transfer
	Waiting bool                // with nothing to do now: something is not yet as it is wanted
}

// StepKind is what a step is.
type StepKind byte

// The kinds of steps.
const (
	Nothing  StepKind = iota
	Change            // change the replicas
	Transfer          // hand the leadership over
	Settle            // say that the placement is reached
)

// Next is the next step: feed the new, give them votes, then take the votes of the
// old, and say so. Whoever is neither wanted nor gone is left alone: the map that this
// node has may be older than what another leader did.
//
//	add ──► fed ──► promote ──► (lead elsewhere) ──► demote ──► remove ──► settle
//
// A leader that is not fit to lead, since its disk is full or hung lately, first of all
// hands over to one that is, if there is one.
func (m *Membership) Next() Step {
	change := func(k partition.ChangeKind, r partition.ReplicaID) Step {
		return Step{Kind: Change, Change: partition.Change{Kind: k, Replica: r}}
	}
	has := func(r partition.ReplicaID) bool {
		return slices.Contains(m.hasVoters, r) || slices.Contains(m.hasLearners, r)
	}
	waiting := false
	// What is stored has to go on, whatever else there is to do.
	if !m.fit(m.self.Node()) {
		for _, to := range m.voters {
			if to == m.self || !slices.Contains(m.hasVoters, to) || !m.up(to.Node()) || !m.fit(to.Node()) {
				continue
			}
			if m.caught(to) {
				return Step{Kind: Transfer, To: to}
			}
			waiting = true
		}
	}
	if to, ok := m.aside(); ok {
		return Step{Kind: Transfer, To: to}
	}
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
			case slices.Contains(m.gone, r): // until the map names another one in its place
				waiting = true
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
		return Step{Waiting: true}
	}
	for _, r := range m.hasVoters {
		leaves := slices.Contains(m.gone, r)
		if !leaves && !slices.Contains(m.listeners, r) {
			continue
		}
		if r != m.self && m.damaged {
			return Step{Waiting: true} // it may have what the leader has not
		}
		if r != m.self {
			return change(partition.Demote, r)
		}
		for _, to := range m.voters {
			if to != m.self && m.up(to.Node()) && m.caught(to) {
				return Step{Kind: Transfer, To: to}
			}
		}
		return Step{Waiting: true}
	}
	if m.moving && m.damaged && len(m.gone) > 0 {
		return Step{Waiting: true}
	}
	if m.moving {
		return Step{Kind: Settle}
	}
	if len(m.voters) > 0 && m.voters[0] != m.self && m.lead(m.voters[0]) {
		return Step{Kind: Transfer, To: m.voters[0]}
	}
	return Step{Waiting: waiting}
}

// onNode tells whether a node has a replica already, an earlier one.
func (m *Membership) onNode(n partition.NodeID) bool {
	on := func(r partition.ReplicaID) bool { return r.Node() == n }
	return slices.ContainsFunc(m.hasVoters, on) || slices.ContainsFunc(m.hasLearners, on)
}
