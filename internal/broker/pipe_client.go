package broker

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// The most that one frame of a pipe carries.
const (
	pipeBatches = 1000
	pipeBytes   = 4 << 20
)

// A pipe carries batches to one node, of all partitions that it leads, without
// waiting for answers. Two goroutines are its own; they end with the stream.
//
//	lanes ──put──► out ──► sender ──frames──► node ──► receiver ──► lane.answer
type pipe struct {
	d    *dispatch
	node partition.NodeID
	wake chan struct{} // one place: there is something in out
	stop context.CancelFunc

	mu     sync.Mutex // after dispatch.mu
	out    []packet
	flying map[uint64]packet // sent, by number
	number uint64
	over   bool
}

// packet is a parcel in a pipe.
type packet struct {
	lane   *lane
	parcel *parcel
	opens  bool
}

// pipe finds the pipe to a node, or opens one. d.mu is held.
func (d *dispatch) pipe(n partition.NodeID) *pipe {
	if p := d.pipes[n]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &pipe{d: d, node: n, wake: make(chan struct{}, 1), flying: map[uint64]packet{}, stop: cancel}
	d.pipes[n] = p
	client, url := d.peers.Client(n)
	var r *remote
	if client != nil {
		r = d.remote1(n, client, url)
	}
	d.b.running.Go(func() { p.run(ctx, r) })
	return p
}

// put takes a packet. It does not block.
func (p *pipe) put(x packet) {
	p.mu.Lock()
	over := p.over
	if !over {
		p.out = append(p.out, x)
	}
	p.mu.Unlock()
	if over {
		go x.lane.answer(x.parcel, nil, &errUnreached{node: p.node, err: errors.New("the stream to it ended")})
		return
	}
	nudge(p.wake)
}

// end closes the pipe from outside.
func (p *pipe) end() { p.stop() }

// run serves the pipe until its stream breaks.
func (p *pipe) run(ctx context.Context, r *remote) {
	defer p.stop()
	err := error(&errUnreached{node: p.node, err: errors.New("its address is not known")})
	if r != nil {
		err = p.serve(ctx, r)
	}
	p.d.mu.Lock()
	if p.d.pipes[p.node] == p {
		delete(p.d.pipes, p.node)
	}
	p.mu.Lock()
	p.over = true
	flying, out := p.flying, p.out
	p.flying, p.out = nil, nil
	p.mu.Unlock()
	p.d.mu.Unlock()
	for _, x := range flying {
		why := err
		if !errors.As(err, new(*errUnreached)) {
			why = &partition.ErrOutcomeUnknown{Partition: x.lane.id, Why: "the connection to node " + p.node.String() + " broke before its answer came"}
		}
		x.lane.answer(x.parcel, nil, why)
	}
	for _, x := range out {
		x.lane.answer(x.parcel, nil, &errUnreached{node: p.node, err: err})
	}
}

// serve sends and receives. The error is never nil.
func (p *pipe) serve(ctx context.Context, r *remote) error {
	stream, err := r.parts.Publish(ctx)
	if err != nil {
		return errors.Join(&errUnreached{node: p.node, err: err})
	}
	received := make(chan error, 1)
	go func() { // ends with the stream, which the sender below ends
		err := p.receive(stream)
		p.stop()
		received <- err
	}()
	sent := p.send(ctx, stream)
	if ctx.Err() == nil {
		// Receiving says why sending failed, such as that the node was not reached, and
		// stops. To stop first would have it say that it was stopped.
		late := time.AfterFunc(leaderPatience, p.stop)
		<-ctx.Done()
		late.Stop()
	}
	_ = stream.CloseRequest()
	p.stop()
	err = <-received
	_ = stream.CloseResponse()
	if unreached := (*errUnreached)(nil); errors.As(r.failed(0, err), &unreached) {
		return unreached
	}
	return errors.Join(sent, err, io.ErrUnexpectedEOF)
}

func (p *pipe) send(ctx context.Context, stream *connect.BidiStreamForClientSimple[nodev1.PublishRequest, nodev1.PublishResponse]) error {
	for {
		select {
		case <-p.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		for {
			frame := p.frame()
			if frame == nil {
				break
			}
			if err := stream.Send(frame); err != nil {
				return err
			}
		}
	}
}

// frame takes what fits into a frame; nil: there is nothing.
func (p *pipe) frame() *nodev1.PublishRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(p.out), pipeBatches) && (n == 0 || bytes < pipeBytes) {
		bytes += len(p.out[n].parcel.batch.Bytes())
		n++
	}
	if n == 0 {
		return nil
	}
	frame := &nodev1.PublishRequest{Batches: make([]*nodev1.PublishBatch, n)}
	for i, x := range p.out[:n] {
		p.number++
		p.flying[p.number] = x
		frame.Batches[i] = &nodev1.PublishBatch{Partition: uint64(x.lane.id), Records: x.parcel.batch.Bytes(), Opens: x.opens}
	}
	if p.out = p.out[n:]; len(p.out) == 0 {
		p.out = nil
	}
	return frame
}

func (p *pipe) receive(stream *connect.BidiStreamForClientSimple[nodev1.PublishRequest, nodev1.PublishResponse]) error {
	for {
		frame, err := stream.Receive()
		if err != nil {
			return err
		}
		for _, a := range frame.GetAnswers() {
			p.mu.Lock()
			x, ok := p.flying[a.GetBatch()]
			delete(p.flying, a.GetBatch())
			p.mu.Unlock()
			if !ok {
				return errNotWhole
			}
			stored, err := storedFrom(a, x.parcel.batch.Len())
			x.lane.answer(x.parcel, stored, err)
		}
	}
}

// storedFrom unpacks what became of a batch of n records.
func storedFrom(a *nodev1.PublishAnswer, n int) ([]partition.Stored, error) {
	if err := errorOf(a.GetFailure()); err != nil {
		return nil, err
	}
	out := make([]partition.Stored, n)
	switch {
	case int(a.GetCount()) == n:
		for i := range out {
			out[i].Offset = partition.Offset(a.GetFirstOffset()) + partition.Offset(i)
		}
	case len(a.GetResults()) == n:
		for i, s := range a.GetResults() {
			out[i] = partition.Stored{Offset: partition.Offset(s.GetOffset()), Duplicate: s.GetDuplicate(), Err: errorOf(s.GetFailure())}
		}
	default:
		return nil, errNotWhole
	}
	return out, nil
}
