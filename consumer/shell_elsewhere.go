package consumer

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// A stream may end at a node that does not lead all its partitions. Then the node
// of the stream has the Stream that numbers, keeps and counts credit, and each
// leader has a Stream of its own for the part that it leads, with credit on loan:
//
//	leader: Stream (lent credit) ──Handed──► Take ──► Stream of the member ──► member
//	          ▲ Adopt, TakeBack                            │ Lease
//	          └────────────────── credit ◄─────────────────┘
//
// Settlements of what was taken go to whoever leads the partition by then:
// StreamRequest.Elsewhere.

// ShareEnd is a partition that sent a stream away; 0: it is not known which.
type ShareEnd struct {
	Partition partition.PartitionID
	Why       error
}

// Signal wakes whoever waits for Ready.
func (st *Stream) Signal() { st.signal() }

// Lease takes up to n of the stream's credit away, for partitions that are led
// elsewhere, and returns how much that is.
func (st *Stream) Lease(n int) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	n = max(0, min(n, st.credit))
	st.credit -= n
	return n
}

// Hungry tells whether there is something to hand out and no credit for it.
func (st *Stream) Hungry() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.credit > 0 {
		return false
	}
	for _, y := range st.shares {
		if y.asleep != nil {
			return true
		}
	}
	return false
}

// Ends gives the partitions that sent the stream away since it was last asked.
func (st *Stream) Ends() []ShareEnd {
	st.mu.Lock()
	defer st.mu.Unlock()
	out := st.ends
	st.ends = nil
	return out
}

// Asks lists the partitions that the stream asks now.
func (st *Stream) Asks() []partition.PartitionID {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []partition.PartitionID
	for _, p := range slices.Sorted(maps.Keys(st.shares)) {
		if st.shares[p].open {
			out = append(out, p)
		}
	}
	return out
}

// adopted names a hand-out.
type adopted struct {
	part   partition.PartitionID
	number uint64
}

// Seen is the last hand-out of a partition that came to the member, or waits for
// Next; 0: none.
func (st *Stream) Seen(p partition.PartitionID) uint64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	last := st.seen[p]
	for i := range st.got {
		if g := &st.got[i]; g.part == p {
			for j := range g.hs {
				last = max(last, g.hs[j].Number)
			}
		}
	}
	return last
}

// once drops of a run what was given out before: the answer to Adopt may have what
// was handed out to this very stream, before or after it comes that way.
func (st *Stream) once(part partition.PartitionID, hs []handOut, again bool) []handOut {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.adopts) == 0 && len(st.took) == 0 {
		return hs
	}
	out := slices.DeleteFunc(slices.Clone(hs), func(h handOut) bool { return st.took[adopted{part, h.Number}] })
	if st.adopts[part] || again {
		for i := range out {
			st.took[adopted{part, out[i].Number}] = true
		}
	}
	if again {
		delete(st.adopts, part)
	}
	return out
}

// Adopt asks what the session holds of a partition beyond a hand-out. It was
// handed out by a node that led before, and did not come. It is given out by Poll
// without credit, marked as Again.
func (st *Stream) Adopt(p partition.PartitionID, after uint64) {
	asked := p
	q := query{
		Group: st.req.Group, Member: st.req.Member, Session: st.req.Session, Max: maxKept,
		Done: func(p partition.PartitionID, h holding) {
			hs := slices.DeleteFunc(slices.Clone(h.Held), func(o handOut) bool { return o.Number <= after })
			st.mu.Lock()
			if h.Err != nil || len(hs) == 0 { // where it stopped, or is led elsewhere, its demand hears of it
				delete(st.adopts, asked)
			} else if !st.closed {
				st.got = append(st.got, gotRun{part: p, hs: hs, again: true})
			}
			st.mu.Unlock()
			st.signal()
		},
	}
	st.mu.Lock()
	if st.adopts == nil {
		st.adopts, st.took = make(map[partition.PartitionID]bool), make(map[adopted]bool)
	}
	st.adopts[p] = true
	st.mu.Unlock()
	if err := st.s.host.Tell(p, q); err != nil { // a full queue is no reason to lose them
		st.mu.Lock()
		delete(st.adopts, p)
		st.mu.Unlock()
	}
}

// News drops of a Handed that may have come before what did.
func (st *Stream) News(h *Handed) {
	after := st.Seen(h.Partition)
	h.Deliveries = slices.DeleteFunc(h.Deliveries, func(d StreamDelivery) bool { return d.Fence <= after })
}

// Take takes in what a leader elsewhere handed out. Its credit was leased.
func (st *Stream) Take(h Handed) {
	if len(h.Deliveries) == 0 {
		return
	}
	blk := &keptBlock{part: h.Partition, epoch: h.Epoch, left: len(h.Deliveries), items: make([]keptItem, len(h.Deliveries))}
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		blk.until = max(blk.until, d.Deadline)
		blk.keep(i, keptItem{offset: d.Message.Offset, handOut: d.Fence, ordinal: d.Ordinal}, d.Message.PublishTime)
	}
	st.mu.Lock()
	if !st.closed {
		h.First, blk.first = st.next, st.next
		st.next += uint64(len(h.Deliveries))
		st.keep(blk)
		st.note(&h)
		st.given = append(st.given, h)
		st.waits += h.Bytes()
	}
	st.mu.Unlock()
	st.signal()
}

