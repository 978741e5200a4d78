package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// nobody is an address at which nothing listens.
func nobody() string {
	gone := httptest.NewServer(nil)
	gone.Close()
	return gone.URL
}

// silentServer is an address that takes connections and says nothing until the test ends.
func silentServer(t *testing.T) string {
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(func() { close(end); s.Close() })
	return s.URL
}

// Of several addresses the first that answers is asked, whatever is the matter with those
// before it, and it is said which those are.
func TestServersInTurn(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	at(t, url, "orders", nil)
	for what, first := range map[string]string{"nothing listens": nobody(), "it hangs": silentServer(t)} {
		for _, args := range [][]string{
			{"topic", "list"}, {"doctor", "--watch", "0"}, {"group", "describe", "orders", "g"}, {"events"}, {"node"}, {"cluster", "status"},
			{"top", "--once", "--interval", "100ms"}, {"publish", "orders", "--key", "k", "--body", "x"},
		} {
			want := exitDone
			if args[0] == "doctor" {
				want = exitFailed // it could not ask everybody
			} else if what == "it hangs" && args[0] != "topic" {
				continue // which takes a second each time
			}
			until(t, fmt.Sprint(what, ": ", args), func() bool {
				code, out, talk := strandmq(t, first+","+url, "", args...)
				return code == want && strings.Count(out+talk, "not asked: the broker at "+first) == 1
			})
		}
	}
	code, out, _ := strandmq(t, nobody()+","+url, "", "check", "--age-warning", "0", "--age-critical", "0", "--disk-warning", "0", "--disk-critical", "0")
	if code != 3 || !strings.HasPrefix(out, "UNKNOWN: ") {
		t.Errorf("check: code %d: %s", code, out)
	}
}

// Where none answers, the error has them all.
func TestNoServerAnswers(t *testing.T) {
	t.Parallel()
	one, other := nobody(), nobody()
	for _, args := range [][]string{{"topic", "list"}, {"events"}, {"doctor"}, {"check"}, {"top", "--once"}} {
		code, out, talk := strandmq(t, one+","+other, "", args...)
		if code == exitDone || !strings.Contains(out+talk, "no broker answers at "+one+" (") || !strings.Contains(out+talk, "), "+other+" (") {
			t.Errorf("%v: code %d\n%s%s", args, code, out, talk)
		}
	}
	_, err := dialAny(nil, one, other).topics.ListTopics(t.Context(), &strandmqv1.ListTopicsRequest{})
	var none noneAnswers
	if err := explain(err, "x"); !errors.As(err, &none) || len(none) != 2 {
		t.Errorf("%v", err)
	}
}

// One that answers and takes no calls is asked only where no other does.
func TestServersThatAreNotReady(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	not := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			calls.Add(1)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer not.Close()
	url := ward(t, t.TempDir()).URL()
	until(t, "the other is asked", func() bool {
		calls.Store(0)
		code, _, talk := strandmq(t, not.URL+","+url, "", "topic", "list")
		return code == exitDone && !strings.Contains(talk, "not asked") && calls.Load() == 0
	})
	if code, _, _ := strandmq(t, not.URL+","+nobody(), "", "topic", "list"); code != exitFailed || calls.Load() != 1 {
		t.Errorf("code %d, %d calls", code, calls.Load())
	}
}

// What an address has of a user, a password or a path is for that address.
func TestServersKeepSecretsApart(t *testing.T) {
	t.Parallel()
	var seen atomic.Pointer[http.Request]
	end := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Clone(context.Background()))
		w.Header().Set("content-type", "application/proto")
	}))
	defer end.Close()
	host := strings.TrimPrefix(end.URL, "http://")
	for _, c := range []struct{ second, user, password, path string }{
		{"http://" + host, "", "", "/strandmq.v1"},
		{"http://you:other@" + host + "/behind/", "you", "other", "/behind/strandmq.v1"},
	} {
		dead, err := url.Parse(nobody())
		if err != nil {
			t.Fatal(err)
		}
		dead.User, dead.Path = url.UserPassword("me", "secret"), "/first"
		until(t, "the second answers", func() bool {
			_, err := dialAny(nil, dead.String(), c.second).topics.ListTopics(t.Context(), &strandmqv1.ListTopicsRequest{})
			return err == nil
		})
		r := seen.Load()
		user, password, _ := r.BasicAuth()
		if user != c.user || password != c.password || !strings.HasPrefix(r.URL.Path, c.path) || r.Host != host {
			t.Errorf("%s: %q %q at %s of %s", c.second, user, password, r.URL.Path, r.Host)
		}
		code, out, talk := strandmq(t, dead.String()+","+nobody(), "", "doctor")
		if code != exitFailed || strings.Contains(out+talk, "secret") {
			t.Errorf("code %d: %s%s", code, out, talk)
		}
	}
}

// A broker that goes while it is asked is followed by the next.
func TestServersFailOver(t *testing.T) {
	t.Parallel()
	first, second := ward(t, t.TempDir()), ward(t, t.TempDir())
	api := dialAny(nil, first.URL(), second.URL())
	granted(t, api.topics.ListTopics, &strandmqv1.ListTopicsRequest{})
	if taken, _ := api.way.choose(t.Context()); taken.String() != first.URL() {
		first, second = second, first // it was the quicker one by far
	}
	at(t, second.URL(), "second", nil)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the second is asked", func() bool {
		res, err := api.topics.ListTopics(t.Context(), &strandmqv1.ListTopicsRequest{})
		return err == nil && len(res.GetTopics()) == 1
	})
	if gone := api.way.silent; len(gone) != 1 {
		t.Errorf("%v", gone)
	}
}

// A broker that looked for a leader for as long as one may come soon is not asked to look
// once more; one that says so at once, as it starts, is asked again.
func TestNoQuorumIsAskedForOnce(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"at once": 0, "looked": looked + 10*time.Millisecond} {
		calls := 0
		_, err := ask(t.Context(), func(context.Context, *strandmqv1.ListTopicsRequest) (*strandmqv1.ListTopicsResponse, error) {
			if calls++; calls == 2 {
				return &strandmqv1.ListTopicsResponse{}, nil
			}
			time.Sleep(takes) // the broker's own look
			return nil, &apiError{reason: "NO_QUORUM", retryAfter: time.Millisecond, passing: true}
		}, &strandmqv1.ListTopicsRequest{})
		if takes == 0 && (calls != 2 || err != nil) || takes > 0 && (calls != 1 || !isReason(err, "NO_QUORUM")) {
			t.Errorf("%s: asked %d times, %v", name, calls, err)
		}
	}
}
