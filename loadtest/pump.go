package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// pump publishes over one stream, pipelined: at most so many messages of a
// partition wait for their answer. Whatever there is room for goes out in one
// frame, a batch for each partition, so that a broker that answers much at once
// is sent much at once.
//
//	make ─► frame ─► stream ─► broker ─► answers ─► room ─┐
//	 ▲                                                    │ wake
//	 └────────────────────────────────────────────────────┘
type pump struct {
	d      *drive
	lanes  *lanes
	s      *stream
	out    outbox
	most   int    // messages of a batch
	number uint64 // of the latest batch
	*pumped

	mu  sync.Mutex
	way map[uint64]underway // batches without an answer, by their number
}

// pumped is what was done, and what the pump waits for.
type pumped struct {
	wake      chan struct{}
	published atomic.Uint64 // messages with a receipt
	measured  atomic.Uint64
	batches   atomic.Uint64
}

func (p *pumped) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

type underway struct {
	lane  *lane
	count int
	due   int64
}

func (d *drive) newPump(ctx context.Context) (*pump, error) {
	s, err := openStream(ctx, d.server, publishStream)
	if err != nil {
		return nil, explainStream(err, d.server)
	}
	p := &pump{d: d, lanes: d.lanes, s: s, pumped: d.pumped, way: map[uint64]underway{}}
	// Two batches of a partition are under way: one is stored, one arrives. A
	// frame has at most 4 MiB, so a batch has half of that.
	p.most = d.most()
	return p, nil
}

func (p *pump) cut() { _ = p.s.Close() }

// most is how many messages a batch has.
func (d *drive) most() int {
	return max(1, min((d.c.InFlight+1)/2, record.MaxBatchRecords, (record.MaxBatchBytes/2)/(d.shape.Size+200)))
}

// room tells how many messages of a lane may go out now, of a batch of at most so many.
func (d *drive) room(x *lane, most int) int {
	n := int64(d.c.InFlight) - x.waiting.Load()
	if w := d.shape.Window; w > 0 {
		n = min(n, int64(w)-x.open.Load())
	}
	return int(min(n, int64(most)))
}

// least is how much room a lane waits for. Small batches cost as much as large ones,
// and a quarter of its room comes for certain, since what is under way is answered, and
// what is open handled.
func (d *drive) least(most int) int {
	least := min(d.c.InFlight/4, most)
	if w := d.shape.Window; w > 0 {
		least = min(least, w/4)
	}
	return least
}

// share is how many of count messages go to each lane; 0: without end.
func (d *drive) share(count int) []int {
	rest := make([]int, len(d.lanes.all))
	for i := range rest {
		rest[i] = math.MaxInt
		if count > 0 {
			rest[i] = count / len(rest)
			if i < count%len(rest) {
				rest[i]++
			}
		}
	}
	return rest
}

// add puts a batch of a lane into the frame.
func (p *pump) add(x *lane, n int, due int64) {
	topic := ""
	if p.number == 0 {
		topic = p.d.topic
	}
	recs := p.lanes.records(x, n, due, !p.d.c.NoIDs)
	m := record.Meta{}
	if p.d.c.Sequences {
		m.ProducerID, m.FirstSequence = p.d.producer, x.sequence
		x.sequence += uint64(n)
	}
	p.out.add(topic, x.partition, m, recs, p.d.c.Messages)
	p.number++
	x.waiting.Add(int64(n))
	x.open.Add(int64(n))
	p.mu.Lock()
	p.way[p.number] = underway{x, n, due}
	p.mu.Unlock()
}

// flush sends the frame, if there is something in it.
func (p *pump) flush() error {
	if p.out.size == 0 {
		return nil
	}
	err := p.s.Send(&p.out.frame)
	p.out.clear()
	return err
}

// full publishes as much as there is room for, until stop or count messages.
func (p *pump) full(stop <-chan struct{}, count int) error {
	least, rest := p.d.least(p.most), p.d.share(count)
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		more := false
		for i, x := range p.lanes.all {
			n := min(p.d.room(x, p.most), rest[i])
			if n > 0 && (n >= least || n == rest[i]) {
				p.add(x, n, p.d.since())
				rest[i] -= n
			}
			more = more || rest[i] > 0
			if p.out.size > maxFrameBytes {
				more = true
				break // the others go with the next one
			}
		}
		if p.out.size > 0 {
			if err := p.flush(); err != nil {
				return err
			}
			continue
		}
		if !more {
			return nil
		}
		select {
		case <-stop:
			return nil
		case <-p.wake:
		}
	}
}

