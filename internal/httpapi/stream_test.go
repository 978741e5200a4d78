package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// full is memory that has room once freed is closed.
type full struct{ freed chan struct{} }

func (f full) Take(int64) (taken bool, freed <-chan struct{}) {
	select {
	case <-f.freed:
		return true, nil
	default:
		return false, f.freed
	}
}
func (full) Give(int64) {}
func (full) Close()     {}

// heard tells when something was written.
type heard struct {
	*httptest.ResponseRecorder
	once func()
}

func (h heard) Write(b []byte) (int, error) {
	defer h.once()
	return h.ResponseRecorder.Write(b)
}
func (heard) SetWriteDeadline(time.Time) error { return nil }

// Events that wait for memory say that they are there.
func TestEventsThatWaitForMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mem, written := full{make(chan struct{})}, false
	w := heard{httptest.NewRecorder(), func() {
		if !written {
			written = true
			close(mem.freed)
		}
	}}
	s := &stream{api: &api{cfg: Config{WriteTime: time.Minute}}, w: w, rc: http.NewResponseController(w), ctx: ctx, events: true, beat: time.Millisecond}
	res := &strandmqv1.ReadResponse{Messages: []*strandmqv1.ReadMessage{{Offset: 1}}}
	if _, ok, err := s.room(mem, res); ok || err != nil || s.set == 0 {
		t.Fatalf("room %v, %d set aside: %v", ok, s.set, err)
	}
	if got := w.Body.String(); !strings.HasPrefix(got, ": ") || !strings.HasSuffix(got, "\n\n") {
		t.Fatalf("it was told %q", got)
	}
}
