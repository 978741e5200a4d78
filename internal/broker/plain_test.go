package broker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// plainly is a caller of the plain HTTP API, as curl is.
type plainly struct {
	t    testing.TB
	http *http.Client
	url  string
}

func newPlainly(t testing.TB, b *Broker) plainly {
	return plainly{t, httpClient(t, false), b.URL()}
}

// An echo is an answer, read.
type echo struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// do makes a request. With a body comes its content type, with ends those of
// headers, as name and value.
func (p plainly) do(method, path, contentType, body string, headers ...string) echo {
	p.t.Helper()
	e := p.send(method, path, contentType, body, headers...)
	described(p.t, method, path, e)
	return e
}

// send is do for any path of the port.
func (p plainly) send(method, path, contentType, body string, headers ...string) echo {
	p.t.Helper()
	req, err := http.NewRequestWithContext(ctx(p.t), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if vary := res.Header.Get("Access-Control-Allow-Origin"); vary != "" {
		p.t.Fatalf("%s %s: an answer for other origins: %s", method, path, vary)
	}
	return echo{p.t, res.StatusCode, res.Header, out}
}

// ok wants a status, and reads JSON.
func (e echo) ok(status int, into any) {
	e.t.Helper()
	if e.status != status {
		e.t.Fatalf("status %d, want %d: %s", e.status, status, e.body)
	}
	if into == nil {
		return
	}
	d := json.NewDecoder(bytes.NewReader(e.body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		e.t.Fatalf("%s: %v", e.body, err)
	}
}

// A plainProblem is a refusal of the plain HTTP API.
type plainProblem struct {
	Type, Title, Detail, Reason, Code, Field string
	Status                                   int
	WhatToDo                                 string `json:"what_to_do"`
	RetryAfterMs                             int64  `json:"retry_after_ms"`
	RequestID                                string `json:"request_id"`
	Results                                  []struct {
		Partition uint32
		Offset    *uint64
		Duplicate bool
		Line      int
		Token     string
		Problem   *plainProblem
	}
}

// refused wants a problem with a reason.
func (e echo) refused(status int, reason string) plainProblem {
	e.t.Helper()
	var p plainProblem
	if err := json.Unmarshal(e.body, &p); err != nil {
		e.t.Fatalf("status %d, %q: %v", e.status, e.body, err)
	}
	if e.status != status || p.Status != status || p.Reason != reason {
		e.t.Fatalf("status %d, want %d %s: %s", e.status, status, reason, e.body)
	}
	row := rowOf(reason)
	if got := e.header.Get("Content-Type"); got != "application/problem+json" || p.Type != "urn:strandmq:reason:"+reason ||
		p.Code != row.code || p.Title != row.when || p.WhatToDo != row.what || p.Detail == "" {
		e.t.Fatalf("content type %s, problem %s", got, e.body)
	}
	if p.RequestID == "" || p.RequestID != e.header.Get("X-Request-Id") {
		e.t.Fatalf("request id %q, and X-Request-Id is %q", p.RequestID, e.header.Get("X-Request-Id"))
	}
	if (p.RetryAfterMs > 0) != (e.header.Get("Retry-After") != "") {
		e.t.Fatalf("retry after %d ms, and Retry-After is %q", p.RetryAfterMs, e.header.Get("Retry-After"))
	}
	return p
}

type plainReceipt struct {
	Partition uint32
	Offset    uint64
	Duplicate bool
}

const (
	octets  = "application/octet-stream"
	ndlines = "application/x-ndjson"
	asJSON  = "application/json"
)

// A value goes in as it is, with key, id and headers beside it; lines of JSON are many.
func TestPlainPublish(t *testing.T) {
	b := start(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	const messages = "/v1/topics/t/messages"

	var r plainReceipt
	first := p.do("POST", messages+"?key=k&id=a-1&header=n:v&header=n:%20w", octets, "\x00\xff raw")
	first.ok(201, &r)
	if r != (plainReceipt{0, 0, false}) || first.header.Get("Location") != messages+"/0/0" {
		t.Fatalf("%+v at %s", r, first.header.Get("Location"))
	}
	// The same again, otherwise written, is stored once.
	p.do("POST", messages+"?header=n:v&header=n:w", "image/png", "\x00\xff raw", "Strandmq-Key", "%6B", "Idempotency-Key", `"a-1"`).ok(200, &r)
	if r != (plainReceipt{0, 0, true}) {
		t.Fatalf("a repeat: %+v", r)
	}
	p.do("POST", messages+"?key=k&id=a-1", octets, "other").refused(409, "ID_REUSED")
	p.do("POST", messages, octets, "", "Strandmq-Header-Trace", "%C3%BC%0A", "Strandmq-Key", "%FF").ok(201, &r)

	var many struct{ Results []plainReceipt }
	p.do("POST", messages, ndlines+"; charset=utf-8", "\xef\xbb\xbf"+`{"key":"k","value":"text"}`+"\r\n\n"+
		`{"key_base64":"/w==","id":"x","value":{"b": 1, "a": [12345678901234567890, 1e400]}, "headers":[{"name":"H","value":"1"},{"name":"h","value_base64":"AP8="}]}`+"\n"+
		`{"value":"AP8=","encoding":"base64"}`+"\n"+`{"value":"s","encoding":"json"}`+"\n"+`{"value":"{}","encoding":"utf8"}`).ok(200, &many)
	if len(many.Results) != 5 || many.Results[0].Offset != 2 || many.Results[4].Offset != 6 {
		t.Fatalf("results %+v", many.Results)
	}

	ds := map[uint64]*strandmqv1.Message{}
	for len(ds) < 7 {
		for _, d := range a.receive(t, "t", "g", "m", 10) {
			ds[d.GetOffset()] = d.GetMessage()
			a.done(t, "t", "g", d, ack, "")
		}
	}
	for o, want := range []string{"\x00\xff raw", "", "text", `{"b":1,"a":[12345678901234567890,1e400]}`, "\x00\xff", `"s"`, "{}"} {
		if got := string(ds[uint64(o)].GetBytes()) + ds[uint64(o)].GetText(); got != want {
			t.Errorf("offset %d is %q, want %q", o, got, want)
		}
	}
	if m := ds[0]; m.GetKey() != "k" || m.GetId() != "a-1" || len(m.GetHeaders()) != 2 || m.GetHeaders()[1].GetName() != "n" || m.GetHeaders()[1].GetValue() != "w" {
		t.Errorf("the first: %v", m)
	}
	if m := ds[1]; string(m.GetKeyBytes()) != "\xff" || len(m.GetHeaders()) != 1 || m.GetHeaders()[0].GetName() != "trace" || string(m.GetHeaders()[0].GetValueBytes()) != "ü\n" {
		t.Errorf("the second: %v", m)
	}
	if m := ds[3]; string(m.GetKeyBytes()) != "\xff" || m.GetId() != "x" || len(m.GetHeaders()) != 2 || m.GetHeaders()[0].GetName() != "H" || string(m.GetHeaders()[1].GetValueBytes()) != "\x00\xff" {
		t.Errorf("the fourth: %v", m)
	}

	// What is wrong with one line is told of that one; its neighbours are stored,
	// unless they are to be in order.
	bad := `{"key":"k","value":"1"}` + "\n\n" + `{"key":"","value":"2"}` + "\n" + `{"key":"k","value":"3"}`
	told := p.do("POST", messages, ndlines, bad).refused(400, "BAD_KEY")
	if len(told.Results) != 3 || told.Results[0].Offset == nil || told.Results[2].Offset == nil || told.Results[1].Line != 3 || told.Results[1].Problem.Field != "key" {
		t.Fatalf("results %+v", told.Results)
	}
	told = p.do("POST", messages+"?in_order=true", ndlines, bad).refused(400, "BAD_KEY")
	if told.Results[0].Offset == nil || told.Results[2].Problem == nil || told.Results[2].Problem.Reason != "NOT_SENT" {
		t.Fatalf("results %+v", told.Results)
	}
}

// A body with one message is bytes, whatever its content type says. In order, an id that
// is taken stops the lines of its partition, and no others.
func TestPlainPublishIsBytes(t *testing.T) {
	t.Parallel()
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 2)
	const messages = "/v1/topics/t/messages"
	var at plainReceipt
	for _, kind := range []string{asJSON, "image/png", octets + "; charset=latin1"} {
		p.do("POST", messages, kind, "{bad\xff").ok(201, &at)
		if one := p.do("GET", fmt.Sprintf("%s/%d/%d", messages, at.Partition, at.Offset), "", ""); string(one.body) != "{bad\xff" {
			t.Errorf("%s: %q", kind, one.body)
		}
	}
	keys := map[uint32]string{} // one of each partition
	for i := 0; len(keys) < 2; i++ {
		k := fmt.Sprint("k", i)
		p.do("POST", messages+"?id=i&key="+k, octets, "x").ok(201, &at)
		keys[at.Partition] = k
	}
	line := func(partition uint32, id string) string {
		return fmt.Sprintf(`{"key":%q,"id":%q,"value":"y"}`+"\n", keys[partition], id)
	}
	told := p.do("POST", messages+"?in_order=true", ndlines, line(0, "i")+line(1, "j")+line(0, "j")).refused(409, "ID_REUSED")
	if told.Results[1].Offset == nil || told.Results[2].Problem == nil || told.Results[2].Problem.Reason != "NOT_SENT" {
		t.Errorf("results %+v", told.Results)
	}
}

// Every refusal is a problem with its reason, and changes nothing.
func TestPlainPublishRefuses(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	if _, err := a.topics.AlterTopic(ctx(t), &strandmqv1.AlterTopicRequest{Topic: "t", Config: &strandmqv1.TopicConfig{MaxBodyBytes: new(int64(1000))}}); err != nil {
		t.Fatal(err)
	}
	const messages = "/v1/topics/t/messages"
	for _, c := range []struct {
		query, contentType, body string
		headers                  []string
		status                   int
		reason, field            string
	}{
		{"", "", "x", nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", "text/plain", "x", nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", "application/x-www-form-urlencoded", "x", nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", "multipart/form-data; boundary=x", "x", nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", "nonsense;;", "x", nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", ndlines + "; charset=latin1", `{"value":"1"}`, nil, 415, "BAD_CONTENT_TYPE", "Content-Type"},
		{"", octets, "x", []string{"Content-Encoding", "gzip"}, 415, "BAD_CONTENT_TYPE", "Content-Encoding"},
		{"?kye=k", octets, "x", nil, 400, "BAD_REQUEST", "kye"},
		{"?key=a&key=b", octets, "x", nil, 400, "BAD_REQUEST", "key"},
		{"?key=%zz", octets, "x", nil, 400, "BAD_REQUEST", ""},
		{"?key=%ff", octets, "x", nil, 400, "BAD_REQUEST", ""},
		{"?key=", octets, "x", nil, 400, "BAD_KEY", "key"},
		{"?key=" + strings.Repeat("k", 4097), octets, "x", nil, 400, "BAD_KEY", "key"},
		{"?key=a", octets, "x", []string{"Strandmq-Key", "b"}, 400, "BAD_KEY", "Strandmq-Key"},
		{"", octets, "x", []string{"Strandmq-Key", "%"}, 400, "BAD_HEADER", "Strandmq-Key"},
		{"?id=a", octets, "x", []string{"Idempotency-Key", "b"}, 400, "BAD_ID", "Idempotency-Key"},
		{"", octets, "x", []string{"Idempotency-Key", `""`}, 400, "BAD_ID", "Idempotency-Key"},
		{"?id=" + strings.Repeat("i", 257), octets, "x", nil, 400, "BAD_ID", "id"},
		{"?header=nocolon", octets, "x", nil, 400, "BAD_HEADER", "header"},
		{"?header=a%20b:c", octets, "x", nil, 400, "BAD_HEADER", "headers[0].name"},
		{"", octets, strings.Repeat("x", 1001), nil, 413, "BODY_TOO_LARGE", "body"},
		{"", octets, strings.Repeat("x", 8<<20+1), nil, 413, "REQUEST_TOO_LARGE", ""},
		{"", ndlines, "", nil, 400, "BAD_VALUE", ""},
		{"", ndlines, strings.Repeat(`{"value":""}`+"\n", 1001), nil, 413, "BATCH_TOO_LARGE", ""},
		{"", ndlines, `{"value":"1"`, nil, 400, "BAD_REQUEST", "line 1"},
		{"", ndlines, `{"value":"1"}` + "\n" + `[1]`, nil, 400, "BAD_REQUEST", ""},
		{"", ndlines, "{\"value\":\"\xff\"}", nil, 400, "BAD_REQUEST", "line 1"},
		{"", ndlines, `{"key":"k"}`, nil, 400, "BAD_REQUEST", "value"},
		{"", ndlines, `{"value":"1","Key":"k"}`, nil, 400, "BAD_REQUEST", "Key"},
		{"", ndlines, `{"value":"1","value":"2"}`, nil, 400, "BAD_REQUEST", "value"},
		{"", ndlines, `{"value":"1","key":7}`, nil, 400, "BAD_REQUEST", "key"},
		{"", ndlines, `{"value":"1","key":"\ud800"}`, nil, 400, "BAD_REQUEST", "key"},
		{"", ndlines, `{"value":"1","key":"k","key_base64":"aw=="}`, nil, 400, "BAD_REQUEST", "key_base64"},
		{"", ndlines, `{"value":"aw","encoding":"base64"}`, nil, 400, "BAD_REQUEST", "value"},
		{"", ndlines, `{"value":{},"encoding":"utf8"}`, nil, 400, "BAD_REQUEST", "value"},
		{"", ndlines, `{"value":"","encoding":"latin1"}`, nil, 400, "BAD_REQUEST", "encoding"},
		{"", ndlines, `{"value":"","headers":{"a":"b"}}`, nil, 400, "BAD_REQUEST", "headers"},
		{"", ndlines, `{"value":"","headers":[{"name":"a","valeu":"b"}]}`, nil, 400, "BAD_REQUEST", "headers"},
		{"?key=k", ndlines, `{"value":"1"}`, nil, 400, "BAD_REQUEST", "key"},
		{"?in_order=yes", ndlines, `{"value":"1"}`, nil, 400, "BAD_REQUEST", "in_order"},
		{"", ndlines, `{"value":"1"}`, []string{"Idempotency-Key", "i"}, 400, "BAD_REQUEST", "Idempotency-Key"},
		{"", ndlines, `{"value":"1"}`, []string{"Strandmq-Key", "k"}, 400, "BAD_REQUEST", "Strandmq-Key"},
		{"", ndlines, `{"value":"1"}`, []string{"Strandmq-Header-Trace", "7"}, 400, "BAD_REQUEST", "Strandmq-Header-Trace"},
		{"", ndlines, `{"value":"1"}`, []string{"Strandmq-Id", "i"}, 400, "BAD_REQUEST", "Strandmq-Id"},
		{"", octets, "x", []string{"Strandmq-Id", "i"}, 400, "BAD_REQUEST", "Strandmq-Id"},
		{"", octets, "x", []string{"strandmq-headers-trace", "7"}, 400, "BAD_REQUEST", "Strandmq-Headers-Trace"},
		{"", octets, "x", []string{"Idempotency-Key", "50%"}, 400, "BAD_HEADER", "Idempotency-Key"},
		{"", octets, "x", []string{"Idempotency-Key", "%ff"}, 400, "BAD_ID", "Idempotency-Key"},
	} {
		got := p.do("POST", messages+c.query, c.contentType, c.body, c.headers...).refused(c.status, c.reason)
		if got.Field != c.field {
			t.Errorf("%.40s %.40q %v: field %q, want %q (%s)", c.query, c.body, c.headers, got.Field, c.field, got.Detail)
		}
	}
	p.do("POST", "/v1/topics/none/messages", octets, "x").refused(404, "UNKNOWN_TOPIC")
	p.do("POST", "/v1/topics/a%2Fb/messages", octets, "x").refused(400, "BAD_NAME")
	p.do("POST", "/v1/nothing", octets, "x").refused(404, "UNKNOWN_METHOD")
	for _, path := range []string{"/v1//topics", "//v1/topics", "/v1/topics/./t", "/v1/topics/../topics", "/v1/topics//"} {
		p.do("GET", path, "", "").refused(404, "UNKNOWN_METHOD")
	}
	// Chunks that are none, which no library sends.
	c, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", messages, octets)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	told, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	echo{t, res.StatusCode, res.Header, told}.refused(400, "BAD_REQUEST")
	p.do("DELETE", messages, "", "").refused(405, "BAD_METHOD")
	for _, path := range []string{messages, "/v1/topics/t"} {
		other := p.do("PATCH", path, asJSON, "{}")
		allow := map[string]string{messages: "GET, POST", "/v1/topics/t": "DELETE, GET, PUT"}[path]
		if told := other.refused(405, "BAD_METHOD"); other.header.Get("Allow") != allow || !strings.Contains(told.Detail, "use "+strings.ReplaceAll(allow, ", ", " or ")) {
			t.Errorf("PATCH %s: allow %q, want %q (%s)", path, other.header.Get("Allow"), allow, told.Detail)
		}
	}
	if end := a.end(t, "t"); end != 0 {
		t.Fatalf("%d messages were stored", end)
	}
}

// end is how many messages a topic has.
func (a api) end(t testing.TB, topic string) (n uint64) {
	t.Helper()
	res, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.GetPartitions() {
		n += p.GetEndOffset()
	}
	return n
}

// A web page from elsewhere can do nothing: neither what it may send without
// asking, nor what it asks for first.
func TestPlainKeepsPagesOut(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p, a := newPlainly(t, b), newAPI(t, b.URL())
	a.topic(t, "t", 1)
	const messages = "/v1/topics/t/messages"
	for _, from := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://elsewhere.example"}, {"Origin", "null"},
	} {
		p.do("POST", messages, octets, "x", from...).refused(403, "CROSS_ORIGIN")
		p.do("PUT", "/v1/topics/u", asJSON, "{}", from...).refused(403, "CROSS_ORIGIN")
		p.do("DELETE", "/v1/topics/t?confirm=t", "", "", from...).refused(403, "CROSS_ORIGIN")
		p.do("OPTIONS", messages, "", "", append(from, "Access-Control-Request-Method", "POST")...).refused(405, "BAD_METHOD")
	}
	for _, kind := range []string{"", "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/ping", "application/csp-report", "application/reports+json; charset=utf-8"} {
		p.do("POST", messages, kind, "x").refused(415, "BAD_CONTENT_TYPE")
	}
	// Nor does it hold waits and streams open with GETs, whose answers it could not read.
	for _, accept := range []string{"", "text/event-stream"} {
		for _, from := range [][]string{
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, {"Sec-Fetch-Site", "cross-site"},
			{"Origin", "https://elsewhere.example"}, {"Origin", "null"}, {"Origin", strings.Replace(b.URL(), "127.0.0.1", "localhost", 1)},
		} {
			p.do("GET", messages+"?limit=1", "", "", append(from, "Accept", accept)...).refused(403, "CROSS_ORIGIN")
		}
	}
	if head := browse(t, "HEAD", b.URL()+messages, "", map[string]string{"Origin": "https://elsewhere.example"}); head.StatusCode != 403 {
		t.Fatalf("HEAD: %s", head.Status)
	}
	for _, own := range [][]string{
		{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors", "Origin", b.URL()}, {"Origin", b.URL()}, {"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, // a link that was followed
	} {
		p.do("GET", messages, "", "", own...).ok(200, nil)
	}
	p.do("POST", messages, octets, "x", "Host", "rebound.example").refused(403, "HOST_NOT_ALLOWED")
	p.do("GET", "/v1/topics", "", "", "Host", "rebound.example").refused(403, "HOST_NOT_ALLOWED")
	if end := a.end(t, "t"); end != 0 {
		t.Fatalf("%d messages were stored", end)
	}
	p.do("POST", messages, octets, "x", "Sec-Fetch-Site", "same-origin").ok(201, nil)
}

func TestPlainTopics(t *testing.T) {
	b := start(t, t.TempDir())
	p := newPlainly(t, b)
	type topic struct {
		Topic, Kind, Created        string
		Partitions, Replication     uint32
		RetentionMs, RetentionBytes int64
	}
	read := func(e echo, status int) (out topic) {
		t.Helper()
		e.ok(status, nil)
		var raw map[string]any
		if err := json.Unmarshal(e.body, &raw); err != nil {
			t.Fatal(err)
		}
		num := func(name string) int64 { f, _ := raw[name].(float64); return int64(f) }
		text := func(name string) string { s, _ := raw[name].(string); return s }
		return topic{text("topic"), text("kind"), text("created"), uint32(num("partitions")), uint32(num("replication")), num("retention_ms"), num("retention_bytes")}
	}
	made := read(p.do("PUT", "/v1/topics/t", asJSON, `{"partitions": 2, "retention_ms": 60000, "kind": "work-queue"}`), 201)
	if made.Topic != "t" || made.Partitions != 2 || made.RetentionMs != 60000 || made.Kind != "work-queue" || made.Created == "" {
		t.Fatalf("made %+v", made)
	}
	if again := read(p.do("PUT", "/v1/topics/t", asJSON, `{"partitions": 2, "retention_ms": 60000, "kind": "work-queue"}`), 200); again != made {
		t.Fatalf("%+v, then %+v", made, again)
	}
	p.do("PUT", "/v1/topics/t", asJSON, `{"partitions": 3}`).refused(409, "TOPIC_EXISTS")
	p.do("PUT", "/v1/topics/u", "", "").ok(201, nil)
	var list struct{ Topics []map[string]any }
	p.do("GET", "/v1/topics", "", "").ok(200, &list)
	if len(list.Topics) != 2 || list.Topics[1]["topic"] != "u" {
		t.Fatalf("list %v", list)
	}
	var one struct {
		PartitionList []struct {
			Partition int
			End       *uint64 `json:"end_offset"`
		} `json:"partition_list"`
	}
	e := p.do("GET", "/v1/topics/t", "", "")
	if err := json.Unmarshal(e.body, &one); err != nil || len(one.PartitionList) != 2 || one.PartitionList[1].End == nil {
		t.Fatalf("%s: %v", e.body, err)
	}
	for _, c := range []struct {
		body, reason, field string
	}{
		{`{"partitions": 1025}`, "BAD_VALUE", "partitions"},
		{`{"partitions": -1}`, "BAD_REQUEST", "partitions"},
		{`{"partitions": "2"}`, "BAD_REQUEST", "partitions"},
		{`{"partition": 1}`, "BAD_REQUEST", "partition"},
		{`{"kind": "queue"}`, "BAD_REQUEST", "kind"},
		{`{"retention_ms": 1.5}`, "BAD_REQUEST", "retention_ms"},
		{`{} {}`, "BAD_REQUEST", ""},
		{`[]`, "BAD_REQUEST", ""},
	} {
		if got := p.do("PUT", "/v1/topics/v", asJSON, c.body).refused(400, c.reason); got.Field != c.field {
			t.Errorf("%s: field %q, want %q", c.body, got.Field, c.field)
		}
	}
	p.do("PUT", "/v1/topics/v", "text/plain", "{}").refused(415, "BAD_CONTENT_TYPE")
	p.do("PUT", "/v1/topics/.v", asJSON, "{}").refused(400, "BAD_NAME")
	p.do("GET", "/v1/topics?all=1", "", "").refused(400, "BAD_REQUEST")
	p.do("GET", "/v1/topics/none", "", "").refused(404, "UNKNOWN_TOPIC")
	p.do("DELETE", "/v1/topics/t", "", "").refused(409, "NOT_CONFIRMED")
	p.do("DELETE", "/v1/topics/t?confirm=u", "", "").refused(409, "NOT_CONFIRMED")
	p.do("DELETE", "/v1/topics/t?confirm=t", "", "").ok(204, nil)
	p.do("GET", "/v1/topics/t", "", "").refused(404, "UNKNOWN_TOPIC")
}

// What is held back for want of room passes, and says when.
func TestPlainRetryAfter(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p := newPlainly(t, b)
	p.do("PUT", "/v1/topics/t", "", "").ok(201, nil)
	b.flight.take(b.flight.max)
	if got := p.do("POST", "/v1/topics/t/messages", octets, "x").refused(429, "BUSY"); got.RetryAfterMs != 100 {
		t.Fatalf("retry after %d ms", got.RetryAfterMs)
	}
	b.flight.give(b.flight.max)
	p.do("POST", "/v1/topics/t/messages", octets, "x").ok(201, nil)
	b.stopServing()
	if got := p.do("POST", "/v1/topics/t/messages", octets, "x").refused(503, "NOT_READY"); got.RetryAfterMs != 1000 {
		t.Fatalf("retry after %d ms", got.RetryAfterMs)
	}
}
