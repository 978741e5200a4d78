package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serving is a process that serves a folder.
type serving struct {
	t       *testing.T
	cmd     *exec.Cmd
	logFile string
	url     string // empty: it ended instead
	ended   <-chan struct{}
}

// serveFolder starts one and waits until it serves or ends. exe is this test's
// binary, which is strandmq when it is called so.
func serveFolder(t *testing.T, exe string, as *syscall.Credential, args ...string) *serving {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := &serving{t: t, logFile: log.Name()}
	s.cmd = &exec.Cmd{
		Path: exe, Args: append([]string{"strandmq", "serve", "--listen", "127.0.0.1:0", "--log-level", "warn"}, args...),
		Dir: filepath.Dir(exe), Stderr: log, SysProcAttr: &syscall.SysProcAttr{Credential: as},
	}
	if s.ended, err = startTied(s.cmd, here); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the broker's log:\n%s", s.log())
		}
	})
	waitFor(t, func() bool {
		if _, after, ok := strings.Cut(s.log(), "serving at "); ok {
			s.url, _, _ = strings.Cut(after, ",")
			return true
		}
		select {
		case <-s.ended:
			return true
		default:
			return false
		}
	})
	return s
}

func (s *serving) log() string {
	text, err := os.ReadFile(s.logFile)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// stop ends it with a signal and gives the exit code.
func (s *serving) stop(with os.Signal) int {
	_ = s.cmd.Process.Signal(with)
	<-s.ended
	return s.cmd.ProcessState.ExitCode()
}

func ownBinary(t *testing.T) string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// A folder that belongs to somebody else is refused in words, and left alone.
func TestServeUnreadableFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	first := serveFolder(t, ownBinary(t), nil, "--data", folder)
	if code := first.stop(os.Interrupt); first.url == "" || code != 0 {
		t.Fatalf("code %d", code)
	}
	exe, as := ownBinary(t), (*syscall.Credential)(nil)
	if os.Getuid() == 0 {
		// Root may read everything, so another user tries.
		as = &syscall.Credential{Uid: 65534, Gid: 65534}
		exe, folder = reachable(t, exe, folder)
	} else {
		if err := os.Chmod(folder, 0); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(folder, 0o700) // else the test cannot remove it
	}
	s := serveFolder(t, exe, as, "--data", folder)
	<-s.ended
	log := s.log()
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(log, folder) || !strings.Contains(log, "permission") || strings.Contains(log, "goroutine ") {
		t.Errorf("code %d:\n%s", code, log)
	}
}

// reachable copies the binary and moves the folder to where every user can get.
func reachable(t *testing.T, exe, folder string) (string, string) {
	dir, err := os.MkdirTemp("", "strandmq-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user has to get in
		t.Fatal(err)
	}
	in, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	to := filepath.Join(dir, "strandmq")
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // the same
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close(), os.Rename(folder, filepath.Join(dir, "data"))); err != nil {
		t.Fatal(err)
	}
	return to, filepath.Join(dir, "data")
}

// A disk that fills up stops publishers first. Without a reserve it stops the
// broker, in words; what was acknowledged is there when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "300m")
	filler := filepath.Join(disk, "filler")
	data := []string{"--data", filepath.Join(disk, "data")}

	s := serveFolder(t, ownBinary(t), nil, append(data, "--disk-reserve", "100MiB")...)
	publish := func(body string, args ...string) (int, string) {
		code, _, talk := strandmq(t, s.url, "", append([]string{"publish", "t", "--key", "k", "--body", body, "--retry-for", "0"}, args...)...)
		return code, talk
	}
	if code, _, talk := strandmq(t, s.url, "", "topic", "create", "t", "--partitions", "1"); code != 0 {
		t.Fatal(talk)
	}
	if code, talk := publish("before"); code != 0 {
		t.Fatal(talk)
	}
	fill(t, filler, disk, 50<<20)
	var talk string
	waitFor(t, func() bool {
		var code int
		code, talk = publish("while it fills")
		return code == exitFailed
	})
	if !strings.Contains(talk, "less than its reserve of 100.0 MiB") {
		t.Errorf("refused: %s", talk)
	}
	if code, out, talk := strandmq(t, s.url, "", "consume", "t", "--group", "g", "--until-empty"); code != 0 || !strings.Contains(out, "before") {
		t.Errorf("consuming on a full disk: %d %s%s", code, out, talk)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		code, _ := publish("after")
		return code == 0
	})
	if code := s.stop(os.Interrupt); code != 0 {
		t.Errorf("code %d", code)
	}

	s = serveFolder(t, ownBinary(t), nil, append(data, "--disk-reserve", "0")...)
	fill(t, filler, disk, 0)
	big := strings.Repeat("x", 100_000)
	acknowledged := 0
	for id := range 10_000 {
		if code, _ := publish(big, "--id", fmt.Sprint(id)); code != 0 {
			break
		}
		acknowledged++
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatal("the broker goes on without a disk")
	}
	log := s.log()
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(log, "strandmq: the broker stopped: ") || strings.Contains(log, "goroutine ") {
		t.Errorf("code %d after %d messages:\n%s", code, acknowledged, log)
	}
	again := serveFolder(t, ownBinary(t), nil, data...)
	if again.url != "" {
		t.Log("it starts on the full disk") // the store found room enough to open
	} else if log := again.log(); !strings.Contains(log, "are free, and opening the store wants up to") {
		t.Errorf("how much room does it want?\n%s", log)
	}
	if n := strings.Count(log, "start again"); n != 1 {
		t.Errorf("the way out is told %d times", n)
	}
	again.stop(syscall.SIGKILL)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s = serveFolder(t, ownBinary(t), nil, data...)
	if s.url == "" {
		t.Fatal("it does not start with room again")
	}
	code, out, talk := strandmq(t, s.url, "", "consume", "t", "--group", "all", "--until-empty")
	if n := strings.Count(out, big); code != 0 || n < acknowledged {
		t.Errorf("%d were acknowledged and %d are there: code %d %s", acknowledged, n, code, talk)
	}
}

// A disk that cannot hold the store's own files is refused before it is full.
func TestTooSmallDisk(t *testing.T) {
	disk := smallDisk(t, "12m")
	s := serveFolder(t, ownBinary(t), nil, "--data", filepath.Join(disk, "data"))
	if s.url != "" {
		t.Fatal("it serves")
	}
	log := s.log()
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(log, "has 12.0 MiB in all, and the store's own files need ") {
		t.Errorf("code %d:\n%s", code, log)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// smallDisk mounts a disk of a size for the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small disk needs the right to mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill leaves so much free.
func fill(t *testing.T, file, disk string, leave uint64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for {
		var room syscall.Statfs_t
		if err := syscall.Statfs(disk, &room); err != nil {
			t.Fatal(err)
		}
		free := room.Bavail * uint64(room.Bsize)
		if free <= leave {
			return
		}
		if _, err := f.Write(chunk[:min(uint64(len(chunk)), free-leave)]); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				return
			}
			t.Fatal(err)
		}
	}
}
