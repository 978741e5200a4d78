package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A plainMessage is a message of the plain HTTP API.
type plainMessage struct {
	Partition       uint32
	Offset          uint64
	Key, ID         string
	KeyBase64       string `json:"key_base64"`
	Headers         []struct{ Name, Value string }
	Value           json.RawMessage
	Encoding        string
	Published       string
	Attempt         uint32
	Token, Deadline string
	FirstSeen       string `json:"first_seen"`
	Fence           uint64
	Replayed        bool
}

type plainPage struct {
	Messages []plainMessage
	Next     string
	Lost     []struct{ Partition, First, Last uint64 }
	LeftOut  []any `json:"left_out"`
}

type plainPoll struct {
	Deliveries []plainMessage
	Session    string
	IdleReason string `json:"idle_reason"`
}

type plainResults struct {
	Results []struct {
		Token, Deadline string
		DeadLettered    bool `json:"dead_lettered"`
	}
}

// A message goes round by plain HTTP alone: polled, nacked, given back, held on to,
// rejected, acked.
func TestPlainPollAndSettle(t *testing.T) {
	b := start(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":1}`).ok(201, nil)
	policy := patient()
	policy.MaxAttempts = new(uint32(2))
	a.group(t, "t", "g", policy)
	const group = "/v1/topics/t/groups/g"
	poll := func(body string) (out plainPoll) {
		t.Helper()
		p.do("POST", group+"/poll", asJSON, body).ok(200, &out)
		return out
	}
	if idle := poll(`{"member":"m"}`); len(idle.Deliveries) != 0 || idle.IdleReason == "" || idle.Session == "" {
		t.Fatalf("an empty topic: %+v", idle)
	}
	p.do("POST", "/v1/topics/t/messages", ndlines, `{"key":"k","id":"1","value":{"n": 1},"headers":[{"name":"h","value":"v"}]}
{"key":"k","value":"two"}
{"key_base64":"/w==","value":"/w==","encoding":"base64"}`).ok(200, nil)
	got := poll(`{"member":"m","max":10,"wait":"40s"}`)
	if len(got.Deliveries) != 2 {
		t.Fatalf("polled %+v", got)
	}
	d, e := got.Deliveries[0], got.Deliveries[1]
	if d.Key != "k" || d.ID != "1" || string(d.Value) != `{"n":1}` || d.Encoding != "json" || len(d.Headers) != 1 || d.Headers[0].Value != "v" || d.Attempt != 1 ||
		d.Token == "" || d.Deadline == "" || d.FirstSeen == "" || d.Fence == 0 || d.Published == "" {
		t.Fatalf("the first: %+v", d)
	}
	if e.KeyBase64 != "/w==" || string(e.Value) != `"/w=="` || e.Encoding != "base64" {
		t.Fatalf("the second: %+v", e)
	}
	// Asked again, a session gets the same; in base64 if it wants.
	if again := poll(`{"member":"m","max":10,"session":"` + got.Session + `","encoding":"base64"}`); len(again.Deliveries) != 2 || again.Deliveries[0].Token != d.Token ||
		string(again.Deliveries[0].Value) != `"eyJuIjoxfQ=="` {
		t.Fatalf("again: %+v", again)
	}
	settle := func(how, body string) (out plainResults) {
		t.Helper()
		p.do("POST", group+"/"+how, asJSON, body).ok(200, &out)
		return out
	}
	if r := settle("extend", `{"tokens":["`+d.Token+`","`+e.Token+`"],"delay":"20s"}`); len(r.Results) != 2 || r.Results[1].Deadline == "" || r.Results[1].Token != e.Token {
		t.Fatalf("extended: %+v", r)
	}
	settle("release", `{"tokens":["`+e.Token+`"],"member":"m"}`)
	settle("ack", `{"tokens":["`+d.Token+`"],"member":"m","session":"`+got.Session+`"}`)
	settle("ack", `{"tokens":["`+d.Token+`"]}`) // a repeat is no fault
	two := poll(`{"member":"m","max":10,"wait":"40s"}`)
	for len(two.Deliveries) < 2 { // the one given back, and the next of k
		two = poll(`{"member":"m","max":10,"wait":"40s"}`)
	}
	i := slices.IndexFunc(two.Deliveries, func(m plainMessage) bool { return m.Key == "k" })
	k, other := two.Deliveries[i], two.Deliveries[1-i]
	if string(k.Value) != `"two"` || k.Encoding != "utf8" || other.Attempt != 1 {
		t.Fatalf("then %+v", two)
	}
	if r := settle("reject", `{"tokens":["`+other.Token+`"],"reason":"no"}`); !r.Results[0].DeadLettered {
		t.Fatalf("rejected: %+v", r)
	}
	if r := settle("nack", `{"tokens":["`+k.Token+`"],"reason":"later","delay":"1ms"}`); r.Results[0].DeadLettered {
		t.Fatalf("nacked: %+v", r)
	}
	// What some of were refused is a problem, with all results.
	told := p.do("POST", group+"/ack", asJSON, `{"tokens":["`+k.Token+`","nonsense","`+d.Token+`"]}`).refused(409, "STALE_DELIVERY")
	if len(told.Results) != 3 || told.Results[0].Problem == nil || told.Results[1].Problem.Reason != "BAD_TOKEN" || told.Results[1].Problem.Field != "token" || told.Results[2].Problem != nil {
		t.Fatalf("results %+v", told.Results)
	}
	if last := poll(`{"member":"m","wait":"40s"}`); len(last.Deliveries) != 1 || last.Deliveries[0].Attempt != 2 {
		t.Fatalf("the last: %+v", last)
	} else if r := settle("nack", `{"tokens":["`+last.Deliveries[0].Token+`"]}`); !r.Results[0].DeadLettered {
		t.Fatalf("the last attempt: %+v", r)
	}

	// The group goes back, and forth.
	var moved struct {
		Partitions []struct{ Partition, From, To uint64 }
	}
	p.do("POST", group+"/seek", asJSON, `{"to":"-1","dry_run":true}`).ok(200, &moved)
	if len(moved.Partitions) != 1 || moved.Partitions[0].From != 3 || moved.Partitions[0].To != 2 {
		t.Fatalf("moved %+v", moved)
	}
	p.do("POST", group+"/seek", asJSON, `{"to":"0","partition":0}`).ok(200, &moved)
	if d := poll(`{"member":"m","wait":"40s"}`); len(d.Deliveries) != 1 || d.Deliveries[0].Offset != 0 {
		t.Fatalf("from the beginning: %+v", d)
	}
	var fresh plainPoll
	p.do("POST", "/v1/topics/t/groups/new/poll", asJSON, `{"member":"m","create":true,"wait":"40s"}`).ok(200, &fresh)
	if len(fresh.Deliveries) != 1 {
		t.Fatalf("a new group: %+v", fresh)
	}
}

// A member that leaves has nothing any more, and what it held goes back uncharged. A poll
// that waits when its topic is deleted is told that.
func TestPlainLeave(t *testing.T) {
	t.Parallel()
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	const group = "/v1/topics/t/groups/g/"
	p.do("POST", "/v1/topics/t/messages", octets, "x").ok(201, nil)
	type polled struct {
		Deliveries []struct{ Attempt int }
		Session    string
	}
	poll := func(body string) (out polled) {
		t.Helper()
		e := p.do("POST", group+"poll", asJSON, body)
		if err := json.Unmarshal(e.body, &out); err != nil || e.status != 200 {
			t.Fatalf("status %d: %s", e.status, e.body)
		}
		return out
	}
	one := poll(`{"member":"m1","wait":"60s"}`)
	if len(one.Deliveries) != 1 {
		t.Fatalf("polled %+v", one)
	}
	p.do("DELETE", group+"members/m1", "", "").refused(400, "BAD_VALUE")
	p.do("DELETE", group+"members/m1?session=x", "", "").refused(400, "BAD_VALUE")
	p.do("DELETE", group+"members/m1?sesion=x", "", "").refused(400, "BAD_REQUEST")
	p.do("DELETE", "/v1/topics/t/groups/none/members/m1?session="+one.Session, "", "").refused(404, "UNKNOWN_GROUP")
	for range 2 { // repeated, it is a success
		if gone := p.do("DELETE", group+"members/m1?session="+one.Session, "", ""); gone.status != 204 {
			t.Fatalf("left with %d: %s", gone.status, gone.body)
		}
	}
	if two := poll(`{"member":"m2","wait":"60s"}`); len(two.Deliveries) != 1 || two.Deliveries[0].Attempt != 1 {
		t.Fatalf("the next: %+v", two)
	}
	waits := make(chan echo, 1)
	go func() { waits <- p.do("POST", group+"poll", asJSON, `{"member":"m3","wait":"60s"}`) }()
	for joined := false; !joined; {
		res, err := a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range res.GetMembers() {
			joined = joined || m.GetName() == "m3"
		}
	}
	p.do("DELETE", "/v1/topics/t?confirm=t", "", "").ok(204, nil)
	(<-waits).refused(404, "UNKNOWN_TOPIC")
}

func TestPlainGroupRefuses(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	for _, c := range []struct {
		path, body    string
		status        int
		reason, field string
	}{
		{"poll", ``, 400, "BAD_REQUEST", ""},
		{"poll", `{}`, 400, "BAD_NAME", "member"},
		{"poll", `{"member":"m","max":1001}`, 400, "BAD_VALUE", "max"},
		{"poll", `{"member":"m","max":"1"}`, 400, "BAD_REQUEST", "max"},
		{"poll", `{"member":"m","wait":"2m"}`, 400, "BAD_VALUE", "wait"},
		{"poll", `{"member":"m","wait":2}`, 400, "BAD_REQUEST", "wait"},
		{"poll", `{"member":"m","wait":"soon"}`, 400, "BAD_REQUEST", "wait"},
		{"poll", `{"member":"m","session":"x"}`, 400, "BAD_VALUE", "session"},
		{"poll", `{"member":"m","encoding":"utf8"}`, 400, "BAD_REQUEST", "encoding"},
		{"poll", `{"member":"m","create":"yes"}`, 400, "BAD_REQUEST", "create"},
		{"poll?member=m", `{}`, 400, "BAD_REQUEST", "member"},
		{"ack", `{}`, 400, "BAD_VALUE", "tokens"},
		{"ack", `{"tokens":"x"}`, 400, "BAD_REQUEST", "tokens"},
		{"ack", `{"tokens":[7]}`, 400, "BAD_REQUEST", "tokens"},
		{"ack", `{"tokens":["x"],"reason":"r"}`, 400, "BAD_REQUEST", "reason"},
		{"ack", `{"tokens":["x"]}`, 400, "BAD_TOKEN", "token"},
		{"nack", `{"tokens":["x"],"delay":"1000d"}`, 400, "BAD_VALUE", "delay_ms"},
		{"reject", `{"tokens":["x"],"delay":"1s"}`, 400, "BAD_REQUEST", "delay"},
		{"seek", `{}`, 400, "BAD_REQUEST", "to"},
		{"seek", `{"to":"yesterday"}`, 400, "BAD_VALUE", "to"},
		{"seek", `{"to":"1"}`, 400, "OFFSET_BEYOND_END", "to.offset"},
		{"seek", `{"to":"0","partition":1}`, 404, "UNKNOWN_PARTITION", "partition"},
	} {
		got := p.do("POST", "/v1/topics/t/groups/g/"+c.path, asJSON, c.body).refused(c.status, c.reason)
		if got.Field != c.field {
			t.Errorf("%s %s: field %q, want %q", c.path, c.body, got.Field, c.field)
		}
	}
	p.do("POST", "/v1/topics/t/groups/none/poll", asJSON, `{"member":"m"}`).refused(404, "UNKNOWN_GROUP")
	p.do("POST", "/v1/topics/t/groups/g/poll", octets, `{"member":"m"}`).refused(415, "BAD_CONTENT_TYPE")
	p.do("GET", "/v1/topics/t/groups/g/poll", "", "").refused(405, "BAD_METHOD")
	p.do("POST", "/v1/topics/t/groups/g/ack", asJSON, `{"tokens":[`+strings.Repeat(`"x",`, 1000)+`"x"]}`).refused(413, "BATCH_TOO_LARGE")
}

// Messages are read as they are stored, page by page, line by line, and one alone;
// nothing changes by it.
func TestPlainRead(t *testing.T) {
	b := start(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":2}`).ok(201, nil)
	const messages = "/v1/topics/t/messages"
	page := func(query string) (out plainPage) {
		t.Helper()
		p.do("GET", messages+query, "", "").ok(200, &out)
		return out
	}
	if empty := page("?from=earliest"); len(empty.Messages) != 0 || !strings.HasPrefix(empty.Next, "0:0,1:0~") {
		t.Fatalf("an empty topic: %+v", empty)
	}
	want := map[string]bool{}
	for i := range 30 {
		v := fmt.Sprintf("v%d", i)
		want[v] = true
		p.do("POST", fmt.Sprintf("%s?key=k%d", messages, i), octets, v).ok(201, nil)
	}
	take := func(m plainMessage) {
		t.Helper()
		var v string
		if err := json.Unmarshal(m.Value, &v); err != nil || !want[v] {
			t.Fatalf("%+v came twice, or never was: %v", m, err)
		}
		delete(want, v)
	}
	reset := func() {
		want = map[string]bool{}
		for i := range 30 {
			want[fmt.Sprintf("v%d", i)] = true
		}
	}
	next := ""
	for pages := 0; len(want) > 0; pages++ {
		got := page("?limit=7" + next)
		if len(got.Messages) == 0 || pages > 30 {
			t.Fatalf("page %d: %+v", pages, got)
		}
		for _, m := range got.Messages {
			take(m)
		}
		next = "&from=" + got.Next
	}
	end := strings.TrimPrefix(next, "&from=")
	if got := page("?from=latest"); got.Next != end {
		t.Fatalf("the end is %s, and %s", got.Next, end)
	}
	// Line by line to the end, in one answer.
	reset()
	e := p.do("GET", messages, "", "", "Accept", ndlines)
	e.ok(200, nil)
	for line := range strings.Lines(string(e.body)) {
		var m plainMessage
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		take(m)
	}
	if len(want) != 0 {
		t.Fatalf("%d are missing", len(want))
	}
	if e := p.do("GET", messages+"?limit=3", "", "", "Accept", ndlines); strings.Count(string(e.body), "\n") != 3 {
		t.Fatalf("three lines: %s", e.body)
	}
	// One partition, and counted from its end.
	if got := page("?partition=1&from=-1"); len(got.Messages) != 1 || got.Messages[0].Partition != 1 || strings.Contains(got.Next, ",") {
		t.Fatalf("the last of partition 1: %+v", got)
	}
	// A page that waits gets what comes.
	got := make(chan plainPage, 1)
	go func() {
		var out plainPage
		p.do("GET", messages+"?wait=60s&from="+end, "", "").ok(200, &out)
		got <- out
	}()
	p.do("POST", messages+"?key=ü%00&id=%F0%9F%98%80&header=h:%C3%BC", octets, "\x00\xff").ok(201, nil)
	late := <-got
	if len(late.Messages) != 1 || late.Messages[0].Encoding != "base64" {
		t.Fatalf("what came while it waited: %+v", late)
	}
	one := p.do("GET", fmt.Sprintf("%s/%d/%d", messages, late.Messages[0].Partition, late.Messages[0].Offset), "", "")
	if h := one.header; one.status != 200 || string(one.body) != "\x00\xff" || h.Get("Strandmq-Key") != "%C3%BC%00" || h.Get("Strandmq-Id") != "%F0%9F%98%80" ||
		h.Get("Strandmq-Header-h") != "%C3%BC" || h.Get("Content-Type") != octets || h.Get("Content-Disposition") != "attachment" || h.Get("Strandmq-Published") == "" {
		t.Fatalf("one alone: %d %v %q", one.status, h, one.body)
	}
	// What the headers say, said again, is the same message.
	p.do("POST", messages, octets, string(one.body), "Strandmq-Key", one.header.Get("Strandmq-Key"), "Idempotency-Key", one.header.Get("Strandmq-Id"),
		"Strandmq-Header-h", one.header.Get("Strandmq-Header-h")).ok(200, nil)
	if groups := a.groupsOf(t, "t"); len(groups) != 0 {
		t.Fatalf("reading made groups: %v", groups)
	}
	for _, c := range []struct {
		path, accept  string
		status        int
		reason, field string
	}{
		{"?from=yesterday", "", 400, "BAD_VALUE", "from"},
		{"?from=1000000", "", 400, "OFFSET_BEYOND_END", "from"},
		{"?from=0:500", "", 400, "OFFSET_BEYOND_END", "from"},
		{"?from=0:500", ndlines, 400, "OFFSET_BEYOND_END", "from"},
		{"?from=0:500", "text/event-stream", 400, "OFFSET_BEYOND_END", "from"},
		{"?from=0:x", "", 400, "BAD_VALUE", "from"},
		{"?from=0:1,0:2", "", 400, "BAD_VALUE", "from"},
		{"?from=7:1", "", 404, "UNKNOWN_PARTITION", "partition"},
		{"?from=0:1&partition=0", "", 400, "BAD_REQUEST", "partition"},
		{"?partition=x", "", 400, "BAD_VALUE", "partition"},
		{"?partition=2", "", 404, "UNKNOWN_PARTITION", "partition"},
		{"?limit=0", "", 400, "BAD_VALUE", "limit"},
		{"?limit=1001", "", 400, "BAD_VALUE", "limit"},
		{"?wait=2m", "", 400, "BAD_VALUE", "wait"},
		{"?wait=1s", "text/event-stream", 400, "BAD_REQUEST", "wait"},
		{"?follow=true", "", 400, "BAD_REQUEST", "follow"},
		{"?follow=true&wait=1s", ndlines, 400, "BAD_REQUEST", "wait"},
		{"?encoding=hex", "", 400, "BAD_REQUEST", "encoding"},
		{"?from=7:1", ndlines, 404, "UNKNOWN_PARTITION", "partition"},
		{"?from=-5000x", "text/event-stream", 400, "BAD_VALUE", "from"},
		{"/0/1000000", "", 404, "UNKNOWN_MESSAGE", "offset"},
		{"/0/x", "", 400, "BAD_VALUE", ""},
		{"/9/0", "", 404, "UNKNOWN_PARTITION", "partition"},
	} {
		if got := p.do("GET", messages+c.path, "", "", "Accept", c.accept).refused(c.status, c.reason); got.Field != c.field {
			t.Errorf("%s: field %q, want %q (%s)", c.path, got.Field, c.field, got.Detail)
		}
	}
	p.do("GET", "/v1/topics/none/messages", "", "", "Accept", "text/event-stream").refused(404, "UNKNOWN_TOPIC")
}

func (a api) groupsOf(t testing.TB, topic string) []string {
	t.Helper()
	res, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetGroups()
}

// An event of a stream of events.
type event struct {
	id, kind, data string
}

// listen reads events until there is one with data. Comments are passed over.
type listen struct {
	t    testing.TB
	body io.ReadCloser
	in   *bufio.Reader
	id   string // the last one
}

func (p plainly) listen(c context.Context, query string, headers ...string) *listen { //nolint:revive // as all helpers here
	p.t.Helper()
	req, err := http.NewRequestWithContext(c, http.MethodGet, p.url+query, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		p.t.Fatalf("status %d, %s: %s", res.StatusCode, res.Header.Get("Content-Type"), b)
	}
	return &listen{p.t, res.Body, bufio.NewReader(res.Body), ""}
}

// next is the next event; io.EOF is the end.
func (l *listen) next() (e event, err error) {
	l.t.Helper()
	for {
		line, err := l.in.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			e.id, l.id = value, value
		case "event":
			e.kind = value
		case "data":
			e.data += value
		case "":
			if e.data != "" {
				return e, nil
			}
			e = event{}
		case "retry":
		default:
			l.t.Fatalf("a line that is no field: %q", line)
		}
	}
}

func (l *listen) message() plainMessage {
	l.t.Helper()
	e, err := l.next()
	if err != nil || e.kind != "" || e.id == "" {
		l.t.Fatalf("%+v: %v", e, err)
	}
	var m plainMessage
	if err := json.Unmarshal([]byte(e.data), &m); err != nil {
		l.t.Fatal(err)
	}
	return m
}

// A page that loses its stream goes on behind the last event that it saw, each
// message once; one that saw none goes on from where it began.
func TestPlainEvents(t *testing.T) {
	b := start(t, t.TempDir())
	p := newPlainly(t, b)
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":3}`).ok(201, nil)
	const messages = "/v1/topics/t/messages"
	publish := func(from, to int) {
		t.Helper()
		var body strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&body, `{"key":"k%d","value":{"n":%d}}`+"\n", i, i)
		}
		p.do("POST", messages, ndlines, body.String()).ok(200, nil)
	}
	publish(0, 10) // before anyone listens
	seen := map[int]bool{}
	take := func(l *listen, n int) {
		t.Helper()
		for range n {
			m := l.message()
			var v struct{ N int }
			if err := json.Unmarshal(m.Value, &v); err != nil || seen[v.N] || m.Encoding != "json" {
				t.Fatalf("%+v came twice: %v", m, err)
			}
			seen[v.N] = true
		}
	}
	c, cut := context.WithCancel(ctx(t))
	first := p.listen(c, messages)
	for first.id == "" { // it tells where it began before anything comes
		line, err := first.in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			first.id = strings.TrimSpace(id)
		}
	}
	cut()
	publish(10, 40)
	c, cut = context.WithCancel(ctx(t))
	second := p.listen(c, messages, "Last-Event-ID", first.id)
	take(second, 17)
	cut()
	third := p.listen(ctx(t), messages+"?from=earliest", "Last-Event-ID", second.id)
	publish(40, 60)
	take(third, 33)
	if len(seen) != 50 || seen[9] || !seen[59] {
		t.Fatalf("saw %v", seen)
	}
	// With a limit it ends, and from the beginning everything is there.
	all := p.listen(ctx(t), messages+"?from=earliest&limit=60")
	clear(seen)
	take(all, 60)
	if _, err := all.next(); err != io.EOF { //nolint:errorlint // the value itself is the end
		t.Fatalf("behind the limit: %v", err)
	}
	// Some partitions only.
	if m := p.listen(ctx(t), messages+"?from=-1&partition=2").message(); m.Partition != 2 {
		t.Fatalf("of partition 2: %+v", m)
	}
	// The topic's end is the stream's, with the reason.
	p.do("DELETE", "/v1/topics/t?confirm=t", "", "").ok(204, nil)
	e, err := third.next()
	if err != nil || e.kind != "problem" || !strings.Contains(e.data, "UNKNOWN_TOPIC") {
		t.Fatalf("after the deletion: %+v, %v", e, err)
	}
}

