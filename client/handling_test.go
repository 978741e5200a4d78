package client

import (
	"context"
	"errors"
	"testing"
)

// What a handler's context does is what one of the library does, whenever it is made.
func TestHandling(t *testing.T) {
	type key struct{}
	base := context.WithValue(t.Context(), key{}, "of Run")
	why := errors.New("why")
	for name, early := range map[string]bool{"asked before the end": true, "asked after it": false} {
		h := &handling{base: base}
		var inner context.Context
		if early {
			var stop context.CancelFunc
			inner, stop = context.WithCancel(h)
			defer stop()
			if h.Err() != nil || inner.Err() != nil || context.Cause(h) != nil {
				t.Fatalf("%s: ended: %v", name, h.Err())
			}
		}
		if h.why() != nil {
			t.Errorf("%s: ended, %v", name, h.why())
		}
		h.end(why)
		if !errors.Is(h.why(), why) {
			t.Errorf("%s: it ended since %v", name, h.why())
		}
		h.end(nil) // the first cause stays
		<-h.Done()
		if !errors.Is(h.Err(), context.Canceled) || !errors.Is(context.Cause(h), why) || h.Value(key{}) != "of Run" {
			t.Errorf("%s: %v, cause %v, value %v", name, h.Err(), context.Cause(h), h.Value(key{}))
		}
		if early {
			<-inner.Done()
			if !errors.Is(context.Cause(inner), why) {
				t.Errorf("%s: one made of it ended since %v", name, context.Cause(inner))
			}
		}
	}
	// What a handler left behind ends when the handler has returned.
	for name, early := range map[string]bool{"asked before": true, "asked after": false} {
		h := &handling{base: base}
		if early {
			_ = h.Done()
		}
		h.end(nil)
		<-h.Done()
		if !errors.Is(h.Err(), context.Canceled) || !errors.Is(context.Cause(h), context.Canceled) {
			t.Errorf("%s: %v, cause %v", name, h.Err(), context.Cause(h))
		}
	}
}
