package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A flow is the connection of one stream as the guard keeps it: a stream lives
// as long as its caller likes, so it is not the whole that has bounds but each
// frame, its bytes and the time in which it arrives or is taken. What a frame
// holds counts among the bytes of all requests until the method lets go of it.
//
//	caller ──frame──► Read: bytes counted, clock runs ──► method ── release() ──► next frame
//	caller ◄──frame── Write: clock runs until the caller took it ◄── method
//
// The method's goroutine reads, one goroutine writes; cut may be called from
// anywhere.
type flow struct {
	http.ResponseWriter
	guard *guard
	by    *request
	rc    *http.ResponseController
	body  io.ReadCloser
	limit int64    // bytes of a frame
	mem   *holding // what the stream's method holds of the memory of all streams
	// takeTime is how long the caller may take over a frame. The method may
	// change it before it writes.
	takeTime time.Duration

	held  int64         // of the frame that is being read
	moved atomic.Uint64 // grows while something comes, or is held back here
	slow  atomic.Bool
	in    *time.Timer // cuts a frame that does not arrive
	inOn  bool
	out   *time.Timer // cuts a reader that does not take a frame
	cause atomic.Pointer[refusal]

	mu   sync.Mutex // held while a clock or cut touches the connection
	over bool       // guarded by mu: the call is over, the connection someone else's
}

func newFlow(g *guard, w http.ResponseWriter, r *http.Request, limit int64) *flow {
	f := &flow{ResponseWriter: w, guard: g, by: requestOf(r.Context()), rc: http.NewResponseController(w), body: r.Body, limit: limit, takeTime: g.bodyTime}
	f.in = time.AfterFunc(time.Hour, func() { f.cut(slowFrame(g.bodyTime)) })
	f.in.Stop()
	f.out = time.AfterFunc(time.Hour, func() {
		f.slow.Store(true)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.over {
			_ = f.rc.SetWriteDeadline(longAgo())
		}
	})
	f.out.Stop()
	return f
}

// longAgo is a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }

func slowFrame(limit time.Duration) *refusal {
	return refuse("BAD_REQUEST", "", "a frame of the stream did not arrive within %v of its first byte", limit)
}

type flowKey struct{}

// flowOf is the flow of a stream's context.
func flowOf(ctx context.Context) *flow {
	f, _ := ctx.Value(flowKey{}).(*flow)
	return f
}

// Read reads a part of a frame.
func (f *flow) Read(p []byte) (int, error) {
	n, err := f.body.Read(p)
	if n > 0 {
		f.moved.Add(1)
		if !f.inOn {
			f.inOn = true
			f.in.Reset(f.guard.bodyTime)
		}
		f.held += int64(n)
		if f.held > f.limit {
			return 0, f.refuse(tooLarge(f.limit))
		}
		if !f.guard.flight.take(int64(n)) {
			if r := f.waitForRoom(); r != nil {
				return 0, f.refuse(r)
			}
		}
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		if r := f.cause.Load(); r != nil {
			return n, f.refuse(r)
		}
	}
	return n, err
}

func (f *flow) refuse(r *refusal) error {
	f.cause.CompareAndSwap(nil, r)
	return wireError(r, f.by)
}

// waitForRoom holds the caller back while all requests together hold too much.
func (f *flow) waitForRoom() *refusal {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	end := time.Now().Add(f.guard.bodyTime)
	for f.guard.flight.full() {
		if r := f.cause.Load(); r != nil {
			return r
		}
		if time.Now().After(end) {
			return &refusal{reason: "BUSY", retryAfter: 100 * time.Millisecond, text: "too many requests are being read at once: wait and open the stream again"}
		}
		<-look.C
		f.moved.Add(1)
	}
	return nil
}

// arrived tells that a frame is whole.
func (f *flow) arrived() {
	if f.inOn {
		f.inOn = false
		f.in.Stop()
	}
}

// inflated counts what a frame became that came compressed.
func (f *flow) inflated(n int64) error {
	f.held += n
	if !f.guard.flight.take(n) {
		if r := f.waitForRoom(); r != nil {
			return f.refuse(r)
		}
	}
	return nil
}

// release tells that the frame is held no more.
func (f *flow) release() {
	f.arrived()
	f.guard.flight.give(f.held)
	f.held = 0
}

// cut ends the reading, from anywhere: a Read that waits returns, and the
// stream's method finds why in refused.
func (f *flow) cut(why *refusal) {
	f.cause.CompareAndSwap(nil, why)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		_ = f.rc.SetReadDeadline(longAgo())
	}
}

// refused is why the reading ended, nil if nothing here ended it.
func (f *flow) refused() *refusal { return f.cause.Load() }

// Close implements io.Closer, for the request's body.
func (f *flow) Close() error { return f.body.Close() }

// Write writes a part of a frame.
func (f *flow) Write(p []byte) (int, error) {
	f.out.Reset(f.takeTime)
	n, err := f.ResponseWriter.Write(p)
	f.out.Stop()
	return n, f.lost(err)
}

// Flush implements http.Flusher; what was written goes on its way.
func (f *flow) Flush() { _ = f.FlushError() }

// FlushError is Flush with the error.
func (f *flow) FlushError() error {
	f.out.Reset(f.takeTime)
	err := f.rc.Flush()
	f.out.Stop()
	return f.lost(err)
}

// Unwrap lets a ResponseController find what is below.
func (f *flow) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// lost says in words that the caller took nothing for too long.
func (f *flow) lost(err error) error {
	if err != nil && f.slow.Load() {
		return fmt.Errorf("the caller took nothing for %v: %w", f.takeTime, err)
	}
	return err
}

// end stops the clocks and gives back what is still counted. Nothing touches
// the connection afterwards.
func (f *flow) end() {
	f.out.Stop()
	f.release()
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
}

// unharmed runs a stream's second goroutine: a panic there ends the stream and
// not the process, as one in the call's own does.
func (b *Broker) unharmed(ctx context.Context, what string, run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(ctx, b.log, "panic in a stream", what, p)
			err = internal(requestOf(ctx))
		}
	}()
	return run()
}
