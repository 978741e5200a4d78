package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// ChangeKind is what is to happen to a replica.
type ChangeKind byte

// The kinds of change, in the order in which a replica lives through them.
const (
	AddLearner ChangeKind = iota + 1 // feed it, without counting on it
	Promote                          // a learner becomes a voter
	Demote                           // a voter becomes a learner
	Remove                           // a learner is no replica any more
)

// String prints the kind.
func (k ChangeKind) String() string {
	switch k {
	case AddLearner:
		return "add"
	case Promote:
		return "promote"
	case Demote:
		return "demote"
	case Remove:
		return "remove"
	}
	return "unknown"
}

// Change is a change of a partition's replicas. One changes at a time, by one
// step: so any majority before and any majority after have a voter in common.
type Change struct {
	Kind    ChangeKind
	Replica ReplicaID
}

// String prints a change.
func (c Change) String() string { return fmt.Sprintf("%v %v", c.Kind, c.Replica) }

// pendingChange is a change on its way through the log. Raft puts an empty entry
// in the place of one that it does not like, without a word, so it is followed by
// an id of its own.
type pendingChange struct {
	change   Change
	id       uint64
	term     uint64
	appended bool // it stands in the log as it was proposed
	reply    func(error)
}

// changeIDLen is the context of a change in the log: its id.
const changeIDLen = 8

// change proposes a change. It is answered in any case.
func (c *core) change(id PartitionID, ch Change, reply func(error)) {
	r, err := c.replica(id)
	if err == nil {
		err = c.guard(r, func() error { return r.proposeChange(ch, reply) })
	}
	switch {
	case errors.Is(err, errNothingToChange):
		reply(nil)
	case err != nil:
		reply(err)
	}
}

// errNothingToChange tells that the replica is what it is to be.
var errNothingToChange = errors.New("nothing to change")

func (r *replica) proposeChange(ch Change, reply func(error)) error {
	if !r.leading {
		return &ErrNotLeader{Partition: r.id, Leader: r.otherLeader()}
	}
	r.rouse()
	refuse := func(format string, args ...any) error {
		return &ErrChange{Partition: r.id, Change: ch, Why: fmt.Sprintf(format, args...)}
	}
	if r.change != nil {
		return &ErrChange{Partition: r.id, Change: ch, Busy: true, Why: fmt.Sprintf("another change is under way: %v", r.change.change)}
	}
	if r.transfer != nil {
		return &ErrChange{Partition: r.id, Change: ch, Busy: true, Why: "its leadership is being handed over"}
	}
	typ, err := r.step(ch, refuse)
	if err != nil {
		return err
	}
	p := &pendingChange{change: ch, id: r.c.nextID(), term: r.term, reply: reply}
	node := uint64(ch.Replica)
	err = r.rn.ProposeConfChange(&raftpb.ConfChangeV2{
		Changes: []*raftpb.ConfChangeSingle{{Type: typ.Enum(), NodeId: &node}},
		Context: binary.LittleEndian.AppendUint64(nil, p.id),
	})
	if err != nil {
		// It leads, and hands nothing over: so its log is full.
		return &ErrFull{Partition: r.id, RetryAfter: stallRetry}
	}
	r.change = p
	r.c.touch(r)
	return nil
}

// step is raft's name of a change, if it may be.
func (r *replica) step(ch Change, refuse func(string, ...any) error) (raftpb.ConfChangeType, error) {
	voter, learner := slices.Contains(r.voters, ch.Replica), slices.Contains(r.learners, ch.Replica)
	if !ch.Replica.Valid() {
		return 0, refuse("it names no replica")
	}
	if len(r.rlog.conf.GetVotersOutgoing()) > 0 {
		return 0, refuse("another change is not through yet")
	}
	switch ch.Kind {
	case AddLearner:
		if learner {
			return 0, errNothingToChange
		}
		if voter {
			return 0, refuse("it is a voter: demote it")
		}
		if i := slices.IndexFunc(r.members, func(m ReplicaID) bool { return m.Node() == ch.Replica.Node() }); i >= 0 {
			return 0, refuse("its node has replica %v already: remove that first", r.members[i])
		}
		if len(r.members) >= maxReplicas {
			return 0, refuse("there are %d replicas, which is the most", maxReplicas)
		}
		return raftpb.ConfChangeAddLearnerNode, nil
	case Promote:
		if voter {
			return 0, errNothingToChange
		}
		if !learner {
			return 0, refuse("it is no learner: add it first")
		}
		return raftpb.ConfChangeAddNode, r.majority(append(slices.Clone(r.voters), ch.Replica), refuse)
	case Demote:
		if learner {
			return 0, errNothingToChange
		}
		if !voter {
			return 0, refuse("it is no voter")
		}
		if len(r.voters) == 1 {
			return 0, refuse("it is the last voter")
		}
		if ch.Replica == r.self {
			return 0, refuse("it leads: hand the leadership over first")
		}
		left := slices.DeleteFunc(slices.Clone(r.voters), func(v ReplicaID) bool { return v == ch.Replica })
		return raftpb.ConfChangeAddLearnerNode, r.majority(left, refuse)
	case Remove:
		if voter {
			return 0, refuse("it is a voter: demote it first")
		}
		if !learner {
			return 0, errNothingToChange
		}
		return raftpb.ConfChangeRemoveNode, nil
	}
	return 0, refuse("there is no such kind of change")
}

