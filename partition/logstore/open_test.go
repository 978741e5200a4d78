package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func openFails[E error](t *testing.T, cfg Config, say string) {
	t.Helper()
	s, err := Open(cfg)
	if err == nil {
		_ = s.Close()
		t.Fatal("it opened")
	}
	var want E
	if !errors.As(err, &want) {
		t.Fatalf("error %T: %v, want %T", err, err, want)
	}
	if !strings.Contains(err.Error(), say) {
		t.Fatalf("error %q does not say %q", err, say)
	}
}

func TestOpenInUse(t *testing.T) {
	mem := newMem()
	s := mustOpen(t, testConfig(mem))
	openFails[*ErrInUse](t, testConfig(mem), "in use")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s = mustOpen(t, Config{Dir: dir})
	openFails[*ErrInUse](t, Config{Dir: dir}, "in use")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenInUseByProcess lets another process hold the folder.
func TestOpenInUseByProcess(t *testing.T) {
	if dir := os.Getenv("LOGSTORE_HOLD"); dir != "" {
		s := mustOpen(t, Config{Dir: dir})
		fmt.Println("holding")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent lets go
		_ = s.Close()
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOpenInUseByProcess$")
	cmd.Env = append(os.Environ(), "LOGSTORE_HOLD="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 7)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	openFails[*ErrInUse](t, Config{Dir: dir}, fmt.Sprintf("process %d", cmd.Process.Pid))
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenForeign(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "holiday.jpg")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	openFails[*ErrForeign](t, Config{Dir: dir}, "holiday.jpg")
	if ls, _ := os.ReadDir(dir); len(ls) != 1 {
		t.Fatalf("a foreign folder was touched: %v", ls)
	}
	openFails[*ErrForeign](t, Config{Dir: name}, "it is a file")

	mem := newMem()
	cfg := testConfig(mem)
	cfg.ClusterID = "one"
	if err := mustOpen(t, cfg).Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ClusterID = "two"
	openFails[*ErrForeign](t, cfg, `cluster "one"`)
	cfg.ClusterID = ""
	if s := mustOpen(t, cfg); s.id.cluster != "one" || s.Close() != nil {
		t.Fatal("cluster id is not kept")
	}
}

// TestOpenSwapped puts the witness of one store beside the data of another.
func TestOpenSwapped(t *testing.T) {
	imgs := [2]image{}
	for i := range imgs {
		mem := newMem()
		if err := mustOpen(t, testConfig(mem)).Close(); err != nil {
			t.Fatal(err)
		}
		imgs[i] = takeImage(t, mem)
	}
	imgs[0]["store/"+witnessName] = imgs[1]["store/"+witnessName]
	openFails[*ErrForeign](t, testConfig(imgs[0].fs(t)), "two different stores")
}

func TestOpenNewer(t *testing.T) {
	mem := newMem()
	if err := mustOpen(t, testConfig(mem)).Close(); err != nil {
		t.Fatal(err)
	}
	img := takeImage(t, mem)
	w, _, err := decodeWitness(img["store/"+witnessName])
	if err != nil {
		t.Fatal(err)
	}
	w.version++
	img["store/"+witnessName] = encodeSlot(w)
	openFails[*ErrNewerFormat](t, testConfig(img.fs(t)), "run that version or newer")

	img = takeImage(t, mem)
	for name := range img {
		if strings.Contains(name, "marker.format-version") {
			delete(img, name)
		}
	}
	img["store/pebble/marker.format-version.000099.999"] = nil
	openFails[*ErrNewerFormat](t, testConfig(img.fs(t)), "format 999")

	// The row that names the store says it too: the witness may be older.
	s := mustOpen(t, testConfig(mem))
	id := s.id
	id.version++
	if err := s.db.Set(identityKey(), encodeIdentity(identityKey(), id), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openFails[*ErrNewerFormat](t, testConfig(takeImage(t, mem).fs(t)), "store of format 2, where this version reads up to 1")
}

func TestOpenMissing(t *testing.T) {
	cfg := testConfig(newMem())
	cfg.MustExist = true
	openFails[*ErrNoStore](t, cfg, "replace the node")
	cfg.MustExist, cfg.ReadOnly = false, true
	openFails[*ErrNoStore](t, cfg, "holds no store")
	dir := t.TempDir()
	openFails[*ErrNoStore](t, Config{Dir: dir, MustExist: true}, "holds no store")
}

func TestOpenNoAccess(t *testing.T) {
	// A folder that cannot be made is not damaged, whatever the reason.
	for _, why := range []error{syscall.EACCES, syscall.ENOENT, syscall.ENOTDIR, syscall.EROFS} {
		fsys := errorfs.Wrap(newMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpMkdirAll {
				return &os.PathError{Op: "mkdir", Path: op.Path, Err: why}
			}
			return nil
		}))
		openFails[*ErrAccess](t, testConfig(fsys), "choose another folder")
	}
}

// A file that may not be read is no damage either, whichever it is: the store does
// not start without it, and lists nothing as damaged.
func TestOpenNoAccessToAFile(t *testing.T) {
	t.Parallel()
	pic := makePictures(t, 7)["closed"]
	tried := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(pic.now)) {
		k := kind(name)
		if strings.HasPrefix(k, "marker") || k == "LOCK" {
			continue // their names are what counts
		}
		var read atomic.Bool
		fsys := errorfs.Wrap(pic.now.fs(t), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if path.Base(op.Path) == path.Base(name) && op.Kind == errorfs.OpOpen {
				read.Store(true)
				return &os.PathError{Op: "open", Path: op.Path, Err: syscall.EACCES}
			}
			return nil
		}))
		s, err := Open(testConfig(fsys))
		if !read.Load() && err == nil { // an older one that nothing refers to
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		tried[k]++
		var access *ErrAccess
		if !errors.As(err, &access) {
			t.Errorf("%s: %v, want no access", name, err)
		}
		if s != nil {
			_ = s.Close()
		}
	}
	for _, k := range []string{"sst", "blob", "log", "MANIFEST", "OPTIONS", "WITNESS", "PARTITIONS"} {
		if tried[k] == 0 {
			t.Errorf("no %s was tried: %v", k, tried)
		}
	}
}

