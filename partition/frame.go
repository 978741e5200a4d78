package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/format"
)

// Frame is a message from one replica to another of the same partition. It may
// be lost, come twice, late or in another order. A frame is never changed, and
// frames that were parsed share the bytes that they came in.
//
// docs/format/frame.md draws how frames lie on the wire.
type Frame struct {
	Partition PartitionID
	From, To  ReplicaID

	kind frameKind
	m    *raftpb.Message // what it says; of a kind that raft does not have, Term and Index
}

// frameKind is what a frame says.
type frameKind byte

const (
	frameAppend frameKind = iota + 1
	frameAppended
	frameHeartbeat
	frameHeard
	framePreVote
	framePreVoted
	frameVote
	frameVoted
	frameSnapshot
	frameTakeOver // the leader hands over

	// Ours.
	frameSleep  // the leader of term has nothing to say any more: the log ends at index, and all of it is committed
	frameResign // the leader of term leads no more, and will not say so in raft's words
	frameStuck  // of a node, not of a partition: its disk hangs, and so does everything that it leads
	frameUnfit  // of a node: it should lead nothing that another can lead, since its disk is full

	frameKinds
)

// raftKinds are raft's names of the kinds that it has.
var raftKinds = [frameKinds]raftpb.MessageType{
	frameAppend: raftpb.MsgApp, frameAppended: raftpb.MsgAppResp,
	frameHeartbeat: raftpb.MsgHeartbeat, frameHeard: raftpb.MsgHeartbeatResp,
	framePreVote: raftpb.MsgPreVote, framePreVoted: raftpb.MsgPreVoteResp,
	frameVote: raftpb.MsgVote, frameVoted: raftpb.MsgVoteResp,
	frameSnapshot: raftpb.MsgSnap, frameTakeOver: raftpb.MsgTimeoutNow,
}

var frameNames = [frameKinds]string{
	frameAppend: "append", frameAppended: "appended", frameHeartbeat: "heartbeat", frameHeard: "heard",
	framePreVote: "pre-vote", framePreVoted: "pre-voted", frameVote: "vote", frameVoted: "voted",
	frameSnapshot: "snapshot", frameTakeOver: "take over",
	frameSleep: "sleep", frameResign: "resign", frameStuck: "stuck", frameUnfit: "unfit",
}

// String prints what a frame is, without what it carries.
func (f Frame) String() string {
	name := "nothing"
	if f.kind < frameKinds {
		name = frameNames[f.kind]
	}
	return fmt.Sprintf("%v %v → %v: %s", f.Partition, f.From, f.To, name)
}

// urgent tells whether a frame goes before others that are on their way to the same
// node. It is small, and without it there may soon be no leader. Raft takes messages in
// any order; two of ours count on what was said before them: who is told to sleep has to
// have everything, and who is told that its leader has gone must not hear of that one
// again.
func (f Frame) urgent() bool {
	switch f.kind {
	case frameAppend, frameSnapshot, frameSleep, frameResign:
		return false
	}
	return true
}

// Parted divides frames to a node into those that may go before whatever is on its way
// there, and should, and the others. Both keep their order.
func Parted(frames []Frame) (urgent, rest []Frame) {
	n := 0
	for _, f := range frames {
		if f.urgent() {
			n++
		}
	}
	switch n {
	case 0:
		return nil, frames
	case len(frames):
		return frames, nil
	}
	urgent, rest = make([]Frame, 0, n), make([]Frame, 0, len(frames)-n)
	for _, f := range frames {
		if f.urgent() {
			urgent = append(urgent, f)
		} else {
			rest = append(rest, f)
		}
	}
	return urgent, rest
}

// Stuck tells whether a node says with it that its disk hangs.
func (f Frame) Stuck() bool { return f.kind == frameStuck }

// ofRaft tells whether the kind is one of raft's.
func (k frameKind) ofRaft() bool { return k >= frameAppend && k <= frameTakeOver }

// frameOf wraps a message of raft. It is false for one that does not travel:
// proposals and reads are not forwarded.
func frameOf(id PartitionID, m *raftpb.Message) (Frame, bool) {
	f := Frame{Partition: id, From: ReplicaID(m.GetFrom()), To: ReplicaID(m.GetTo()), m: m}
	for k := frameAppend; k <= frameTakeOver; k++ {
		if raftKinds[k] == m.GetType() {
			f.kind = k
			return f, true
		}
	}
	return f, false
}

// ourFrame makes a frame of a kind that raft does not have.
func ourFrame(id PartitionID, kind frameKind, from, to ReplicaID, term, index uint64) Frame {
	w := &wire{nums: [...]uint64{wireTerm: term, wireIndex: index, wireLast: 0}}
	w.m.Term, w.m.Index = &w.nums[wireTerm], &w.nums[wireIndex]
	return Frame{Partition: id, From: from, To: to, kind: kind, m: &w.m}
}

