package loadtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// crowd is the group of a shape, with what its members share.
type crowd struct {
	d    *drive
	name string

	mu      sync.Mutex
	tally   *check.Tally
	latency *latencies

	arrived  atomic.Uint64 // for the first time
	settled  atomic.Uint64 // confirmed
	measured atomic.Uint64 // of those, in the time of the figures
	first    atomic.Int64  // when the first one came, from the start
	last     atomic.Int64  // when the latest settlement was confirmed
	broken   atomic.Uint64
}

// taker is a member on a stream of its own. It takes record batches, judges
// each message, and acks all of a frame together when it has handled it, by
// number; settlements are answered later.
type taker struct {
	g    *crowd
	n    int
	s    *stream
	hand deliveries
	done []taken // of the frame at hand
	key  []byte
}

// taken is a message in a taker's hands.
type taken struct {
	number uint64 // of the delivery on the stream; 0: none
	key    uint32
	of     uint64 // the message's number of its key
}

// Credits is how many messages a member takes before it has settled one: 500
// for each partition, as much as the other brokers' clients prefetch.
const creditsPerPartition = 500

func (d *drive) creditsOfMember() int {
	return max(1, len(d.lanes.all)*creditsPerPartition/d.c.Members)
}

// drained says that the group has settled everything by the broker's own word. A member
// by the Go client does not hear when that was.
func (g *crowd) drained(now int64) {
	if g.d.c.GoClient {
		g.last.Store(now)
	}
}

func (g *crowd) join(ctx context.Context, n int) (*taker, error) {
	s, err := openStream(ctx, g.d.server, consumeStream)
	if err != nil {
		return nil, explainStream(err, g.d.server)
	}
	t := &taker{g: g, n: n, s: s}
	open := &strandmqv1.ConsumeRequest{
		Open: &strandmqv1.ConsumeOpen{
			Topic: g.d.topic, Group: g.name, Member: fmt.Sprintf("%s-m%d", g.name, n+1), RecordBatches: true,
			BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		},
		Credits: uint32(g.d.creditsOfMember()),
	}
	if err = s.Send(open); err == nil || errors.Is(err, errCut) {
		s.Patience(answerTime)
		err = s.Receive(&strandmqv1.ConsumeResponse{}) // the session comes at once
		s.Patience(0)
	}
	if err != nil {
		_ = s.Close()
		return nil, explainStream(err, g.d.server)
	}
	return t, nil
}

// work takes until the stream ends: see leave.
func (t *taker) work() error {
	defer t.cut()
	var m strandmqv1.ConsumeResponse
	for {
		err := t.s.Receive(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return explainStream(err, t.g.d.server)
		}
		if err := t.frame(&m); err != nil {
			return err
		}
	}
}

// leave ends the session; what was handled and is not confirmed yet still is.
func (t *taker) leave() {
	_ = t.s.CloseSend()
	t.s.Patience(answerTime)
}

func (t *taker) cut() { _ = t.s.Close() }

// frame handles what one frame brings, and answers with one.
func (t *taker) frame(m *strandmqv1.ConsumeResponse) error {
	if err := t.handle(m); err != nil || len(t.done) == 0 {
		return err
	}
	req := &strandmqv1.ConsumeRequest{Credits: uint32(len(t.done))}
	for i := 0; i < len(t.done); {
		k := i + 1
		for k < len(t.done) && t.done[k].number == t.done[k-1].number+1 {
			k++
		}
		req.Settlements = append(req.Settlements, &strandmqv1.SettleRun{
			First: t.done[i].number, Last: t.done[k-1].number, Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK,
		})
		i = k
	}
	return t.s.Send(req)
}

// handle judges a frame and leaves in done what is to be settled.
func (t *taker) handle(m *strandmqv1.ConsumeResponse) error {
	g := t.g
	now := g.d.since()
	t.done = t.done[:0]
	g.mu.Lock()
	defer g.mu.Unlock()
	// What was settled first: a message that was settled for good is not handed
	// out again, whichever of the two a frame tells first.
	for _, r := range m.GetSettled() {
		if err := t.confirmed(r, now); err != nil {
			return err
		}
	}
	for _, b := range m.GetBatches() {
		if err := t.batch(b, now); err != nil {
			return err
		}
	}
	g.broken.Store(g.tally.So().Broken())
	for _, x := range t.done {
		g.tally.Settling(x.key)
	}
	return nil
}

