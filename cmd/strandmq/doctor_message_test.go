//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Of one message doctor says why it came twice: a publisher tried again without an id, or
// its ack came too late.
func TestDoctorSeesWhyAMessageCameTwice(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "twice", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1), MaxAttempts: proto.Uint32(0)})
	p.store(1, "a", "b", "a") // the last is the first once more
	of := func(offset uint64) []string {
		return []string{"--topic", p.topic, "--partition", "0", "--offset", fmt.Sprint(offset), "--behind", "1h"}
	}
	p.join("m")
	for _, o := range []uint64{0, 2} {
		diagnoses(t, url, doctor.PublishedTwice, of(o)...)
		if _, whole, _ := examine(t, url, of(o)...); !strings.Contains(whole, fmt.Sprintf("- offset %d, published ", 2-o)) || !strings.Contains(whole, "without an id") {
			t.Errorf("offset %d:\n%s", o, whole)
		}
	}
	if _, whole, _ := examine(t, url, of(1)...); strings.Contains(whole, string(doctor.PublishedTwice)) || strings.Contains(whole, string(doctor.DeliveredAgain)) {
		t.Errorf("a message that is stored once:\n%s", whole)
	}

	late := int64(100)
	p = at(t, url, "late", &strandmqv1.GroupPolicy{AckDeadlineMs: &late, BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1), MaxAttempts: proto.Uint32(0)})
	granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: p.topic, Messages: []*strandmqv1.Message{named("a-1")}})
	d := p.take("m", 1)
	until(t, "it lapsed", func() bool { return p.counts().GetLapsed() > 0 })
	until(t, "it came again", func() bool { return p.take("m", 1)[0].GetToken() != d[0].GetToken() })
	p.settle(ack, 0, "", d...) // the first time, and too late
	args := []string{"--topic", p.topic, "--group", "g", "--id", d[0].GetMessage().GetId(), "--behind", "1h"}
	diagnoses(t, url, doctor.DeliveredAgain, args...)
	if _, whole, _ := examine(t, url, args...); !strings.Contains(whole, "since its ack came too late") || !strings.Contains(whole, ", too late") || !strings.Contains(whole, "acks after the deadline of 100ms among them: ") {
		t.Errorf("an ack that came too late:\n%s", whole)
	}

	// A publisher that tries again with the id stored nothing more, which is no fault.
	p = at(t, url, "dropped", nil)
	again := &strandmqv1.PublishRequest{Topic: p.topic, Messages: []*strandmqv1.Message{{KeyKind: &strandmqv1.Message_Key{Key: "a"}, Id: "a-1", Body: &strandmqv1.Message_Text{Text: "x"}}}}
	granted(t, p.api.publish.Publish, again)
	granted(t, p.api.publish.Publish, again)
	granted(t, p.api.groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: p.topic, Group: "g", Confirm: "g"})
	names(t, url, doctor.RepeatDropped, exitDone, "--topic", p.topic, "--id", "a-1")
	for _, args := range [][]string{{"--id", "a-1"}, {"--topic", "late", "--id", "a-1", "--partition", "0"}, {"--topic", "late", "--offset", "0"}} {
		if _, whole, code := examine(t, url, args...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, whole)
		}
	}
	if _, whole, code := examine(t, url, "--topic", "late", "--id", "nobody"); code != exitFailed || strings.Contains(whole, "nothing is wrong") {
		t.Errorf("a message that is not there: exit code %d: %s", code, whole)
	}
}

// What was not looked at for a message is said, as a line and in JSON: the search ended, or
// the time did.
func TestDoctorSaysWhatItLeftOfAMessage(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "left", nil)
	p.store(copiesMost+2, "a")
	granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: p.topic, Messages: []*strandmqv1.Message{{Body: &strandmqv1.Message_Text{Text: "x"}}}})
	leaves := func(url, want string, args ...string) {
		t.Helper()
		for _, form := range []string{"not asked: .*" + want, `(?s)"unreached": \[.*"why": "` + want} {
			until(t, "it says "+form, func() bool { // a busy machine may not answer in time
				_, whole, code := examine(t, url, args...)
				ok := code == exitFailed && regexp.MustCompile(form).MatchString(whole)
				if !ok {
					t.Logf("%v: exit code %d:\n%s", args, code, whole)
				}
				return ok
			})
			args = append(args, "--output", "json")
		}
	}
	of := func(offset int) []string {
		return []string{"--topic", p.topic, "--partition", "0", "--offset", fmt.Sprint(offset), "--behind", "1h"}
	}
	leaves(url, fmt.Sprintf("only the newest %d messages of its key", copiesMost), of(copiesMost)...)
	leaves(url, "it has no key, so a copy may be in any partition", of(copiesMost+2)...)

	// A node that does not come back with a trace.
	to, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/Trace") {
			_, _ = io.Copy(io.Discard, r.Body) // a server sees its caller leave only then
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	within := 500 * time.Millisecond
	until(t, "the rest is asked, and the trace is not waited for", func() bool {
		within *= 2 // on a busy machine all takes longer
		_, whole, code := examine(t, front.URL, append(of(0), "--timeout", within.String())...)
		return code == exitFailed && strings.Contains(whole, "not asked: what became of the message: not all was looked at within ")
	})
}

