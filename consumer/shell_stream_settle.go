package consumer

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/partition"
)

// SettleRun settles deliveries of a stream whose numbers follow each other.
type SettleRun struct {
	First, Last uint64 // Last 0: the first only
	Action      Action
	Delay       partition.Millis // as in Settlement
	Reason      string
}

// Len is how many deliveries a run names.
func (r *SettleRun) Len() int { return int(max(r.Last, r.First)-r.First) + 1 }

// SettleRunResult is what became of deliveries that fared alike.
type SettleRunResult struct {
	Run         int // which of the call's runs, from 0
	First, Last uint64
	SettleResult
}

// maxKept bounds what a stream remembers of deliveries that are never settled:
// the oldest are forgotten, and lapse.
const maxKept = 1 << 20

// keptBlock is the deliveries of one Handed that are not settled.
type keptBlock struct {
	first uint64
	part  partition.PartitionID
	epoch uint64
	left  int // not settled
	items []keptItem
	until partition.Millis // the latest deadline among them, or when to ask again
	asked bool             // the partition is asked whether they are still out

	published partition.Millis // the first of its messages
}

type keptItem struct {
	offset  partition.Offset
	handOut uint64 // 0: settled
	ordinal uint32
	later   int32 // ms: when its message was published, less the block's time
}

// keep puts a delivery into its place in the block. A stream keeps very many of them, so
// there is no room for a whole time: what is 24 days apart is taken for that.
func (k *keptBlock) keep(i int, x keptItem, published partition.Millis) {
	if i == 0 {
		k.published = published
	}
	x.later = int32(min(max(published-k.published, math.MinInt32), math.MaxInt32))
	k.items[i] = x
}

// piece is a part of a run, in one block.
type piece struct {
	run   int
	first uint64
	last  uint64
	blk   *keptBlock // nil: nobody knows these numbers
	batch *settleBatch
	from  int // place of the first in the batch
}

// settleBatch is the settlements of one command.
type settleBatch struct {
	part  partition.PartitionID
	what  []Settlement
	res   []SettleResult
	bytes int  // of reasons
	here  bool // this node proposed it, and has its results from there
}

var errNumber = &ErrStale{Why: "the stream has no unsettled delivery of this number"}

// keep remembers what is given out. What is settled beside the stream, by tokens,
// or lapses is not told here, so of what is past its deadline the partition must be
// asked (see ask): it may still be out, where the log is slow or clocks differ, and
// then its settlement counts.
func (st *Stream) keep(blk *keptBlock) (ask []*keptBlock) {
	for len(st.kept) > 0 && (st.kept[0].left == 0 || st.next-st.kept[0].first > maxKept) {
		st.dropFirst()
	}
	now := st.s.Now()
	for _, k := range st.kept[:min(len(st.kept), maxAsked)] {
		if k.until > now {
			break
		}
		if k.left > 0 && !k.asked {
			k.asked = true
			ask = append(ask, k)
		}
	}
	st.kept = append(st.kept, blk)
	return ask
}

// maxAsked bounds how many blocks are looked at, from the oldest on, for those to
// ask about.
const maxAsked = 64

// ask asks a block's partition which of its deliveries are still out, and forgets
// the others.
func (st *Stream) ask(k *keptBlock) {
	again := st.s.Now() + lapsePatience
	st.mu.Lock()
	ev := still{Group: st.req.Group, Epoch: k.epoch}
	places := make([]int, 0, k.left)
	for i, x := range k.items {
		if x.handOut != 0 {
			ev.HandOuts = append(ev.HandOuts, handOutOf{x.offset, x.handOut})
			places = append(places, i)
		}
	}
	st.mu.Unlock()
	ev.Done = func(out []bool, err error) {
		st.mu.Lock()
		defer st.mu.Unlock()
		k.asked, k.until = false, max(k.until, again)
		if err != nil || k.left == 0 {
			return // nobody knows, or there is nothing left to know
		}
		for n, is := range out {
			if x := &k.items[places[n]]; !is && x.handOut != 0 {
				x.handOut = 0
				k.left--
			}
		}
		if k.left == 0 {
			k.emptied(st)
			st.tidy()
		}
	}
	if err := st.s.host.Tell(k.part, ev); err != nil {
		ev.Done(nil, err)
	}
}

