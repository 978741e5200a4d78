package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	guestOrigin   = "https://app.example.org"
	publishPath   = "/strandmq.v1.PublishService/Publish"
	subscribePath = "/strandmq.v1.ConsumeService/Subscribe"
)

// browse sends what a browser would for a page of the origin.
func browse(t *testing.T, method, url, body string, headers map[string]string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func preflight(t *testing.T, url, origin, headers string) *http.Response {
	t.Helper()
	return browse(t, "OPTIONS", url, "", map[string]string{
		"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors",
		"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers,
	})
}

// pageCalls is a page's fetch, as the browser sends it once the preflight allowed it.
func pageCalls(t *testing.T, url, origin, contentType, body string) *http.Response {
	t.Helper()
	return browse(t, "POST", url, body, map[string]string{
		"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Content-Type": contentType,
	})
}

// shut holds an answer that a page of another origin cannot read.
func shut(t *testing.T, res *http.Response) {
	t.Helper()
	for h := range res.Header {
		if strings.HasPrefix(h, "Access-Control-") {
			t.Errorf("the answer has %s", h)
		}
	}
}

// storedIn is how many messages the topic has.
func storedIn(t *testing.T, b *Broker, topic string) string {
	t.Helper()
	res := browse(t, "POST", b.URL()+"/strandmq.v1.TopicService/DescribeTopic", fmt.Sprintf(`{"topic":%q}`, topic), map[string]string{"Content-Type": "application/json"})
	all, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %d %s", err, res.StatusCode, all)
	}
	plain := strings.ReplaceAll(string(all), " ", "") // the encoder strews them
	for _, field := range strings.FieldsFunc(plain, func(r rune) bool { return r == '{' || r == '}' || r == ',' }) {
		if strings.HasPrefix(field, `"endOffset"`) {
			return field
		}
	}
	t.Fatalf("no end offset in %s", all)
	return ""
}

func makeTopic(t *testing.T, b *Broker) {
	t.Helper()
	if res := browse(t, "POST", b.URL()+"/strandmq.v1.TopicService/CreateTopic", `{"topic":"t","partitions":1}`, map[string]string{"Content-Type": "application/json"}); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
}

const oneMessage = `{"topic":"t","messages":[{"key":"a","text":"x"}]}`

// A page of another origin neither publishes nor reads, unless its origin is
// listed; and then it does nothing else.
func TestGuests(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) { c.AllowedOrigins = []string{guestOrigin, "http://localhost:5173"} })
	makeTopic(t, b)
	before := storedIn(t, b, "t")

	t.Run("others", func(t *testing.T) {
		for _, origin := range []string{
			"https://evil.example", "null", "https://app.example.org.evil.example", "https://app.example.org:444",
			"http://app.example.org", "https://app.example.org/", "https://sub.app.example.org", "http://localhost:5174",
		} {
			for _, path := range []string{publishPath, subscribePath} {
				res := preflight(t, b.URL()+path, origin, "connect-protocol-version,content-type")
				if res.StatusCode != 405 || wireReason(t, res) != "BAD_METHOD" {
					t.Errorf("%s: a preflight got %s", origin, res.Status)
				}
				shut(t, res)
			}
			res := pageCalls(t, b.URL()+publishPath, origin, "application/json", oneMessage)
			if res.StatusCode != 403 || wireReason(t, res) != "CROSS_ORIGIN" {
				t.Errorf("%s: a publish got %s", origin, res.Status)
			}
			if !strings.Contains(strings.Join(res.Header["Vary"], ","), "Origin") {
				t.Errorf("%s: no Vary: Origin", origin)
			}
			shut(t, res)
			res = pageCalls(t, b.URL()+"/strandmq.v1.ConsumeService/Receive", origin, "application/json", `{"topic":"t","group":"g","member":"m","create_group":true}`)
			if res.StatusCode != 403 || wireReason(t, res) != "CROSS_ORIGIN" {
				t.Errorf("%s: a receive got %s", origin, res.Status)
			}
			shut(t, res)
		}
		if after := storedIn(t, b, "t"); after != before {
			t.Fatalf("%s, before %s", after, before)
		}
	})

	t.Run("listed", func(t *testing.T) {
		for origin, headers := range map[string]string{
			guestOrigin:             "connect-protocol-version,connect-timeout-ms,content-type",
			"http://localhost:5173": "content-type,grpc-timeout,x-grpc-web,x-user-agent",
		} {
			res := preflight(t, b.URL()+publishPath, origin, headers)
			if res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Origin") != origin ||
				res.Header.Get("Access-Control-Allow-Methods") != "POST" || res.Header.Get("Access-Control-Allow-Headers") != headers {
				t.Fatalf("a preflight got %s %v", res.Status, res.Header)
			}
			if res.Header.Get("Access-Control-Allow-Credentials") != "" {
				t.Error("credentials are let along")
			}
			if !strings.Contains(strings.Join(res.Header["Vary"], ","), "Origin") {
				t.Error("no Vary: Origin")
			}
			if res := preflight(t, b.URL()+publishPath, origin, "content-type,cookie-maker"); res.Header.Get("Access-Control-Allow-Headers") != "" {
				t.Errorf("any header is allowed: %v", res.Header)
			}
			res = pageCalls(t, b.URL()+publishPath, origin, "application/json", oneMessage)
			if all, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 || !strings.Contains(string(all), `"receipt"`) {
				t.Fatalf("%v %s %s", err, res.Status, all)
			}
			if res.Header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "Grpc-Status-Details-Bin") {
				t.Fatalf("the answer has %v", res.Header)
			}
			// What is refused, by whichever layer, can be read too.
			for contentType, want := range map[string]int{"application/json": 404, "text/plain": 415} {
				res := pageCalls(t, b.URL()+publishPath, origin, contentType, `{"topic":"nowhere","messages":[{}]}`)
				if res.StatusCode != want || res.Header.Get("Access-Control-Allow-Origin") != origin {
					t.Errorf("%s: %s %v", contentType, res.Status, res.Header)
				}
			}
		}
	})

	t.Run("nothing else", func(t *testing.T) {
		for _, path := range []string{
			"/strandmq.v1.TopicService/DeleteTopic", "/strandmq.v1.GroupService/DescribeGroup", "/strandmq.v1.DeadLetterService/ListDeadLetters",
			"/strandmq.v1.TraceService/Trace", "/strandmq.v1.NodeService/NodeInfo", "/strandmq.v1.ClusterService/CreateJoinToken",
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/nowhere", "/",
			"/v1/topics/t/messages",
		} {
			res := preflight(t, b.URL()+path, guestOrigin, "content-type")
			if res.StatusCode != 405 {
				t.Errorf("%s: a preflight got %s", path, res.Status)
			}
			shut(t, res)
			res = pageCalls(t, b.URL()+path, guestOrigin, "application/json", `{}`)
			if all, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 403 || !strings.Contains(string(all), "CROSS_ORIGIN") {
				t.Errorf("%s: %v %s %s", path, err, res.Status, all)
			}
			shut(t, res)
		}
		for _, origin := range []string{"https://evil.example", guestOrigin} {
			for _, accept := range []string{"", "text/event-stream"} {
				res := browse(t, "GET", b.URL()+"/v1/topics/t/messages", "", map[string]string{
					"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Accept": accept,
				})
				shut(t, res)
				if res.StatusCode != 403 { // a stream that is let in has no end to read to
					t.Errorf("a GET of %s: %s", origin, res.Status)
					res.Body.Close()
					continue
				}
				if all, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(all), "CROSS_ORIGIN") {
					t.Errorf("a GET of %s: %v %s", origin, err, all)
				}
			}
		}
		for _, path := range []string{"/", "/metrics", "/readyz", publishPath} {
			shut(t, browse(t, "GET", b.URL()+path, "", map[string]string{"Origin": "https://evil.example"}))
		}
	})

	t.Run("a rebound host", func(t *testing.T) {
		req, err := http.NewRequest("POST", b.URL()+publishPath, strings.NewReader(oneMessage))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "app.example.org"
		req.Header.Set("Origin", guestOrigin)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := wireReason(t, res); got != "HOST_NOT_ALLOWED" {
			t.Fatalf("reason %s", got)
		}
	})
}

