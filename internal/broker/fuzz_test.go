package broker

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
)

// What callers send back to us, a page token or a session, is what we gave them
// or is refused: nothing else has the same meaning.
func FuzzParsePage(f *testing.F) {
	f.Add("")
	f.Add(pageToken(0, 0))
	f.Add(pageToken(3, 1<<40))
	f.Add(pageToken(8, 1))
	f.Add("MC8w=")
	f.Fuzz(func(t *testing.T, token string) {
		const partitions = 8
		at, o, err := parsePage(token, partitions)
		switch {
		case err != nil:
			if !errors.As(err, new(*refusal)) && !errors.As(err, new(*coordinator.ErrNoSession)) {
				t.Fatalf("%q gives %v, which has no reason", token, err)
			}
		case at < 0 || at >= partitions:
			t.Fatalf("%q names partition %d of %d", token, at, partitions)
		default:
			if at2, o2, err := parsePage(pageToken(at, o), partitions); err != nil || at2 != at || o2 != o {
				t.Fatalf("%q is %d/%d, and written again %d/%d, %v", token, at, o, at2, o2, err)
			}
		}
	})
}

func FuzzParseSession(f *testing.F) {
	for _, s := range []string{"", "0", "1", "01", "+1", "18446744073709551615", "18446744073709551616", "x", "1-", "1-0", "1-0000000g", sessionText(3, "m", 7), sessionText(3, "other", 7), sessionText(3, "m", 1<<64-1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSession(3, "m", text)
		if err != nil {
			if !errors.As(err, new(*refusal)) && !errors.As(err, new(*coordinator.ErrNoSession)) {
				t.Fatalf("%q gives %v, which has no reason", text, err)
			}
			return
		}
		if n == 0 || sessionText(3, "m", n) != text {
			t.Fatalf("%q is taken for session %d", text, n)
		}
	})
}

// The host allow-list must not be talked round: no Host that another reader takes
// for a foreign name is let in.
func FuzzHost(f *testing.F) {
	for _, s := range []string{
		"", "localhost", "LOCALHOST:80", "[localhost]", "127.0.0.1:7", "[::1]:7", "::1", "127.1", "evil.example", "localhost.evil.example",
		"evil.example:localhost", "localhost@evil.example", "evil.example/localhost", "localhost:1:2", "[127.0.0.1", "127.0.0.1]",
	} {
		f.Add(s)
	}
	g := &guard{hosts: map[string]bool{"localhost": true}}
	f.Fuzz(func(t *testing.T, host string) {
		if !g.hostAllowed(host) {
			return
		}
		u, err := url.Parse("http://" + host)
		if err != nil {
			return // nothing else finds a name in it
		}
		name := strings.ToLower(u.Hostname())
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Fatalf("%q is let in, and names %q", host, name)
		}
	})
}

// FuzzContentType: what a form or a beacon of a web page can send without being
// asked first is never let in.
func FuzzContentType(f *testing.F) {
	for _, s := range []string{
		"", "application/json", "application/json; charset=utf-8", "APPLICATION/GRPC+proto", "text/plain", "text/plain; application/json",
		"multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/json, text/plain", "application/json;", ";",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !contentTypeAllowed(value) {
			return
		}
		essence, _, _ := strings.Cut(value, ";")
		switch essence = strings.ToLower(strings.TrimSpace(essence)); {
		case essence == "text/plain", essence == "multipart/form-data", essence == "application/x-www-form-urlencoded", !strings.HasPrefix(essence, "application/"):
			t.Fatalf("%q is let in", value)
		}
	})
}
