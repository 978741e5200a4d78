package broker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/strandmq/strandmq/consumer"
)

// A stream that ends while as many settlements as may are on their way lets go of
// the reader that waits to send one more: else neither side would hear of the end.
func TestSettlingEndsWithTheStream(t *testing.T) {
	b := start(t, t.TempDir())
	api := newAPI(t, b.URL())
	api.topic(t, "t", 1)
	api.group(t, "t", "g", nil)
	f := newFlow(&guard{flight: b.flight, bodyTime: time.Minute}, httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil), 1<<20)
	defer f.end()
	c := context.WithValue(ctx(t), flowKey{}, f)
	a, err := b.newAttendant(c, memberOf{topic: "t", group: "g", member: "m"})
	if err != nil {
		t.Fatal(err)
	}
	a.settling = settlesInFlight
	// A caller that is there and sends nothing more: its context does not end.
	there, leave := context.WithCancel(context.Background())
	defer leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.settle(there, []consumer.SettleRun{{First: 1, Action: consumer.Ack}})
	}()
	a.send = func(*frame) error { return errors.New("nobody takes it") }
	if err := a.serve(c); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-c.Done():
		t.Fatal("the reader still waits after the end")
	}
}
