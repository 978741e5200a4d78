package house

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What make unit prints of go test's output: packages, failures, and every
// skipped test with its reason.
func TestSkippedTestsAreTold(t *testing.T) {
	const good = `=== RUN   TestFine
    a_test.go:3: a long talk
--- PASS: TestFine (0.00s)
=== RUN   TestDisk
    disk_test.go:250: a small disk needs the right to mount one: not permitted
--- SKIP: TestDisk (0.00s)
=== RUN   TestWeb
=== RUN   TestWeb/npm
    web_test.go:7: skipped: npm is not installed
--- PASS: TestWeb (0.00s)
    --- SKIP: TestWeb/npm (0.00s)
PASS
ok  	example/a	0.1s
`
	const bad = `=== RUN   TestFine
    a_test.go:3: a long talk
--- PASS: TestFine (0.00s)
=== RUN   TestWrong
    a_test.go:9: 1, want 2
--- FAIL: TestWrong (0.00s)
FAIL
FAIL	example/b	0.1s
FAIL
`
	for _, c := range []struct {
		name, in  string
		code      int
		want, not []string
	}{
		{"skips", good + "=== EXIT 0\n", 0, []string{
			"ok  \texample/a", "SKIPPED 2 tests:\n",
			"  TestDisk of example/a: a small disk needs the right to mount one: not permitted\n",
			"  TestWeb/npm of example/a: skipped: npm is not installed\n",
		}, []string{"a long talk"}},
		{"a failure", bad + good + "=== EXIT 1\n", 1, []string{"a_test.go:9: 1, want 2", "--- FAIL: TestWrong", "FAIL\texample/b", "SKIPPED 2 tests"}, []string{"a long talk"}},
		{"a panic", "=== RUN   TestX\npanic: boom\n\ngoroutine 1\nFAIL\texample/c\t0.1s\nFAIL\n=== EXIT 1\n", 1, []string{"panic: boom", "goroutine 1", "No test was skipped."}, nil},
		{"no build", "# example/d\nx.go:1:1: syntax error\nFAIL\texample/d [build failed]\nFAIL\n=== EXIT 1\n", 1, []string{"syntax error", "[build failed]"}, nil},
		{"cut off", good, 1, nil, nil},
	} {
		cmd := exec.Command("awk", "-f", filepath.Join(root, "tools", "tests.awk"))
		cmd.Stdin = strings.NewReader(c.in)
		out, err := cmd.CombinedOutput()
		code := 0
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Skipf("make needs awk, which this machine does not have: %v", err)
		}
		if code != c.code {
			t.Errorf("%s: code %d, want %d\n%s", c.name, code, c.code, out)
		}
		for _, s := range c.want {
			if !strings.Contains(string(out), s) {
				t.Errorf("%s: %q is not in\n%s", c.name, s, out)
			}
		}
		for _, s := range c.not {
			if strings.Contains(string(out), s) {
				t.Errorf("%s: %q is in\n%s", c.name, s, out)
			}
		}
	}
}
