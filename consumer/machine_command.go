package consumer

import (
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// Commands, as they stand in a partition's log; docs/format/delivery.md draws
// them. All begin with version, kind, the proposer's clock and the group.
const commandVersion = 1

type command byte

const (
	cmdCreate   command = 1
	cmdPolicy   command = 2
	cmdPause    command = 3
	cmdDelete   command = 4
	cmdReset    command = 5
	cmdSessions command = 6 // older sessions of a member ended: charged
	cmdLeave    command = 7 // a session left: not charged
	cmdPlan     command = 8
	cmdSettle   command = 9
	cmdLapse    command = 10
	cmdReplay   command = 11
	cmdDiscard  command = 12
	cmdLeap     command = 13 // of the group's clock
	cmdForesee  command = 14 // a plan that names messages before they were applied
	cmdWake     command = 15 // bring back what went to disk
)

// In the first byte of a settlement.
const (
	settleAction  byte = 0x07
	settleDelay   byte = 0x08
	settleReason  byte = 0x10
	settleOrdinal byte = 0x20 // not the message's first hand-out
	settleEpoch   byte = 0x40 // of another epoch than the command names
	settleRun     byte = 0x80 // more follow like it, each one offset and one hand-out further
)

// maxSettlements is the most that one command settles, runs counted out.
const maxSettlements = 1 << 16

func begin(b []byte, kind command, now partition.Millis, g GroupID) []byte {
	b = append(b, commandVersion, byte(kind))
	b = binary.AppendUvarint(b, uint64(max(now, 0)))
	return binary.AppendUvarint(b, uint64(g))
}

type header struct {
	kind  command
	now   partition.Millis
	group GroupID
}

// encodeLeap moves the group's clock to a time, and all that is timed with it.
func encodeLeap(now partition.Millis, g GroupID, to partition.Millis) []byte {
	return binary.AppendUvarint(begin(nil, cmdLeap, now, g), uint64(max(to, 0)))
}

// wake names a key, or a message without one, that wants to come back from disk:
// when, and its first message.
type wake struct {
	at partition.Millis
	o  partition.Offset
}

// encodeWake brings back what is named, and of what has no order and no time the
// next few if loose is set.
func encodeWake(now partition.Millis, g GroupID, loose bool, ws []wake) []byte {
	b := appendBool(begin(nil, cmdWake, now, g), loose)
	b = binary.AppendUvarint(b, uint64(len(ws)))
	for _, w := range ws {
		b = binary.AppendUvarint(b, uint64(w.at))
		b = binary.AppendUvarint(b, uint64(w.o))
	}
	return b
}

// time reads a time that sums can be made with.
func (r *reader) time() partition.Millis {
	v := r.uvarint()
	if v > uint64(maxTime) {
		r.fail("impossible time")
		return 0
	}
	return partition.Millis(v)
}

func (r *reader) header() header {
	r.version("delivery command", commandVersion)
	return header{
		kind:  command(r.byte()),
		now:   r.time(),
		group: GroupID(r.uvarint()),
	}
}

// Flags of a policy. Policies without the last one are from before there was
// anything to hold.
const (
	policyOnce    byte = 1 // at most once
	policyHold    byte = 2
	policyHolds   byte = 4 // the limits of holding follow
	policyBreaker byte = 8 // the breaker follows
)

func appendPolicy(b []byte, p Policy) []byte {
	flags := policyHolds | policyBreaker
	if p.AtMostOnce {
		flags |= policyOnce
	}
	if p.Retention == Hold {
		flags |= policyHold
	}
	b = append(b, byte(p.Mode), byte(p.OnExhaustion), flags)
	for _, v := range []uint64{
		uint64(p.AckDeadline), uint64(p.MaxHold), uint64(p.Backoff), uint64(p.BackoffMax),
		uint64(p.MaxAttempts), uint64(p.MaxInFlightMember), uint64(p.MaxInFlightPartition),
		uint64(p.MaxDeferred), uint64(p.MaxDeferredKey), p.HoldBytes, uint64(p.HoldAge),
		uint64(p.BreakerPercent), uint64(p.BreakerKeys), uint64(p.BreakerWindow),
	} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func (r *reader) policy() Policy {
	p := Policy{Mode: Mode(r.byte()), OnExhaustion: Exhaustion(r.byte())}
	flags := r.byte()
	p.AtMostOnce = flags&policyOnce != 0
	p.AckDeadline, p.MaxHold = partition.Millis(r.uvarint()), partition.Millis(r.uvarint())
	p.Backoff, p.BackoffMax = partition.Millis(r.uvarint()), partition.Millis(r.uvarint())
	p.MaxAttempts, p.MaxInFlightMember, p.MaxInFlightPartition = r.uint32(), r.uint32(), r.uint32()
	p.MaxDeferred, p.MaxDeferredKey = r.uint32(), r.uint32()
	p.Retention, p.HoldBytes = Expire, DefaultHoldBytes
	if flags&policyHold != 0 {
		p.Retention = Hold
	}
	if flags&policyHolds != 0 {
		p.HoldBytes, p.HoldAge = r.uvarint(), r.time()
	}
	if flags&policyBreaker != 0 {
		p.BreakerPercent, p.BreakerKeys, p.BreakerWindow = r.uint32(), r.uint32(), r.time()
	}
	// Only what could not be acted on is refused: the bounds of Validate may
	// change, and old logs must still be read.
	if r.bad == "" && (flags&^(policyOnce|policyHold|policyHolds|policyBreaker) != 0 || p.Mode < ByKey || p.Mode > NoOrder || p.OnExhaustion < Skip || p.OnExhaustion > Park) {
		r.fail("impossible policy")
	}
	return p
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail("neither true nor false")
	}
	return v == 1
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func encodeCreate(now partition.Millis, s GroupSpec) []byte {
	b := begin(nil, cmdCreate, now, s.ID)
	b = appendString(b, s.Name)
	b = binary.AppendUvarint(b, uint64(s.Start))
	b = appendBool(b, s.Paused)
	return appendPolicy(b, s.Policy)
}

func encodePolicy(now partition.Millis, g GroupID, p Policy) []byte {
	return appendPolicy(begin(nil, cmdPolicy, now, g), p)
}

func encodePause(now partition.Millis, g GroupID, paused bool) []byte {
	return appendBool(begin(nil, cmdPause, now, g), paused)
}

func encodeDelete(now partition.Millis, g GroupID) []byte { return begin(nil, cmdDelete, now, g) }

func encodeReset(now partition.Millis, g GroupID, to partition.Offset) []byte {
	return binary.AppendUvarint(begin(nil, cmdReset, now, g), uint64(to))
}

// encodeSessions is cmdSessions or cmdLeave: sessions of a member below a
// number ended.
func encodeSessions(kind command, now partition.Millis, g GroupID, member string, below uint64) []byte {
	b := appendString(begin(nil, kind, now, g), member)
	return binary.AppendUvarint(b, below)
}

// encodeSettle encodes settlements of one group and partition; the tokens' tags
// have been checked.
func encodeSettle(now partition.Millis, g GroupID, ss []Settlement) []byte {
	b := begin(make([]byte, 0, 64), cmdSettle, now, g)
	var epoch uint64
	if len(ss) > 0 {
		epoch = ss[0].Token.Epoch
	}
	b = binary.AppendUvarint(b, epoch)
	items := 0
	for i := 0; i < len(ss); i += alike(ss[i:]) {
		items++
	}
	b = binary.AppendUvarint(b, uint64(items))
	var o, n uint64
	for i := 0; i < len(ss); {
		s := &ss[i]
		run := alike(ss[i:])
		head := byte(s.Action) & settleAction
		if s.Delay != 0 {
			head |= settleDelay
		}
		if s.Reason != "" {
			head |= settleReason
		}
		if s.Token.Ordinal != 1 {
			head |= settleOrdinal
		}
		if s.Token.Epoch != epoch {
			head |= settleEpoch
		}
		if run > 1 {
			head |= settleRun
		}
		b = append(b, head)
		// Differences wrap around, so that any two numbers have one.
		b = binary.AppendVarint(b, int64(uint64(s.Token.Offset)-o))
		b = binary.AppendVarint(b, int64(s.Token.HandOut-n))
		o, n = uint64(s.Token.Offset)+uint64(run-1), s.Token.HandOut+uint64(run-1)
		if head&settleOrdinal != 0 {
			b = binary.AppendUvarint(b, uint64(s.Token.Ordinal))
		}
		if head&settleEpoch != 0 {
			b = binary.AppendUvarint(b, s.Token.Epoch)
		}
		if head&settleDelay != 0 {
			b = binary.AppendUvarint(b, uint64(s.Delay))
		}
		if head&settleReason != 0 {
			b = appendString(b, s.Reason)
		}
		if run > 1 {
			b = binary.AppendUvarint(b, uint64(run-1))
		}
		i += run
	}
	return b
}

// alike counts how many settlements from the first on can be told as one.
func alike(ss []Settlement) int {
	a := &ss[0]
	n := 1
	for ; n < len(ss); n++ {
		x := &ss[n]
		if x.Token.Offset != a.Token.Offset+partition.Offset(n) || x.Token.HandOut != a.Token.HandOut+uint64(n) ||
			x.Action != a.Action || x.Token.Ordinal != a.Token.Ordinal || x.Token.Epoch != a.Token.Epoch ||
			x.Delay != a.Delay || x.Reason != a.Reason {
			break
		}
	}
	return n
}

// settlements reads what encodeSettle wrote, one at a time.
type settlements struct {
	*reader
	epoch   uint64
	n       int // items that follow
	total   int // so many were read, runs counted out
	offset  uint64
	handOut uint64

	again  int // so many more of the last one's run follow
	token  Token
	action Action
	delay  partition.Millis
	reason []byte
}

func (r *reader) settlements() settlements {
	return settlements{reader: r, epoch: r.uvarint(), n: r.count(3)}
}

// next reads one, and tells whether there was one; its reason aliases the
// command.
func (s *settlements) next() (t Token, a Action, delay partition.Millis, reason []byte, ok bool) {
	if s.again > 0 {
		s.again--
		s.offset++
		s.handOut++
		s.token.Offset, s.token.HandOut = partition.Offset(s.offset), s.handOut
		return s.token, s.action, s.delay, s.reason, true
	}
	if s.n == 0 {
		return t, a, delay, nil, false
	}
	s.n--
	head := s.byte()
	s.offset += uint64(s.varint())
	s.handOut += uint64(s.varint())
	t = Token{Epoch: s.epoch, Offset: partition.Offset(s.offset), HandOut: s.handOut, Ordinal: 1}
	if head&settleOrdinal != 0 {
		t.Ordinal = s.uint32()
	}
	if head&settleEpoch != 0 {
		t.Epoch = s.uvarint()
	}
	if head&settleDelay != 0 {
		v := s.uvarint()
		if v > uint64(MaxDelay) {
			s.fail("delay too long")
		}
		delay = partition.Millis(v)
	}
	if head&settleReason != 0 {
		reason = s.bytes()
	}
	s.total++
	if head&settleRun != 0 {
		n := s.uvarint()
		if n == 0 || n > maxSettlements {
			s.fail("impossible run")
			n = 0
		}
		s.again = int(n)
		s.total += int(n)
	}
	a = Action(head & settleAction)
	if a < Ack || a > bury || len(reason) > MaxReason {
		s.fail("impossible settlement")
	}
	if s.total > maxSettlements {
		s.fail("too many settlements")
	}
	s.token, s.action, s.delay, s.reason = t, a, delay, reason
	return t, a, delay, reason, s.bad == ""
}

// encodeOffsets is cmdReplay or cmdDiscard.
func encodeOffsets(kind command, now partition.Millis, g GroupID, os []partition.Offset) []byte {
	b := begin(nil, kind, now, g)
	b = binary.AppendUvarint(b, uint64(len(os)))
	for _, o := range os {
		b = binary.AppendUvarint(b, uint64(o))
	}
	return b
}

func (r *reader) offsets() []partition.Offset {
	n := r.count(1)
	os := make([]partition.Offset, 0, n)
	for range n {
		os = append(os, partition.Offset(r.uvarint()))
	}
	return os
}

// lapse names a hand-out whose deadline passed.
type lapse struct {
	offset  partition.Offset
	handOut uint64
}

func encodeLapses(now partition.Millis, g GroupID, epoch uint64, ls []lapse) []byte {
	b := begin(make([]byte, 0, 32+10*len(ls)), cmdLapse, now, g)
	b = binary.AppendUvarint(b, epoch)
	b = binary.AppendUvarint(b, uint64(len(ls)))
	for _, l := range ls {
		b = binary.AppendUvarint(b, uint64(l.offset))
		b = binary.AppendUvarint(b, l.handOut)
	}
	return b
}

// A plan proposes hand-outs: first of messages that were scanned before, then
// of the next ones of the log, of which those without a member are only
// scanned.

// planMember is a member in a plan's table: who gets what is handed out.
type planMember struct {
	name    string
	session uint64
	request uint64
}

// planWriter builds the two lists of a plan while its table still grows.
type planWriter struct {
	table   []planMember
	again   []byte
	nAgain  int
	base    partition.Offset
	scan    []byte
	nScan   int
	planned int // hand-outs in both lists
}

func (w *planWriter) reset(base partition.Offset) {
	*w = planWriter{table: w.table[:0], again: w.again[:0], scan: w.scan[:0], base: base}
}

func (w *planWriter) redeliver(o partition.Offset, m int) {
	w.again = binary.AppendUvarint(w.again, uint64(o))
	w.again = binary.AppendUvarint(w.again, uint64(m))
	w.nAgain++
	w.planned++
}

// pass adds the next message of the log: for member m, or only scanned (none).
func (w *planWriter) pass(hash uint64, size uint32, m int32) {
	w.scan = binary.LittleEndian.AppendUint64(w.scan, hash)
	w.scan = binary.AppendUvarint(w.scan, uint64(size))
	w.scan = binary.AppendUvarint(w.scan, uint64(m+1))
	w.nScan++
	if m != none {
		w.planned++
	}
}

// foresight is what a plan counts on: from an offset on, it names messages right
// only if the log ends there when it is applied.
type foresight struct{ from, end partition.Offset }

func (r *reader) foresight() foresight {
	from, n := r.uvarint(), r.uvarint()
	return foresight{partition.Offset(from), partition.Offset(from + n)}
}

// encode makes the command. Of the messages that it names, those from end on are
// foreseen, where the log is to go on to foreseen.
func (w *planWriter) encode(now partition.Millis, g GroupID, epoch, id uint64, end, foreseen partition.Offset) []byte {
	n := 84 + len(w.again) + len(w.scan)
	for i := range w.table {
		n += len(w.table[i].name) + 20
	}
	b := make([]byte, 0, n)
	if foreseen > end && w.base+partition.Offset(w.nScan) > end {
		b = begin(b, cmdForesee, now, g)
		b = binary.AppendUvarint(b, uint64(end))
		b = binary.AppendUvarint(b, uint64(foreseen-end))
	} else {
		b = begin(b, cmdPlan, now, g)
	}
	b = binary.AppendUvarint(b, epoch)
	b = binary.AppendUvarint(b, id)
	b = binary.AppendUvarint(b, uint64(len(w.table)))
	for i := range w.table {
		m := &w.table[i]
		b = appendString(b, m.name)
		b = binary.AppendUvarint(b, m.session)
		b = binary.LittleEndian.AppendUint64(b, m.request)
	}
	b = binary.AppendUvarint(b, uint64(w.nAgain))
	b = append(b, w.again...)
	b = binary.AppendUvarint(b, uint64(w.base))
	b = binary.AppendUvarint(b, uint64(w.nScan))
	return append(b, w.scan...)
}