// paced publishes by schedule, in bursts of a millisecond: what is due when one
// begins goes out together, over all partitions in turn.
func (p *pump) paced(stop <-chan struct{}) error {
	const burst = int64(time.Millisecond)
	s := Schedule{Rate: uint64(p.d.shape.Rate), Producers: 1}
	end := int64(p.d.shape.Warmup + p.d.shape.Time)
	timer := time.NewTimer(0)
	defer timer.Stop()
	owed := make([]int, len(p.lanes.all))
	var n, sent uint64
	// What was due and was not sent has waited until now at least.
	defer func() {
		now := p.d.since()
		for due := s.DueBy(min(now, end-1)); sent < due; sent++ {
			p.d.unsent++
			at := s.Due(sent)
			p.d.publish.record(0, p.d.inFigures(at), now-at)
		}
	}()
	for tick := int64(0); tick < end; tick += burst {
		now := p.d.since()
		if now > end+int64(grace) {
			return p.flush() // it cannot keep up
		}
		if tick > now {
			if err := p.flush(); err != nil {
				return err
			}
			timer.Reset(time.Duration(tick - now))
			select {
			case <-stop:
				return nil
			case <-timer.C:
			}
		}
		for due := s.DueBy(tick); n < due; n++ {
			owed[n%uint64(len(owed))]++
		}
		for left := true; left; {
			left = false
			for i, x := range p.lanes.all {
				if k := min(owed[i], p.d.room(x, p.most)); k > 0 {
					p.add(x, k, tick)
					owed[i] -= k
					sent += uint64(k)
				}
				left = left || owed[i] > 0
				if p.out.size > maxFrameBytes {
					if err := p.flush(); err != nil {
						return err
					}
				}
			}
			if left {
				if err := p.flush(); err != nil {
					return err
				}
				select {
				case <-stop:
					return nil
				case <-p.wake:
				}
			}
		}
	}
	return p.flush()
}

// answers takes what the broker says, until the stream ends.
func (p *pump) answers() error {
	var m strandmqv1.PublishStreamResponse
	for {
		if err := p.s.Receive(&m); err != nil {
			return err
		}
		now := p.d.since()
		for _, r := range m.GetResults() {
			if err := p.answered(r, now); err != nil {
				return err
			}
		}
		p.nudge()
	}
}

func (p *pump) answered(a *strandmqv1.PublishBatchResult, now int64) error {
	p.mu.Lock()
	u, ok := p.way[a.GetBatch()]
	delete(p.way, a.GetBatch())
	p.mu.Unlock()
	stored, problem := readAnswer(a)
	switch {
	case !ok:
		return fmt.Errorf("the broker answered batch %d, which has no answer to wait for", a.GetBatch())
	case problem != nil:
		r := &Refusal{}
		refuse(r, problem)
		return r
	case stored != u.count:
		return fmt.Errorf("the broker answered for %d of %d messages of a batch", stored, u.count)
	}
	p.d.stand(u, now)
	return nil
}

// stand notes that all of a batch has its receipts.
func (d *drive) stand(u underway, now int64) {
	d.publish.recordMany(int(u.lane.partition), d.inFigures(u.due), now-u.due, int64(u.count))
	d.pumped.published.Add(uint64(u.count))
	d.pumped.batches.Add(1)
	if d.inFigures(now) {
		d.pumped.measured.Add(uint64(u.count))
	}
	u.lane.waiting.Add(-int64(u.count))
}

// pending counts the batches without an answer.
func (p *pump) pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.way)
}

// work publishes until stop, and waits for the answers.
func (p *pump) work(stop <-chan struct{}) error {
	defer p.cut()
	heard := make(chan error, 1)
	failed := make(chan struct{})
	go func() {
		err := p.answers()
		close(failed)
		heard <- err
	}()
	halt := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(halt)
		select {
		case <-stop:
		case <-failed:
		case <-over:
		}
	}()
	var err error
	if p.d.shape.Rate > 0 {
		err = p.paced(halt)
	} else {
		err = p.full(halt, p.d.shape.Backlog)
	}
	close(over)
	<-halt
	if err == nil {
		err = p.s.CloseSend()
	}
	// The broker ends the call when all is answered.
	p.s.Patience(answerTime)
	said := <-heard
	if errors.Is(said, io.EOF) && err == nil {
		if n := p.pending(); n > 0 {
			return fmt.Errorf("the broker ended the stream and left %d batches without an answer", n)
		}
		return nil
	}
	if said != nil && !errors.Is(said, io.EOF) {
		err = said // it says more than a write that failed
	}
	return explainStream(err, p.d.server)
}
