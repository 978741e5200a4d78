package partition

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition/logstore"
)

// A replica that needs entries which the leader's log no longer has gets the
// partition as a whole: docs/format/snapshot.md. Raft says who needs one and
// decides whether it is taken; the data goes apart, and is there before raft hears
// of it.
//
//	leader    raft ─► needed ─► export of the store ─► stream ─────────┐
//	            ▲                                                      ▼
//	            └── sent, or failed ◄──────────────────────── staged beside the store
//	follower                                                           │ MsgSnap
//	            old replica ◄── out of turns ◄── raft takes it ◄───────┘
//	                 └► rows, log and hard state switched at once ─► new replica ─► MsgAppResp
//
// A switched replica is made anew from its rows, as after a restart: its raft node,
// message log and App. So what is in memory agrees with what is on disk.

// neededSnapshot is one that raft wants to be sent.
type neededSnapshot struct {
	id       PartitionID
	from, to ReplicaID
	term     uint64
}

// takenSnapshot is one that is on its way from staged to being the partition.
type takenSnapshot struct {
	im        *logstore.Import
	index     Index
	reply     func(error)
	accepted  bool // raft took it
	leaves    bool // its replica is out of turns
	hard      logstore.HardState
	responses []*raftpb.Message
	keep      map[byte][]byte
	dropped   []func(error) // who had it dropped meanwhile; the loop's, which answers them in any case
}

// drops answers who had the partition dropped while it was away.
func (t *takenSnapshot) drops(err error) {
	for _, fn := range t.dropped {
		fn(err)
	}
	t.dropped = nil
}

// ErrSnapshotRefused tells that a snapshot that came was not taken. The leader
// sends another one if it is still needed.
type ErrSnapshotRefused struct {
	Partition PartitionID
	Why       string
}

func (e *ErrSnapshotRefused) Error() string {
	return fmt.Sprintf("a snapshot of partition %v was not taken: %s", e.Partition, e.Why)
}

// needs takes note of a snapshot that raft wants to be sent.
func (r *replica) needs(m *raftpb.Message) {
	to := ReplicaID(m.GetTo())
	if r.sending == nil {
		r.sending = make(map[ReplicaID]Index)
	}
	r.sending[to] = Index(m.GetSnapshot().GetMetadata().GetIndex())
	r.c.needed = append(r.c.needed, neededSnapshot{r.id, r.self, to, m.GetTerm()})
}

// takeNeeded returns the snapshots that are to be sent. Each must be answered with
// snapshotSent.
func (c *core) takeNeeded() []neededSnapshot {
	n := c.needed
	c.needed = nil
	return n
}

// snapshotSent tells what became of one: without word, raft would wait for ever.
func (c *core) snapshotSent(n neededSnapshot, ok bool) {
	r, err := c.replica(n.id)
	if err != nil || r.self != n.from {
		return
	}
	delete(r.sending, n.to)
	r.rouse()
	err = c.guard(r, func() error {
		status := raft.SnapshotFinish
		if !ok {
			status = raft.SnapshotFailure
			r.rn.ReportUnreachable(uint64(n.to))
		}
		r.rn.ReportSnapshot(uint64(n.to), status)
		return nil
	})
	if err != nil {
		c.fail(r, err)
		return
	}
	c.touch(r)
}

// export begins the export of what a replica needs: what the store has now, up to
// what is applied. Any goroutine may.
func (n neededSnapshot) export(cfg *Config) (*logstore.Export, error) {
	e, err := cfg.Store.Export(uint64(n.id), cfg.snapshotLimit, cfg.snapshotIdle)
	if err != nil {
		return nil, err
	}
	if err := n.begin(e); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (n neededSnapshot) begin(e *logstore.Export) error {
	b, err := e.Meta(metaApplied)
	if err != nil {
		return err
	}
	state, err := decodeAppliedRow(b)
	if err != nil {
		return err
	}
	if b, err = e.Meta(metaConf); err != nil {
		return err
	}
	conf, err := decodeConf(b, false)
	if err != nil {
		return err
	}
	index := uint64(state.index)
	return e.Begin(index, []byte{metaReplica, metaCondemned}, func(term uint64) ([]byte, error) {
		from, to := uint64(n.from), uint64(n.to)
		return proto.MarshalOptions{Deterministic: true}.Marshal(&raftpb.Message{
			Type: raftpb.MsgSnap.Enum(), From: &from, To: &to, Term: &n.term,
			Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &term, ConfState: conf}},
		})
	})
}

