package loadtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/internal/check"
)

// clientPump publishes the load of a pump by a Publisher of the Go client: message by
// message, with a receipt for each.
type clientPump struct {
	d      *drive
	client *client.Client
	out    *client.Publisher
	failed chan error // one place
}

func (d *drive) newClientPump(ctx context.Context) (*clientPump, error) {
	c, err := client.New([]string{d.server})
	if err != nil {
		return nil, err
	}
	p := &clientPump{d: d, client: c, failed: make(chan error, 1)}
	if p.out, err = c.Publisher(ctx, d.topic); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

func (p *clientPump) cut() { _ = p.client.Close() }

// work publishes until stop, or as much as the shape's backlog, and waits for the receipts.
func (p *clientPump) work(stop <-chan struct{}) error {
	defer p.cut()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	most := p.d.most()
	least, rest := p.d.least(most), p.d.share(p.d.shape.Backlog)
	for open := true; open; {
		sent := false
		open = false
		for i, x := range p.d.lanes.all {
			n := min(p.d.room(x, most), rest[i])
			if n > 0 && (n >= least || n == rest[i]) {
				p.send(ctx, x, n)
				rest[i] -= n
				sent = true
			}
			open = open || rest[i] > 0
		}
		select {
		case <-stop:
			open = false
		case err := <-p.failed:
			return err
		default:
			if sent || !open {
				continue
			}
			select {
			case <-stop:
				open = false
			case err := <-p.failed:
				return err
			case <-p.d.pumped.wake:
			}
		}
	}
	limit, done := context.WithTimeout(ctx, answerTime)
	defer done()
	err := p.out.Close(limit)
	select {
	case failed := <-p.failed:
		return failed
	default:
		return err
	}
}

// send publishes n messages of a lane.
func (p *clientPump) send(ctx context.Context, x *lane, n int) {
	u := underway{x, n, p.d.since()}
	x.waiting.Add(int64(n))
	x.open.Add(int64(n))
	left := n // told by the one goroutine that reads answers
	done := func(_ client.Receipt, err error) {
		if err != nil {
			select {
			case p.failed <- err:
			default:
			}
		}
		if left--; left == 0 && err == nil {
			p.d.stand(u, p.d.since())
			p.d.pumped.nudge()
		}
	}
	for _, r := range p.d.lanes.records(x, n, u.due, false) {
		p.out.PublishAsync(ctx, client.Message{Key: string(r.Key), Body: r.Body}, done)
	}
}

// hired is a member that is a Consumer of the Go client, with its defaults but for the
// prefetch, which is that of a taker. Its handler judges each message, as a taker does.
type hired struct {
	g      *crowd
	n      int
	client *client.Client
	member *client.Consumer
	ctx    context.Context //nolint:containedctx // of Run; it ends when the member leaves
	stop   context.CancelFunc
	now    atomic.Int64 // when it looked at the clock
}

func (g *crowd) hire(_ context.Context, n int) (*hired, error) {
	c, err := client.New([]string{g.d.server})
	if err != nil {
		return nil, err
	}
	h := &hired{g: g, n: n, client: c}
	h.member, err = c.Consumer(g.d.topic, g.name, client.WithMember(fmt.Sprintf("%s-m%d", g.name, n+1)),
		client.WithPrefetch(g.d.creditsOfMember()))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h, nil
}

func (h *hired) work() error {
	defer h.cut()
	return h.member.Run(h.ctx, h.handle)
}

func (h *hired) leave() { h.stop() }
func (h *hired) cut()   { h.stop(); _ = h.client.Close() }

// handle judges a message. That the ack was confirmed it does not hear: see crowd.drained.
// What is no part of the judgement it does for some messages only, so that it costs about
// what a taker pays, which does it for each frame.
func (h *hired) handle(_ context.Context, d *client.Delivery) error {
	g, l := h.g, h.g.d.lanes
	var name [16]byte
	who, due, ours, whole := readLabel(d.Body, l.run, l.size)
	whole = ours && whole && d.Key == string(appendKeyName(name[:0], who.Key))
	place := check.Place{Partition: d.Partition, Offset: d.Offset}
	now := h.now.Load()
	if now == 0 {
		now = h.look()
		g.first.CompareAndSwap(0, now)
	}
	g.mu.Lock()
	first := whole && g.tally.Arrived(who.Key, who.Number, d.Attempt, place)
	if !whole {
		g.tally.Alter(place, "is not as it was sent")
	}
	g.tally.Settling(who.Key)
	g.settled.Add(1)
	if first {
		g.arrived.Add(1)
	}
	if g.d.inFigures(now) {
		g.measured.Add(1)
	}
	g.mu.Unlock()
	if first {
		if left := l.all[d.Partition].open.Add(-1); left%every == 0 {
			g.latency.recordMany(h.n, g.d.inFigures(due), h.look()-due, every)
			g.d.wake()
		}
	}
	return nil
}

// every so many messages of a partition the latency of one stands for all of them, the
// clock is looked at, and the pump looks for room.
const every = 16

func (h *hired) look() int64 {
	now := h.g.d.since()
	h.now.Store(now)
	return now
}
