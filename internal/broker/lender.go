package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// attachConn is the two directions of an attachment at the node that leads.
type attachConn interface {
	Receive() (*nodev1.AttachRequest, error)
	Send(*nodev1.AttachResponse) error
}

// A lender is this node's part of a stream of deliveries that ends at another
// node: it hands out what the partitions led here have, by credit on loan, and
// settles. It ends with the connection; the session is the other node's.
type lender struct {
	b    *Broker
	ctx  context.Context //nolint:containedctx // of the call, whose whole life this is
	conn attachConn
	st   *consumer.Stream
	gid  consumer.GroupID
	wake chan struct{} // one place: the sender has something to look at

	mu       sync.Mutex
	settled  []*nodev1.SettleAnswer // guarded by mu: known and not told
	returned int                    // guarded by mu: credit to give back
	recalled bool                   // guarded by mu: a recall is to be answered
	told     bool                   // guarded by mu: that there is something and no credit
	heard    uint64                 // guarded by mu: all that was granted
	room     int64                  // guarded by mu: bytes that may go out
	wanted   int64                  // guarded by mu: what was told of what is larger than that
	repays   int64                  // guarded by mu: bytes to give back
	ended    error                  // guarded by mu: the reader's end
}

// lend serves an attachment to its end.
func (b *Broker) lend(ctx context.Context, conn attachConn) error {
	first, err := conn.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return refuse("BAD_VALUE", "open", "the first frame of an attachment must have open")
	}
	l := &lender{b: b, ctx: ctx, conn: conn, gid: consumer.GroupID(open.GetGroup()), wake: make(chan struct{}, 1)}
	l.st, err = b.groups.Open(consumer.StreamRequest{
		Group: l.gid, Member: open.GetMember(), Session: open.GetSession(), MaxBytes: frameBytes, Told: func() { nudge(l.wake) },
	})
	if err != nil {
		return err
	}
	defer l.st.Detach()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the connection, which ends with this call
		err := b.unharmed(ctx, "node.v1.Attach", func() error { return l.read(first) })
		l.mu.Lock()
		l.ended = err
		l.mu.Unlock()
		cancel()
	}()
	err = l.send(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.ended, io.EOF) {
		return nil
	}
	return err
}

// read takes frames until there are no more.
func (l *lender) read(frame *nodev1.AttachRequest) error {
	for {
		l.take(frame)
		var err error
		if frame, err = l.conn.Receive(); err != nil {
			return err
		}
	}
}

func (l *lender) take(f *nodev1.AttachRequest) {
	if f.GetSetShares() {
		asked := l.st.Asks()
		shares := sharesFrom(f.GetShares())
		for i, s := range shares {
			if !slices.Contains(asked, s.Partition) {
				l.st.Adopt(s.Partition, f.GetShares()[i].GetSeen())
			}
		}
		l.st.SetShares(shares)
	}
	n := min(f.GetGrant(), maxCredit)
	if n > 0 {
		l.st.AddCredit(int(n))
	}
	l.mu.Lock()
	if n > 0 { // it has it: to be hungry from here on is to be hungry with it
		l.told = false
		l.heard += uint64(n)
	}
	if n := f.GetGrantBytes(); n > 0 {
		l.room, l.wanted = l.room+int64(min(n, 1<<40)), 0
	}
	if f.GetRecallBytes() && l.room > 0 {
		l.repays, l.room = l.repays+l.room, 0
	}
	l.mu.Unlock()
	if f.GetRecall() {
		n := l.st.Lease(maxCredit)
		l.mu.Lock()
		l.returned, l.recalled = l.returned+n, true
		l.mu.Unlock()
	}
	for _, s := range f.GetSettle() {
		l.settle(s)
	}
	nudge(l.wake)
}

func (l *lender) settle(s *nodev1.SettleBatch) {
	done := func(results []consumer.SettleResult) {
		a := &nodev1.SettleAnswer{Number: s.GetNumber(), Results: l.b.settledTo(l.ctx, results)}
		l.mu.Lock()
		l.settled = append(l.settled, a)
		l.mu.Unlock()
		nudge(l.wake)
	}
	if err := l.b.led(s.GetPartition()); err != nil {
		done(settledAs(len(s.GetSettlements()), err))
		return
	}
	l.b.groups.SettleAsync(partition.PartitionID(s.GetPartition()), l.gid, settlementsFrom(s.GetSettlements()), done)
}

// send tells what there is to tell until the attachment ends.
func (l *lender) send(ctx context.Context) error {
	for {
		out, err := l.fill()
		if out != nil {
			if err := l.conn.Send(out); err != nil {
				return fmt.Errorf("the attachment broke: %w", context.Canceled)
			}
		}
		if err != nil {
			return nil //nolint:nilerr // it was told in the frame
		}
		if out != nil {
			continue
		}
		select {
		case <-l.st.Ready():
		case <-l.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.b.serving.Done():
			return &partition.ErrStopped{}
		}
	}
}

// fill makes a frame; nil: there is nothing to tell. The error is the end of the
// session or the group, which is in the frame.
func (l *lender) fill() (*nodev1.AttachResponse, error) {
	hs, wants, err := l.poll()
	out := &nodev1.AttachResponse{Handed: handedTo(hs), WantsBytes: uint64(wants)}
	for _, e := range l.st.Ends() {
		why := e.Why
		if errors.As(why, new(*partition.ErrUnknownPartition)) {
			why = notLed(e.Partition)
		}
		out.Ended = append(out.Ended, &nodev1.ShareEnded{Partition: uint64(e.Partition), Failure: l.b.failureOn(l.ctx, why)})
	}
	if err != nil {
		out.Ended = append(out.Ended, &nodev1.ShareEnded{Failure: l.b.failureOn(l.ctx, err)})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	hungry := l.st.Hungry()
	out.Settled, l.settled = l.settled, nil
	out.Returned, l.returned = uint32(l.returned), 0
	out.Recalled, l.recalled = l.recalled, false
	out.ReturnedBytes, l.repays = uint64(l.repays), 0
	if hungry && !l.told {
		out.Hungry, out.Heard, l.told = true, new(l.heard), true
	}
	if len(out.GetHanded())+len(out.GetEnded())+len(out.GetSettled()) == 0 && out.GetReturned() == 0 && !out.GetRecalled() && !out.GetHungry() &&
		out.GetWantsBytes() == 0 && out.GetReturnedBytes() == 0 {
		return nil, err
	}
	return out, err
}

// poll takes what there are bytes for. wants is what comes next and is larger than they
// are, once until there are more of them.
func (l *lender) poll() (hs []consumer.Handed, wants int64, err error) {
	first, _ := l.st.First()
	l.mu.Lock()
	room := l.room
	if int64(first) > room {
		if wants = int64(first); wants == l.wanted {
			wants = 0
		} else {
			l.wanted = wants
		}
		l.mu.Unlock()
		return nil, wants, nil
	}
	l.mu.Unlock()
	hs, err = l.st.Poll(int(max(0, min(room, frameBytes))))
	l.st.Forget() // the other node remembers
	used := int64(0)
	for i := range hs {
		used += hs[i].Bytes()
	}
	l.mu.Lock()
	l.room -= used
	l.mu.Unlock()
	return hs, 0, err
}