// checkStaged looks whether a snapshot that came as a whole is one that a replica
// can begin with, and returns raft's message.
func checkStaged(id PartitionID, from NodeID, im *logstore.Import) (*raftpb.Message, error) {
	bad := func(why string, err error) error {
		if err != nil {
			why += ": " + err.Error()
		}
		return &ErrSnapshotRefused{Partition: id, Why: why}
	}
	h := im.Head()
	m := &raftpb.Message{}
	if err := proto.Unmarshal(h.Data, m); err != nil {
		return nil, bad("its message does not read", err)
	}
	md := m.GetSnapshot().GetMetadata()
	switch {
	case m.GetType() != raftpb.MsgSnap || m.GetSnapshot() == nil || md.GetIndex() != h.Index || md.GetTerm() != h.Term || h.Index == 0:
		return nil, bad("its message is not of it", nil)
	case ReplicaID(m.GetFrom()).Node() != from:
		return nil, bad(fmt.Sprintf("it is of replica %v, and node %v sent it", ReplicaID(m.GetFrom()), from), nil)
	}
	conf, err := decodeConf(im.Meta(metaConf), false)
	if err != nil {
		return nil, bad("", err)
	}
	if err := conf.Equivalent(md.GetConfState()); err != nil {
		return nil, bad("its message and its rows tell of different replicas", nil)
	}
	state, err := decodeAppliedRow(im.Meta(metaApplied))
	if err != nil {
		return nil, bad("", err)
	}
	at, err := decodeCheckpoint(im.Meta(metaCheckpoint))
	if err != nil {
		return nil, bad("", err)
	}
	if uint64(state.index) != h.Index || at.Index > state.index {
		return nil, bad(fmt.Sprintf("entry %d is applied, and %d in the checkpoint, of a log that ends at %d", state.index, at.Index, h.Index), nil)
	}
	return m, nil
}

// take gives raft a snapshot that is staged. reply hears when the replica is that
// of the snapshot, on disk, or why it is not. The Import is the core's from now on.
func (c *core) take(id PartitionID, m *raftpb.Message, im *logstore.Import, reply func(error)) {
	refuse := func(err error) {
		im.Discard()
		reply(err)
	}
	r, err := c.replica(id)
	switch {
	case err != nil:
		refuse(err)
		return
	case r.self != ReplicaID(m.GetTo()):
		refuse(&ErrOtherReplica{Partition: id, Have: r.self, Want: ReplicaID(m.GetTo())})
		return
	case r.taking != nil:
		refuse(&ErrSnapshotRefused{Partition: id, Why: "another one is being taken"})
		return
	}
	if r.leader != 0 && r.term > m.GetTerm() {
		// It took its time, and there is another leader since. What it holds was
		// committed, so that leader has it, too, and hears that it is here.
		from, term := uint64(r.leader), r.term
		m.From, m.Term = &from, &term
	}
	r.rouse()
	r.taking = &takenSnapshot{im: im, index: Index(m.GetSnapshot().GetMetadata().GetIndex()), reply: reply}
	c.step(r, m)
}

// takes ends a turn in which raft was given a snapshot.
func (r *replica) takes() {
	t := r.taking
	if t == nil || t.accepted {
		return
	}
	// Its log reaches that far already, or it comes from the past.
	r.taking = nil
	t.im.Discard()
	var err error
	if uint64(t.index) > r.rlog.hard.Commit {
		err = &ErrSnapshotRefused{Partition: r.id, Why: fmt.Sprintf("its entry %d is not ahead, or who sent it leads no more", t.index)}
	}
	r.c.replies = append(r.c.replies, reply{t.reply, err})
}

