package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition/logstore"
)

// raftLog is a partition's log as raft reads it: the store, and in memory what
// is appended and not yet applied, so that applying never reads the disk. It
// belongs to the loop.
type raftLog struct {
	id    PartitionID
	store *logstore.Store

	first    uint64 // first entry kept
	last     uint64 // last entry given to a store batch
	lastTerm uint64
	recent   []*raftpb.Entry // the newest ones, without a gap, up to last
	hard     logstore.HardState
	conf     *raftpb.ConfState
	done     uint64 // last entry applied
	sends    bool   // there is a way for snapshots
	sizes    logSizes
}

// openRaftLog reads where a log begins and ends.
func openRaftLog(id PartitionID, store *logstore.Store, conf *raftpb.ConfState) (*raftLog, error) {
	l := &raftLog{id: id, store: store, conf: conf}
	var err error
	if l.first, err = store.FirstIndex(uint64(id)); err != nil {
		return nil, err
	}
	if l.last, err = store.LastIndex(uint64(id)); err != nil {
		return nil, err
	}
	if l.lastTerm, err = store.Term(uint64(id), l.last); err != nil {
		return nil, err
	}
	if l.hard, err = store.HardState(uint64(id)); err != nil {
		return nil, err
	}
	return l, nil
}

// append takes note of entries that go into a store batch.
func (l *raftLog) append(entries []*raftpb.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].GetIndex()
	keep := 0
	for keep < len(l.recent) && l.recent[keep].GetIndex() < first {
		keep++
	}
	clear(l.recent[keep:])
	l.recent = append(l.recent[:keep], entries...)
	e := entries[len(entries)-1]
	l.last, l.lastTerm = e.GetIndex(), e.GetTerm()
	for _, e := range entries {
		l.sizes.add(e.GetIndex(), len(e.GetData()))
	}
}

// applied lets go of entries that were applied.
func (l *raftLog) applied(index Index) {
	l.done = uint64(index)
	n := 0
	for n < len(l.recent) && l.recent[n].GetIndex() <= uint64(index) {
		n++
	}
	if n == 0 {
		return
	}
	kept := copy(l.recent, l.recent[n:])
	clear(l.recent[kept:])
	l.recent = l.recent[:kept]
}

// InitialState implements raft.Storage.
func (l *raftLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	h := l.hard
	if h == (logstore.HardState{}) {
		return nil, l.conf, nil
	}
	return &raftpb.HardState{Term: &h.Term, Vote: &h.Vote, Commit: &h.Commit}, l.conf, nil
}

// Entries implements raft.Storage.
func (l *raftLog) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	if lo < l.first {
		return nil, raft.ErrCompacted
	}
	if hi > l.last+1 {
		return nil, raft.ErrUnavailable
	}
	if n := len(l.recent); n > 0 && lo >= l.recent[0].GetIndex() {
		at := lo - l.recent[0].GetIndex()
		out := l.recent[at : at+(hi-lo)]
		size := uint64(0)
		for i, e := range out {
			if size += uint64(len(e.GetData())) + entryOverhead; size > maxSize && i > 0 {
				out = out[:i]
				break
			}
		}
		return slices.Clone(out), nil // recent moves when entries are applied, and raft keeps these
	}
	if n := len(l.recent); n > 0 && hi > l.recent[0].GetIndex() {
		hi = l.recent[0].GetIndex() // raft asks again for the rest
	}
	read, err := l.store.Entries(uint64(l.id), lo, hi, int(min(maxSize, 64<<20)))
	if err != nil {
		var gone *logstore.ErrCompacted
		if errors.As(err, &gone) {
			return nil, raft.ErrCompacted
		}
		return nil, err
	}
	out := make([]*raftpb.Entry, len(read))
	for i, e := range read {
		out[i] = toRaft(e)
	}
	return out, nil
}

// entryOverhead is about what raft counts for an entry beside its data.
const entryOverhead = 24

// Term implements raft.Storage.
func (l *raftLog) Term(i uint64) (uint64, error) {
	switch {
	case i == l.last:
		return l.lastTerm, nil
	case i > l.last:
		return 0, raft.ErrUnavailable
	case i+1 < l.first:
		return 0, raft.ErrCompacted
	}
	if n := len(l.recent); n > 0 && i >= l.recent[0].GetIndex() {
		return l.recent[i-l.recent[0].GetIndex()].GetTerm(), nil
	}
	return l.store.Term(uint64(l.id), i)
}

