package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// Two snapshots share a node's rate, and what they hold arrives whole.
func TestSnapshotRate(t *testing.T) {
	if snapshotRate(0) != nil {
		t.Error("a limiter, and none was asked for")
	}
	const each, perSecond = 640 << 10, 4 << 20
	body := bytes.Repeat([]byte("0123456789abcdef"), each/16)
	limit := snapshotRate(perSecond)
	start := time.Now()
	got := make(chan []byte, 2)
	for range 2 {
		go func() {
			b, err := io.ReadAll(&paced{t.Context(), bytes.NewReader(body), limit})
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
	}
	for range 2 {
		if b := <-got; !bytes.Equal(b, body) {
			t.Errorf("%d bytes came, not the %d that were sent", len(b), each)
		}
	}
	// All but the first burst waits for its turn: 256 ms here. It may take longer.
	if least := time.Duration(2*each-snapshotRead) * time.Second / perSecond; time.Since(start) < least*9/10 {
		t.Errorf("it took %v, and at that rate it takes %v", time.Since(start), least)
	}
}

// A snapshot that waits for its turn ends with the host.
func TestSnapshotRateEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	read := make(chan error)
	go func() {
		_, err := io.ReadAll(&paced{ctx, bytes.NewReader(make([]byte, 1<<20)), snapshotRate(1)})
		read <- err
	}()
	cancel()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
