package broker

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func gzipped(t *testing.T, from io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.Copy(z, from); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A compressed request is bounded like one that is not, in every protocol, and
// what it was counted for is given back.
func TestInflation(t *testing.T) {
	b := start(t, t.TempDir())
	newAPI(t, b.URL()).topic(t, "t", 1)
	random := make([]byte, 3<<19) // written as hex it halves, and no more
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(random)
	for _, p := range []struct {
		name string
		h2   bool
		opts []connect.ClientOption
	}{
		{"connect", false, nil},
		{"connect JSON", false, []connect.ClientOption{connect.WithProtoJSON()}},
		{"gRPC", true, []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-Web", false, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(p.name, func(t *testing.T) {
			a := apiOver(httpClient(t, p.h2), b.URL(), append(p.opts, connect.WithSendGzip())...)
			publish := func(ms ...*strandmqv1.Message) error {
				_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: ms})
				return err
			}
			repeated := msg("k", strings.Repeat("0", 1<<20))
			wantReason(t, publish(repeated, repeated, repeated), "BAD_COMPRESSION")
			// The least that a client compresses well is no bomb.
			if err := publish(msg("k", strings.Repeat("0", 200<<10))); err != nil {
				t.Errorf("200 KiB of zeros: %v", err)
			}
			if err := publish(msg("k", hex.EncodeToString(random[:500_000]))); err != nil {
				t.Errorf("1 MB: %v", err)
			}
			_, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: hex.EncodeToString(random[:600_000])})
			wantReason(t, err, "REQUEST_TOO_LARGE")
			waitFor(t, func() bool { return b.flight.held.Load() == 0 })
		})
	}
}

// A bomb costs what a large request costs, not what it would inflate to.
func TestBombCostsLittle(t *testing.T) {
	b := start(t, t.TempDir())
	// 1 GiB, of a thousand members that each are 1 MiB.
	bomb := bytes.Repeat(gzipped(t, io.LimitReader(zeros{}, 1<<20)), 1024)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2 {
		req, err := http.NewRequest("POST", b.URL()+"/strandmq.v1.PublishService/Publish", bytes.NewReader(bomb))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Content-Encoding", "gzip")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := wireReason(t, res); got != "REQUEST_TOO_LARGE" {
			t.Fatalf("reason %s", got)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
		t.Errorf("two bombs of 1 GiB allocated %d MiB", n>>20)
	}
	waitFor(t, func() bool { return b.flight.held.Load() == 0 })
}

// What is inflated counts among what all requests hold, and the reader that goes
// back to the pool reads the next message as if nothing had been.
func TestInflaterIsReused(t *testing.T) {
	f := &flight{max: 1 << 20}
	z := &inflater{flight: f, limit: 4 << 20, rejected: func(string) {}}
	read := func(b []byte) (string, error) {
		if err := z.Reset(bytes.NewBuffer(b)); err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(z)
		if err == nil && f.held.Load() != int64(len(out)) {
			t.Errorf("%d bytes counted of %d", f.held.Load(), len(out))
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if f.held.Load() != 0 {
			t.Errorf("%d bytes kept", f.held.Load())
		}
		_ = z.Reset(http.NoBody)
		return string(out), err
	}
	random := make([]byte, 2<<20)
	r := rand.NewChaCha8([32]byte{2})
	_, _ = r.Read(random)
	hello := gzipped(t, strings.NewReader("hello"))
	for range 2 {
		for _, c := range []struct {
			name   string
			body   []byte
			reason string
		}{
			{"too many at once", gzipped(t, bytes.NewReader(random)), "BUSY"},
			{"a bomb", gzipped(t, io.LimitReader(zeros{}, 1<<20)), "BAD_COMPRESSION"},
			{"not gzip", []byte("hello"), "BAD_REQUEST"},
			{"nothing", nil, "BAD_REQUEST"},
			{"cut off", hello[:len(hello)-6], "BAD_REQUEST"},
			{"changed", append(bytes.Clone(hello[:len(hello)-8]), 1, 2, 3, 4, 5, 0, 0, 0), "BAD_REQUEST"},
		} {
			_, err := read(c.body)
			var wire *connect.Error
			if !errors.As(err, &wire) || problemOf(err).GetReason() != c.reason {
				t.Errorf("%s: %v", c.name, err)
			}
			if out, err := read(hello); err != nil || out != "hello" {
				t.Fatalf("after %s: %q, %v", c.name, out, err)
			}
		}
	}
}

// An inflated request is counted as long as its call lasts.
func TestInflatedIsHeld(t *testing.T) {
	e := &edge{flight: &flight{max: 100}}
	req := connect.NewRequest(&strandmqv1.CreateTopicRequest{Topic: strings.Repeat("x", 80)})
	if release, ok := e.holdInflated(req); !ok || e.flight.held.Load() != 0 {
		t.Fatal("what came as it is was counted when it was read")
	} else {
		release()
	}
	for _, header := range []string{"Content-Encoding", "Grpc-Encoding"} {
		req.Header().Set(header, "gzip")
		release, ok := e.holdInflated(req)
		if !ok || e.flight.held.Load() != 82 {
			t.Fatalf("%s: %t, %d bytes held", header, ok, e.flight.held.Load())
		}
		if _, ok := e.holdInflated(req); ok || e.flight.held.Load() != 82 {
			t.Fatalf("%s: a second one fits: %d bytes held", header, e.flight.held.Load())
		}
		release()
		if n := e.flight.held.Load(); n != 0 {
			t.Fatalf("%s: %d bytes kept", header, n)
		}
		req.Header().Del(header)
	}
}
