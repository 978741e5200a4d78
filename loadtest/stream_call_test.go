package loadtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func open(t *testing.T, server, method string) *stream {
	t.Helper()
	s, err := openStream(t.Context(), server, method)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Frames near the limit go out and come back while others do, and the end of the
// call is an end without an error.
func TestStreamEnds(t *testing.T) {
	s := open(t, serve(t, &wired{b: newTextbook()}), publishStream)
	big := record.Record{HasKey: true, Key: []byte("k"), Body: bytes.Repeat([]byte("x"), 1<<20)}
	sent := make(chan error, 1)
	go func() {
		var err error
		for range 5 {
			var out outbox
			out.add("t", 0, record.Meta{}, []record.Record{big, big, big}, false)
			err = errors.Join(err, s.Send(&out.frame))
		}
		sent <- errors.Join(err, s.CloseSend())
	}()
	var m strandmqv1.PublishStreamResponse
	for i := range uint64(5) {
		if err := s.Receive(&m); err != nil || m.GetResults()[0].GetBatch() != i+1 || m.GetResults()[0].GetRun().GetFirstOffset() != 3*i {
			t.Fatalf("answer %d: %v, %v", i, &m, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if err := s.Receive(&m); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
	if err := s.Send(&strandmqv1.PublishStreamRequest{}); !errors.Is(err, errSendEnded) {
		t.Errorf("sending after the end: %v", err)
	}
	if err := errors.Join(s.CloseSend(), s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// A broker that says nothing: patience ends it, and so does closing.
func TestStreamSilence(t *testing.T) {
	server := serve(t, &wired{b: newTextbook()})
	s := open(t, server, publishStream)
	s.Patience(time.Hour)
	s.Patience(0)
	s.Patience(time.Millisecond)
	var r *Refusal
	if err := s.Receive(&strandmqv1.PublishStreamResponse{}); !errors.As(explainStream(err, server), &r) || !strings.Contains(r.Text, "has not answered") {
		t.Errorf("%v", err)
	}
	s = open(t, server, publishStream)
	time.AfterFunc(time.Millisecond, func() { _ = s.Close() })
	if err := s.Receive(&strandmqv1.PublishStreamResponse{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := s.Send(&strandmqv1.PublishStreamRequest{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// What is no broker is told from one that is away for a while.
func TestStreamToWhom(t *testing.T) {
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.Config.Protocols = &h2
	other.Start()
	defer other.Close()
	old := httptest.NewServer(http.NotFoundHandler()) // HTTP/1.1 only
	defer old.Close()
	for name, c := range map[string]struct {
		server, want string
		passing      bool
	}{
		"nobody":                        {"http://127.0.0.1:1", "start one with 'strandmq serve'", true},
		"another server":                {other.URL, "no StrandMQ broker of this version", false},
		"a server without HTTP/2":       {old.URL, "broke", true},
		"a broker without streams":      {serve(t, &wired{b: newTextbook()}) + "/elsewhere", "no StrandMQ broker of this version", false},
		"a broker that says it is busy": {busy(t), "come back (TOO_BUSY)", true},
	} {
		s, err := openStream(t.Context(), c.server, publishStream)
		if err == nil {
			err = s.Receive(&strandmqv1.PublishStreamResponse{})
			_ = s.Close()
		}
		err = explainStream(err, c.server)
		var r *Refusal
		if !errors.As(err, &r) || !strings.Contains(r.Error(), c.want) || r.Passing != c.passing {
			t.Errorf("%s: %v (%+v)", name, err, r)
		}
	}
	for _, bad := range []string{"https://127.0.0.1:1", "127.0.0.1:1", "", "http://", ":", "unix:///tmp/x"} {
		if _, err := openStream(t.Context(), bad, publishStream); err == nil || errors.As(explainStream(err, bad), new(*Refusal)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := openStream(gone, serve(t, &wired{b: newTextbook()}), publishStream); err == nil {
		if err := s.Receive(&strandmqv1.PublishStreamResponse{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		_ = s.Close()
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// busy is a server that refuses every call.
func busy(t *testing.T) string {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	h := connect.NewBidiStreamHandler(publishStream, func(context.Context, *connect.BidiStream[strandmqv1.PublishStreamRequest, strandmqv1.PublishStreamResponse]) error {
		e := connect.NewError(connect.CodeResourceExhausted, errors.New("come back"))
		d, err := connect.NewErrorDetail(&strandmqv1.Problem{Reason: "TOO_BUSY", Message: "come back", RetryAfterMs: 5})
		if err != nil {
			return err
		}
		e.AddDetail(d)
		return e
	})
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = &p
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}
