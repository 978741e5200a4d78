package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/internal/broker"
)

// The test binary stands in for the strandmq binary in scripts.
func TestMain(m *testing.M) {
	// Under the race detector each process would sleep a second as it exits, and
	// the scripts run hundreds of them.
	if os.Getenv("GORACE") == "" {
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			panic(err)
		}
	}
	if program := programs[filepath.Base(os.Args[0])]; program != nil {
		program()
		return
	}
	testscript.Main(leakChecked{m}, map[string]func(){"strandmq": main})
}

// leakChecked fails the tests when they leave goroutines behind. testscript.Main
// ends the process, so goleak's own TestMain has no place. It is not run where
// the test binary stands in for strandmq.
type leakChecked struct{ m *testing.M }

// removed are folders that go when all tests are over.
var removed []string

func (l leakChecked) Run() int {
	for name, value := range nowhere {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := l.m.Run()
	for _, folder := range removed {
		_ = os.RemoveAll(folder)
	}
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests passed and left goroutines behind: %v\n", err)
		return 1
	}
	return 0
}

// nowhere is the environment that tests run in: a test that does not say which
// broker it asks, where it listens, or where its data is, must not come upon what
// belongs to whoever runs the tests, such as a broker on the default port.
var nowhere = map[string]string{
	"STRANDMQ_SERVER":   "http://127.0.0.1:1",
	"STRANDMQ_LISTEN":   "127.0.0.1:0",
	"STRANDMQ_DATA":     os.DevNull + "/no-data-of-a-test",
	"STRANDMQ_DEV_PORT": "0",
}

// TestDefaultsLeadNowhere: whatever command has a default that leads to a broker
// or to a folder has it from the environment, which leads nowhere in tests.
func TestDefaultsLeadNowhere(t *testing.T) {
	places := map[string]string{"server": "STRANDMQ_SERVER", "listen": "STRANDMQ_LISTEN", "data": "STRANDMQ_DATA", "port": "STRANDMQ_DEV_PORT"}
	seen := map[string]bool{}
	eachCommand(testApp().root(), func(c *cobra.Command) {
		check := func(f *pflag.Flag) {
			name, ok := places[f.Name]
			if !ok {
				for _, public := range []string{"7171", "strandmq-data"} {
					if strings.Contains(f.DefValue, public) {
						t.Errorf("%s --%s leads to %s by default: let the environment name another place, and put that into the variable nowhere", c.CommandPath(), f.Name, f.DefValue)
					}
				}
				return
			}
			seen[f.Name] = true
			if f.DefValue != nowhere[name] {
				t.Errorf("%s --%s leads to %s in tests: want %s, of %s", c.CommandPath(), f.Name, f.DefValue, nowhere[name], name)
			}
		}
		c.LocalFlags().VisitAll(check)
		c.PersistentFlags().VisitAll(check)
	})
	if len(seen) != len(places) || len(nowhere) != len(places) {
		t.Errorf("saw the flags %v, want all of %v", seen, places)
	}
}

// TestScripts runs testdata/script. Beside the usual commands there are
//
//	broker          start a broker for the script, and point STRANDMQ_SERVER at it
//	rots            stop it, flip a bit in its largest file of messages, and start it
//	exits N CMD...  run a command that must end with exit code N
//	talks FILE TEXT wait until a file that a background command writes has a text
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range nowhere {
				e.Setenv(name, value)
			}
			e.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"broker": startBroker,
			"rots":   rots,
			"exits":  exits,
			"talks":  talks,
			"shows":  shows,
		},
	})
}

// shows runs a command again and again until its output matches: "shows REGEXP
// strandmq …".
func shows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: shows regexp program args...")
	}
	want := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(2 * time.Minute); ; {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if out := ts.ReadFile("stdout"); want.MatchString(out) {
			return
		} else if time.Now().After(end) {
			ts.Fatalf("it never shows %q", args[0])
		}
		time.Sleep(50 * time.Millisecond) // what it waits for comes within a second
	}
}

func startBroker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: broker")
	}
	b, err := broker.Start(context.Background(), broker.Config{
		DataDir: ts.MkAbs("data"), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Version: "test",
		// What a script's member holds it holds until the script goes on, however
		// busy the machine is.
		SessionTimeout: time.Hour,
	})
	ts.Check(err)
	ts.Defer(func() {
		if err := b.Close(); err != nil {
			ts.Logf("closing the broker: %v", err)
		}
	})
	ts.Setenv("STRANDMQ_SERVER", b.URL())
	scriptBrokers.Store(ts, b)
}

// scriptBrokers has the broker that each script started last.
var scriptBrokers sync.Map

func rots(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: rots")
	}
	b, ok := scriptBrokers.Load(ts)
	if !ok {
		ts.Fatalf("no broker was started")
	}
	ts.Check(b.(*broker.Broker).Close())
	files, err := filepath.Glob(filepath.Join(ts.MkAbs("data"), "pebble", "*.blob"))
	ts.Check(err)
	var name string
	var data []byte
	for _, f := range files {
		some, err := os.ReadFile(f)
		ts.Check(err)
		if len(some) > len(data) {
			name, data = f, some
		}
	}
	if len(data) == 0 {
		ts.Fatalf("the broker has no file of messages")
	}
	data[len(data)/2] ^= 2
	ts.Check(os.WriteFile(name, data, 0o600))
	startBroker(ts, false, nil)
}

// scriptBroker starts a broker for a test and gives its URL.
func scriptBroker(t *testing.T) string {
	t.Helper()
	b, err := broker.Start(t.Context(), broker.Config{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b.URL()
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGS...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s", fmt.Sprintf("exit code %d, want %d", got, want))
	}
}

func talks(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: talks FILE TEXT")
	}
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if b, err := os.ReadFile(ts.MkAbs(args[0])); err == nil && strings.Contains(string(b), args[1]) {
			return
		}
		time.Sleep(10 * time.Millisecond) // between two looks at the file
	}
	ts.Fatalf("%s never had %q", args[0], args[1])
}
