package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// hung is a broker that failed over its disk, and does not let anybody close it.
type hung struct {
	failed  chan error
	closing chan struct{} // closed when Close is called
	letGo   chan struct{}
}

func (h *hung) Failed() <-chan error { return h.failed }

func (h *hung) Close() error {
	close(h.closing)
	<-h.letGo
	return nil
}

// A disk that never comes back must not keep a failed broker's process: a
// supervisor waits for its end to start another one.
func TestServeEndsOnAHungDisk(t *testing.T) {
	cause := errors.New("the disk did not come back from fsync")
	for _, comesBack := range []bool{false, true} {
		h := &hung{failed: make(chan error, 1), closing: make(chan struct{}), letGo: make(chan struct{})}
		var said bytes.Buffer
		a := &app{err: &said}
		patience := 50 * time.Millisecond
		if comesBack {
			patience = time.Hour // and the end does not take it
		}
		ended := make(chan error, 1)
		h.failed <- cause
		go func() { ended <- a.serve(context.Background(), h, patience) }()
		<-h.closing
		if comesBack {
			close(h.letGo)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, cause) {
				t.Fatalf("it ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
		if told := strings.Contains(said.String(), "does not let go"); told == comesBack {
			t.Fatalf("it said %q", said.String())
		}
		if !comesBack {
			close(h.letGo) // or the test leaves a goroutine
		}
	}
	if closeTime > 15*time.Second {
		t.Fatalf("a failed broker may take %v to end", closeTime)
	}
}