// emptied counts a block of which nothing is left, if it is still kept.
func (k *keptBlock) emptied(st *Stream) {
	if len(st.kept) > 0 && k.first >= st.kept[0].first {
		st.empty++
	}
}

func (st *Stream) dropFirst() {
	if st.kept[0].left == 0 {
		st.empty--
	}
	st.kept[0] = nil
	st.kept = st.kept[1:]
}

// tidy drops blocks of which nothing is left: at the front, and all of them once
// they are the half, so that a settlement costs the same however much is kept.
func (st *Stream) tidy() {
	for len(st.kept) > 0 && st.kept[0].left == 0 {
		st.dropFirst()
	}
	if 2*st.empty > len(st.kept) {
		st.kept = slices.DeleteFunc(st.kept, func(k *keptBlock) bool { return k.left == 0 })
		st.empty = 0
	}
	if len(st.kept) == 0 {
		st.kept = nil
	}
}

// Settle settles deliveries by their numbers on the stream. done is called once
// with the results, in the order of the runs: what is confirmed is in the log. It
// is called from a goroutine of the host, or from this call, and must not block.
// Settlements of one partition are applied in the order given, over all calls
// that one goroutine makes.
//
// A settled number is forgotten, so to settle it again is stale; a delivery token
// (see Token) remembers.
func (st *Stream) Settle(ctx context.Context, runs []SettleRun, done func([]SettleRunResult)) {
	bad := make([]error, len(runs))
	for i := range runs {
		bad[i] = runs[i].check()
	}
	st.mu.Lock()
	pieces, batches := st.pieces(runs, bad)
	st.mu.Unlock()
	if len(batches) == 0 {
		done(st.results(runs, bad, pieces))
		return
	}
	var mu sync.Mutex
	left := len(batches)
	finish := func(b *settleBatch, res []SettleResult) {
		b.res = res
		mu.Lock()
		left--
		last := left == 0
		mu.Unlock()
		if last {
			done(st.results(runs, bad, pieces))
		}
	}
	for _, b := range batches {
		if far := st.req.Elsewhere; far != nil {
			took := far(b.part, st.tokens(b.what), func(res []SettleResult) { finish(b, res) })
			if took {
				continue
			}
		}
		here := func(res any, err error) {
			got := settled(b.part, len(b.what), res, err)
			if err != nil && st.req.Again != nil { // it may be led elsewhere since just now
				st.req.Again(st.tokens(b.what), got, func(res []SettleResult) { finish(b, res) })
				return
			}
			b.here = err == nil
			finish(b, got)
		}
		cmd := encodeSettle(st.s.stamp(ctx, b.part, st.req.Group), st.req.Group, b.what)
		if err := st.s.host.ProposeAsync(b.part, cmd, here); err != nil {
			here(nil, err)
		}
	}
}

func (r *SettleRun) check() error {
	switch {
	case r.First == 0:
		return &ErrBadSettlement{"first", "is 0: a stream's deliveries are numbered from 1"}
	case r.Last != 0 && r.Last < r.First:
		return &ErrBadSettlement{"last", "is less than first"}
	}
	return checkAction(r.Action, r.Delay, r.Reason)
}

