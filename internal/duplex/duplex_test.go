package duplex

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve gives the URL of a server that runs h for every call.
func serve(t testing.TB, h http.HandlerFunc, change func(*http.Server)) string {
	t.Helper()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, Protocols: &p}
	if change != nil {
		change(s)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return "http://" + l.Addr().String()
}

func envelope(flags byte, m []byte) []byte {
	b := append([]byte{flags}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(len(m)))
	return append(b, m...)
}

// echo sends every message back, and ends well when the caller does.
func echo(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w).Flush
	_ = flush()
	for {
		var prefix [5]byte
		if _, err := io.ReadFull(r.Body, prefix[:]); err != nil {
			break
		}
		m := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
		if _, err := io.ReadFull(r.Body, m); err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(envelope(0, m))
		_ = flush()
	}
	_, _ = w.Write(envelope(2, []byte(`{}`)))
}

func dial(t testing.TB, url string) *Stream {
	t.Helper()
	s, err := Dial(t.Context(), url, "/some.Service/Method")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func message(n int, of byte) []byte {
	b := bytes.Repeat([]byte{of}, Headroom+n)
	for i := range n {
		b[Headroom+i] = byte(i*7) + of
	}
	return b
}

// Messages of every size come back whole and in order, also those that are
// longer than a frame and than the windows of both sides.
func TestEcho(t *testing.T) {
	for name, change := range map[string]func(*http.Server){
		"as it is": nil,
		"small": func(s *http.Server) {
			s.HTTP2 = &http.HTTP2Config{MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := dial(t, serve(t, echo, change))
			sizes := []int{0, 1, 5, 100, 16383, 16384, 16385, 1 << 16, 1<<20 + 3, 5 << 20, 9 << 20, 9 << 20, 9 << 20, 7}
			sent := make(chan error, 1)
			go func() {
				for i, n := range sizes {
					if err := s.Send(message(n, byte(i))); err != nil {
						sent <- err
						return
					}
				}
				sent <- s.CloseSend()
			}()
			for i, n := range sizes {
				m, err := s.Receive()
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if !bytes.Equal(m, message(n, byte(i))[Headroom:]) {
					t.Fatalf("message %d of %d bytes is another, of %d", i, n, len(m))
				}
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if m, err := s.Receive(); !errors.Is(err, io.EOF) {
					t.Fatalf("%q, %v", m, err)
				}
			}
			if err := s.Send(message(1, 0)); !errors.Is(err, errSendEnded) {
				t.Fatal(err)
			}
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What the server sees is a call of the Connect protocol.
func TestRequest(t *testing.T) {
	seen := make(chan string, 1)
	s := dial(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- fmt.Sprintf("%s %s %s %s, version %s, host %v", r.Proto, r.Method, r.URL.Path, r.Header.Get("Content-Type"),
			r.Header.Get("Connect-Protocol-Version"), r.Host == r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		_, _ = w.Write(envelope(2, []byte(`{}`)))
	}, nil)+"/api")
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got, want := <-seen, "HTTP/2.0 POST /api/some.Service/Method application/connect+proto, version 1, host true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Refusals and ends that are none.
func TestEnds(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want func(error) bool
	}{
		"refused at the end": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(envelope(2, []byte(`{"error":{"code":"unavailable","message":"later","details":[{"type":"a.B","value":"aGk"},{"type":"a.C","value":"aGk="},{"type":"bad","value":"%"}]}}`)))
		}, func(err error) bool {
			var e *Error
			return errors.As(err, &e) && e.Code == "unavailable" && e.Message == "later" && len(e.Details) == 2 &&
				string(e.Details[0].Value) == "hi" && e.Details[1].Type == "a.C" && e.Error() == "unavailable: later"
		}},
		"refused before": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"code":"unavailable","message":"no"}`))
		}, func(err error) bool {
			var e *Error
			return errors.As(err, &e) && e.Code == "unavailable" && e.Message == "no"
		}},
		"another server": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, long, http.StatusNotFound) },
			func(err error) bool {
				var e *Error
				return errors.As(err, &e) && e.Code == "unknown" && strings.Contains(e.Message, "404")
			}},
		"a long refusal": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat(long, 10_000), http.StatusNotFound)
		}, func(err error) bool { var e *Error; return errors.As(err, &e) && e.Code == "unknown" }},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(envelope(0, []byte("abc"))[:6])
			panic(http.ErrAbortHandler)
		}, func(err error) bool { var e *Error; return errors.As(err, &e) && e.Code == "unavailable" }},
		"without a word": {func(http.ResponseWriter, *http.Request) {},
			func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"in the middle": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(envelope(0, []byte("abc"))[:6]) },
			func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"compressed": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(envelope(1, []byte("abc"))) },
			func(err error) bool { return strings.Contains(err.Error(), "flags 0x1") }},
		"too large": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte{0, 0xff, 0xff, 0xff, 0xff})
		}, func(err error) bool { return strings.Contains(err.Error(), "4294967295 bytes; at most") }},
		"an end that is none": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(envelope(2, []byte("{"))) },
			func(err error) bool { return strings.Contains(err.Error(), "cannot be read") }},
	} {
		t.Run(name, func(t *testing.T) {
			s := dial(t, serve(t, c.h, nil))
			_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
			m, err := s.Receive()
			if err == nil || !c.want(err) {
				t.Fatalf("%q, %v", m, err)
			}
			if _, again := s.Receive(); !errors.Is(again, err) {
				t.Errorf("and then %v", again)
			}
			if err := s.Send(message(1, 0)); err == nil {
				t.Error("what ended takes a message")
			}
		})
	}
}

// A Send that waits for room ends with the stream.
func TestCloseWakes(t *testing.T) {
	began := make(chan struct{})
	release := make(chan struct{})
	s := dial(t, serve(t, func(http.ResponseWriter, *http.Request) { close(began); <-release }, nil))
	defer close(release)
	sent := make(chan error, 1)
	go func() { sent <- s.Send(message(8<<20, 1)) }() // nobody reads it, and nobody is in Receive
	<-began
	_ = s.Close()
	if err := <-sent; err == nil {
		t.Error("8 MiB went to a server that read none")
	}
}

// Bytes that are no HTTP/2 are an error, not a hang or a panic.
func FuzzReceive(f *testing.F) {
	f.Add(appendHeader(nil, 0, frameSettings, 0, 0))
	f.Add(append(appendHeader(nil, 8, frameData, 0, stream), envelope(0, []byte("abc"))...))
	f.Add(append(appendHeader(nil, 10, frameData, flagPadded, stream), append([]byte{1}, append(envelope(0, []byte("abc")), 0)...)...))
	f.Add(append(appendHeader(nil, 4, frameWindow, 0, 0), 0, 0, 0, 9))
	f.Add(append(appendHeader(nil, 1, frameHeaders, flagEndHeaders|flagEndStream, stream), 0x88))
	f.Add(append(appendHeader(nil, 8, frameGoAway, 0, 0), make([]byte, 8)...))
	f.Add(append(appendHeader(nil, 6, frameSettings, 0, 0), 0, 4, 0xff, 0xff, 0xff, 0xff))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Skip(err)
		}
		defer l.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(b)
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
		s, err := Dial(context.Background(), "http://"+l.Addr().String(), "/p")
		if err != nil {
			t.Fatal(err)
		}
		_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
		for range 100 {
			if _, err = s.Receive(); err != nil {
				break
			}
		}
		_ = s.Close()
		<-done
		if err == nil && len(b) < 1000 {
			t.Errorf("%x has no end", b)
		}
	})
}

func TestDialRefuses(t *testing.T) {
	for _, url := range []string{"https://127.0.0.1:1", "127.0.0.1:1", "http://", "http://127.0.0.1:1"} {
		if _, err := Dial(t.Context(), url, "/p"); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
}

// What a message costs, there and back, with the server's part.
func BenchmarkEcho(b *testing.B) {
	s := dial(b, serve(b, echo, nil))
	buf := message(100, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Send(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Receive(); err != nil {
			b.Fatal(err)
		}
	}
}
