package partition

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// replica is a partition as this node has it: its raft node, its message log and
// its App. It belongs to the core.
//
// A turn takes what is queued, and does all that can be done without waiting:
//
//	events ─► App
//	queue  ─► propose ─► raft ─┬─► append ─► store batch ──(durable)──► raft
//	                           └─► apply ─┬─► message log ─► store batch
//	                                      ├─► App.Apply
//	                                      └─► answers, after the commit of the store batch
//	App.Drive ─► propose ─► raft …            in the same turn, so in the same batch
type replica struct {
	id    PartitionID
	self  ReplicaID
	c     *core
	shelf *shelf
	rn    *raft.RawNode
	rlog  *raftLog
	log   *messageLog
	app   App
	rows  appRows

	lanes    lanes // published, in the order of turns
	batches  fifo  // of those, the ones whose turn has come, not yet given to raft
	commands fifo  // the same for commands
	trims    fifo  // and for trims
	waiting  fifo  // given to raft, not yet applied
	events   []any
	atLead   []func(error) // who waits until it leads

	term    uint64
	leader  ReplicaID
	isLead  bool // raft says so
	leading bool // and everything of earlier terms is applied: App.Lead was told
	single  bool // it is the only one: there is nobody to hear from
	told    role // what OnRole heard last
	led     ledRow
	ledIn   uint64 // the newest term in which a leader was noted

	members    []ReplicaID // of the present configuration, each once
	voters     []ReplicaID // never changed in place, like the next two
	learners   []ReplicaID
	others     []Follower // as they were at the tick that othersAt tells
	othersAt   uint64
	votes      bool      // it is a voter
	asleep     bool      // nobody has anything to say: see failover.go
	idle       int       // ticks since there was something to say
	idleAt     uint64    // the log's end then
	campaignAt uint64    // the tick at which it tries to lead; 0: not
	attempts   int       // of that in a row
	inLine     bool      // it waits for its turn among the core's campaigners
	lost       ReplicaID // who led before; 0 when someone does
	change     *pendingChange
	transfer   *pendingTransfer

	full     bool // raft took no more when last asked
	driveDue bool
	wake     Millis // when the App wants a turn; 0: not before something happens
	timer    Millis // when the core will look at wake; 0: not
	dirty    bool
	unsaved  bool // the message log moved since its state was put into a batch

	checkpoint    Position
	atCheckpoint  Position // the one in the batch that is being built
	checkpointed  bool
	checkpointDue bool      // the node's bound asks for one, or a trim
	cut           reclaimed // as the store has it, or the batch that is being built
	shed          Index     // entries up to here are kept for nobody: one of them does not read
	since         int64     // bytes of log behind the checkpoint

	sending map[ReplicaID]Index // snapshots on their way, or that someone waits for
	taking  *takenSnapshot      // it came, and raft decides about it or has decided

	fault *ErrDamaged
	named bool // self is what the rows say
	gone  bool
}

// turn does what there is to do. A panic of raft or of the App ends the
// partition, not the node: the caller recovers it.
func (r *replica) turn(now Millis) error {
	r.takeEvents()
	r.propose()
	if err := r.ready(); err != nil {
		return err
	}
	r.changeProposed()
	if r.leading && (r.driveDue || (r.wake != 0 && r.wake <= now)) && !r.c.stopping {
		r.driveDue = false
		if r.unsaved {
			// What the App tells of leads readers to what was applied in this
			// turn. They may see it now: it is on the shelf until the commit.
			r.publish()
		}
		cmds, wake := r.app.Drive(now, foresight{r})
		r.wake = wake
		if r.log.broken != nil {
			return r.log.broken
		}
		for _, cmd := range cmds {
			if len(cmd) > maxCommandBytes {
				return fmt.Errorf("the app proposes a command of %d bytes; at most %d are taken", len(cmd), maxCommandBytes)
			}
			r.commands.push(&proposal{kind: Command, data: cmd, own: true})
		}
		if len(cmds) > 0 {
			r.propose()
			if err := r.ready(); err != nil {
				return err
			}
		}
	}
	if r.unsaved {
		if err := r.log.save(r.c.batch()); err != nil {
			return err
		}
		r.unsaved = false
	}
	if r.checkpointDue || r.since >= r.c.cfg.CheckpointBytes || r.rows.over.bytes >= r.c.cfg.RowBytes {
		r.checkpointDue = false
		return r.makeCheckpoint()
	}
	return nil
}

