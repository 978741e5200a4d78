package partition

import (
	"errors"
	"fmt"
	"math"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// proposal is a batch or a command on its way into a log.
type proposal struct {
	id    uint64
	kind  EntryKind
	data  []byte
	batch record.Batch // of data, for Batches
	size  int64        // held in the queues until answered; 0: the App's own
	term  uint64       // in which it was given to raft

	// One of them is called, once. Both nil: nobody waits.
	stored func([]Stored, error)
	result func(any, error)
}

// answer is what the shell has to tell a proposal's caller.
type answer struct {
	shelf  *shelf
	p      *proposal
	out    outcome
	result any
	err    error
}

// group is one partition: its raft group, its message log and its App. It
// belongs to the core.
//
// A turn takes what is queued, and does all that can be done without waiting:
//
//	events ─► App
//	queue  ─► propose ─► raft ─┬─► append ─► store batch ──(durable)──► raft
//	                           └─► apply ─┬─► message log ─► store batch
//	                                      ├─► App.Apply
//	                                      └─► answers, after the commit of the store batch
//	App.Drive ─► propose ─► raft …            in the same turn, so in the same batch
type group struct {
	id    PartitionID
	c     *core
	shelf *shelf
	rn    *raft.RawNode
	rlog  *raftLog
	log   *messageLog
	app   App
	rows  appRows

	batches  fifo // published, not yet given to raft
	commands fifo // the same for commands
	waiting  fifo // given to raft, not yet applied
	events   []any
	atLead   []func(error) // who waits until it leads

	term    uint64
	leader  uint64
	isLead  bool // raft says so
	leading bool // and everything of earlier terms is applied: App.Lead was told
	single  bool // this node is the only voter: there is nobody to hear from

	driveDue bool
	wake     Millis // when the App wants a turn; 0: not before something happens
	timer    Millis // when the core will look at wake; 0: not
	dirty    bool
	unsaved  bool // the message log moved since its state was put into a batch

	checkpoint    Position
	atCheckpoint  Position // the one in the batch that is being built
	checkpointed  bool
	checkpointDue bool  // the node's bound asks for one
	since         int64 // bytes of log behind the checkpoint

	fault *ErrDamaged
	gone  bool
}

// turn does what there is to do. A panic of raft or of the App ends the
// partition, not the node: the caller recovers it.
func (g *group) turn(now Millis) error {
	g.takeEvents()
	g.propose()
	if err := g.ready(); err != nil {
		return err
	}
	if g.leading && (g.driveDue || (g.wake != 0 && g.wake <= now)) && !g.c.stopping {
		g.driveDue = false
		cmds, wake := g.app.Drive(now, g.log)
		g.wake = wake
		for _, cmd := range cmds {
			if len(cmd) > maxCommandBytes {
				return fmt.Errorf("the app proposes a command of %d bytes; at most %d are taken", len(cmd), maxCommandBytes)
			}
			g.commands.push(&proposal{kind: Command, data: cmd})
		}
		if len(cmds) > 0 {
			g.propose()
			if err := g.ready(); err != nil {
				return err
			}
		}
	}
	if g.unsaved {
		if err := g.log.save(g.c.batch()); err != nil {
			return err
		}
		g.unsaved = false
	}
	if g.checkpointDue || g.since >= g.c.cfg.CheckpointBytes || g.rows.over.bytes >= g.c.cfg.RowBytes {
		g.checkpointDue = false
		return g.makeCheckpoint()
	}
	return nil
}

// takeEvents gives the App the events that are queued.
func (g *group) takeEvents() {
	for len(g.events) > 0 {
		ev := g.events[0]
		g.events[0] = nil
		g.events = g.events[1:]
		g.c.taken = append(g.c.taken, g.shelf)
		g.app.Event(ev)
		g.driveDue = true
	}
	g.events = nil
}

// makeCheckpoint puts the App's state into the batch, with the position that it
// includes. It comes last before the commit: what the App writes between the
// two would be lost.
func (g *group) makeCheckpoint() error {
	at := g.log.Position()
	if at == g.checkpoint && g.rows.over.bytes == 0 {
		return nil
	}
	if err := g.app.Checkpoint(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	wb := g.c.batch()
	if err := g.rows.flush(wb); err != nil {
		return err
	}
	if err := wb.SetMeta(uint64(g.id), metaCheckpoint, appendCheckpoint(nil, at)); err != nil {
		return err
	}
	g.atCheckpoint, g.checkpointed = at, true
	return nil
}

// committed tells that the batch of the last turn is in the store.
func (g *group) committed() {
	g.log.dup.committed()
	if g.checkpointed {
		g.checkpointed = false
		g.checkpoint = g.atCheckpoint
		g.c.since -= g.since
		g.since = 0
		g.rows.over.clear()
	}
	g.publish()
}

// publish lets readers see what is applied.
func (g *group) publish() {
	st := &g.log.state
	s := g.shelf
	s.mu.Lock()
	s.pos = g.log.Position()
	s.info = Info{
		Position: s.pos, Bytes: st.bytes, Duplicates: st.duplicates,
		Leader: NodeID(g.leader), Term: g.term,
		FirstIndex: Index(g.rlog.first), LastIndex: Index(g.rlog.last), Checkpoint: g.checkpoint.Index,
	}
	s.mu.Unlock()
}

// propose gives the queues to raft: everything that fits one entry of each
// kind.
func (g *group) propose() {
	if g.batches.len() == 0 && g.commands.len() == 0 {
		return
	}
	if !g.isLead {
		g.refuse(&ErrNotLeader{Partition: g.id, Leader: NodeID(g.leader)})
		return
	}
	g.proposeKind(Batches, &g.batches)
	g.proposeKind(Command, &g.commands)
}

func (g *group) proposeKind(kind EntryKind, q *fifo) {
	n, size := 0, entryHeaderLen
	for ; n < q.len(); n++ {
		p := q.at(n)
		if n > 0 && size+itemHeaderLen+len(p.data) > g.c.cfg.EntryBytes {
			break
		}
		size += itemHeaderLen + len(p.data)
	}
	if n == 0 {
		return
	}
	data := beginEntry(make([]byte, 0, size), kind)
	for i := range n {
		p := q.at(i)
		p.id, p.term = g.c.nextID(), g.term
		data = appendItem(data, p.id, p.data)
	}
	if err := g.rn.Propose(data); err != nil {
		// One name, several causes: only with a transfer under way does it
		// mean that this node will not lead. Otherwise the log's tail that
		// waits for the disk is at its bound: the queue keeps what it has, and
		// the next durable batch brings the next turn.
		if g.rn.BasicStatus().LeadTransferee != raft.None {
			g.refuse(&ErrNotLeader{Partition: g.id})
		}
		return
	}
	for range n {
		g.waiting.push(q.pop())
	}
	if q.len() > 0 {
		g.c.touch(g) // the rest has its turn in the next batch
	}
}

// refuse answers everything that was not given to raft yet.
func (g *group) refuse(err error) {
	for _, q := range []*fifo{&g.batches, &g.commands} {
		for q.len() > 0 {
			g.answer(answer{p: q.pop(), err: err})
		}
	}
}

func (g *group) answer(a answer) {
	if a.p.stored == nil && a.p.result == nil {
		return
	}
	a.shelf = g.shelf
	g.c.answers = append(g.c.answers, a)
}

// ready takes raft's work until there is none.
func (g *group) ready() error {
	for g.rn.HasReady() {
		rd := g.rn.Ready()
		g.role(&rd)
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				if err := g.append(m); err != nil {
					return err
				}
			case raft.LocalApplyThread:
				if err := g.apply(m); err != nil {
					return err
				}
			default:
				g.c.out = append(g.c.out, message{g.id, m})
			}
		}
		// Whoever waits for an entry of a term that has passed will not hear
		// of it: another leader's log may hold it, or not.
		for g.waiting.len() > 0 && (!g.isLead || g.waiting.at(0).term != g.term) {
			g.answer(answer{p: g.waiting.pop(), err: &ErrOutcomeUnknown{Partition: g.id, Why: "leadership was lost"}})
		}
	}
	return nil
}

