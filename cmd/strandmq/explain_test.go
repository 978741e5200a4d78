package main

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Whatever is at the other end, the error says what to do.
func TestWhatIsNoBroker(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "text/html")
		_, _ = w.Write([]byte("<html>hello</html>"))
	}))
	defer web.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer other.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it is told of who does not trust it
	secure.StartTLS()
	defer secure.Close()
	// As a port for nodes is to who speaks no TLS.
	nodes, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	go func() {
		for {
			c, err := nodes.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = tls.Server(c, &tls.Config{Certificates: secure.TLS.Certificates}).Handshake()
				_ = c.Close()
			}()
		}
	}()
	peers := nodes.Addr().String()
	for _, c := range []struct {
		server, want string
		code         int
	}{
		{"https" + strings.TrimPrefix(web.URL, "http"), "no broker answers at https" + strings.TrimPrefix(web.URL, "http") + ": what is there speaks no TLS", exitFailed},
		{secure.URL, "the certificate there is not one that this machine trusts", exitFailed},
		{peers, "no broker answers at http://" + peers + ": what is there takes connections and ends them without an answer", exitFailed},
		{peers + "," + gone.URL, "http://" + peers + " (what is there takes connections", exitFailed},
		{peers, "(--peer-listen)", exitFailed},
		{gone.URL, "no broker answers at " + gone.URL, exitFailed},
		{gone.URL, "start one with 'strandmq serve'", exitFailed},
		{web.URL, "is no StrandMQ broker", exitFailed},
		{other.URL, "what answers at " + other.URL + " is no StrandMQ broker", exitFailed},
		{"http://", "is no URL", exitUsage},
		{"ftp://x", "is no URL", exitUsage},
	} {
		code, out, talk := strandmq(t, c.server, "", "topic", "list")
		if code != c.code || out != "" || !strings.Contains(talk, c.want) {
			t.Errorf("%s: code %d, out %q, talk %q; want %d and %q", c.server, code, out, talk, c.code, c.want)
		}
	}
}

// A refusal says what "it" is.
func TestRefusalText(t *testing.T) {
	for _, c := range []struct{ field, want string }{
		{"messages[3].key", "key: it is empty"},
		{"messages[3].headers[0].name", "headers[0].name: it is empty"},
		{"messages[3]", "it is empty"},
		{"", "it is empty"},
		{"topic", "topic: it is empty"},
	} {
		if got := refusalText(&strandmqv1.Problem{Field: c.field, Message: "it is empty"}); got != c.want {
			t.Errorf("%q: %q, want %q", c.field, got, c.want)
		}
	}
}

// What goes into a request as text, and is none, is named, and wrong usage.
func TestNoText(t *testing.T) {
	web := httptest.NewServer(nil)
	defer web.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"trace", "hot", "--id", "\xff\xfe"}, `--id "\xff\xfe" is not valid text`},
		{[]string{"topic", "describe", "\xff\xfe"}, `"\xff\xfe" is not valid text`},
		{[]string{"consume", "hot", "--group", "\xff\xfe"}, `--group "\xff\xfe" is not valid text`},
	} {
		code, out, talk := strandmq(t, web.URL, "", c.args...)
		if code != exitUsage || out != "" || !strings.Contains(talk, c.want) {
			t.Errorf("%q: code %d, out %q, talk %q", c.args, code, out, talk)
		}
	}
}
