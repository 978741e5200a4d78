package broker

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Profiles are there for programs on the machine if they were asked for, one at a time, and
// for nobody else.
func TestProfiles(t *testing.T) {
	b := startAlone(t, t.TempDir(), func(c *Config) { c.Profiles = true })
	url := b.URL() + profilePath
	for path, begins := range map[string]string{"goroutine": "goroutine profile: total ", "heap": "\x1f\x8b", "profile?seconds=1": "\x1f\x8b"} {
		if code, body := get(t, url+path); code != http.StatusOK || !strings.HasPrefix(body, begins) {
			t.Errorf("%s: %d %.100q", path, code, body)
		}
	}
	for path, want := range map[string]int{
		"profile?seconds=0": 400, "profile?seconds=11": 400, "profile?seconds=x": 400, "cmdline": 404, "trace": 404, "symbol": 404, "": 404,
	} {
		if code, body := get(t, url+path); code != want {
			t.Errorf("%q: %d %.100q, want %d", path, code, body, want)
		}
	}
	b.profiling.Lock()
	if code, body := get(t, url+"heap"); code != http.StatusTooManyRequests || !strings.Contains(body, "another profile is being made") {
		t.Errorf("a second one at once: %d %s", code, body)
	}
	b.profiling.Unlock()

	// A page of another origin has it fetched.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"heap", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	req.Header.Set("Sec-Fetch-Mode", "no-cors")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("for another origin: %d", res.StatusCode)
	}

	// Another machine.
	from := httptest.NewRequest(http.MethodGet, "http://localhost"+profilePath+"heap", http.NoBody)
	for addr, want := range map[string]int{"192.0.2.1:1234": 404, "": 404, "127.0.0.1:1234": 200, "[::1]:1234": 200} {
		w := httptest.NewRecorder()
		from.RemoteAddr = addr
		if b.server.Handler.ServeHTTP(w, from); w.Code != want {
			t.Errorf("from %q: %d, want %d", addr, w.Code, want)
		}
	}
	from.RemoteAddr = "127.0.0.1:1234"
	for _, name := range []string{"X-Forwarded-For", "Forwarded"} {
		for _, lines := range [][]string{{"for=192.0.2.1"}, {""}, {"", "for=192.0.2.1"}} { // a stranger's own line is first
			r, w := from.Clone(t.Context()), httptest.NewRecorder()
			r.Header[name] = lines
			if b.server.Handler.ServeHTTP(w, r); w.Code != http.StatusNotFound {
				t.Errorf("through a proxy that says %s %q: %d", name, lines, w.Code)
			}
		}
	}
	r, w := from.Clone(t.Context()), httptest.NewRecorder()
	r.Method = http.MethodHead
	if b.server.Handler.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", w.Code)
	}
	off := startAlone(t, t.TempDir())
	for _, path := range []string{"goroutine", "heap", "profile"} {
		if code, body := get(t, off.URL()+profilePath+path); code != http.StatusNotFound || !strings.Contains(body, "--profiles") {
			t.Errorf("%s of a broker that was not asked for profiles: %d %s", path, code, body)
		}
	}
}