// takeEvents gives the App the events that are queued.
func (r *replica) takeEvents() {
	for len(r.events) > 0 {
		ev := r.events[0]
		r.events[0] = nil
		r.events = r.events[1:]
		r.c.taken = append(r.c.taken, r.shelf)
		r.app.Event(ev)
		r.driveDue = true
	}
	r.events = nil
}

// makeCheckpoint puts the App's state into the batch, with the position that it
// includes. It comes last before the commit: what the App writes between the
// two would be lost.
func (r *replica) makeCheckpoint() error {
	at := r.log.Position()
	if at == r.checkpoint && r.rows.over.bytes == 0 && r.shed < Index(r.rlog.first) {
		return nil
	}
	if err := r.app.Checkpoint(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	wb := r.c.batch()
	if err := r.rows.flush(wb); err != nil {
		return err
	}
	if err := wb.SetMeta(uint64(r.id), metaCheckpoint, appendCheckpoint(nil, at)); err != nil {
		return err
	}
	if err := r.reclaim(at); err != nil {
		return err
	}
	r.atCheckpoint, r.checkpointed = at, true
	return nil
}

// committed tells that the batch of the last turn is in the store.
func (r *replica) committed() {
	r.log.dup.committed()
	if r.checkpointed {
		r.checkpointed = false
		r.checkpoint = r.atCheckpoint
		r.c.since -= r.since
		r.since = 0
		r.rows.over.clear()
		r.rlog.first = max(r.rlog.first, uint64(r.cut.first))
	}
	r.publish()
}

// publish lets readers see what is applied.
func (r *replica) publish() {
	st := &r.log.state
	s := r.shelf
	s.mu.Lock()
	s.pos, s.buckets = r.log.Position(), st.buckets
	s.info = Info{
		Position: s.pos, Bytes: st.bytes - st.before, before: st.before, Oldest: st.oldest, Duplicates: st.duplicates,
		Replica: r.self, Leader: r.leader.Node(), Leading: r.leading, Term: r.term,
		Voters: r.voters, Learners: r.learners, Followers: r.followers(),
		FirstIndex: Index(r.rlog.first), LastIndex: Index(r.rlog.last), Checkpoint: r.checkpoint.Index,
	}
	s.mu.Unlock()
}

// queued tells whether something waits to be given to raft.
func (r *replica) queued() bool {
	return r.lanes.len() > 0 || r.batches.len() > 0 || r.commands.len() > 0 || r.trims.len() > 0
}

// propose gives the queues to raft: of each kind what fits one entry and the
// replica's share.
func (r *replica) propose() {
	if !r.queued() {
		return
	}
	if !r.isLead {
		r.refuse(&ErrNotLeader{Partition: r.id, Leader: r.leader.Node()})
		return
	}
	// What the App returned goes before any further message: it counts on that.
	for r.commands.own > 0 {
		if !r.proposeKind(Command, &r.commands) {
			return
		}
	}
	for work := r.batches.work; work < r.c.share && r.lanes.len() > 0; work = r.batches.work {
		r.batches.push(r.lanes.pop())
	}
	if r.proposeKind(Batches, &r.batches) && r.lanes.len() > 0 {
		r.c.touch(r)
	}
	r.proposeKind(Command, &r.commands)
	r.proposeKind(Trim, &r.trims)
}

// foresight is the Log that the App sees in its turn.
type foresight struct{ r *replica }

// Position implements Log.
func (f foresight) Position() Position { return f.r.log.Position() }

// Foreseen implements Log.
func (f foresight) Foreseen() Offset { return f.r.log.state.end + Offset(f.r.waiting.records) }

// Keys implements Log.
func (f foresight) Keys(from Offset, maxBytes int, fn func(o Offset, keyHash uint64, size int) bool) error {
	more, end := true, f.r.log.state.end
	if from < end {
		err := f.r.log.keys(from, &maxBytes, func(o Offset, keyHash uint64, size int) bool {
			more = fn(o, keyHash, size)
			return more
		})
		if err != nil || !more || maxBytes <= 0 {
			return err
		}
	}
	for i := 0; i < f.r.waiting.len() && more && maxBytes > 0; i++ {
		p := f.r.waiting.at(i)
		if p.kind != Batches {
			continue
		}
		if next := end + Offset(p.batch.Len()); next <= from {
			end = next
			continue
		}
		c := p.batch.Cursor()
		for x, ok := c.Next(); ok && more; x, ok = c.Next() {
			if end >= from {
				more = fn(end, x.KeyHash(), x.Size())
				maxBytes -= x.Size()
			}
			end++
		}
	}
	return nil
}

// proposeKind gives raft one entry of a kind. It is false if raft takes none.
func (r *replica) proposeKind(kind EntryKind, q *fifo) bool {
	n, size, work := 0, entryHeaderLen, 0
	for ; n < q.len(); n++ {
		p := q.at(n)
		if n > 0 && (size+itemHeaderLen+len(p.data) > r.c.cfg.EntryBytes || work+p.work() > r.c.share) {
			break
		}
		size += itemHeaderLen + len(p.data)
		work += p.work()
	}
	if n == 0 {
		return true
	}
	// Raft keeps a copy of its own, so the next entry is laid out in the same place.
	data := beginEntry(slices.Grow(r.c.payload[:0], size), kind)
	for i := range n {
		p := q.at(i)
		p.id, p.term = r.c.nextID(), r.term
		data = appendItem(data, p.id, p.data)
	}
	if r.c.payload = data; cap(data) > retainedPayload {
		r.c.payload = nil
	}
	if err := r.rn.Propose(data); err != nil {
		// One name, several causes: only with a transfer under way, or when this
		// replica is none any more, does it mean that it will not lead. Otherwise
		// the log's tail that waits for the disk is at its bound: the queue keeps
		// what it has, and has another turn when something of the tail was applied.
		if !r.votes || r.rn.BasicStatus().LeadTransferee != raft.None {
			r.refuse(&ErrNotLeader{Partition: r.id})
		} else {
			r.full = true
		}
		return false
	}
	q.at(0).given = r.c.clock
	for range n {
		r.waiting.push(q.pop())
	}
	if kind == Batches {
		r.driveDue = true // the App may foresee what comes of it
	}
	if q.len() > 0 {
		r.c.touch(r) // the rest has its turn in the next batch
	}
	return true
}

// refuse answers everything that was not given to raft yet.
func (r *replica) refuse(err error) {
	for r.lanes.len() > 0 {
		r.batches.push(r.lanes.pop())
	}
	for _, q := range []*fifo{&r.batches, &r.commands, &r.trims} {
		for q.len() > 0 {
			r.answer(answer{p: q.pop(), err: err})
		}
	}
}

func (r *replica) answer(a answer) {
	if a.p.stored == nil && a.p.result == nil {
		return
	}
	a.shelf = r.shelf
	r.c.answers = append(r.c.answers, a)
}

// ready takes raft's work until there is none.
func (r *replica) ready() error {
	for r.rn.HasReady() {
		rd := r.rn.Ready()
		r.role(&rd)
		if err := r.noteLeader(); err != nil {
			return err
		}
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				if err := r.append(m); err != nil {
					return err
				}
			case raft.LocalApplyThread:
				if err := r.apply(m); err != nil {
					return err
				}
			default:
				r.send(m)
			}
		}
		// Whoever waits for an entry of a term that has passed will not hear
		// of it: another leader's log may hold it, or not.
		for r.waiting.len() > 0 && (!r.isLead || r.waiting.at(0).term != r.term) {
			r.answer(answer{p: r.waiting.pop(), err: &ErrOutcomeUnknown{Partition: r.id, Why: "leadership was lost"}})
		}
	}
	return nil
}