// A place of a topic that is gone is told, not waited at; one that leaves out what the
// stream reads, likewise.
func TestPlainEventsOfAnotherTopic(t *testing.T) {
	t.Parallel()
	b := startAlone(t, t.TempDir())
	p := newPlainly(t, b)
	const messages = "/v1/topics/t/messages"
	create := func(partitions string) {
		t.Helper()
		p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":`+partitions+`}`).ok(201, nil)
	}
	events := func(query, id string) echo {
		t.Helper()
		return p.do("GET", messages+query, "", "", "Accept", "text/event-stream", "Last-Event-ID", id)
	}
	create("1")
	p.do("POST", messages, octets, "x").ok(201, nil)
	l := p.listen(ctx(t), messages+"?from=earliest")
	l.message()
	p.do("DELETE", "/v1/topics/t?confirm=t", "", "").ok(204, nil)
	if e, err := l.next(); err != nil || e.kind != "problem" || !strings.Contains(e.data, "UNKNOWN_TOPIC") {
		t.Fatalf("the topic is gone: %+v, %v", e, err)
	}
	create("1")
	if got := events("", "0:1").refused(400, "OFFSET_BEYOND_END"); got.Field != "from" || !strings.Contains(got.Detail, "made anew") {
		t.Fatalf("a place of the former topic: %+v", got)
	}
	// Where the new one has grown as far, what it begins with would be passed over.
	p.do("POST", messages, ndlines, strings.Repeat(`{"value":"y"}`+"\n", 5)).ok(200, nil)
	for _, accept := range []string{asJSON, ndlines, "text/event-stream"} {
		got := p.do("GET", messages+"?from="+l.id, "", "", "Accept", accept).refused(409, "TOPIC_REPLACED")
		if got.Field != "from" || !strings.Contains(got.Detail, "earliest") {
			t.Errorf("%s: %+v", accept, got)
		}
	}
	events("", l.id).refused(409, "TOPIC_REPLACED")
	var page plainPage
	p.do("GET", messages+"?from=0:3", "", "").ok(200, &page) // written by hand
	p.do("GET", messages+"?from="+page.Next, "", "").ok(200, &page)
	if strings.Contains(page.Next, l.id[strings.Index(l.id, "~"):]) {
		t.Errorf("two topics have places of one kind: %s, %s", l.id, page.Next)
	}
	p.do("DELETE", "/v1/topics/t?confirm=t", "", "").ok(204, nil)
	create("3")
	events("", page.Next).refused(409, "TOPIC_REPLACED")
	for _, mark := range []string{"~", "~0", "~-", "~zzzzzzzzzzzzzz"} {
		events("", "0:0,1:0,2:0"+mark).refused(400, "BAD_VALUE")
	}
	for _, c := range [][2]string{{"", "0:0"}, {"", "0:0,1:0"}, {"?partition=1", "0:0"}, {"?partition=1", "0:0,1:0"}, {"?from=0:0,1:0", "1:0"}, {"", "0:x"}} {
		if got := events(c[0], c[1]).refused(400, "BAD_VALUE"); got.Field != "Last-Event-ID" {
			t.Errorf("%s with id %s: %+v", c[0], c[1], got)
		}
	}
	for _, c := range [][2]string{{"", "0:0,1:0,2:0"}, {"?partition=1", "1:0"}, {"?from=0:0,1:0", "0:0,1:0"}} {
		stop, cancel := context.WithCancel(ctx(t))
		p.listen(stop, messages+c[0], "Last-Event-ID", c[1])
		cancel()
	}
}

