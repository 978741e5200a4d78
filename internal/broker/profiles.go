package broker

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/strandmq/strandmq/internal/plain"
)

// profilePath is where profiles of the process are, if it was asked for them. The paths are
// those of Go's own package, which tools know; that one is not used, since it puts itself
// on every server of the process, and serves the command line and traces, too.
const profilePath = "/debug/pprof/"

const (
	// cpuTime is how long the processor's time is watched unless told otherwise, and
	// mostCPUTime at most.
	cpuTime, mostCPUTime = 5 * time.Second, 10 * time.Second
	// profileWait is when to ask again while another one is made.
	profileWait = time.Second
)

// profile answers with what goroutines do, what is in memory, or where the processor's time
// goes. It has stacks of the program, and nothing that callers sent. One is made at a time.
func (b *Broker) profile(w http.ResponseWriter, r *http.Request) {
	refused := func(status int, why *refusal) {
		b.refused(r.Context(), r.URL.Path, why.reason)
		writeRefusal(w, status, why, requestOf(r.Context()))
	}
	if !b.cfg.Profiles || !fromHere(r) {
		refused(http.StatusNotFound, refuse("UNKNOWN_METHOD", "", "there are no profiles here: a broker that is started with --profiles gives them to programs on its machine"))
		return
	}
	if r.Method != http.MethodGet { // a pattern with GET takes HEAD, too: a profile for nothing
		w.Header().Set("Allow", http.MethodGet)
		refused(http.StatusMethodNotAllowed, refuse("UNKNOWN_METHOD", "", "profiles are taken with GET"))
		return
	}
	var write func(io.Writer) error
	kind := "application/octet-stream"
	switch what := r.PathValue("what"); what {
	case "goroutine":
		kind = "text/plain; charset=utf-8"
		write = func(w io.Writer) error { return pprof.Lookup(what).WriteTo(w, 1) }
	case "heap":
		write = func(w io.Writer) error { return pprof.Lookup(what).WriteTo(w, 0) }
	case "profile":
		span := cpuTime
		if s := r.FormValue("seconds"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > int(mostCPUTime/time.Second) {
				refused(http.StatusBadRequest, refuse("BAD_VALUE", "seconds", "%s is no number of seconds from 1 to %d", plain.Quote(s), mostCPUTime/time.Second))
				return
			}
			span = time.Duration(n) * time.Second
		}
		write = func(w io.Writer) error { return b.watchCPU(r, w, span) }
	default:
		refused(http.StatusNotFound, refuse("UNKNOWN_METHOD", "", "there is no profile %s: there are goroutine, heap and profile (of the processor's time)", plain.Quote(what)))
		return
	}
	if !b.profiling.TryLock() {
		refused(http.StatusTooManyRequests, &refusal{reason: "BUSY", retryAfter: profileWait, text: "another profile is being made: wait and ask again"})
		return
	}
	// Whole before it goes, so that what fails is no half of one, and who reads slowly keeps
	// nobody waiting. Stacks are counted and not listed, so it grows with the program and
	// not with the load.
	var whole bytes.Buffer
	err := write(&whole)
	b.profiling.Unlock()
	if err != nil {
		refused(http.StatusTooManyRequests, &refusal{reason: "BUSY", retryAfter: profileWait, text: "it cannot be made now: " + err.Error()})
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", r.PathValue("what")))
	_, _ = w.Write(whole.Bytes())
}

// fromHere tells whether a program of this machine asks for itself. A proxy that runs here
// asks for others, and says so. That it does counts, not what the first line of it has: a
// stranger may send an empty one, to which a proxy adds its own.
func fromHere(r *http.Request) bool {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() && len(r.Header.Values("Forwarded")) == 0 && len(r.Header.Values("X-Forwarded-For")) == 0
}

// watchCPU profiles for so long, or until nobody waits for it any more.
func (b *Broker) watchCPU(r *http.Request, w io.Writer, span time.Duration) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	over := time.NewTimer(span)
	defer over.Stop()
	select {
	case <-over.C:
	case <-r.Context().Done():
	case <-b.serving.Done():
	}
	return nil
}
