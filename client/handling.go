package client

import (
	"context"
	"sync/atomic"
	"time"
)

// handling is the context of one handler. Most handlers are over before they look at
// it, so what a context takes is made when it is asked for anything.
type handling struct {
	base  context.Context           //nolint:containedctx // of Run
	state atomic.Pointer[handlings] // nil: nobody has asked, and it has not ended
}

// handlings is what became of the context of a handler.
type handlings struct {
	ctx    context.Context //nolint:containedctx // nil: nobody has asked
	cancel context.CancelCauseFunc
	cause  error // why it ended, where nobody has asked
}

// returned is the state of most.
var returned = &handlings{cause: context.Canceled}

// made gives the context, with all that one of the library can do.
func (h *handling) made() context.Context {
	for {
		s := h.state.Load()
		if s != nil && s.ctx != nil {
			return s.ctx
		}
		now := &handlings{}
		now.ctx, now.cancel = context.WithCancelCause(h.base)
		if s != nil {
			now.cancel(s.cause)
		}
		if h.state.CompareAndSwap(s, now) {
			return now.ctx
		}
		now.cancel(nil)
	}
}

// Deadline implements context.Context.
func (h *handling) Deadline() (time.Time, bool) { return h.base.Deadline() }

// Done implements context.Context.
func (h *handling) Done() <-chan struct{} { return h.made().Done() }

// Err implements context.Context.
func (h *handling) Err() error { return h.made().Err() }

// Value is also how the library finds the context that ends: see context.Cause.
func (h *handling) Value(key any) any { return h.made().Value(key) }

// end ends it. The first cause stays; nil: the handler has returned.
func (h *handling) end(cause error) {
	state := returned
	if cause != nil {
		state = &handlings{cause: cause}
	}
	if h.state.CompareAndSwap(nil, state) {
		return
	}
	// Whoever made it meanwhile has made it for good.
	if s := h.state.Load(); s.cancel != nil {
		s.cancel(cause)
	}
}

// why is the cause for which it ended, while its handler runs; nil: it did not.
func (h *handling) why() error {
	switch s := h.state.Load(); {
	case s == nil:
		return nil
	case s.ctx != nil:
		return context.Cause(s.ctx)
	default:
		return s.cause
	}
}