// role takes note of who leads in which term.
func (r *replica) role(rd *raft.Ready) {
	term := r.term
	if rd.HardState != nil {
		term = rd.HardState.GetTerm()
	}
	lead := r.isLead
	if rd.SoftState != nil {
		r.leader = ReplicaID(rd.SoftState.Lead)
		lead = rd.SoftState.RaftState == raft.StateLeader
	}
	if r.leading && (!lead || term != r.term) {
		r.leading, r.wake = false, 0 // only a leader's App has turns
		r.app.Lead(false)
	}
	r.term, r.isLead = term, lead
	r.transferred()
	if r.change != nil && (!lead || r.change.term != term) {
		r.changed(&ErrOutcomeUnknown{Partition: r.id, Why: "leadership was lost"})
	}
}

// send gives a message to who takes it to its replica.
func (r *replica) send(m *raftpb.Message) {
	if m.GetType() == raftpb.MsgSnap {
		r.needs(m)
		return
	}
	if f, ok := frameOf(r.id, m); ok {
		r.c.out = append(r.c.out, f)
	}
}

// append puts entries and hard state into the batch. The responses go back to
// raft when the batch is on disk.
func (r *replica) append(m *raftpb.Message) error {
	if m.GetSnapshot() != nil && !raft.IsEmptySnap(m.GetSnapshot()) {
		return r.accept(m)
	}
	wb := r.c.batch()
	if len(m.GetEntries()) > 0 {
		entries := r.c.entries[:0]
		for _, e := range m.GetEntries() {
			entries = append(entries, fromRaft(e))
			if r.change != nil && e.GetType() == raftpb.EntryConfChangeV2 {
				r.changeAppended(e)
			}
		}
		if err := wb.Append(uint64(r.id), entries); err != nil {
			return err
		}
		clear(entries)
		r.c.entries = entries
		r.rlog.append(m.GetEntries())
		r.c.mustSync = true
	}
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		h := logstore.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
		if err := wb.SetHardState(uint64(r.id), h); err != nil {
			return err
		}
		// A commit index alone may be lost: it is found again. Not so that of a change
		// of replicas, which is synced as it is applied.
		if h.Term != r.rlog.hard.Term || h.Vote != r.rlog.hard.Vote {
			r.c.mustSync, r.c.vote = true, true
		}
		r.rlog.hard = h
	}
	if len(m.GetResponses()) > 0 {
		r.c.responses = append(r.c.responses, response{r, m.GetResponses()})
	}
	return nil
}

