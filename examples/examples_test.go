package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client/strandmqtest"
)

// run runs a program against a broker of its own and wants all of these in what it
// prints.
func run(t *testing.T, dir string, command []string, want ...string) {
	t.Helper()
	b := strandmqtest.Start(t)
	c, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program := exec.CommandContext(c, command[0], command[1:]...)
	program.Dir = dir
	home := t.TempDir() // nothing of whoever runs the tests: no settings, no proxy
	program.Env = append(os.Environ(), "STRANDMQ_SERVER="+b.URL, "CURL_HOME="+home, "NO_PROXY=*", "no_proxy=*", "no_grpc_proxy=*")
	program.WaitDelay = 10 * time.Second
	out, err := program.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	for _, w := range append(want, "done: 3 acked") {
		if !strings.Contains(string(out), w) {
			t.Errorf("%s does not print %q:\n%s", strings.Join(command, " "), w, out)
		}
	}
	if strings.Contains(string(out), "undefined") {
		t.Errorf("%s prints what is not there:\n%s", strings.Join(command, " "), out)
	}
	topics, err := b.Client.Admin().ListTopics(t.Context())
	if err != nil || len(topics) != 0 {
		t.Errorf("it leaves the topics %v: %v", topics, err)
	}
}

// need finds a program, or skips the test.
func need(t *testing.T, program, install string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("the example needs %s, which is not there: %s", program, install)
	}
	return path
}

func TestCurl(t *testing.T) {
	for _, tool := range []string{"sh", "curl", "grep", "cut"} {
		need(t, tool, "install it")
	}
	run(t, "curl", []string{"sh", "tour.sh"}, `"duplicate":true`, `"value":{"total":7},"encoding":"json"`, `data: {"partition"`, `"what_to_do"`)
}

func TestGo(t *testing.T) {
	need(t, "go", "install Go")
	bin := filepath.Join(t.TempDir(), "example")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./go").CombinedOutput(); err != nil {
		t.Fatalf("go build ./examples/go: %v\n%s", err, out)
	}
	run(t, "go", []string{bin}, "duplicate: true", `got alice "seven pears"`)
}

func TestNode(t *testing.T) {
	node := need(t, "node", "install Node 20 or newer, and run make examples-deps")
	if _, err := os.Stat(filepath.Join("node", "node_modules", "@grpc", "grpc-js")); err != nil {
		t.Skip("the example's packages are not there: run make examples-deps (npm ci in examples/node)")
	}
	run(t, "node", []string{node, "main.mjs"}, "duplicate", "got alice seven pears", "refused with NOT_FOUND")
}

func TestPython(t *testing.T) {
	python, err := filepath.Abs(filepath.Join("python", "venv", "bin", "python"))
	if err == nil {
		_, err = os.Stat(python)
	}
	if err != nil {
		t.Skip("the example's packages are not there: install Python 3.10 or newer and run make examples-deps (a venv in examples/python)")
	}
	run(t, "python", []string{python, "main.py"}, "duplicate", "got alice seven pears", "refused with NOT_FOUND")
}