// What a caller accepts, and does not.
func TestPlainAccept(t *testing.T) {
	t.Parallel()
	b := startAlone(t, t.TempDir())
	p := newPlainly(t, b)
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":1}`).ok(201, nil)
	const messages = "/v1/topics/t/messages"
	p.do("POST", messages, octets, "x").ok(201, nil)
	for accept, want := range map[string]string{
		"": asJSON, "*/*": asJSON, ndlines: ndlines, ndlines + ";q=0": asJSON, ndlines + ";q=0, " + asJSON: asJSON, ndlines + ";q=0.1, " + asJSON: asJSON,
		asJSON + ";q=0.1, " + ndlines: ndlines, ndlines + ";q=x": asJSON,
	} {
		if got := p.do("GET", messages, "", "", "Accept", accept).header.Get("Content-Type"); got != want {
			t.Errorf("Accept: %s has %s, want %s", accept, got, want)
		}
	}
	if head := p.do("HEAD", messages+"?follow=true", "", "", "Accept", ndlines); head.status != 200 || head.header.Get("Content-Type") != ndlines {
		t.Errorf("HEAD of a stream: %d %v", head.status, head.header)
	}
	if head := browse(t, "HEAD", b.URL()+"/v1/topics/none/messages?follow=true", "", map[string]string{"Accept": ndlines}); head.StatusCode != 404 {
		t.Errorf("HEAD of no stream: %s", head.Status)
	}
}