// role takes note of who leads in which term.
func (g *group) role(rd *raft.Ready) {
	term := g.term
	if rd.HardState != nil {
		term = rd.HardState.GetTerm()
	}
	lead := g.isLead
	if rd.SoftState != nil {
		g.leader = rd.SoftState.Lead
		lead = rd.SoftState.RaftState == raft.StateLeader
	}
	if g.leading && (!lead || term != g.term) {
		g.leading = false
		g.app.Lead(false)
	}
	g.term, g.isLead = term, lead
}

// append puts entries and hard state into the batch. The responses go back to
// raft when the batch is on disk.
func (g *group) append(m *raftpb.Message) error {
	wb := g.c.batch()
	if len(m.GetEntries()) > 0 {
		entries := g.c.entries[:0]
		for _, e := range m.GetEntries() {
			entries = append(entries, fromRaft(e))
		}
		if err := wb.Append(uint64(g.id), entries); err != nil {
			return err
		}
		clear(entries)
		g.c.entries = entries
		g.rlog.append(m.GetEntries())
		g.c.mustSync = true
	}
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		h := logstore.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
		if err := wb.SetHardState(uint64(g.id), h); err != nil {
			return err
		}
		// A commit index alone may be lost: it is found again.
		if h.Term != g.rlog.hard.Term || h.Vote != g.rlog.hard.Vote {
			g.c.mustSync, g.c.vote = true, true
		}
		g.rlog.hard = h
	}
	if m.GetSnapshot() != nil && !raft.IsEmptySnap(m.GetSnapshot()) {
		return errors.New("a snapshot arrived, and this version sends none")
	}
	if len(m.GetResponses()) > 0 {
		g.c.responses = append(g.c.responses, response{g, m.GetResponses()})
	}
	return nil
}