func TestDiskFull(t *testing.T) {
	var full bool
	var mu sync.Mutex
	mem := newMem()
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if full && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
		}
		return nil
	}))
	s := mustOpen(t, testConfig(fsys))
	commit(t, s, func(b *Batch) { _ = b.Append(1, []Entry{entry(1, 1, 100)}) })
	mu.Lock()
	full = true
	mu.Unlock()
	b := s.NewBatch()
	_ = b.Append(1, []Entry{entry(1, 2, 100)})
	p, err := s.Commit(b)
	if err == nil {
		err = p.Wait()
	}
	var df *ErrDiskFull
	if !errors.As(err, &df) {
		t.Fatalf("error %v", err)
	}
	<-s.Failed()
	_ = s.Close()
	openFails[*ErrDiskFull](t, testConfig(fsys), "free some")
	mu.Lock()
	full = false
	mu.Unlock()
	s = mustOpen(t, testConfig(mem))
	if last, err := s.LastIndex(1); err != nil || last < 1 {
		t.Fatalf("last %d, %v", last, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRolledBack brings back an older copy of the data, as a failed disk
// restore would, under the witness of today.
func TestRolledBack(t *testing.T) {
	mem := newMem()
	s := mustOpen(t, testConfig(mem))
	commit(t, s, func(b *Batch) { _ = b.Append(4, []Entry{entry(1, 1, 100), entry(1, 2, 100)}) })
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	old := takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	commit(t, s, func(b *Batch) { _ = b.SetHardState(4, HardState{Term: 9, Vote: 2}) })
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	old["store/"+witnessName] = takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))["store/"+witnessName]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openFails[*ErrDamaged](t, testConfig(old.fs(t)), "older than what was acknowledged; affected: p4, from entry 3 on")
}

// TestWitnessFollows waits for the witness to learn of a synced batch by itself.
func TestWitnessFollows(t *testing.T) {
	cfg := testConfig(newMem())
	cfg.WitnessInterval = time.Millisecond
	s := mustOpen(t, cfg)
	commit(t, s, func(b *Batch) { _ = b.SetMeta(1, 'x', []byte{1}) })
	deadline := time.Now().Add(time.Minute)
	for {
		b, err := readWitness(cfg.FS, "store/"+witnessName)
		if err != nil {
			t.Fatal(err)
		}
		w, _, err := decodeWitness(b)
		if err == nil && w.counter == s.counter && w.state == stateOpen {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("witness at %d, store at %d", w.counter, s.counter)
		}
		time.Sleep(time.Millisecond) // between looks at a file that another goroutine writes
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReadOnly(t *testing.T) {
	mem := newMem()
	s := mustOpen(t, testConfig(mem))
	commit(t, s, func(b *Batch) { _ = b.Append(1, []Entry{entry(1, 1, 100)}) })
	clone := mem.CrashClone(vfs.CrashCloneCfg{}) // not closed: there is a log to replay
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := takeImage(t, clone)
	cfg := testConfig(clone)
	cfg.ReadOnly = true
	s = mustOpen(t, cfg)
	if es, err := s.Entries(1, 1, 2, 0); err != nil || len(es) != 1 {
		t.Fatalf("entries %v %v", es, err)
	}
	b := s.NewBatch()
	_ = b.SetMeta(1, 'a', nil)
	if _, err := s.Commit(b); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("commit: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after := takeImage(t, clone)
	delete(before, "store/"+lockName)
	delete(after, "store/"+lockName)
	for name := range after {
		if !bytes.Equal(after[name], before[name]) || len(after) != len(before) {
			t.Fatalf("%s was changed", name)
		}
	}
}

func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := mustOpen(t, Config{Dir: dir})
	commit(t, s, func(b *Batch) { _ = b.Append(1, []Entry{entry(1, 1, 100)}) })
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if info.IsDir() {
			want = 0o700
		}
		if got := info.Mode().Perm(); got&^want != 0 {
			t.Errorf("%s has mode %o, want at most %o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestValidateListsAllFaults(t *testing.T) {
	err := Config{CacheBytes: 1, MemTableBytes: 1, WitnessInterval: -1, DeleteDelay: 2 * time.Hour}.Validate()
	for _, say := range []string{"Dir", "CacheBytes", "MemTableBytes", "WitnessInterval", "DeleteDelay"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Fatalf("%v does not say %s", err, say)
		}
	}
}