// Streams end when the broker stops, and Close does not wait for them.
func TestPlainEventsEnd(t *testing.T) {
	b := startAlone(t, t.TempDir(), func(c *Config) { c.StopTime = soon })
	p := newPlainly(t, b)
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":1}`).ok(201, nil)
	l := p.listen(ctx(t), "/v1/topics/t/messages?from=earliest")
	p.do("POST", "/v1/topics/t/messages", octets, "x").ok(201, nil)
	l.message()
	ended := make(chan error, 1)
	go func() { _, err := l.next(); ended <- err }()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != io.EOF { //nolint:errorlint // the value itself is the end
		t.Fatalf("the stream ended with %v", err)
	}
	if n := b.memory.inUse(); n != 0 {
		t.Fatalf("streams that are over hold %d bytes", n)
	}
}

// Where the streams of the node hold all that they may, one more is refused, and a
// message waits until there is room for it.
func TestPlainEventsMemory(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p := newPlainly(t, b)
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions":1}`).ok(201, nil)
	const messages = "/v1/topics/t/messages"
	l := p.listen(ctx(t), messages+"?from=earliest")
	crowd, err := b.memory.open()
	if err != nil {
		t.Fatal(err)
	}
	crowd.add(b.memory.max)
	p.do("GET", messages, "", "", "Accept", "text/event-stream").refused(429, "TOO_MANY_STREAMS")
	large := strings.Repeat("x", 1<<20)
	p.do("POST", messages, octets, large).ok(201, nil)
	got := make(chan plainMessage, 1)
	go func() { got <- l.message() }()
	p.do("POST", messages, octets, "small").ok(201, nil)
	select {
	case m := <-got:
		t.Fatalf("%d bytes came, and there was no room", len(m.Value))
	default:
	}
	crowd.close()
	if m := <-got; len(m.Value) != len(large)+2 {
		t.Fatalf("%d bytes", len(m.Value))
	}
	if m := l.message(); string(m.Value) != `"small"` {
		t.Fatalf("then %s", m.Value)
	}
}