// wire is a message and its numbers in one piece of memory.
type wire struct {
	m      raftpb.Message
	kind   raftpb.MessageType
	reject bool
	nums   [wireLast + 1]uint64
}

const (
	wireTo = iota
	wireFrom
	wireTerm
	wireIndex
	wireLogTerm
	wireCommit
	wireHint
	wireLast
)

// wireSize is the most that a frame takes on the wire.
func (f *Frame) wireSize() int {
	n := 2 + 11*binary.MaxVarintLen64 + len(f.m.GetContext())
	for _, e := range f.m.GetEntries() {
		n += 1 + 2*binary.MaxVarintLen64 + len(e.GetData())
	}
	if f.kind == frameSnapshot {
		n += binary.MaxVarintLen64 + proto.Size(f.m.GetSnapshot())
	}
	return n
}

// size is about what a frame takes in memory.
func (f *Frame) size() int {
	n := 256 + len(f.m.GetContext())
	for _, e := range f.m.GetEntries() {
		n += len(e.GetData()) + 128
	}
	return n
}

// What of a message is there, in the order in which it follows.
const (
	hasIndex byte = 1 << iota
	hasLogTerm
	hasCommit
	hasReject // and a hint
	hasContext
	hasEntries
	hasSnapshot
	hasKnown = hasSnapshot<<1 - 1
)

const (
	framesVersion byte = 1
	framesHeadLen      = 1 + 4
	maxContext         = 1 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendFrames adds frames to dst in the form that ParseFrames reads. All of
// dst, when it is new, is one such form: two calls make two.
func AppendFrames(dst []byte, frames []Frame) []byte {
	size := framesHeadLen
	for i := range frames {
		size += frames[i].wireSize()
	}
	dst = slices.Grow(dst, size)
	at := len(dst)
	dst = append(dst, framesVersion, 0, 0, 0, 0)
	for i := range frames {
		dst = frames[i].append(dst)
	}
	sum := crc32.Checksum(dst[at+framesHeadLen:], castagnoli)
	binary.LittleEndian.PutUint32(dst[at+1:], sum)
	return dst
}

func (f *Frame) append(dst []byte) []byte {
	m := f.m
	var has byte
	for _, x := range [...]struct {
		there bool
		flag  byte
	}{
		{m.GetIndex() != 0, hasIndex}, {m.GetLogTerm() != 0, hasLogTerm}, {m.GetCommit() != 0, hasCommit}, {m.GetReject(), hasReject},
		{len(m.GetContext()) > 0, hasContext}, {len(m.GetEntries()) > 0, hasEntries}, {m.GetSnapshot() != nil, hasSnapshot},
	} {
		if x.there {
			has |= x.flag
		}
	}
	dst = append(dst, byte(f.kind), has)
	dst = binary.AppendUvarint(dst, uint64(f.Partition))
	dst = appendReplica(dst, f.From)
	dst = appendReplica(dst, f.To)
	dst = binary.AppendUvarint(dst, m.GetTerm())
	if has&hasIndex != 0 {
		dst = binary.AppendUvarint(dst, m.GetIndex())
	}
	if has&hasLogTerm != 0 {
		dst = binary.AppendUvarint(dst, m.GetLogTerm())
	}
	if has&hasCommit != 0 {
		dst = binary.AppendUvarint(dst, m.GetCommit())
	}
	if has&hasReject != 0 {
		dst = binary.AppendUvarint(dst, m.GetRejectHint())
	}
	if has&hasContext != 0 {
		dst = appendSized(dst, m.GetContext())
	}
	if has&hasEntries != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(m.GetEntries())))
		for _, e := range m.GetEntries() {
			dst = append(dst, byte(e.GetType()))
			dst = binary.AppendUvarint(dst, e.GetTerm())
			dst = appendSized(dst, e.GetData())
		}
	}
	if has&hasSnapshot != 0 {
		// What a snapshot holds travels apart; this only says which it is.
		b, err := proto.Marshal(m.GetSnapshot())
		if err != nil {
			b = nil // cannot be: it is a few numbers
		}
		dst = appendSized(dst, b)
	}
	return dst
}

func appendReplica(dst []byte, r ReplicaID) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(r.Node())), uint64(r.Incarnation()))
}

