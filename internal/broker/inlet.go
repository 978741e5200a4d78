package broker

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// inletConn is the two directions of a pipe's stream at the node that stores.
type inletConn interface {
	Receive() (*nodev1.PublishRequest, error)
	Send(*nodev1.PublishResponse) error
}

// inletBytes bounds what of one pipe waits for the disk.
const inletBytes = 64 << 20

// An inlet is the end of another node's pipe: it stores batches as they come, and
// waits where the disk has no room, so that the pipe fills up. Once a batch of a
// partition was refused for what passes, nothing more is taken for the partition
// until the other node has seen all answers and says so.
type inlet struct {
	b    *Broker
	ctx  context.Context //nolint:containedctx // of the call, whose whole life this is
	conn inletConn
	log  outlet // the pipe is one source

	wake    chan struct{} // one place: the sender has something to look at
	changed chan struct{} // one place: there may be room

	mu      sync.Mutex
	ready   []*nodev1.PublishAnswer
	bytes   int                             // taken and not answered
	waiting int                             // batches, likewise, until their answers went out
	read    bool                            // nothing more comes in
	shut    map[partition.PartitionID]error // why nothing is taken
	left    bool                            // nobody hears answers any more
}

func newInlet(ctx context.Context, b *Broker, conn inletConn) *inlet {
	return &inlet{
		b: b, ctx: ctx, conn: conn, log: own{b}.From(partition.Source(b.streamNumber.Add(1))), shut: map[partition.PartitionID]error{},
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

// run serves the pipe to its end.
func (l *inlet) run() error {
	sent := make(chan error, 1)
	go func() { // ends when all is answered, or nobody listens
		err := l.b.unharmed(l.ctx, "node.v1.Publish", l.send)
		l.mu.Lock()
		l.left, l.ready = true, nil
		l.mu.Unlock()
		nudge(l.changed)
		sent <- err
	}()
	err := l.receive()
	l.mu.Lock()
	l.read = true
	l.mu.Unlock()
	nudge(l.wake)
	return errors.Join(err, <-sent)
}

func (l *inlet) receive() error {
	number := uint64(0)
	for {
		req, err := l.conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, batch := range req.GetBatches() {
			number++
			if err := l.take(number, batch); err != nil {
				return err
			}
		}
	}
}

// take stores one batch. The error ends the pipe.
func (l *inlet) take(number uint64, batch *nodev1.PublishBatch) error {
	size, id := len(batch.GetRecords()), partition.PartitionID(batch.GetPartition())
	for {
		l.mu.Lock()
		room, left := l.bytes == 0 || l.bytes+size <= inletBytes, l.left
		if room {
			l.bytes += size
			l.waiting++
		}
		l.mu.Unlock()
		if left {
			return context.Canceled
		}
		if room {
			break
		}
		select {
		case <-l.changed:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	l.mu.Lock()
	if batch.GetOpens() {
		delete(l.shut, id)
	}
	err := l.shut[id]
	l.mu.Unlock()
	if err == nil {
		err = l.store(id, batch.GetRecords(), func(stored []partition.Stored, err error) {
			l.close(id, err)
			l.answer(size, l.b.storedTo(l.ctx, number, stored, err))
		})
	} else if errors.As(err, new(*partition.ErrOutcomeUnknown)) {
		err = notLed(id) // of this one it is known
	}
	if err != nil {
		l.close(id, err)
		l.answer(size, l.b.storedTo(l.ctx, number, nil, err))
	}
	return l.ctx.Err()
}

// close sees to it that nothing is taken behind what was refused.
func (l *inlet) close(id partition.PartitionID, err error) {
	if err != nil && passes(err) {
		l.mu.Lock()
		l.shut[id] = err
		l.mu.Unlock()
	}
}

// store gives a batch to the log, with patience. An error means that it is not
// taken.
func (l *inlet) store(id partition.PartitionID, b []byte, done func([]partition.Stored, error)) error {
	parsed, rest, err := record.Parse(b)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errNotWhole
	}
	for {
		if l.b.ready() != nil {
			return &partition.ErrStopped{}
		}
		if r := l.b.disk.refuse(); r != nil {
			return r
		}
		err := l.log.PublishBatch(uint64(id), parsed, done)
		var full *partition.ErrFull
		switch {
		case errors.As(err, new(*partition.ErrUnknownPartition)):
			return notLed(id)
		case !errors.As(err, &full):
			return err
		}
		timer := time.NewTimer(full.RetryAfter)
		select {
		case <-timer.C:
		case <-l.changed: // an answer went out, so the queue may be shorter
			timer.Stop()
		case <-l.ctx.Done():
			timer.Stop()
			return l.ctx.Err()
		}
	}
}

// answer notes what became of a batch. It is called from any goroutine.
func (l *inlet) answer(size int, a *nodev1.PublishAnswer) {
	l.mu.Lock()
	l.bytes -= size
	if !l.left {
		l.ready = append(l.ready, a)
	}
	l.mu.Unlock()
	nudge(l.wake)
	nudge(l.changed)
}

// send tells what became of the batches until all are told.
func (l *inlet) send() error {
	for {
		l.mu.Lock()
		answers := l.ready[:min(len(l.ready), pipeBatches)]
		l.ready = l.ready[len(answers):]
		l.waiting -= len(answers)
		over := l.read && l.waiting == 0
		l.mu.Unlock()
		if len(answers) > 0 {
			if err := l.conn.Send(&nodev1.PublishResponse{Answers: answers}); err != nil {
				return err
			}
			continue
		}
		if over {
			return nil
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

// storedTo packs what became of a batch.
func (b *Broker) storedTo(ctx context.Context, number uint64, stored []partition.Stored, err error) *nodev1.PublishAnswer {
	a := &nodev1.PublishAnswer{Batch: number}
	if err != nil {
		a.Failure = b.failureOn(ctx, err)
		return a
	}
	run := len(stored) > 0
	for i := range stored {
		s := &stored[i]
		run = run && s.Err == nil && !s.Duplicate && s.Offset == stored[0].Offset+partition.Offset(i)
	}
	if run {
		a.FirstOffset, a.Count = uint64(stored[0].Offset), uint32(len(stored))
		return a
	}
	a.Results = make([]*nodev1.Stored, len(stored))
	for i, s := range stored {
		a.Results[i] = &nodev1.Stored{Offset: uint64(s.Offset), Duplicate: s.Duplicate, Failure: b.failureOn(ctx, s.Err)}
	}
	return a
}