// apply runs committed entries that are on disk here.
func (r *replica) apply(m *raftpb.Message) error {
	for _, e := range m.GetEntries() {
		if err := r.applyEntry(e); err != nil {
			return damagedAt(r.id, Index(e.GetIndex()), err)
		}
	}
	if n := len(m.GetEntries()); n > 0 {
		r.rlog.applied(Index(m.GetEntries()[n-1].GetIndex()))
	}
	for _, resp := range m.GetResponses() {
		if err := r.rn.Step(resp); err != nil {
			return err
		}
	}
	if r.full {
		r.full = false
		r.c.touch(r)
	}
	return nil
}

func (r *replica) applyEntry(e *raftpb.Entry) error {
	index := Index(e.GetIndex())
	switch e.GetType() {
	case raftpb.EntryNormal:
		it, err := openEntry(e.GetData())
		if err != nil {
			return err
		}
		for {
			x, ok, err := it.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if err := r.applyItem(index, it.kind, x); err != nil {
				return err
			}
		}
	case raftpb.EntryConfChangeV2, raftpb.EntryConfChange:
		if err := r.applyConf(e); err != nil {
			return err
		}
		// That it is committed is not found again when who led is lost with its disk
		// and counts among the voters of before: it has to be on this one.
		r.c.mustSync = true
	}
	if err := r.log.flush(index, r.c.batch()); err != nil {
		return err
	}
	r.unsaved = true
	r.since += int64(len(e.GetData()))
	r.c.since += int64(len(e.GetData()))
	if r.isLead && !r.leading && e.GetTerm() == r.term {
		r.leading = true
		r.app.Lead(true)
		r.driveDue = true
		for _, fn := range r.atLead {
			fn(nil)
		}
		r.atLead = nil
	}
	return nil
}

