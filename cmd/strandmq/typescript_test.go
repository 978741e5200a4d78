//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestTypeScriptClient runs the TypeScript client against a broker's process: in
// Node over gRPC, Connect and gRPC-Web, and in a real browser over Connect and gRPC-Web,
// in pages of the broker's own origin, of one that it allows and of one that it does not.
func TestTypeScriptClient(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it starts a browser; the run without -short has it")
	}
	dir, err := filepath.Abs(filepath.Join("..", "..", "clients", "typescript"))
	if err != nil {
		t.Fatal(err)
	}
	const install = "make ts-deps installs what it needs, but for node and npm"
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("skipped: node is not installed; %s", install)
	}
	for _, file := range []string{"typescript/bin/tsc", "esbuild/package.json", "playwright-core/package.json", "@connectrpc/connect-node/package.json"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", filepath.FromSlash(file))); err != nil {
			t.Skipf("skipped: the npm packages of clients/typescript are not installed; %s", install)
		}
	}
	run := func(t *testing.T, args ...string) {
		t.Helper()
		const limit = 5 * time.Minute // seconds, on a machine with nothing else to do
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, node, args...)
		cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("node %v: %v\n%s", args, err, out)
		}
		t.Logf("%s", out)
	}
	t.Parallel() // it waits for processes
	run(t, filepath.Join("node_modules", "typescript", "bin", "tsc"), "-p", ".")
	run(t, filepath.Join("node_modules", "typescript", "bin", "tsc"), "-p", readmeProject(t, dir))
	run(t, filepath.Join("test", "retry.mjs"))
	run(t, filepath.Join("test", "check.mjs"))

	folder := t.TempDir()
	listed, other := pageServer(t, folder), pageServer(t, folder)
	p := startProcess(t, buildBroker(t), "--allow-origin", listed)
	api := dial(p.url)
	topic := func(t *testing.T, names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := ask(t.Context(), api.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: name, Partitions: 1}); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "other-") {
				continue // a group there would be the refused page's
			}
			// Deliveries that do not lapse, however long a busy machine takes to settle them.
			policy := &strandmqv1.GroupPolicy{AckDeadlineMs: new(time.Hour.Milliseconds()), MaxHoldMs: new(2 * time.Hour.Milliseconds())}
			if _, err := ask(t.Context(), api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: name, Group: "g", Policy: policy}); err != nil {
				t.Fatal(err)
			}
		}
	}

	t.Run("node", func(t *testing.T) {
		topic(t, "node-grpc", "node-connect", "node-grpc-web", "orders")
		run(t, filepath.Join("test", "node.mjs"), p.url)
	})
	t.Run("browser", func(t *testing.T) {
		chromium, err := exec.LookPath("chromium")
		if err != nil {
			t.Skip("skipped: chromium is not installed; make ts-browser installs it on Debian, as root")
		}
		for _, kind := range []string{"connect", "grpc-web"} {
			topic(t, "own-"+kind, "listed-"+kind, "other-"+kind)
		}
		run(t, filepath.Join("test", "browser.mjs"), chromium, p.url, listed, other, folder)
		// What the pages of the other origin tried did not happen.
		for name, want := range map[string]uint64{"own-connect": 4, "listed-connect": 4, "listed-grpc-web": 4, "other-connect": 0, "other-grpc-web": 0} {
			d, err := ask(t.Context(), api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: name})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := d.GetPartitions()[0].GetEndOffset(); got != want {
				t.Errorf("%s has %d messages, want %d", name, got, want)
			}
			if groups := len(d.GetGroups()); (groups > 0) != (want > 0) {
				t.Errorf("%s has %d groups", name, groups)
			}
		}
	})
}

// readmeProject makes the TypeScript of the client's README a project that compiles, or
// does not. Each piece goes on from those before it.
func readmeProject(t *testing.T, dir string) (folder string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pieces := regexp.MustCompile("(?ms)^```ts\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(pieces) < 2 {
		t.Fatalf("README.md has %d pieces of TypeScript: the test does not read them any more", len(pieces))
	}
	var code bytes.Buffer
	for _, piece := range pieces {
		code.Write(piece[1])
	}
	project, err := json.Marshal(map[string]any{
		"extends": filepath.Join(dir, "tsconfig.json"),
		"files":   []string{"readme.mts"},
		"include": []string{},
		"compilerOptions": map[string]any{
			"noEmit": true, "rootDir": "/", "typeRoots": []string{filepath.Join(dir, "node_modules", "@types")},
			"paths": map[string][]string{"@strandmq/client": {filepath.Join(dir, "dist", "index.d.ts")}, "@strandmq/client/*": {filepath.Join(dir, "dist", "*.d.ts")}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	for name, content := range map[string][]byte{"readme.mts": code.Bytes(), "tsconfig.json": project} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// pageServer serves a folder on an origin of its own.
func pageServer(t *testing.T, folder string) (origin string) {
	s := httptest.NewServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(s.Close)
	return s.URL
}
