package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/strandmq/strandmq/partition"
)

// twinStream is one stream of a member, and what it was told and gave.
type twinStream struct {
	g       *twinGroup
	st      *Stream
	member  string
	session uint64
	share   Share
	granted int // credit
	given   int
	next    uint64           // number of the next delivery
	out     map[uint64]Token // given out, and not settled on the stream
	seen    map[uint64]bool  // hand-outs that were given out
}

// streamsOf lists a group's streams that are open.
func (w *twinWorld) streamsOf(g *twinGroup) (open []*twinStream) {
	for _, s := range w.streams {
		if s.g == g {
			open = append(open, s)
		}
	}
	return open
}

// stream opens a stream, changes what it asks for, or closes it.
func (w *twinWorld) stream(g *twinGroup, op twinOp) {
	member := twinMembers[op.a%len(twinMembers)]
	shares := []uint32{1, 1, 1, 2, 3}[op.b/8%5]
	share := Share{Partition: twinPart, Share: uint32(op.b/64) % shares, Shares: shares}
	for _, s := range w.streamsOf(g) {
		if s.member != member {
			continue
		}
		switch op.c % 4 {
		case 0:
			w.closeStream(s, op.b%2 == 0)
		case 1:
			s.share = Share{}
			s.st.SetShares(nil)
		default:
			s.share = share
			s.st.SetShares([]Share{share})
		}
		return
	}
	s := &twinStream{g: g, member: member, session: g.session(member), share: share, next: 1, out: map[uint64]Token{}, seen: map[uint64]bool{}}
	var err error
	if s.st, err = w.shell.Open(StreamRequest{Group: g.id, Member: member, Session: s.session, MaxBytes: []int{0, 30}[op.c/4%2]}); err != nil {
		w.fail("open: %v", err)
		return
	}
	s.st.SetShares([]Share{share})
	w.streams = append(w.streams, s)
}

// credit grants some, and looks that no more was ever handed out.
func (w *twinWorld) credit(s *twinStream, n int) {
	s.granted += n
	s.st.AddCredit(n)
}

// closeStream ends a stream and its session.
func (w *twinWorld) closeStream(s *twinStream, lost bool) {
	for i, o := range w.streams {
		if o == s {
			w.streams = append(w.streams[:i:i], w.streams[i+1:]...)
			break
		}
	}
	if err := s.st.Close(context.Background(), lost); err != nil {
		w.fail("close: %v", err)
	}
	g := s.g
	if g.gone {
		return
	}
	g.sessions[s.member] = max(g.sessions[s.member], s.session+1)
	w.tick(g)
	if lost {
		g.tw.endSessions(s.member, s.session+1)
	} else {
		g.tw.leave(s.member, s.session)
	}
	w.observe("shell")
}

// take takes what a stream has for its member and judges it.
func (w *twinWorld) take(s *twinStream) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.st.mu.Lock()
	waits := len(s.st.got) > 0
	s.st.mu.Unlock()
	hs, err := s.st.Next(ctx)
	name := fmt.Sprintf("%v: stream of %s/%d", s.g.id, s.member, s.session)
	var ended *ErrSessionEnded
	var unknown *ErrUnknownGroup
	switch {
	case errors.Is(err, context.Canceled):
		return
	case errors.As(err, &ended) && s.g.tw.sessionOver(s.member, s.session), errors.As(err, &unknown) && s.g.gone:
		// Over: its member opens another.
		w.closeStream(s, true)
		return
	case err != nil:
		w.fail("%s: %v", name, err)
		return
	case !waits:
		w.fail("%s: gave %v out of nothing", name, hs)
		return
	}
	size := 0
	c := &twinCall{g: s.g, req: ReceiveRequest{Member: s.member, Session: s.session}, coming: math.MaxUint64}
	for i := range hs {
		h := &hs[i]
		if h.First != s.next {
			w.fail("%s: numbers begin at %d, want %d", name, h.First, s.next)
		}
		for j := range h.Deliveries {
			x := &h.Deliveries[j]
			d := Delivery{
				Partition: h.Partition, Message: partition.Message{Offset: x.Message.Offset, Record: x.Message.Record.Record()},
				Attempt: x.Attempt, Token: s.st.Token(h, j), Deadline: x.Deadline, FirstSeen: x.FirstSeen, Fence: x.Fence, Replayed: x.Replayed,
			}
			if j > 0 && x.Message.Offset <= h.Deliveries[j-1].Message.Offset {
				w.fail("%s: offset %d behind %d", name, x.Message.Offset, h.Deliveries[j-1].Message.Offset)
			}
			if s.seen[x.Fence] {
				w.fail("%s: hand-out %d was given out twice", name, x.Fence)
			}
			s.seen[x.Fence] = true
			o := w.judgeDelivery(c, name, d)
			if o == nil {
				return
			}
			if x.HandedAt > o.at || x.HandedAt < o.at-w.back {
				w.fail("%s: handed out at %d, says %d", name, o.at, x.HandedAt)
			}
			o.given = true
			s.g.tokens = append(s.g.tokens, d.Token)
			s.out[s.next] = d.Token
			s.next++
			s.given++
			if size += s.g.tw.msgs[x.Message.Offset].size; s.st.req.MaxBytes < DefaultMaxBytes && size > s.st.req.MaxBytes && i+j > 0 {
				w.fail("%s: %d bytes at once", name, size)
			}
		}
	}
	if s.given > s.granted {
		w.fail("%s: %d deliveries for a credit of %d", name, s.given, s.granted)
	}
}

