//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// bundled runs strandmq debug bundle and gives the files in it.
func bundled(t *testing.T, url string, args ...string) (files map[string]string, talk string, code int) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	var out, said bytes.Buffer
	code = run(&app{in: strings.NewReader(""), out: &out, err: &said}, append([]string{"debug", "bundle", "-o", name, "--watch", "10ms", "--server", url}, args...))
	if code != exitUsage && strings.TrimSpace(out.String()) != name {
		t.Errorf("it does not name the file: %s", out.String())
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err, said.String())
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, said.String(), code
		}
		if err != nil {
			t.Fatal(err)
		}
		_, short, _ := strings.Cut(h.Name, "/")
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[short] = string(text)
	}
}

// Secrets are planted wherever a publisher, a handler or an operator may put one, and none
// is in the bundle; what one needs is.
func TestBundleHasNoSecrets(t *testing.T) {
	url := ward(t, t.TempDir(), func(c *broker.Config) { c.Profiles = true }).URL()
	t.Setenv("STRANDMQ_JOIN_TOKEN", "smq-join-SECRETJOIN")
	const hour = 3_600_000
	p := at(t, url, "orders", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(3), BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(hour), OnExhaustion: strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK})
	message := func(key, id string) *strandmqv1.Message {
		return &strandmqv1.Message{
			KeyKind: &strandmqv1.Message_Key{Key: key}, Id: id, Body: &strandmqv1.Message_Text{Text: "SECRETBODY"},
			Headers: []*strandmqv1.Header{{Name: "secretheader", ValueKind: &strandmqv1.Header_Value{Value: "SECRETVALUE"}}},
		}
	}
	granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{
		message("SECRETKEY1", "SECRETID1"), message("SECRETKEY2", "SECRETID2"), message("SECRETKEY1", "SECRETID3"),
	}})
	var tokens []string
	fail := func(n int, delay int64) {
		ds := p.take("m", n)
		for _, d := range ds {
			tokens = append(tokens, d.GetToken())
		}
		p.settle(nack, delay, "SECRETREASON", ds...)
	}
	for range 3 { // two become dead letters, and what is behind one of them is parked
		fail(2, 0)
	}
	granted(t, p.api.publish.Publish, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{message("SECRETKEY3", "SECRETID4")}})
	fail(1, hour) // and one fails

	until(t, "an event", func() bool {
		return len(granted(t, p.api.cluster.ListEvents, &strandmqv1.ListEventsRequest{Kind: "KEY_PARKED"}).GetEvents()) > 0
	})
	var files map[string]string
	until(t, "all to be asked", func() bool { // what has not answered after seconds is left out
		var talk string
		var code int
		files, talk, code = bundled(t, strings.Replace(url, "http://", "http://user:SECRETPASSWORD@", 1))
		t.Log(talk)
		return code == exitDone
	})
	for name, text := range files {
		if strings.HasSuffix(name, ".pprof") {
			zip, err := gzip.NewReader(strings.NewReader(text))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			plain, err := io.ReadAll(zip)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			text = string(plain)
		}
		for _, secret := range append(tokens, "SECRET", "secretheader", "PRIVATE KEY", "CERTIFICATE") {
			if i := strings.Index(name+text, secret); i >= 0 {
				t.Errorf("%s has a secret: %s", name, (name + text)[max(0, i-100):min(len(name+text), i+100)])
			}
		}
	}
	for name, want := range map[string]string{
		"version.json": `"go":`, "environment.json": `"STRANDMQ_JOIN_TOKEN": "(set)"`, "cluster.json": `"nodes":`,
		"nodes/n1/info.json": `"totalBytes":`, "nodes/n1/metrics.txt": "strandmq_build_info", "nodes/n1/readyz.txt": "[+] store",
		"nodes/n1/goroutines.txt": "goroutine profile: total ", "nodes/n1/heap.pprof": "\x1f\x8b", "nodes/n1/cpu.pprof": "\x1f\x8b",
		"events.json": `"kind": "KEY_PARKED"`, "topics/orders.json": `"endOffset": "4"`, "groups/orders/g.json": `"reason": "PARKED"`, "groups.json": `"maxAttempts": 3`,
		"doctor/facts.json": "key-1", "doctor/findings.json": "PARKED", "MANIFEST": "nothing: all was asked",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not have %s:\n%s", name, want, files[name])
		}
		if name != "MANIFEST" && !strings.Contains(files["MANIFEST"], name) {
			t.Errorf("MANIFEST does not name %s", name)
		}
	}
}

// With nobody there it has what there is, and says what is missing.
func TestBundleOfNobody(t *testing.T) {
	t.Parallel()
	files, talk, code := bundled(t, "http://127.0.0.1:1")
	if code != exitFailed || !strings.Contains(files["MANIFEST"], "no broker answers") || !strings.Contains(talk, "not asked: the broker at ") || files["version.json"] == "" {
		t.Errorf("exit code %d: %s\n%s", code, talk, files["MANIFEST"])
	}
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	app := testApp()
	if code := run(app, []string{"debug", "bundle", "-o", taken}); code != exitUsage {
		t.Errorf("a file that is there already: exit code %d", code)
	}
	if text, err := os.ReadFile(taken); err != nil || string(text) != "mine" {
		t.Errorf("it was overwritten: %q, %v", text, err)
	}
}

// A page that is refused is told as missing and is not filed as metrics; that of a node which
// is not ready is filed.
func TestBundleFilesNoRefusals(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{http.StatusOK: true, http.StatusServiceUnavailable: true, http.StatusForbidden: false, http.StatusNotFound: false} {
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		b := newBundle(io.Discard, "b", nil, time.Now())
		if err := b.node(&inquiry{ctx: t.Context(), patience: time.Minute}, "n1", node.URL); err != nil {
			t.Error(err)
		}
		node.Close()
		has := func(file string) bool {
			return slices.ContainsFunc(b.files, func(line string) bool { return strings.HasPrefix(line, "nodes/n1/"+file) })
		}
		told := func(path string) bool {
			return slices.ContainsFunc(b.missing, func(u doctor.Unreached) bool {
				return u.What == path+" of node n1" && u.Why == fmt.Sprintf("it answers with status %d", status)
			})
		}
		if has("readyz.txt") != want || told("/readyz?verbose") == want {
			t.Errorf("readyz %d: %q, without %v", status, b.files, b.missing)
		}
		if ok := status == http.StatusOK; has("metrics.txt") != ok || told("/metrics") == ok {
			t.Errorf("metrics %d: %q, without %v", status, b.files, b.missing)
		}
	}
}

// Of three nodes one is away: the others are in it, and it is named.
func TestBundleNamesWhoIsAway(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes; TestBundleOfNobody has one that is away")
	}
	t.Parallel()
	f := startSquadron(t, loopback(t, 3))
	f.nodes[2].kill()
	until(t, "the others in it, and the one that is away named", func() bool { // one that is slow may be left out
		files, talk, code := bundled(t, "http://"+f.nodes[2].listen+","+f.nodes[0].url)
		has := code == exitFailed && strings.Contains(files["MANIFEST"], "  node n3: ") && strings.Contains(talk, "node n3") && strings.Contains(files["MANIFEST"], "\nNo profiles of n1, n2: ")
		for _, name := range []string{"nodes/n1/metrics.txt", "nodes/n2/metrics.txt", "nodes/n2/info.json", "events.json"} {
			has = has && files[name] != ""
		}
		if !has {
			t.Logf("exit code %d: %s\n%s", code, talk, files["MANIFEST"])
		}
		return has
	})
}
