package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/strandmq/strandmq/internal/doctor"
)

// servers is the way to a broker that has several addresses. Which one is taken is found
// out by a question of its own, and never by trying a call at one after the other: so a
// call is sent once, whatever it does. One that fails on its way has the next call choose
// anew. With one address nothing is asked.
type servers struct {
	transport http.RoundTripper
	base      *url.URL               // what calls are addressed to before they go somewhere
	told      func(doctor.Unreached) // of each address that was named and does not answer, once; may be nil

	mu     sync.Mutex // held while it is asked who answers
	urls   []*url.URL // in the order of their rank
	named  int        // so many of them were named by who typed the command
	at     *url.URL   // the one that is taken; nil: to be found out
	silent map[*url.URL]error
}

func newServers(transport http.RoundTripper, told func(doctor.Unreached), names ...string) *servers {
	s := &servers{transport: transport, told: told, silent: map[*url.URL]error{}}
	s.also(names...)
	s.named = len(s.urls)
	if s.named == 0 { // it was refused before, or is a test's: nothing is at it
		s.urls, s.named = []*url.URL{{Scheme: "http"}}, 1
	}
	bare := *s.urls[0]
	bare.User = nil // each address has its own
	s.base = &bare
	if s.named == 1 {
		s.at = s.urls[0]
	}
	return s
}

// also adds addresses, to be taken when those that were named are gone.
func (s *servers) also(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if !strings.Contains(name, "://") {
			name = "http://" + name
		}
		u, err := url.Parse(name)
		if err == nil && u.Host != "" && !slices.ContainsFunc(s.urls, func(known *url.URL) bool { return known.String() == u.String() }) {
			s.urls = append(s.urls, u)
		}
	}
}

// graceTime is how long an address is waited for while one that ranks behind it answers.
const graceTime = time.Second

// RoundTrip implements http.RoundTripper.
func (s *servers) RoundTrip(req *http.Request) (*http.Response, error) {
	to, err := s.choose(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	if to.User != nil || to.Host != s.base.Host || to.Scheme != s.base.Scheme || to.Path != s.base.Path {
		req = req.Clone(req.Context())
		req.Host = ""
		req.URL.Scheme, req.URL.Host = to.Scheme, to.Host
		req.URL.Path = strings.TrimSuffix(to.Path, "/") + strings.TrimPrefix(req.URL.Path, strings.TrimSuffix(s.base.Path, "/"))
		if to.User != nil {
			password, _ := to.User.Password()
			req.SetBasicAuth(to.User.Username(), password)
		}
	}
	res, err := s.transport.RoundTrip(req)
	if err != nil && !errors.Is(req.Context().Err(), context.Canceled) {
		return nil, &brokenWay{server: to.Redacted(), elsewhere: s.leave(to), err: err}
	}
	return res, err
}

// leave has the next call choose anew, and tells whether there is a choice.
func (s *servers) leave(to *url.URL) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.urls) == 1 {
		return false
	}
	if s.at == to {
		s.at = nil
	}
	return true
}

// choose gives the address that calls go to: the first that takes calls, or else the first
// at which anything answers. All are asked at once, and one that hangs is not waited for
// longer than graceTime where another takes calls.
func (s *servers) choose(ctx context.Context) (*url.URL, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != nil {
		return s.at, nil
	}
	patience := answerTime
	if end, ok := ctx.Deadline(); ok { // some of it is the call's
		patience = min(patience, time.Until(end)/2)
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	answers := make(chan reply, len(s.urls))
	var questions sync.WaitGroup
	defer questions.Wait()
	defer cancel()
	for i, u := range s.urls {
		questions.Go(func() {
			ready, err := s.ready(asking, u)
			answers <- reply{i, ready, err}
		})
	}
	said := make([]reply, len(s.urls))
	for i := range said {
		said[i] = reply{i, false, fmt.Errorf("no answer within %v", graceTime)}
	}
	grace := time.NewTimer(graceTime)
	defer grace.Stop()
	best, late := -1, false
	for left := len(s.urls); left > 0 && (best < 0 || !said[best].ready || !late); {
		select {
		case a := <-answers:
			said[a.of], left = a, left-1
			if a.err == nil && (best < 0 || a.ready && !said[best].ready || a.ready == said[best].ready && a.of < best) {
				best = a.of
			}
			late = late || a.ready && a.of == 0 // nothing ranks before it
		case <-grace.C:
			late = true
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	return s.take(best, said)
}

// reply is what one address said when it was asked whether it takes calls.
type reply struct {
	of    int
	ready bool
	err   error // nothing is there, or it says nothing
}

// take has calls go to the best of those that answered, and notes who did not.
func (s *servers) take(best int, said []reply) (*url.URL, error) {
	var none noneAnswers
	for i, a := range said[:s.named] {
		if a.err == nil || i > best && best >= 0 { // what ranks behind may not have been heard yet
			delete(s.silent, s.urls[i])
			continue
		}
		u := doctor.Unreached{What: "the broker at " + s.urls[i].Redacted(), Why: a.err.Error()}
		none = append(none, u)
		if s.silent[s.urls[i]] == nil && s.told != nil && best >= 0 {
			s.told(u)
		}
		s.silent[s.urls[i]] = a.err
	}
	if best < 0 {
		return nil, none
	}
	s.at = s.urls[best]
	return s.at, nil
}

// unreached are those that were named and did not answer when they were asked last.
func (s *servers) unreached() (out []doctor.Unreached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.urls[:s.named] {
		if err := s.silent[u]; err != nil {
			out = append(out, doctor.Unreached{What: "the broker at " + u.Redacted(), Why: err.Error()})
		}
	}
	return out
}

// noneAnswers is the error of a call for which nobody was there, with all that were asked.
type noneAnswers []doctor.Unreached

func (n noneAnswers) Error() string {
	words := make([]string, len(n))
	for i, u := range n {
		words[i] = fmt.Sprintf("%s (%s)", strings.TrimPrefix(u.What, "the broker at "), u.Why)
	}
	return "no broker answers at " + strings.Join(words, ", ") + ": start one with 'strandmq serve', or name another with --server"
}

// brokenWay is the error of a call that failed on its way, at one of the addresses.
type brokenWay struct {
	server    string
	elsewhere bool // the next call chooses among several
	err       error
}

func (b *brokenWay) Error() string { return b.err.Error() }
func (b *brokenWay) Unwrap() error { return b.err }

// ready asks one address whether it takes calls. An error says that nothing is there, or
// says nothing.
func (s *servers) ready(ctx context.Context, u *url.URL) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("readyz").String(), http.NoBody)
	if err != nil {
		return false, err
	}
	if u.User != nil {
		password, _ := u.User.Password()
		req.SetBasicAuth(u.User.Username(), password)
	}
	res, err := s.transport.RoundTrip(req)
	var dialed *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return false, fmt.Errorf("no answer within %v", answerTime)
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return false, dialed.Err
	case err != nil:
		if wrong := wrongDoor(err); wrong != "" {
			return false, errors.New(wrong)
		}
		return false, err
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK, nil
}
