package logstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// flipOnDisk flips a bit in the middle of the largest file of a kind.
func flipOnDisk(t *testing.T, dir, suffix string) (name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pebbleName, "*"+suffix))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s files: %v", suffix, err)
	}
	var largest []byte
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > len(largest) {
			name, largest = f, data
		}
	}
	largest[len(largest)/2] ^= 1
	if err := os.WriteFile(name, largest, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(name)
}

// One bit of a large entry, in a file on a disk. Pebble must not get to see the
// block: it would try every bit of it, for tens of seconds.
func TestFlippedBitInLargeEntry(t *testing.T) {
	told := make(chan Fault, 16)
	cfg := Config{Dir: t.TempDir() + "/s", OnFault: func(f Fault) { told <- f }}
	s := mustOpen(t, cfg)
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	commit(t, s, func(b *Batch) {
		_ = b.Append(3, []Entry{entry(1, 1, 100), {Term: 1, Index: 2, Data: big}, entry(1, 3, 100)})
		_ = b.Append(4, []Entry{entry(1, 1, 1000)})
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := flipOnDisk(t, cfg.Dir, ".blob")
	s = mustOpen(t, cfg)
	defer func() { _ = s.Close() }()
	for range 2 {
		_, err := s.Entries(3, 1, 4, 0)
		var d *ErrDamaged
		var rot *rotError
		if !errors.As(err, &d) || !errors.As(err, &rot) || fmt.Sprint(d.Ranges) != "[p3 [2..2]]" || d.File != name {
			t.Fatalf("the damaged entry gives %v", err)
		}
	}
	for p, i := range map[uint64]uint64{3: 3, 4: 1} {
		if es, err := s.Entries(p, i, i+1, 0); err != nil || len(es) != 1 {
			t.Fatalf("entry %d of p%d: %d, %v", i, p, len(es), err)
		}
	}
	if f := <-told; len(told) != 0 || f.Stopped {
		t.Fatalf("told of %v and %d more", f, len(told))
	}
	if got := s.Damage(); len(got) != 1 || fmt.Sprint(got[0].Ranges) != "[p3 [2..2]]" {
		t.Fatalf("damage %v", got)
	}
	// What is written over is no longer damaged.
	commit(t, s, func(b *Batch) { _ = b.TruncatePrefix(3, 3) })
	if got := s.Damage(); len(got) != 0 {
		t.Fatalf("damage %v of what is gone", got)
	}
}

// Damage to the log names the entries between what reads before and behind it.
func TestDamagedLogNamesEntries(t *testing.T) {
	mem := newMem()
	s := mustOpen(t, testConfig(mem))
	for i := uint64(1); i <= 300; i++ {
		commit(t, s, func(b *Batch) {
			_ = b.Append(1+i%3, []Entry{entry(1, (i+2)/3, 500)})
		})
	}
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	img := takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name := range img {
		if kind(name) == "log" && len(img[name]) > 100_000 {
			img[name][50_000] ^= 4
		}
	}
	_, err := Open(testConfig(img.fs(t)))
	var d *ErrDamaged
	if !errors.As(err, &d) || len(d.Ranges) != 1 || d.Ranges[0].Low != d.Ranges[0].High || !strings.HasSuffix(d.File, ".log") {
		t.Fatalf("%v", err)
	}
	if r := d.Ranges[0]; r.Low < 2 || r.Low > 90 {
		t.Fatalf("%v is not in the middle", r)
	}
}
