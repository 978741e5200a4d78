package consumer

import (
	"cmp"
	"context"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// Handed is deliveries of one partition, in the order of offsets.
type Handed struct {
	Partition  partition.PartitionID
	Epoch      uint64 // how often the group had been reset
	First      uint64 // number of the first delivery on its stream; the others follow
	Deliveries []StreamDelivery
	Again      bool // adopted, and may have come before: see Stream.Adopt
}

// StreamDelivery is one delivery, with its message as it is stored.
type StreamDelivery struct {
	Message   partition.RawMessage
	Fence     uint64 // number of the hand-out in the group's partition
	Ordinal   uint32 // which hand-out of the message it is
	Attempt   uint32
	HandedAt  partition.Millis
	Deadline  partition.Millis
	FirstSeen partition.Millis
	Replayed  bool
	Settled   bool // by being handed out: the group is at-most-once
}

// Token makes the delivery token of one delivery.
func (st *Stream) Token(h *Handed, i int) Token {
	d := &h.Deliveries[i]
	t := Token{
		Partition: h.Partition, Group: st.req.Group, Epoch: h.Epoch,
		Offset: d.Message.Offset, HandOut: d.Fence, Ordinal: d.Ordinal, Holder: holderOf(st.req.Member),
	}
	st.s.seal.seal(&t)
	return t
}

// Next waits until something was handed out and returns it, at most as much as
// MaxBytes says. What cannot be given out (it lapsed while it waited here,
// retention removed it, it was handed out anew) gives its credit back. After an
// error that is not the context's there is no more to come.
func (st *Stream) Next(ctx context.Context) ([]Handed, error) {
	for {
		if out, err := st.Poll(st.req.MaxBytes); len(out) > 0 || err != nil {
			return out, err
		}
		select {
		case <-st.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take takes what fits from the front of what was handed out, one at least.
func (st *Stream) take(room int) []gotRun {
	for i := range st.got {
		hs := st.got[i].hs
		for j := range hs {
			if room -= int(hs[j].Size); room >= 0 || i+j == 0 {
				continue
			}
			rest := make([]gotRun, 0, len(st.got)-i)
			rest = append(append(rest, gotRun{st.got[i].part, hs[j:], st.got[i].again}), st.got[i+1:]...)
			got := st.got[:i+1]
			got[i].hs = hs[:j:j]
			st.got = rest
			return got
		}
	}
	got := st.got
	st.got = nil
	return got
}

// read makes deliveries of hand-outs. It returns how much credit came to
// nothing.
func (st *Stream) read(got []gotRun) (out []Handed, back int) {
	slices.SortStableFunc(got, func(a, b gotRun) int {
		if by := cmp.Compare(a.part, b.part); by != 0 || a.again == b.again {
			return by
		}
		if a.again { // apart from the others, since it had no credit, and behind them
			return 1
		}
		return -1
	})
	now := st.s.Now()
	for len(got) > 0 {
		part, hs, again := got[0].part, got[0].hs, got[0].again
		n := 1
		for n < len(got) && got[n].part == part && got[n].again == again {
			n++
		}
		if n > 1 {
			hs = slices.Clone(hs)
			for _, g := range got[1:n] {
				hs = append(hs, g.hs...)
			}
		}
		got = got[n:]
		all := len(hs)
		hs = st.once(part, current(hs, now), again)
		given := 0
		for len(hs) > 0 {
			// A reset between two of them makes two of it: a Handed has one epoch.
			m := 1
			for m < len(hs) && hs[m].Epoch == hs[0].Epoch {
				m++
			}
			if h, ok := st.handed(part, hs[:m]); ok {
				h.Again = again
				out = append(out, h)
				given += len(h.Deliveries)
			}
			hs = hs[m:]
		}
		if !again {
			back += all - given
		}
	}
	return out, back
}

func (h *handOut) over(now partition.Millis) bool { return h.Deadline <= now && !h.Settled }

// current sorts hand-outs of a partition, by epoch and offset, and drops those
// whose time is over and those whose message was handed out again since. What is
// settled has no time: nobody would get it again.
func current(hs []handOut, now partition.Millis) []handOut {
	fine := true
	for i := range hs {
		if hs[i].over(now) || i > 0 && (hs[i].Epoch != hs[0].Epoch || hs[i].Offset <= hs[i-1].Offset) {
			fine = false
			break
		}
	}
	if fine {
		return hs
	}
	hs = slices.DeleteFunc(slices.Clone(hs), func(h handOut) bool { return h.over(now) })
	slices.SortFunc(hs, func(a, b handOut) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Offset, b.Offset), cmp.Compare(b.Number, a.Number))
	})
	return slices.CompactFunc(hs, func(a, b handOut) bool { return a.Epoch == b.Epoch && a.Offset == b.Offset })
}

// handed reads the messages of hand-outs and numbers them.
func (st *Stream) handed(part partition.PartitionID, hs []handOut) (Handed, bool) {
	os, raws := st.offsets[:0], st.raws[:0]
	for i := range hs {
		os = append(os, hs[i].Offset)
	}
	raws, bad, err := st.s.readRaw(part, st.req.Group, os, raws)
	st.offsets = os[:0]
	if err != nil {
		hs = hs[:len(raws)] // the partition stopped, and tells so itself
	}
	if slices.ContainsFunc(raws, func(m partition.RawMessage) bool { return m.Offset == noOffset }) {
		st.s.bury(part, st.req.Group, hs, bad)
		there := make([]handOut, 0, len(hs))
		n := 0
		for i := range raws {
			if raws[i].Offset != noOffset {
				there, raws[n] = append(there, hs[i]), raws[i]
				n++
			}
		}
		hs, raws = there, raws[:n]
	}
	h := Handed{Partition: part, Deliveries: make([]StreamDelivery, len(raws))}
	blk := &keptBlock{part: part, left: len(raws), items: make([]keptItem, len(raws))}
	for i := range raws {
		x := &hs[i]
		h.Deliveries[i] = StreamDelivery{
			Message: raws[i], Fence: x.Number, Ordinal: x.Ordinal, Attempt: x.Attempt,
			HandedAt: x.HandedAt, Deadline: x.Deadline, FirstSeen: x.FirstSeen, Replayed: x.Replayed, Settled: x.Settled,
		}
		blk.until = max(blk.until, x.Deadline)
		blk.keep(i, keptItem{offset: x.Offset, handOut: x.Number, ordinal: x.Ordinal}, raws[i].PublishTime)
	}
	clear(raws)
	st.raws = raws[:0]
	if len(h.Deliveries) == 0 {
		return h, false
	}
	h.Epoch, blk.epoch = hs[0].Epoch, hs[0].Epoch
	st.mu.Lock()
	h.First, blk.first = st.next, st.next
	st.next += uint64(len(h.Deliveries))
	var ask []*keptBlock
	if !st.closed {
		ask = st.keep(blk)
		st.note(&h)
	}
	st.mu.Unlock()
	for _, k := range ask {
		st.ask(k)
	}
	return h, true
}