// Waiting is how many bytes of keys, headers and bodies came from elsewhere and were
// not taken by Next.
func (st *Stream) Waiting() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.waits
}

// Bytes counts the keys, headers and bodies.
func (h *Handed) Bytes() (n int64) {
	for i := range h.Deliveries {
		n += int64(h.Deliveries[i].Message.Record.Size())
	}
	return n
}

// note remembers the last hand-out of a partition that came.
func (st *Stream) note(h *Handed) {
	if st.req.Elsewhere == nil {
		return
	}
	if st.seen == nil {
		st.seen = make(map[partition.PartitionID]uint64)
	}
	last := st.seen[h.Partition]
	for i := range h.Deliveries {
		last = max(last, h.Deliveries[i].Fence)
	}
	st.seen[h.Partition] = last
}

// takeGiven takes what fits of what came from elsewhere, one delivery at least.
func (st *Stream) takeGiven(room int) (out []Handed) {
	for len(st.given) > 0 {
		h := &st.given[0]
		n := 0
		for n < len(h.Deliveries) {
			if room -= h.Deliveries[n].Message.Record.Size(); room < 0 && len(out)+n > 0 {
				break
			}
			n++
		}
		if n > 0 {
			part := *h
			part.Deliveries = h.Deliveries[:n:n]
			st.waits -= part.Bytes()
			out = append(out, part)
		}
		if n < len(h.Deliveries) {
			h.First += uint64(n)
			h.Deliveries = h.Deliveries[n:]
			st.signal() // there is more
			return out
		}
		st.given = st.given[1:]
	}
	st.given = nil
	return out
}

// Detach ends the stream and not the session: what it holds is the session's, and
// whoever adopts it is told of it.
func (st *Stream) Detach() {
	st.SetShares(nil)
	st.mu.Lock()
	st.closed = true
	st.had, st.got, st.given, st.waits, st.kept, st.empty = nil, nil, nil, 0, nil, 0
	st.mu.Unlock()
	st.signal()
}

// tokens makes whole tokens of those of settlements for another node, which checks
// them like a caller's.
func (st *Stream) tokens(list []Settlement) []Settlement {
	for i := range list {
		list[i].Token.Holder = holderOf(st.req.Member)
		st.s.seal.seal(&list[i].Token)
	}
	return list
}

// SettleAsync settles deliveries of one partition without a wait, in the order of
// the calls that one goroutine makes. done is called once, from a goroutine of
// the host or from this call, and must not block.
func (s *Shell) SettleAsync(pid partition.PartitionID, gid GroupID, list []Settlement, done func([]SettleResult)) {
	out := make([]SettleResult, len(list))
	some, place := make([]Settlement, 0, len(list)), make([]int, 0, len(list))
	for i := range list {
		out[i].Err = s.checkSettlement(gid, &list[i])
		if out[i].Err == nil && list[i].Token.Partition != pid {
			out[i].Err = &ErrToken{Why: "of another partition"}
		}
		if out[i].Err == nil {
			some, place = append(some, list[i]), append(place, i)
		}
	}
	if len(some) == 0 {
		done(out)
		return
	}
	finish := func(res any, err error) {
		results := settled(pid, len(some), res, err)
		s.tellAcked(gid, some, results)
		for i, r := range results {
			out[place[i]] = r
		}
		done(out)
	}
	if err := s.host.ProposeAsync(pid, encodeSettle(s.stamp(context.Background(), pid, gid), gid, some), finish); err != nil {
		finish(nil, err)
	}
}

// Held gives what a session, or one request of it, holds in some partitions, how
// much the member holds there in all, and how much its group lets it hold
// anywhere (0: no partition knows).
func (s *Shell) Held(ctx context.Context, req ReceiveRequest) (ds []Delivery, inFlight, limit int, err error) {
	if err := req.check(); err != nil {
		return nil, 0, 0, err
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = DefaultMaxBytes
	}
	held, inFlight, limit, err := s.heldBy(ctx, req, requestTag(req.RequestID))
	if err != nil {
		return nil, 0, 0, err
	}
	ds, err = s.fill(req, held)
	return ds, inFlight, limit, err
}

// WhyIdle says why a group hands nothing out in some partitions.
func (s *Shell) WhyIdle(ctx context.Context, gid GroupID, shares []Share) string {
	return s.whyIdle(ctx, ReceiveRequest{Group: gid, Shares: shares})
}

// Deliveries makes deliveries to a member of what was handed out elsewhere, with
// their tokens.
func (s *Shell) Deliveries(gid GroupID, member string, hs []Handed) []Delivery {
	var out []Delivery
	holder := holderOf(member)
	for i := range hs {
		for j := range hs[i].Deliveries {
			d := &hs[i].Deliveries[j]
			x := Delivery{
				Partition: hs[i].Partition, Attempt: d.Attempt, Deadline: d.Deadline, FirstSeen: d.FirstSeen, Fence: d.Fence, Replayed: d.Replayed, Settled: d.Settled,
				Message: partition.Message{Offset: d.Message.Offset, PublishTime: d.Message.PublishTime, Record: d.Message.Record.Record()},
				Token: Token{
					Partition: hs[i].Partition, Group: gid, Epoch: hs[i].Epoch, Offset: d.Message.Offset, HandOut: d.Fence, Ordinal: d.Ordinal, Holder: holder,
				},
			}
			s.seal.seal(&x.Token)
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b Delivery) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Message.Offset, b.Message.Offset))
	})
	return out
}
