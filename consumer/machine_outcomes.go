package consumer

import (
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// outcomes count how hand-outs of a group ended, and how long they took. They decide
// nothing. They are of the log, so a leader that takes over goes on counting where the
// last one was.
type outcomes struct {
	nacked   uint64
	rejected uint64 // by members, and by the leader for what cannot be read
	lapsed   uint64
	lost     uint64 // with their session
	handled  uint64 // milliseconds from hand-out to ack, of all acks
}

// refusals count settlements that were refused since the replica was opened. They are in
// no row: what is refused changes nothing (P6).
type refusals struct {
	stale   uint64
	late    uint64 // of those, acks of hand-outs that had lapsed
	lateFor uint64 // milliseconds from hand-out to ack of the late ones, at least
}

func (o *outcomes) failed(how ending) {
	switch how {
	case byNack:
		o.nacked++
	case byReject:
		o.rejected++
	case byLapse:
		o.lapsed++
	case bySession:
		o.lost++
	default:
	}
}

// settleOne settles and counts what came of it.
func (g *group) settleOne(t Token, a Action, delay partition.Millis, reason []byte) SettleResult {
	res := g.settle(t, a, delay, reason)
	if _, stale := res.Err.(*ErrStale); stale {
		g.refused.stale++
	}
	g.countSettled(a, res)
	return res
}

// late notes an ack that came after its hand-out had lapsed: the handler did its work,
// and took at least so long.
func (g *group) late(a Action, took partition.Millis) {
	if a == Ack {
		g.refused.late++
		g.refused.lateFor += uint64(max(took, 0))
	}
}

func (o *outcomes) fields() []*uint64 {
	return []*uint64{&o.nacked, &o.rejected, &o.lapsed, &o.lost, &o.handled}
}

func (o *outcomes) append(b []byte) []byte {
	for _, n := range o.fields() {
		b = binary.AppendUvarint(b, *n)
	}
	return b
}

func (r *reader) outcomes() (o outcomes) {
	for _, n := range o.fields() {
		*n = r.uvarint()
	}
	return o
}