func appendSized(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// ParseFrames takes apart what one AppendFrames made. The frames share b, which
// must not be changed any more. Of frames that do not read, none is returned.
func ParseFrames(b []byte) ([]Frame, error) {
	if len(b) > 0 {
		if err := format.Check("frames", uint64(b[0]), uint64(framesVersion)); err != nil {
			return nil, err
		}
	}
	if len(b) < framesHeadLen {
		return nil, fmt.Errorf("frames of %d bytes, shorter than their head", len(b))
	}
	if b[0] != framesVersion {
		return nil, fmt.Errorf("frames of version %d, which never was", b[0])
	}
	rest := b[framesHeadLen:]
	if want, got := binary.LittleEndian.Uint32(b[1:]), crc32.Checksum(rest, castagnoli); got != want {
		return nil, fmt.Errorf("frames with checksum %08x, computed %08x: they changed on their way", want, got)
	}
	var out []Frame
	for len(rest) > 0 {
		r := frameReader{b: rest}
		f := r.frame()
		if r.err != nil {
			return nil, fmt.Errorf("frame %d of %d bytes: %w", len(out), len(b), r.err)
		}
		out, rest = append(out, f), r.b
	}
	return out, nil
}

// frameReader takes a frame apart. The first error sticks.
type frameReader struct {
	b   []byte
	err error
}

var (
	errFrameShort = errors.New("it ends too early")
	errFrameLong  = errors.New("a number is out of range")
)

func (r *frameReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *frameReader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errFrameShort)
		return 0
	}
	x := r.b[0]
	r.b = r.b[1:]
	return x
}

func (r *frameReader) num() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errFrameShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *frameReader) sized(most int) []byte {
	n := r.num()
	if n > uint64(most) {
		r.fail(errFrameLong)
		return nil
	}
	if n > uint64(len(r.b)) {
		r.fail(errFrameShort)
		return nil
	}
	x := r.b[:n:n]
	r.b = r.b[n:]
	return x
}

func (r *frameReader) replica() ReplicaID {
	node, inc := r.num(), r.num()
	if r.err == nil && (node == 0 || node > uint64(MaxNode) || inc > uint64(MaxNode)) {
		r.fail(errFrameLong)
	}
	return NewReplicaID(NodeID(node), uint32(inc))
}

func (r *frameReader) frame() Frame {
	kind, has := frameKind(r.byte()), r.byte()
	if r.err == nil && (kind == 0 || kind >= frameKinds || has&^hasKnown != 0) {
		r.fail(fmt.Errorf("unknown kind %d with %02x", kind, has))
	}
	if r.err == nil && (has&hasEntries != 0 && kind != frameAppend || (has&hasSnapshot != 0) != (kind == frameSnapshot)) {
		r.fail(fmt.Errorf("kind %d with %02x, which it does not have", kind, has))
	}
	w := &wire{}
	f := Frame{Partition: PartitionID(r.num()), From: r.replica(), To: r.replica(), kind: kind, m: &w.m}
	num := func(at int, flag byte) *uint64 {
		if flag != 0 && has&flag == 0 {
			return nil
		}
		w.nums[at] = r.num()
		return &w.nums[at]
	}
	w.m.Term = num(wireTerm, 0)
	w.m.Index = num(wireIndex, hasIndex)
	w.m.LogTerm = num(wireLogTerm, hasLogTerm)
	w.m.Commit = num(wireCommit, hasCommit)
	if w.m.RejectHint = num(wireHint, hasReject); has&hasReject != 0 {
		w.reject = true
		w.m.Reject = &w.reject
	}
	if has&hasContext != 0 {
		w.m.Context = r.sized(maxContext)
	}
	if has&hasEntries != 0 {
		w.m.Entries = r.entries(w.m.GetIndex())
	}
	if has&hasSnapshot != 0 {
		s := &raftpb.Snapshot{}
		if err := proto.Unmarshal(r.sized(maxSnapshotHead), s); err != nil {
			r.fail(err)
		}
		w.m.Snapshot = s
	}
	if r.err != nil {
		return Frame{}
	}
	if kind.ofRaft() {
		w.kind, w.nums[wireFrom], w.nums[wireTo] = raftKinds[kind], uint64(f.From), uint64(f.To)
		w.m.Type, w.m.From, w.m.To = &w.kind, &w.nums[wireFrom], &w.nums[wireTo]
	}
	return f
}

// maxSnapshotHead bounds what says which snapshot it is.
const maxSnapshotHead = 64 << 10

// entry is an entry and its numbers in one piece of memory.
type entry struct {
	e           raftpb.Entry
	term, index uint64
	kind        raftpb.EntryType
}

// entries reads those behind an index. Each takes three bytes at least.
func (r *frameReader) entries(behind uint64) []*raftpb.Entry {
	n := r.num()
	if n == 0 || n > uint64(len(r.b))/3 || behind > behind+n {
		r.fail(errFrameLong)
		return nil
	}
	all, out := make([]entry, n), make([]*raftpb.Entry, n)
	for i := range all {
		x := &all[i]
		x.kind = raftpb.EntryType(r.byte())
		x.term, x.index = r.num(), behind+uint64(i)+1
		data := r.sized(maxEntryBytes)
		if x.kind > raftpb.EntryConfChangeV2 {
			r.fail(fmt.Errorf("unknown type %d of entry", x.kind))
		}
		if r.err != nil {
			return nil
		}
		x.e.Type, x.e.Term, x.e.Index = &x.kind, &x.term, &x.index
		if len(data) > 0 {
			x.e.Data = data
		}
		out[i] = &x.e
	}
	return out
}