// apply runs committed entries that are on disk here.
func (g *group) apply(m *raftpb.Message) error {
	for _, e := range m.GetEntries() {
		if err := g.applyEntry(e); err != nil {
			var d *ErrDamaged
			if errors.As(err, &d) {
				return err
			}
			return &ErrDamaged{Partition: g.id, From: Index(e.GetIndex()), To: Index(e.GetIndex()), Why: err.Error()}
		}
	}
	if n := len(m.GetEntries()); n > 0 {
		g.rlog.applied(Index(m.GetEntries()[n-1].GetIndex()))
	}
	for _, r := range m.GetResponses() {
		if err := g.rn.Step(r); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) applyEntry(e *raftpb.Entry) error {
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
			if err := g.applyItem(index, it.kind, x); err != nil {
				return err
			}
		}
	case raftpb.EntryConfChangeV2, raftpb.EntryConfChange:
		if err := g.applyConf(e); err != nil {
			return err
		}
	}
	if err := g.log.flush(index, g.c.batch()); err != nil {
		return err
	}
	g.unsaved = true
	g.since += int64(len(e.GetData()))
	g.c.since += int64(len(e.GetData()))
	if g.isLead && !g.leading && e.GetTerm() == g.term {
		g.leading = true
		g.app.Lead(true)
		g.driveDue = true
		for _, fn := range g.atLead {
			fn(nil)
		}
		g.atLead = nil
	}
	return nil
}