// batch judges the deliveries of one partition.
func (t *taker) batch(d *strandmqv1.DeliveryBatch, now int64) error {
	g, l := t.g, t.g.d.lanes
	records, rest, err := record.Parse(d.GetRecords())
	if err != nil || len(rest) > 0 {
		return errors.Join(err, fmt.Errorf("%w: a batch of deliveries, %d bytes too long", errFrame, len(rest)))
	}
	if g.first.Load() == 0 {
		g.first.Store(now)
	}
	var same, since int64 // so many messages were due at the same moment
	place := check.Place{Partition: d.GetPartition(), Offset: d.GetFirstOffset()}
	number := d.GetFirstNumber()
	i := 0
	for c := records.Cursor(); ; number, i = number+1, i+1 {
		r, more := c.Next()
		if !more {
			break
		}
		if i > 0 {
			place.Offset += uint64(numberOf(d.GetOffsetSteps(), i-1, 1))
		}
		who, due, ours, whole := readLabel(r.Body(), l.run, l.size)
		t.key = appendKeyName(t.key[:0], who.Key)
		if !ours || !whole || !bytes.Equal(r.Key(), t.key) {
			g.tally.Alter(place, "is not as it was sent")
		} else if g.tally.Arrived(who.Key, who.Number, numberOf(d.GetAttempts(), i, 1), place) {
			g.arrived.Add(1)
			if due != since && same > 0 {
				g.latency.recordMany(t.n, g.d.inFigures(since), now-since, same)
				same = 0
			}
			since = due
			same++
			if int(place.Partition) < len(l.all) {
				l.all[place.Partition].open.Add(-1)
			}
		}
		x := taken{number, who.Key, who.Number}
		if err := t.hand.put(x); err != nil {
			return err
		}
		t.done = append(t.done, x)
	}
	if same > 0 {
		g.latency.recordMany(t.n, g.d.inFigures(since), now-since, same)
	}
	g.d.wake()
	return nil
}

// confirmed takes the answer to settlements.
func (t *taker) confirmed(run *strandmqv1.SettleRunResult, now int64) error {
	g := t.g
	first, last, err := settledRun(run)
	if err != nil {
		return err
	}
	for n := first; n <= last; n++ {
		x, ok := t.hand.take(n)
		if !ok {
			return fmt.Errorf("%w: it settles delivery %d, which nobody holds", errFrame, n)
		}
		if run.GetProblem() == nil {
			g.tally.Settled(x.key, x.of)
		}
	}
	if run.GetProblem() != nil {
		if r := run.GetProblem().GetReason(); r == "STALE_DELIVERY" {
			return nil // it lapsed; it comes again
		}
		r := &Refusal{}
		refuse(r, run.GetProblem())
		return r
	}
	n := last - first + 1
	g.settled.Add(n)
	g.last.Store(now)
	if g.d.inFigures(now) {
		g.measured.Add(n)
	}
	return nil
}

// deliveries holds what is in hand or waits for the answer to its settlement,
// by number. Numbers follow each other, so it is a ring that grows.
type deliveries struct{ ring []taken }

// mostInHand bounds the ring: a broker that leaves so many settlements without
// an answer is at fault.
const mostInHand = 1 << 22

func (d *deliveries) put(x taken) error {
	for {
		if n := uint64(len(d.ring)); n > 0 {
			if at := &d.ring[x.number%n]; at.number == 0 {
				*at = x
				return nil
			}
		}
		old := d.ring
		if len(old) >= mostInHand {
			return fmt.Errorf("the broker has left %d settlements without an answer", len(old))
		}
		d.ring = make([]taken, max(4096, 2*len(old)))
		for _, y := range old {
			if y.number > 0 {
				d.ring[y.number%uint64(len(d.ring))] = y
			}
		}
	}
}

func (d *deliveries) take(number uint64) (taken, bool) {
	if n := uint64(len(d.ring)); n > 0 && number > 0 {
		if at := &d.ring[number%n]; at.number == number {
			x := *at
			*at = taken{}
			return x, true
		}
	}
	return taken{}, false
}