// pieces finds the deliveries of runs.
func (st *Stream) pieces(runs []SettleRun, bad []error) (pieces []piece, batches []*settleBatch) {
	open := make(map[partition.PartitionID]*settleBatch)
	for i := range runs {
		r := &runs[i]
		if bad[i] != nil {
			continue
		}
		at, last := r.First, max(r.Last, r.First)
		// Nothing was given out from next on, however far the run goes.
		end := min(last, st.next-1) + 1
		b, _ := slices.BinarySearchFunc(st.kept, at, func(k *keptBlock, n uint64) int {
			if k.first+uint64(len(k.items)) <= n {
				return -1
			}
			return 1
		})
		for at < end {
			if b == len(st.kept) || st.kept[b].first >= end {
				break
			}
			blk := st.kept[b]
			if at < blk.first {
				pieces = append(pieces, piece{run: i, first: at, last: blk.first - 1})
				at = blk.first
			}
			for j := int(at - blk.first); j < len(blk.items) && at < end; {
				n := 0
				if blk.items[j].handOut == 0 {
					for ; j < len(blk.items) && at+uint64(n) < end && blk.items[j].handOut == 0; j++ {
						n++
					}
					pieces = append(pieces, piece{run: i, first: at, last: at + uint64(n) - 1})
					at += uint64(n)
					continue
				}
				to := open[blk.part]
				if to == nil || len(to.what) >= maxSettleCommand || to.bytes >= maxSettleReasons {
					to = &settleBatch{part: blk.part}
					open[blk.part] = to
					batches = append(batches, to)
				}
				p := piece{run: i, first: at, blk: blk, batch: to, from: len(to.what)}
				for ; j < len(blk.items) && at+uint64(n) < end && blk.items[j].handOut != 0 && len(to.what) < maxSettleCommand && to.bytes < maxSettleReasons; j++ {
					x := &blk.items[j]
					to.what = append(to.what, Settlement{
						Token: Token{
							Partition: blk.part, Group: st.req.Group, Epoch: blk.epoch,
							Offset: x.offset, HandOut: x.handOut, Ordinal: x.ordinal,
						},
						Action: r.Action, Delay: r.Delay, Reason: r.Reason,
						Published: blk.published + partition.Millis(x.later),
					})
					to.bytes += len(r.Reason)
					n++
				}
				p.last = at + uint64(n) - 1
				pieces = append(pieces, p)
				at += uint64(n)
			}
			b++
		}
		if at <= last {
			pieces = append(pieces, piece{run: i, first: at, last: last})
		}
	}
	return pieces, batches
}

// results puts the pieces together, and forgets what is settled.
func (st *Stream) results(runs []SettleRun, bad []error, pieces []piece) []SettleRunResult {
	out := make([]SettleRunResult, 0, len(runs))
	run := 0
	refuse := func(to int) {
		for ; run < to; run++ {
			if bad[run] != nil {
				out = append(out, SettleRunResult{run, runs[run].First, max(runs[run].Last, runs[run].First), SettleResult{Err: bad[run]}})
			}
		}
	}
	acked := acks{s: st.s, gid: st.req.Group}
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range pieces {
		p := &pieces[i]
		refuse(p.run)
		begun := i > 0 && pieces[i-1].run == p.run
		add := func(n int, r SettleResult) {
			first := p.first + uint64(n)
			if begun {
				if last := &out[len(out)-1]; sameResult(last.SettleResult, r) {
					last.Last++
					return
				}
			}
			begun = true
			out = append(out, SettleRunResult{p.run, first, first, r})
		}
		if p.blk == nil {
			r := SettleResult{Err: errNumber}
			if begun && sameResult(out[len(out)-1].SettleResult, r) {
				out[len(out)-1].Last = p.last
			} else {
				out = append(out, SettleRunResult{p.run, p.first, p.last, r})
			}
			continue
		}
		var stale *ErrStale
		for j := range int(p.last - p.first + 1) {
			r := p.batch.res[p.from+j]
			p.blk.until = max(p.blk.until, r.Deadline)
			if p.batch.here && runs[p.run].Action == Ack && r.took() {
				acked.add(p.blk.published + partition.Millis(p.blk.items[int(p.first-p.blk.first)+j].later))
			}
			if r.Err == nil && runs[p.run].Action != Extend || r.Err != nil && errors.As(r.Err, &stale) {
				if x := &p.blk.items[int(p.first-p.blk.first)+j]; x.handOut != 0 {
					x.handOut = 0
					if p.blk.left--; p.blk.left == 0 {
						p.blk.emptied(st)
					}
				}
			}
			add(j, r)
		}
	}
	acked.tell()
	refuse(len(runs))
	st.tidy()
	return out
}

// sameResult tells whether two results can be told as one.
func sameResult(a, b SettleResult) bool {
	if a.Dead != b.Dead || a.Deadline != b.Deadline || (a.Err == nil) != (b.Err == nil) {
		return false
	}
	if a.Err == nil || errors.Is(a.Err, b.Err) {
		return true
	}
	var x, y *ErrStale
	return errors.As(a.Err, &x) && errors.As(b.Err, &y) && *x == *y
}