func (g *group) applyItem(index Index, kind EntryKind, x item) error {
	// Its proposal stays among the waiting until it is applied: if it cannot
	// be, its caller is told like the others.
	mine := g.isNext(x.id)
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
		if a.out, err = g.log.apply(index, x.at, b); err != nil {
			return err
		}
	case Command:
		at := g.log.Position()
		at.Index = index
		var err error
		if a.result, err = g.app.Apply(at, x.data); err != nil {
			return fmt.Errorf("applying a command: %w", err)
		}
	}
	g.driveDue = true
	if mine {
		a.p = g.waiting.pop()
		g.answer(a)
	}
	return nil
}

// isNext tells whether an item is a proposal from here; then it is the first of
// the waiting. They are applied in the order of proposing, so one that is passed
// over has vanished.
func (g *group) isNext(id uint64) bool {
	for i := range g.waiting.len() {
		if g.waiting.at(i).id != id {
			continue
		}
		for range i {
			g.answer(answer{p: g.waiting.pop(), err: &ErrOutcomeUnknown{Partition: g.id, Why: "the proposal vanished"}})
		}
		return true
	}
	return false
}

func (g *group) applyConf(e *raftpb.Entry) error {
	var cc raftpb.ConfChangeI
	if e.GetType() == raftpb.EntryConfChange {
		v := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), v); err != nil {
			return err
		}
		cc = v
	} else {
		v := &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), v); err != nil {
			return err
		}
		cc = v
	}
	g.rlog.conf = g.rn.ApplyConfChange(cc)
	g.single = soleVoter(g.rlog.conf, g.c.cfg.Node)
	b, err := proto.Marshal(g.rlog.conf)
	if err != nil {
		return err
	}
	return g.c.batch().SetMeta(uint64(g.id), metaConf, b)
}

func soleVoter(c *raftpb.ConfState, n NodeID) bool {
	return len(c.GetVoters()) == 1 && c.GetVoters()[0] == uint64(n) &&
		len(c.GetVotersOutgoing()) == 0 && len(c.GetLearners()) == 0 && len(c.GetLearnersNext()) == 0
}

// stop ends the group: it broke, was dropped, or the node ends. Whoever waits
// gets an answer.
func (g *group) stop(queued, waiting error) {
	for g.waiting.len() > 0 {
		g.answer(answer{p: g.waiting.pop(), err: waiting})
	}
	g.refuse(queued)
	for _, fn := range g.atLead {
		fn(queued)
	}
	for range g.events {
		g.c.taken = append(g.c.taken, g.shelf)
	}
	g.atLead, g.events = nil, nil
	g.wake, g.driveDue = 0, false
}

// maxUncommittedBytes bounds a log's tail that waits for the disk.
const maxUncommittedBytes = 32 << 20

func (c *core) raftConfig(g *group, applied Index) *raft.Config {
	return &raft.Config{
		ID:            uint64(c.cfg.Node),
		ElectionTick:  50,
		HeartbeatTick: 5,
		Storage:       g.rlog,
		Applied:       uint64(applied),

		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  16 << 20,
		MaxUncommittedEntriesSize: maxUncommittedBytes,
		MaxInflightMsgs:           256,
		MaxInflightBytes:          16 << 20,

		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    raftLogger{c.cfg.Logger.With("partition", g.id.String())},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	}
}

// fifo is a queue of proposals.
type fifo struct {
	q    []*proposal
	head int
}

func (f *fifo) len() int           { return len(f.q) - f.head }
func (f *fifo) at(i int) *proposal { return f.q[f.head+i] }
func (f *fifo) push(p *proposal)   { f.q = append(f.q, p) }
func (f *fifo) pop() *proposal {
	p := f.q[f.head]
	f.q[f.head] = nil
	f.head++
	if f.head == len(f.q) {
		f.q, f.head = f.q[:0], 0
	} else if f.head >= 256 && f.head > len(f.q)/2 {
		n := copy(f.q, f.q[f.head:])
		clear(f.q[n:])
		f.q, f.head = f.q[:n], 0
	}
	return p
}

const never = Millis(math.MaxInt64)