// "*" lets every page publish and consume, and without credentials.
func TestEveryOriginIsAGuest(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) { c.AllowedOrigins = []string{"*"} })
	makeTopic(t, b)
	for _, origin := range []string{"https://any.example", "null"} {
		if res := preflight(t, b.URL()+publishPath, origin, "content-type"); res.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Fatalf("%s: %v", origin, res.Header)
		}
		res := pageCalls(t, b.URL()+publishPath, origin, "application/json", oneMessage)
		if res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "*" || res.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Fatalf("%s: %s %v", origin, res.Status, res.Header)
		}
		if res := pageCalls(t, b.URL()+"/strandmq.v1.TopicService/DeleteTopic", origin, "application/json", `{}`); res.StatusCode != 403 {
			t.Fatalf("%s: %s", origin, res.Status)
		}
	}
}

// Origins are spelled as browsers send them, or the broker does not start.
func TestAllowedOrigins(t *testing.T) {
	for _, c := range []struct {
		origins []string
		want    string // empty: taken
	}{
		{nil, ""},
		{[]string{"https://app.example.org", "http://localhost:5173", "http://127.0.0.1:80801"}, "port that is none"},
		{[]string{"https://app.example.org", "http://localhost:5173", "http://192.0.2.7", "http://[::1]:8080", "https://xn--bcher-kva.example"}, ""},
		{[]string{"*"}, ""},
		{[]string{"*", "https://app.example.org"}, "stands alone"},
		{[]string{"https://*.example.org"}, "is a pattern"},
		{[]string{"null"}, "is no origin"},
		{[]string{""}, "is no origin"},
		{[]string{"app.example.org"}, "is no origin"},
		{[]string{"localhost:5173"}, "is no origin"},
		{[]string{"https://"}, "is no origin"},
		{[]string{"file:///etc"}, "is no origin"},
		{[]string{"ftp://app.example.org"}, "neither of http nor of https"},
		{[]string{"https://app.example.org/"}, `here "https://app.example.org"`},
		{[]string{"https://app.example.org/path?q#f"}, `here "https://app.example.org"`},
		{[]string{"https://me:secret@app.example.org"}, `here "https://app.example.org"`},
		{[]string{"https://App.example.org"}, `here "https://app.example.org"`},
		{[]string{"https://app.example.org:443"}, `here "https://app.example.org"`},
		{[]string{"http://app.example.org:80"}, `here "http://app.example.org"`},
		{[]string{"http://app.example.org:443"}, ""},
		{[]string{"https://bücher.example"}, "xn--"},
		{[]string{"https://a b"}, "is no origin"},
		{[]string{"https://a,https://b"}, "no host name"},
		{[]string{"https://ok.example", "nonsense", "https://x/"}, "is no origin"},
	} {
		err := Config{DataDir: "x", AllowedOrigins: c.origins}.Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q: %v", c.origins, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q: %v, want %q", c.origins, err, c.want)
		}
	}
	_, err := Start(context.Background(), Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AllowedOrigins: []string{"https://x/"}})
	if start := new(StartError); !errors.As(err, &start) || start.Reason != BadConfig {
		t.Fatalf("it starts with %v", err)
	}
}