func (r *replica) applyItem(index Index, kind EntryKind, x item) error {
	// Its proposal stays among the waiting until it is applied: if it cannot
	// be, its caller is told like the others.
	mine := r.isNext(x.id)
	var a answer
	switch kind {
	case Batches:
		b, rest, err := record.View(x.data)
		if err == nil && len(rest) > 0 {
			err = errors.New("bytes behind a batch")
		}
		if err != nil {
			return err
		}
		if a.out, err = r.log.apply(index, x.at, b); err != nil {
			return err
		}
	case Command:
		at := r.log.Position()
		at.Index = index
		var err error
		if a.result, err = r.app.Apply(at, x.data); err != nil {
			return fmt.Errorf("applying a command: %w", err)
		}
	case Trim:
		at := r.log.Position()
		at.Index = index
		var err error
		if a.result, err = r.trim(at, x.data); err != nil {
			return err
		}
	}
	r.driveDue = true
	if mine {
		a.p = r.waiting.pop()
		r.c.committed(a.p)
		r.answer(a)
	}
	return nil
}

// isNext tells whether an item is a proposal from here; then it is the first of
// the waiting. They are applied in the order of proposing, so one that is passed
// over has vanished.
func (r *replica) isNext(id uint64) bool {
	for i := range r.waiting.len() {
		if r.waiting.at(i).id != id {
			continue
		}
		for range i {
			r.answer(answer{p: r.waiting.pop(), err: &ErrOutcomeUnknown{Partition: r.id, Why: "the proposal vanished"}})
		}
		return true
	}
	return false
}

func (r *replica) applyConf(e *raftpb.Entry) error {
	cc, err := decodeChange(e)
	if err != nil {
		return err
	}
	r.rlog.conf = r.rn.ApplyConfChange(cc)
	r.reconfigured()
	b, err := proto.Marshal(r.rlog.conf)
	if err != nil {
		return err
	}
	if err := r.c.batch().SetMeta(uint64(r.id), metaConf, b); err != nil {
		return err
	}
	r.changeApplied(e)
	return nil
}

// stop ends the replica: it broke, was dropped, or the node ends. Whoever waits
// gets an answer.
func (r *replica) stop(queued, waiting error) {
	for r.waiting.len() > 0 {
		r.answer(answer{p: r.waiting.pop(), err: waiting})
	}
	r.refuse(queued)
	for _, fn := range r.atLead {
		fn(queued)
	}
	if t := r.taking; t != nil && !t.leaves {
		r.taking = nil
		t.im.Discard()
		r.c.replies = append(r.c.replies, reply{t.reply, queued})
	}
	r.changed(waiting)
	r.transferEnds(waiting)
	for _, ev := range r.events {
		unheard(ev, queued)
		r.c.taken = append(r.c.taken, r.shelf)
	}
	r.atLead, r.events = nil, nil
	r.wake, r.driveDue = 0, false
}