// settleNumbers settles a run of numbers, which may reach over both ends of what
// there is.
func (w *twinWorld) settleNumbers(s *twinStream, op twinOp) {
	first := 1 + uint64(op.a)%(s.next+1)
	r := SettleRun{First: first, Last: first + uint64(op.b%5), Action: []Action{Ack, Ack, Nack, Reject, Extend, Release}[op.c%6]}
	if r.Action == Nack {
		r.Delay = []partition.Millis{0, 700}[op.b%2]
	}
	var rs []SettleRunResult
	s.st.Settle(context.Background(), []SettleRun{r}, func(res []SettleRunResult) { rs = res })
	w.tick(s.g)
	at := first
	for _, x := range rs {
		if x.First != at || x.Last < x.First {
			w.fail("results of %d to %d: %+v", r.First, r.Last, rs)
			return
		}
		for ; at <= x.Last; at++ {
			t, known := s.out[at]
			var stale *ErrStale
			if !known {
				if !errors.As(x.Err, &stale) {
					w.fail("number %d: %v", at, x.Err)
				}
				continue
			}
			// What was settled otherwise, and is past its deadline, the stream may have
			// forgotten.
			if s.g.tw.ended(t) && errors.As(x.Err, &stale) {
				delete(s.out, at)
				continue
			}
			w.judgeSettle(s.g, Settlement{Token: t, Action: r.Action, Delay: r.Delay}, x.SettleResult)
			if x.Err == nil && r.Action != Extend || errors.As(x.Err, &stale) {
				delete(s.out, at)
			}
		}
	}
	if at != r.Last+1 {
		w.fail("results of %d to %d: %+v", r.First, r.Last, rs)
	}
	w.observe("shell")
}

// streamWaiters are the streams that could take something now.
func (w *twinWorld) streamWaiters(g *twinGroup) (ws []twinWaiter) {
	for _, s := range w.streamsOf(g) {
		s.st.mu.Lock()
		y := s.st.shares[twinPart]
		waits := 0
		for _, r := range s.st.got {
			waits += len(r.hs)
		}
		if n := s.st.credit + waits + s.given; n != s.granted {
			w.fail("%v: the stream of %s was granted %d, gave %d, has %d to give, and has a credit of %d", g.id, s.member, s.granted, s.given, waits, s.st.credit)
		}
		if s.st.credit > 0 && y != nil && s.st.err == nil {
			if !y.open {
				w.fail("stuck: %v: the stream of %s was sent away", g.id, s.member)
			}
			ws = append(ws, twinWaiter{member: s.member, session: s.session, shares: s.share, limit: s.st.credit})
		}
		s.st.mu.Unlock()
	}
	return ws
}

// heartbeat tells the streams their shares again, as whoever keeps a session
// alive does: after a change of leader they ask anew.
func (w *twinWorld) heartbeat() {
	for _, s := range w.streams {
		if s.share.Partition != 0 {
			s.st.SetShares([]Share{s.share})
		}
	}
	w.settleDown()
}