// LastIndex implements raft.Storage.
func (l *raftLog) LastIndex() (uint64, error) { return l.last, nil }

// FirstIndex implements raft.Storage.
func (l *raftLog) FirstIndex() (uint64, error) { return l.first, nil }

// Snapshot implements raft.Storage: it says what a snapshot would hold at least.
// What is sent is exported when it is its turn, and says for itself how far it goes.
func (l *raftLog) Snapshot() (*raftpb.Snapshot, error) {
	if !l.sends {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	index := l.done
	term, err := l.Term(index)
	if err != nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	conf := proto.CloneOf(l.conf)
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &term, ConfState: conf}}, nil
}

func toRaft(e logstore.Entry) *raftpb.Entry {
	return &raftpb.Entry{Term: &e.Term, Index: &e.Index, Type: raftpb.EntryType(e.Type).Enum(), Data: e.Data}
}

func fromRaft(e *raftpb.Entry) logstore.Entry {
	return logstore.Entry{Term: e.GetTerm(), Index: e.GetIndex(), Type: byte(e.GetType()), Data: e.GetData()}
}

// soleVoter tells whether a replica is the only one that a log has.
func soleVoter(c *raftpb.ConfState, r ReplicaID) bool {
	return len(c.GetVoters()) == 1 && c.GetVoters()[0] == uint64(r) &&
		len(c.GetVotersOutgoing()) == 0 && len(c.GetLearners()) == 0 && len(c.GetLearnersNext()) == 0
}

// storeError gives an error of the store this package's type.
func storeError(id PartitionID, err error) error {
	var d *logstore.ErrDamaged
	if !errors.As(err, &d) {
		return err
	}
	out := &ErrDamaged{Partition: id, Why: d.Brief()}
	for _, r := range d.Ranges {
		if r.Partition == uint64(id) {
			out.From, out.To = Index(r.Low), Index(r.High)
			break
		}
	}
	return out
}

// maxUncommittedBytes bounds a log's tail that waits for the disk.
const maxUncommittedBytes = 32 << 20

func (c *core) raftConfig(r *replica, applied Index) *raft.Config {
	return &raft.Config{
		ID:            uint64(r.self),
		ElectionTick:  electionTicks,
		HeartbeatTick: heartbeatTicks,
		Storage:       r.rlog,
		Applied:       uint64(applied),

		AsyncStorageWrites:        true,
		MaxSizePerMsg:             1 << 20,
		MaxCommittedSizePerReady:  16 << 20,
		MaxUncommittedEntriesSize: c.cfg.uncommittedBytes,
		MaxInflightMsgs:           256,
		MaxInflightBytes:          16 << 20,

		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    raftLogger{c.cfg.Logger.With("partition", r.id.String())},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	}
}

// raftPanic is what a raft node panics with instead of ending the process: it
// lost trust in its log. The host stops that partition alone.
type raftPanic struct{ why string }

// raftLogger writes raft's chatter where operators can turn it on.
type raftLogger struct{ log *slog.Logger }

func (l raftLogger) say(level slog.Level, v []any) {
	l.log.Log(context.Background(), level, fmt.Sprint(v...))
}
func (l raftLogger) sayf(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, v...))
	}
}

func (l raftLogger) Debug(v ...any)                   { l.say(slog.LevelDebug, v) }
func (l raftLogger) Debugf(format string, v ...any)   { l.sayf(slog.LevelDebug, format, v) }
func (l raftLogger) Info(v ...any)                    { l.say(slog.LevelDebug, v) }
func (l raftLogger) Infof(format string, v ...any)    { l.sayf(slog.LevelDebug, format, v) }
func (l raftLogger) Warning(v ...any)                 { l.say(slog.LevelWarn, v) }
func (l raftLogger) Warningf(format string, v ...any) { l.sayf(slog.LevelWarn, format, v) }
func (l raftLogger) Error(v ...any)                   { l.say(slog.LevelError, v) }
func (l raftLogger) Errorf(format string, v ...any)   { l.sayf(slog.LevelError, format, v) }
func (l raftLogger) Fatal(v ...any)                   { panic(&raftPanic{fmt.Sprint(v...)}) }
func (l raftLogger) Fatalf(format string, v ...any)   { panic(&raftPanic{fmt.Sprintf(format, v...)}) }
func (l raftLogger) Panic(v ...any)                   { panic(&raftPanic{fmt.Sprint(v...)}) }
func (l raftLogger) Panicf(format string, v ...any)   { panic(&raftPanic{fmt.Sprintf(format, v...)}) }
