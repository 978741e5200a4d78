package main

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"testing"
)

// A monitoring system gives a check some seconds: no call of it waits longer than its part
// of them, whichever node hangs, and all of them together no longer than --timeout.
func TestCheckIsBounded(t *testing.T) {
	node := (&asked{cluster: "c"}).serve(t)
	to, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	longest, untimed := 0, 0
	pass := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ms, err := strconv.Atoi(r.Header.Get("Connect-Timeout-Ms"))
		mu.Lock()
		if longest = max(longest, ms); err != nil {
			untimed++
		}
		mu.Unlock()
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	for _, c := range []struct {
		most int
		args []string
	}{
		{3000, []string{"check"}},
		{3000, []string{"check", "--timeout", "1m"}},
		{1000, []string{"check", "--timeout", "1s"}},
		{3000, []string{"doctor", "--watch", "0"}},
		{1000, []string{"doctor", "--watch", "0", "--timeout", "1s"}},
	} {
		longest, untimed = 0, 0
		_, _, _ = strandmq(t, front.URL, "", c.args...)
		if longest == 0 || longest > c.most || untimed > 0 {
			t.Errorf("%v: a call may take %d ms, and is to take %d at most; %d may take any time", c.args, longest, c.most, untimed)
		}
	}
	for _, args := range [][]string{{"check", "--timeout", "0"}, {"doctor", "--timeout", "0"}} {
		if code, _, _ := strandmq(t, front.URL, "", args...); code == exitDone || code == exitFailed {
			t.Errorf("%v: code %d", args, code)
		}
	}
}
