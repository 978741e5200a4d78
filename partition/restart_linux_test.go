package partition

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition/logstore"
)

var (
	restartMB  = flag.Int("partition.restart-mb", 64, "how many MiB of log TestRestart leaves behind")
	restartDir = flag.String("partition.restart-dir", "", "where; default a folder that is removed")
)

const restartPartitions = 8

// openDisk opens a store and a host with their defaults.
func openDisk(t *testing.T, dir string) (*logstore.Store, *Host) {
	t.Helper()
	s, err := logstore.Open(logstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Node: 1, Store: s, NewApp: newCounter(nil)})
	if err != nil {
		t.Fatal(err)
	}
	return s, h
}

// TestRestart writes a log, in a process of its own that is killed, and starts
// on what is left: all that was acknowledged is there, and the first message can
// be read and a new one stored. With -partition.restart-mb 10240 -v it tells how
// long a node with 10 GiB needs until it serves.
func TestRestart(t *testing.T) {
	if dir := os.Getenv("PARTITION_RESTART"); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	dir := *restartDir
	if dir == "" {
		dir = t.TempDir()
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRestart$", fmt.Sprintf("-partition.restart-mb=%d", *restartMB))
	cmd.Env = append(os.Environ(), "PARTITION_RESTART="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acked [restartPartitions]int
	lines := bufio.NewScanner(out)
	written := false
	for !written && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "written") {
			written = true
			if _, err := fmt.Sscan(strings.TrimPrefix(lines.Text(), "written"), &acked[0], &acked[1], &acked[2], &acked[3], &acked[4], &acked[5], &acked[6], &acked[7]); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !written {
		t.Fatal("the writer did not get far")
	}
	size := forgetPages(t, dir)

	began := time.Now()
	s, h := openDisk(t, dir)
	opened := time.Since(began)
	if _, err := h.Publish(within(t), 1, batch("new")); err != nil {
		t.Fatal(err)
	}
	if ms, err := h.Read(1, 0, 1, 1); err != nil || len(ms) != 1 {
		t.Fatalf("the first message: %v, %v", ms, err)
	}
	t.Logf("%d MiB on disk: open after %v, serving after %v", size>>20, opened.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	for i, n := range acked {
		if pos, err := h.Position(PartitionID(i + 1)); err != nil || int(pos.End) < n {
			t.Errorf("partition %d ends at %d, %d were acknowledged (%v)", i+1, pos.End, n, err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// writeUntilKilled stores messages of 16 KiB, and commands between them so that
// there is state to apply again, says how many, and goes on without an end.
func writeUntilKilled(t *testing.T, dir string) {
	_, h := openDisk(t, dir)
	body := strings.Repeat("0123456789abcdef", 1<<10)
	per := max(*restartMB<<20/restartPartitions/len(body), 1)
	var wg, first sync.WaitGroup
	var acked [restartPartitions]int
	for i := range restartPartitions {
		if err := h.Create(within(t), PartitionID(i+1)); err != nil {
			t.Fatal(err)
		}
		first.Add(1)
		wg.Go(func() {
			id, n := PartitionID(i+1), 0
			room := make(chan struct{}, 64)
			var answered sync.WaitGroup
			for ; n < per; n++ {
				room <- struct{}{}
				answered.Add(1)
				for h.PublishAsync(id, batch(body), func(_ []Stored, err error) {
					if err != nil {
						t.Error(err)
					}
					<-room
					answered.Done()
				}) != nil {
					time.Sleep(time.Millisecond) // the queue is full
				}
				if n%16 == 0 {
					if _, err := h.Propose(t.Context(), id, []byte("x")); err != nil {
						t.Error(err)
					}
				}
			}
			answered.Wait()
			acked[i] = n
			first.Done()
			for {
				if _, err := h.Publish(t.Context(), id, batch("more")); err != nil {
					return
				}
			}
		})
	}
	first.Wait()
	fmt.Println("written", strings.Trim(fmt.Sprint(acked), "[]"))
	wg.Wait() // for the kill
}

// forgetPages lets the system forget what it keeps of the files in memory, as
// far as it does, and returns their size.
func forgetPages(t *testing.T, dir string) (size int64) {
	const dontNeed = 4
	syscall.Sync()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		size += info.Size()
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, _, _ = syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
		return f.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}
