//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// What Linux calls the requests to unlock a pseudo-terminal, to ask for its
// number, and to set its size.
const (
	unlockTerminal = 0x40045431 // TIOCSPTLCK
	numberTerminal = 0x80045430 // TIOCGPTN
	sizeTerminal   = 0x5414     // TIOCSWINSZ
)

func ioctl(t *testing.T, f *os.File, request uintptr, arg unsafe.Pointer) {
	t.Helper()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		t.Fatalf("ioctl %#x: %v", request, errno)
	}
}

// openTerminal opens a pair of pseudo-terminals: what the test holds, and what a
// command takes for a person.
func openTerminal(t *testing.T) (held, person *os.File) {
	t.Helper()
	held, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { held.Close() })
	var locked, n int32
	ioctl(t, held, unlockTerminal, unsafe.Pointer(&locked))
	ioctl(t, held, numberTerminal, unsafe.Pointer(&n))
	ioctl(t, held, sizeTerminal, unsafe.Pointer(&[4]uint16{40, 200}))
	person, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return held, person
}

// strandmqCommand is a command line to run: the test binary is strandmq under that
// name, see TestMain.
func strandmqCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "strandmq"
	if path, err := exec.LookPath("strandmq"); err == nil {
		cmd.Path = path
	}
	cmd.Env = os.Environ()
	return cmd
}

// atTerminal runs a command with a terminal on all three streams, types into it,
// and returns what the screen got.
func atTerminal(t *testing.T, env []string, typed string, args ...string) (screen string, code int) {
	t.Helper()
	held, person := openTerminal(t)
	cmd := strandmqCommand(t, args...)
	cmd.Env = append(append(cmd.Env, "TERM=xterm-256color", "COLORTERM=truecolor"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = person, person, person
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	person.Close()
	if typed != "" {
		if _, err := held.WriteString(typed); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(held) // ends with an error when the last holder closes
		got <- string(b)
	}()
	_ = cmd.Wait()
	return strings.ReplaceAll(<-got, "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

func TestAtATerminal(t *testing.T) {
	server := scriptBroker(t)
	on := func(env []string, typed string, args ...string) (string, int) {
		return atTerminal(t, env, typed, append([]string{"--server", server}, args...)...)
	}
	if screen, code := on(nil, "", "topic", "create", "trips", "--partitions", "1"); code != 0 {
		t.Fatalf("code %d\n%s", code, screen)
	}
	// Tables have lines and a bold head; NO_COLOR takes the styles, not the lines.
	screen, _ := on(nil, "", "topic", "list")
	if !strings.Contains(screen, "│") || !strings.Contains(screen, "\x1b[1m") {
		t.Errorf("no drawn table:\n%q", screen)
	}

	// Progress is drawn, and wiped before the summary.
	in := t.TempDir() + "/in.ndjson"
	if err := os.WriteFile(in, []byte("{\"k\":\"a\"}\n{\"k\":\"b\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	screen, code := on(nil, "", "publish", "trips", "--file", in, "--key-field", "k")
	if code != 0 || !strings.Contains(screen, "publishing to trips") || !strings.Contains(screen, "100%") ||
		!strings.Contains(screen, "\r\x1b[K2 published") {
		t.Errorf("code %d, progress:\n%q", code, screen)
	}
	screen, _ = on([]string{"NO_COLOR=1"}, "", "publish", "trips", "--file", in, "--key-field", "k")
	if strings.Contains(screen, "\x1b[38") || !strings.Contains(screen, "100%") {
		t.Errorf("NO_COLOR is not respected:\n%q", screen)
	}

	// A body that would steer the terminal does not.
	on(nil, "", "publish", "trips", "--key", "\x1b[31mkey", "--body", "\x1b]0;title\x07\x1b[2J")
	screen, _ = on(nil, "", "consume", "trips", "--group", "g", "--until-empty")
	if !strings.Contains(screen, `\x1b[31mkey`) || !strings.Contains(screen, `\x1b]0;title\x07\x1b[2J`) || strings.Contains(screen, "\x1b[2J") {
		t.Errorf("escapes reach the terminal:\n%q", screen)
	}

	// Deleting asks; another name deletes nothing.
	screen, code = on(nil, "tripz\n", "topic", "delete", "trips")
	if code != exitUsage || !strings.Contains(screen, "Type the name trips to go on:") || !strings.Contains(screen, "nothing was deleted") {
		t.Errorf("code %d\n%s", code, screen)
	}
	screen, code = on(nil, "trips\n", "topic", "delete", "trips")
	if code != exitDone || !strings.Contains(screen, "topic trips deleted") {
		t.Errorf("code %d\n%s", code, screen)
	}
}

// Ctrl-C ends a question: every command that has a name typed again asks by
// confirmed.
func TestCtrlCAtAQuestion(t *testing.T) {
	server := scriptBroker(t)
	if code, _, talk := strandmq(t, server, "", "topic", "create", "trips", "--partitions", "1"); code != 0 {
		t.Fatal(talk)
	}
	if code, _, talk := strandmq(t, server, "", "group", "create", "trips", "g"); code != 0 {
		t.Fatal(talk)
	}
	for _, args := range [][]string{
		{"topic", "delete", "trips"}, {"group", "delete", "trips", "g"}, {"dead", "discard", "trips", "g", "--all"},
	} {
		held, person := openTerminal(t)
		self := strandmqCommand(t)
		named := filepath.Join(t.TempDir(), self.Args[0])
		if err := os.Symlink(self.Path, named); err != nil {
			t.Fatal(err)
		}
		// The terminal is the shell's own, so that what is typed can be a signal.
		// The shell outlives the command: with the owner of a terminal ends what of
		// its screen nobody has read yet.
		cmd := exec.Command("sh", append([]string{"-c", `trap : INT; "$@"; echo "code $?."; read -r _`, "sh", named, "--server", server}, args...)...)
		cmd.Env = append(self.Env, "TERM=xterm")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = person, person, person
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		person.Close()
		tooLong := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		screen := ""
		for _, step := range []struct{ seen, typed string }{{"to go on: ", "\x03"}, {"code 1.", "\n"}} {
			for b := make([]byte, 4096); !strings.Contains(screen, step.seen); {
				n, err := held.Read(b)
				screen += string(b[:n])
				if err != nil {
					t.Fatalf("%v: %v before %q\n%s", args, err, step.seen, screen)
				}
			}
			if _, err := held.WriteString(step.typed); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Wait()
		if !tooLong.Stop() || !strings.Contains(screen, "strandmq: interrupted: nothing was deleted") {
			t.Errorf("%v:\n%s", args, screen)
		}
	}
}

// top draws in place, and a key ends it.
func TestTopAtATerminal(t *testing.T) {
	server := scriptBroker(t)
	// The key is typed before the terminal gives it at once: it waits there.
	screen, code := atTerminal(t, nil, "q", "--server", server, "top", "--interval", "100ms")
	if code != 0 || !strings.Contains(screen, "IN FLIGHT") || !strings.Contains(screen, "n1 ") {
		t.Errorf("exit code %d, and the screen has:\n%s", code, screen)
	}
}