// What retention removed before it was read is told, not passed over.
func TestReadGap(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	for range 10 {
		a.fill(t, "t", 1, 1) // each in an entry of its own
	}
	id := b.coordPartition(t, "t")
	if _, err := b.host.Trim(ctx(t), id, partition.TrimTo{To: 4, Why: partition.ByAge, Now: partition.Millis(time.Now().UnixMilli())}); err != nil {
		t.Fatal(err)
	}
	var page plainPage
	p.do("GET", "/v1/topics/t/messages?from=0:1", "", "").ok(200, &page)
	if len(page.Lost) != 1 || page.Lost[0].First != 1 || page.Lost[0].Last < 1 || len(page.Messages) == 0 || page.Messages[0].Offset != page.Lost[0].Last+1 {
		t.Fatalf("page %+v", page)
	}
	l := p.listen(ctx(t), "/v1/topics/t/messages", "Last-Event-ID", "0:1")
	if e, err := l.next(); err != nil || e.kind != "lost" || e.data != fmt.Sprintf(`{"partition":0,"first":1,"last":%d}`, page.Lost[0].Last) {
		t.Fatalf("%+v, %v", e, err)
	}
	p.do("GET", "/v1/topics/t/messages/0/1", "", "").refused(410, "OFFSET_EXPIRED")
}

func (b *Broker) coordPartition(t testing.TB, topic string) partition.PartitionID {
	t.Helper()
	x, err := b.topic(topic)
	if err != nil {
		t.Fatal(err)
	}
	return x.Partitions[0].ID
}