// Consumers whose settlements come when the message has gone to somebody else.
func TestDoctorSeesStaleAcks(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	hour := time.Hour.Milliseconds()
	p := at(t, url, "stale", &strandmqv1.GroupPolicy{AckDeadlineMs: &hour, BackoffMs: &hour, BackoffMaxMs: &hour, BreakerFailedPercent: proto.Uint32(0)})
	p.store(1, "a")
	d := p.take("m", 1)
	p.join("m") // another process has its name, and what it held is lost
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond): // how long its work takes
			}
			_, _ = p.api.consume.Settle(t.Context(), &strandmqv1.SettleRequest{Topic: p.topic, Group: "g", Settlements: []*strandmqv1.Settlement{{Token: d[0].GetToken(), Action: ack}}})
		}
	}()
	defer func() { close(stop); <-done }()
	diagnoses(t, url, doctor.StaleAcks, "--topic", p.topic, "--behind", "1h", "--watch", "1s")
}

// What doctor advises asks the broker that it was told to ask.
func TestDoctorAdvisesForItsServer(t *testing.T) {
	t.Parallel()
	servers := []string{"http://a:1", "http://b:2"}
	for command, want := range map[string]string{
		"strandmq cluster status":                              "strandmq cluster status --server http://a:1,http://b:2",
		"strandmq group alter t g --ack-deadline 5s    # or x": "strandmq group alter t g --ack-deadline 5s --server http://a:1,http://b:2    # or x",
		"strandmq serve --data d    # on its machine":          "strandmq serve --data d    # on its machine",
		"strandmq node --server http://c:3":                    "strandmq node --server http://c:3",
		"df -h":                                                "df -h",
	} {
		if got := askedOf(command, servers); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "advised", nil)
	p.store(1, "a")
	until(t, "the advice has the address", func() bool {
		_, whole, _ := examine(t, url, "--topic", p.topic, "--behind", "1ms")
		return strings.Contains(whole, " --server "+url)
	})
}

// So does the advice of events, and none is made where there is none. Where the environment
// names the broker, commands are as they were.
func TestEventsAdviseForTheirServer(t *testing.T) {
	t.Parallel()
	event := &strandmqv1.ClusterEvent{Kind: "DISK_LOW", Advice: "strandmq doctor"}
	for named, want := range map[bool]string{true: "strandmq doctor --server http://a:1\n", false: "strandmq doctor\n"} {
		for _, advice := range []string{event.GetAdvice(), ""} {
			event := &strandmqv1.ClusterEvent{Kind: event.GetKind(), Advice: advice}
			for what, print := range map[string]func(a *app) error{
				"followed": func(a *app) error { return a.printEvent(event) },
				"listed":   func(a *app) error { return a.printEvents([]*strandmqv1.ClusterEvent{event}) },
			} {
				out := &bytes.Buffer{}
				if err := print(&app{out: out, output: "table", servers: []string{"http://a:1"}, named: named}); err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(out.String(), want) != (advice != "") || advice == "" && strings.Contains(out.String(), "--server") {
					t.Errorf("%s, named %v, advice %q:\n%s", what, named, advice, out)
				}
			}
		}
	}
}

// A node of an older version tells of a message without terms and reasons, which is said.
func TestDoctorHearsFromAnOlderNode(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir()).URL()
	p := at(t, url, "older", nil)
	p.store(1, "a")
	to, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/Trace") {
			pass.ServeHTTP(w, r)
			return
		}
		older, err := proto.Marshal(&strandmqv1.TraceResponse{Messages: []*strandmqv1.MessageTrace{{Events: []*strandmqv1.TraceEvent{{What: "published"}}}}})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = w.Write(older)
	}))
	t.Cleanup(front.Close)
	for server, want := range map[string]bool{front.URL: true, url: false} {
		_, whole, _ := examine(t, server, "--topic", p.topic, "--partition", "0", "--offset", "0", "--behind", "1h")
		if strings.Contains(whole, "a node of an older version tells it") != want {
			t.Errorf("older: %v:\n%s", want, whole)
		}
	}
}
