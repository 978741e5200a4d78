package house

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/heldport"
)

// tour is a part of a page whose commands are run: what stands between two marks.
type tour struct{ page, from, to string }

// tours are the parts of pages whose commands a reader can paste, in order, into one
// shell. The first of each starts the broker.
var tours = []tour{
	{"README.md", "<!-- tour -->", "<!-- end of tour -->"},
	{"docs/troubleshooting.md", "<!-- page -->", "<!-- end of page -->"},
	{"docs/operations.md", "<!-- page -->", "<!-- end of page -->"},
}

// tourAddress is the broker's address as the tour writes it, which is also the
// default of every command. The test uses a free port instead.
const tourAddress = "127.0.0.1:7171"

// addressVariable tells the commands where the broker is.
const addressVariable = "STRANDMQ_SERVER"

// A step is one fenced block of commands, with what its output has to hold: the
// patterns of the "expect" comments behind it. A block that ends with another exit code
// than 0 has an "exit" comment, with "or" where that depends on the machine; what a "run" comment holds is run, too, and not shown.
type step struct {
	commands string
	expect   []string
	exit     string
}

var (
	tourBlock  = regexp.MustCompile("(?ms)^(?:```sh|<!-- run:) *\n?(.*?) *(?:^```$|-->)")
	tourExpect = regexp.MustCompile(`<!-- expect: (.*?) -->`)
	tourExit   = regexp.MustCompile(`<!-- exit: (\d+(?: or \d+)*) -->`)
)

// steps reads them. The first one starts the broker.
func (w tour) steps(t *testing.T) []step {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, w.page), w.from)
	text, _, closed := strings.Cut(rest, w.to)
	if !ok || !closed {
		t.Fatalf("%s has nothing between %s and %s", w.page, w.from, w.to)
	}
	var steps []step
	blocks := tourBlock.FindAllStringSubmatchIndex(text, -1)
	for i, at := range blocks {
		end := len(text)
		if i+1 < len(blocks) {
			end = blocks[i+1][0]
		}
		s := step{commands: strings.TrimSpace(text[at[2]:at[3]]) + "\n", exit: "0"}
		if m := tourExit.FindStringSubmatch(text[at[1]:end]); m != nil {
			s.exit = m[1]
		}
		for _, m := range tourExpect.FindAllStringSubmatch(text[at[1]:end], -1) {
			s.expect = append(s.expect, m[1])
		}
		steps = append(steps, s)
	}
	return steps
}

// TestTour runs the tour of README.md and the other tours, as a reader would paste them,
// against the real binary: one broker, and all other blocks in one shell, in order.
func TestTour(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the tour is written for a POSIX shell")
	}
	for _, tool := range []string{"sh", "curl", "sed"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the tour needs %s, which this machine does not have", tool)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	bin := buildBinary(ctx, t)
	for _, w := range tours {
		t.Run(filepath.Base(w.page), func(t *testing.T) { w.run(ctx, t, bin) })
	}
}

func (w tour) run(ctx context.Context, t *testing.T, bin string) {
	steps := w.steps(t)
	if len(steps) < 5 {
		t.Fatalf("%s has %d blocks of commands: it was not read as it should be", w.page, len(steps))
	}
	if !strings.HasPrefix(steps[0].commands, "strandmq serve") {
		t.Fatalf("the first block of %s has to start the broker with strandmq serve, and is:\n%s", w.page, steps[0].commands)
	}
	address := heldport.Address(t)
	work := t.TempDir()
	env := append(os.Environ(),
		"PATH="+filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"),
		addressVariable+"=http://"+address,
		"NO_COLOR=1",
		// Nothing of whoever runs the tests: no settings of curl, no proxy.
		"HOME="+work, "CURL_HOME="+work, "XDG_CONFIG_HOME="+work, "NO_PROXY=*", "no_proxy=*",
	)
	// The tour reads the sample that is in the repository.
	if err := os.CopyFS(filepath.Join(work, "cmd", "strandmq", "sample"), os.DirFS(filepath.Join(root, "cmd", "strandmq", "sample"))); err != nil {
		t.Fatal(err)
	}

	var talk bytes.Buffer
	serve := exec.CommandContext(ctx, bin, append(strings.Fields(steps[0].commands)[1:], "--listen", address)...)
	serve.Dir, serve.Env, serve.Stdout, serve.Stderr = work, env, &talk, &talk
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	var outcome error
	ended := make(chan struct{}) // closed when the broker ended and outcome is set
	go func() { outcome = serve.Wait(); close(ended) }()
	stop := func() error {
		if err := serve.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		<-ended
		return outcome
	}
	if err := untilReady(ctx, address, ended); err != nil {
		_ = stop()
		t.Fatalf("%v\n%s", err, talk.String())
	}

	// One shell, so that variables of one block are there in the next; a mark
	// on a line of its own between the outputs.
	var script strings.Builder
	for i, s := range steps[1:] {
		// All of a block has to succeed; where it is to fail, its last command.
		fmt.Fprintf(&script, "echo; echo '%s'\n", mark(i))
		if s.exit == "0" {
			fmt.Fprintf(&script, "set -e\n%s\n", s.commands)
			continue
		}
		fmt.Fprintf(&script, "set +e\n%s\nended=$?; case $ended in %s) ;; *) echo \"exit code $ended, want %s\"; exit 1;; esac\n",
			s.commands, strings.ReplaceAll(s.exit, " or ", "|"), s.exit)
	}
	fmt.Fprintf(&script, "echo; echo '%s'\n", mark(len(steps)-1))
	shell := exec.CommandContext(ctx, "sh")
	shell.Dir, shell.Env = work, env
	shell.Stdin = strings.NewReader(strings.ReplaceAll(script.String(), tourAddress, address))
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("a command of %s failed (%v); the last output is its", w.page, err)
	}
	parts := regexp.MustCompile(`(?m)^=== step \d+ ===\n`).Split(string(out), -1)
	for i, s := range steps[1:] {
		if i+1 >= len(parts) {
			t.Errorf("%s did not get to:\n%s", w.page, s.commands)
			break
		}
		got := parts[i+1]
		t.Logf("$ %s\n%s", strings.TrimSpace(s.commands), strings.TrimSpace(got))
		for _, pattern := range s.expect {
			re, err := regexp.Compile("(?s)" + pattern)
			if err != nil {
				t.Errorf("%s expects %q, which is no pattern: %v", w.page, pattern, err)
			} else if !re.MatchString(got) {
				t.Errorf("%s expects %q of\n%s\nand got\n%s", w.page, pattern, s.commands, got)
			}
		}
	}

	if err := stop(); err != nil {
		t.Errorf("the broker did not stop in good order: %v\n%s", err, talk.String())
	}
}

func mark(i int) string { return fmt.Sprintf("=== step %d ===", i) }

// buildBinary builds the command as `make build` does.
func buildBinary(ctx context.Context, t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "strandmq")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/strandmq")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build ./cmd/strandmq: %v\n%s", err, out)
	}
	return bin
}

// untilReady asks /readyz until the broker takes calls.
func untilReady(ctx context.Context, address string, ended <-chan struct{}) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			return errors.New("strandmq serve ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("strandmq serve did not become ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