// majority refuses voters of whom too few answer to go on.
func (r *replica) majority(voters []ReplicaID, refuse func(string, ...any) error) error {
	alive := 0
	r.rn.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		to := ReplicaID(id)
		if !slices.Contains(voters, to) {
			return
		}
		known, up := r.c.heard(to.Node())
		if to == r.self || p.RecentActive && p.State == tracker.StateReplicate && (up || !known) {
			alive++
		}
	})
	if alive <= len(voters)/2 {
		return refuse("of the %d voters that there would be only %d answer and can be fed, too few to go on", len(voters), alive)
	}
	return nil
}

// otherLeader is who leads in this replica's stead, as a hint.
func (r *replica) otherLeader() NodeID {
	if r.isLead {
		return 0 // not yet
	}
	return r.leader.Node()
}

// changeAppended looks whether an entry that was appended is the change.
func (r *replica) changeAppended(e *raftpb.Entry) {
	if changeID(e) == r.change.id {
		r.change.appended = true
	}
}

// changeProposed finds out that raft did not take the change: its work after the
// proposal had no such entry.
func (r *replica) changeProposed() {
	if r.change != nil && !r.change.appended {
		r.changed(&ErrChange{Partition: r.id, Change: r.change.change, Busy: true, Why: "an earlier change is not through yet"})
	}
}

// changeApplied answers when the entry that was applied is the change.
func (r *replica) changeApplied(e *raftpb.Entry) {
	if r.change != nil && changeID(e) == r.change.id {
		r.changed(nil)
	}
}

// changed answers who waits for a change, after the commit of what it did.
func (r *replica) changed(err error) {
	if p := r.change; p != nil {
		r.change = nil
		r.c.replies = append(r.c.replies, reply{p.reply, err})
	}
}

// changeID is the id of a change in the log; 0: it has none.
func changeID(e *raftpb.Entry) uint64 {
	if e.GetType() != raftpb.EntryConfChangeV2 {
		return 0
	}
	cc, err := decodeChange(e)
	if err != nil {
		return 0 // applying it says so
	}
	if ctx := cc.AsV2().GetContext(); len(ctx) == changeIDLen {
		return binary.LittleEndian.Uint64(ctx)
	}
	return 0
}

// pendingTransfer is a leadership on its way to another replica.
type pendingTransfer struct {
	to    ReplicaID
	since uint64 // the tick at which it began
	reply func(error)
}

// transferTicks is how long the other may take: nothing is stored meanwhile. Raft would
// wait for as long as an election may take.
const transferTicks = 15

// transferTo hands a partition's leadership over. It is answered in any case:
// when the other leads, or when this one goes on.
func (c *core) transferTo(id PartitionID, to ReplicaID, reply func(error)) {
	r, err := c.replica(id)
	if err == nil {
		err = c.guard(r, func() error { return r.proposeTransfer(to, reply) })
	}
	switch {
	case errors.Is(err, errNothingToChange):
		reply(nil)
	case err != nil:
		reply(err)
	}
}

func (r *replica) proposeTransfer(to ReplicaID, reply func(error)) error {
	if !r.leading {
		return &ErrNotLeader{Partition: r.id, Leader: r.otherLeader()}
	}
	if to == r.self {
		return errNothingToChange
	}
	refuse := func(why string) error { return &ErrTransfer{Partition: r.id, To: to, Why: why} }
	if r.transfer != nil {
		return refuse(fmt.Sprintf("it is on its way to %v", r.transfer.to))
	}
	if r.change != nil {
		return refuse(fmt.Sprintf("a change is under way: %v", r.change.change))
	}
	if !slices.Contains(r.voters, to) {
		return refuse("that is none of its voters")
	}
	if known, up := r.c.heard(to.Node()); known && !up {
		return refuse("its node is down")
	}
	r.rouse()
	r.rn.TransferLeader(uint64(to))
	r.transfer = &pendingTransfer{to, r.c.ticks, reply}
	r.c.touch(r)
	return nil
}

// transferred looks whether someone else leads.
func (r *replica) transferred() {
	if r.transfer == nil || r.isLead || r.leader == 0 {
		return
	}
	var err error
	if r.leader != r.transfer.to {
		err = &ErrTransfer{Partition: r.id, To: r.transfer.to, Why: fmt.Sprintf("%v took over instead", r.leader)}
	}
	r.transferEnds(err)
}

// transferTicked looks whether the other had its time, or raft gave up waiting for it.
func (r *replica) transferTicked() {
	if r.transfer == nil || !r.isLead {
		return
	}
	if r.c.ticks-r.transfer.since >= transferTicks || r.rn.BasicStatus().LeadTransferee == raft.None {
		r.keepLead("it did not take over in time")
	}
}

// keepLead gives up a transfer: this replica goes on.
func (r *replica) keepLead(why string) {
	// To itself: so raft gives up waiting for another.
	if err := r.c.guard(r, func() error { r.rn.TransferLeader(uint64(r.self)); return nil }); err != nil {
		r.c.fail(r, err)
		return
	}
	r.transferEnds(&ErrTransfer{Partition: r.id, To: r.transfer.to, Why: why})
	r.c.touch(r)
}

func (r *replica) transferEnds(err error) {
	if t := r.transfer; t != nil {
		r.transfer = nil
		r.c.replies = append(r.c.replies, reply{t.reply, err})
	}
}

// reply is an answer to a call that waited in the core. Like an answer it is true
// after the commit.
type reply struct {
	fn  func(error)
	err error
}