// accept takes note that raft took the snapshot. Nothing of it is in the store yet;
// the responses wait until it is.
func (r *replica) accept(m *raftpb.Message) error {
	t := r.taking
	if t == nil || uint64(t.index) != m.GetSnapshot().GetMetadata().GetIndex() || len(m.GetEntries()) > 0 {
		return errors.New("raft took a snapshot that is not here")
	}
	t.accepted = true
	t.hard = logstore.HardState{Term: r.rlog.hard.Term, Vote: r.rlog.hard.Vote, Commit: uint64(t.index)}
	if m.Term != nil || m.Vote != nil {
		t.hard.Term, t.hard.Vote = m.GetTerm(), m.GetVote()
	}
	t.responses = m.GetResponses()
	t.keep = map[byte][]byte{metaReplica: nil}
	if r.self.Incarnation() != 0 {
		t.keep[metaReplica] = appendReplicaRow(nil, r.self)
	}
	return nil
}

// leave takes a replica whose snapshot raft took out of turns. What it wrote is
// committed. Callers and readers find nobody until the new one is there.
func (c *core) leave(r *replica) {
	r.gone, r.taking.leaves = true, true
	away := &ErrNotLeader{Partition: r.id, Leader: r.leader.Node()}
	if r.leading {
		r.leading = false
		if err := c.guard(r, func() error { r.app.Lead(false); return nil }); err != nil {
			c.cfg.Logger.Warn("the app of a partition that takes a snapshot complained", "partition", r.id.String(), "err", err)
		}
	}
	r.stop(away, &ErrOutcomeUnknown{Partition: r.id, Why: "leadership was lost"})
	r.shelf.mu.Lock()
	r.shelf.fault = away
	r.shelf.mu.Unlock()
	c.since -= r.since
	r.rows.over.leave()
	delete(c.replicas, r.id)
	c.order = slices.DeleteFunc(c.order, func(x *replica) bool { return x == r })
	c.away[r.id] = r
	c.switches = append(c.switches, r)
}

// takeSwitches returns the replicas that are to be switched. Each must be given to
// switched.
func (c *core) takeSwitches() []*replica {
	s := c.switches
	c.switches = nil
	return s
}

// change puts the snapshot in the place of the partition. Any goroutine may.
func (t *takenSnapshot) change() error { return t.im.Switch(t.hard, t.keep) }

// switched makes the replica anew from what is in the store: the snapshot, or what
// was there before if err says that it could not be taken.
func (c *core) switched(r *replica, err error) error {
	t := r.taking
	t.im.Discard()
	delete(c.away, r.id)
	oerr := c.store.Err()
	if oerr == nil {
		sh := r.shelf
		c.tail.drop(sh)
		sh.mu.Lock()
		sh.info, sh.pos, sh.buckets, sh.fault = Info{}, Position{}, nil, nil
		sh.mu.Unlock()
		oerr = c.openOn(r.id, sh)
	}
	if oerr != nil {
		// The store has stopped, and with it all that the node has.
		t.reply(oerr)
		t.drops(oerr)
		return oerr
	}
	now := c.replicas[r.id]
	now.told = r.told
	if err != nil {
		c.cfg.Logger.Warn("a snapshot could not be taken", "partition", r.id.String(), "err", err)
	} else if now.fault == nil {
		for _, m := range t.responses {
			if ReplicaID(m.GetTo()) != now.self {
				now.send(m)
			}
		}
		if !now.log.dup.covered {
			c.unread = append(c.unread, now.id)
		}
	}
	if len(t.dropped) > 0 {
		if w, derr := c.drop(r.id); w != nil {
			w.then = t.drops
			c.writes = append(c.writes, w)
		} else {
			t.drops(derr)
		}
	}
	t.reply(err)
	return nil
}

// forsake answers those who wait for a switch whose end the loop will not see.
func (c *core) forsake(err error) {
	for _, r := range c.away {
		r.taking.drops(err)
	}
}
