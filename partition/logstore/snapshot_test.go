package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// dump is everything that a store has of a partition, for comparing.
func dump(s *Store, p uint64) (string, error) {
	var b strings.Builder
	st, err := s.logState(p)
	if err != nil {
		return "", err
	}
	hs, err := s.HardState(p)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "base %d/%d last %d/%d hard %v\n", st.base.index, st.base.term, st.last.index, st.last.term, hs)
	err = s.Scan(p, st.base.index+1, st.last.index+1, func(e Entry, crc uint32) bool {
		fmt.Fprintf(&b, "%d/%d type %d: %d bytes, %08x\n", e.Index, e.Term, e.Type, len(e.Data), crc)
		return true
	})
	for _, ns := range []Namespace{Offsets, IDs, Producers, AppRows} {
		if err == nil {
			err = s.Iterate(ns, p, nil, nil, func(k, v []byte) bool {
				fmt.Fprintf(&b, "%v %q %q\n", ns, k, v)
				return true
			})
		}
	}
	for name := range 256 {
		v, merr := s.Meta(p, byte(name))
		if err == nil {
			err = merr
		}
		if v != nil {
			fmt.Fprintf(&b, "meta %c %q\n", name, v)
		}
	}
	return b.String(), err
}

// source is a store with a partition worth a snapshot: entries large and small, a
// cut front, rows of every kind, some in tables and some not.
func source(t testing.TB) *Store {
	t.Helper()
	s := mustOpen(t, testConfig(newMem()))
	t.Cleanup(func() { s.Close() })
	for i := uint64(1); i <= 300; i++ {
		size := 200
		if i%50 == 0 {
			size = 400_000
		}
		commit(t, s, func(b *Batch) {
			_ = b.Append(7, []Entry{entry(1+i/100, i, size)})
			_ = b.Append(8, []Entry{entry(1, i, 100)})
			_ = b.Set(Offsets, 7, binary.BigEndian.AppendUint64(nil, i), fmt.Appendf(nil, "offset %d", i))
			_ = b.Set(AppRows, 7, fmt.Appendf(nil, "group/%d", i%40), bytes.Repeat([]byte{byte(i)}, 900))
			_ = b.SetMeta(7, 'a', fmt.Appendf(nil, "applied %d", i))
			if i%10 == 0 {
				_ = b.Set(IDs, 7, fmt.Appendf(nil, "id %d", i), []byte("x"))
			}
		})
	}
	commit(t, s, func(b *Batch) {
		_ = b.TruncatePrefix(7, 20)
		_ = b.SetMeta(7, 'c', []byte("conf of the sender"))
		_ = b.SetMeta(7, 'i', []byte("identity of the sender"))
		_ = b.SetHardState(7, HardState{Term: 4, Vote: 1, Commit: 290})
	})
	return s
}

// export begins an export of partition 7 up to entry 290.
func export(t testing.TB, s *Store) *Export {
	t.Helper()
	e, err := s.Export(7, time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	err = e.Begin(290, []byte{'i'}, func(term uint64) ([]byte, error) { return fmt.Appendf(nil, "term %d", term), nil })
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func stream(t testing.TB, e *Export, from uint64) []byte {
	t.Helper()
	r, err := e.From(from)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// target fills a store in which partition 7 lags behind and 6 and 8 are neighbours.
func target(t testing.TB, s *Store) {
	t.Helper()
	for i := uint64(1); i <= 30; i++ {
		commit(t, s, func(b *Batch) {
			for p := uint64(6); p <= 8; p++ {
				_ = b.Append(p, []Entry{entry(1, i, 6000)})
				_ = b.Set(Offsets, p, binary.BigEndian.AppendUint64(nil, i), fmt.Appendf(nil, "of %d at %d", p, i))
				_ = b.Set(Producers, p, fmt.Appendf(nil, "producer %d", i), []byte("old"))
				_ = b.Set(AppRows, p, fmt.Appendf(nil, "group/%d", i), []byte("old"))
				_ = b.SetMeta(p, 'a', fmt.Appendf(nil, "%d", i))
			}
		})
	}
	commit(t, s, func(b *Batch) {
		_ = b.SetMeta(7, 'i', []byte("mine"))
		_ = b.SetMeta(7, 'z', []byte("old alone"))
		_ = b.SetHardState(7, HardState{Term: 9, Vote: 3, Commit: 30})
	})
}

var newHard = HardState{Term: 9, Vote: 3, Commit: 290}

func takeIn(s *Store, data []byte) error {
	im, err := s.NewImport(7)
	if err != nil {
		return err
	}
	defer im.Discard()
	if err := im.Read(bytes.NewReader(data)); err != nil {
		return err
	}
	return im.Switch(newHard, map[byte][]byte{'i': []byte("mine")})
}

// wanted is what a target must have once it has the snapshot.
func wanted(t testing.TB, src *Store) string {
	t.Helper()
	all, err := dump(src, 7)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(all) {
		var index, term uint64
		if n, _ := fmt.Sscanf(line, "%d/%d type", &index, &term); n == 2 && index > 290 {
			continue
		}
		line = strings.Replace(line, "identity of the sender", "mine", 1)
		line = strings.Replace(line, "last 300/4 hard {4 1 290}", "last 290/3 hard {9 3 290}", 1)
		out = append(out, line)
	}
	return strings.Join(out, "")
}

func noDamage(t testing.TB, s *Store) {
	t.Helper()
	if d := s.Damage(); len(d) > 0 {
		t.Fatalf("damage: %v", d)
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"memory", "disk"} {
		t.Run(place, func(t *testing.T) {
			src := source(t)
			e := export(t, src)
			data := stream(t, e, 0)
			want := wanted(t, src)
			// What the source does later is not in it.
			commit(t, src, func(b *Batch) {
				_ = b.TruncatePrefix(7, 200)
				_ = b.DeleteRange(AppRows, 7, []byte("group/"), []byte("group0"))
			})
			if again := stream(t, e, 0); !bytes.Equal(again, data) {
				t.Fatal("the export is not what it was a moment ago")
			}
			if h := e.Head(); string(h.Data) != "term 3" || h.Term != 3 || h.Index != 290 {
				t.Fatalf("head %+v", h)
			}
			e.Close()

			cfg := testConfig(newMem())
			if place == "disk" {
				cfg.FS, cfg.Dir = nil, t.TempDir()+"/store"
			}
			dst := mustOpen(t, cfg)
			defer func() { dst.Close() }()
			target(t, dst)
			old6, _ := dump(dst, 6)
			old8, _ := dump(dst, 8)
			check := func() {
				t.Helper()
				got, err := dump(dst, 7)
				if err != nil || got != want {
					t.Fatalf("%v: got\n%.600s\nwant\n%.600s", err, got, want)
				}
				six, _ := dump(dst, 6)
				eight, _ := dump(dst, 8)
				if six != old6 || eight != old8 {
					t.Fatal("another partition changed")
				}
				if ls, _ := dst.cfg.FS.List(dst.incomingDir()); len(ls) > 0 {
					t.Fatalf("left over: %v", ls)
				}
				noDamage(t, dst)
			}
			for range 2 { // the same again is as good
				if err := takeIn(dst, data); err != nil {
					t.Fatal(err)
				}
				check()
			}
			// Its log goes on, and its rows are gone when it is dropped.
			for range 2 {
				if err := dst.Close(); err != nil {
					t.Fatal(err)
				}
				dst = mustOpen(t, cfg)
				check()
				if err := dst.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
					t.Fatal(err)
				}
				check()
			}
			commit(t, dst, func(b *Batch) { _ = b.Append(7, []Entry{entry(9, 291, 100)}) })
			if err := dst.verify(7); err != nil {
				t.Fatal(err)
			}
			commit(t, dst, func(b *Batch) { _ = b.DropPartition(7) })
			if ps, err := dst.Partitions(); err != nil || fmt.Sprint(ps) != "[6 8]" {
				t.Fatalf("partitions %v %v", ps, err)
			}
		})
	}
}

// TestSnapshotGoesOn breaks the stream off after every few bytes and goes on at the
// chunk that was next.
func TestSnapshotGoesOn(t *testing.T) {
	t.Parallel()
	src := source(t)
	e := export(t, src)
	defer e.Close()
	want := wanted(t, src)
	dst := mustOpen(t, testConfig(newMem()))
	defer dst.Close()
	target(t, dst)
	im, err := dst.NewImport(7)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Discard()
	tries := 0
	for part := 300; !im.Done(); part += 700_000 {
		data := stream(t, e, im.Next())
		err := im.Read(io.LimitReader(bytes.NewReader(data), int64(part)))
		if !im.Done() && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		tries++
	}
	if tries < 4 {
		t.Fatalf("broken off %d times: too seldom to prove anything", tries)
	}
	if err := im.Switch(newHard, map[byte][]byte{'i': []byte("mine")}); err != nil {
		t.Fatal(err)
	}
	if got, err := dump(dst, 7); err != nil || got != want {
		t.Fatalf("%v: got\n%.600s", err, got)
	}
}

func TestSnapshotOfAnotherStreamIsRefused(t *testing.T) {
	t.Parallel()
	src := source(t)
	one, two := export(t, src), export(t, src)
	defer one.Close()
	defer two.Close()
	data := stream(t, one, 0)
	stream(t, two, 0)
	dst := mustOpen(t, testConfig(newMem()))
	defer dst.Close()
	im, _ := dst.NewImport(7)
	defer im.Discard()
	var gap *ErrSnapshotGap
	if err := im.Read(bytes.NewReader(stream(t, one, 1))); !errors.As(err, &gap) || gap.Next != 0 {
		t.Fatalf("a stream from its middle on: %v", err)
	}
	if err := im.Read(bytes.NewReader(data[:len(data)-100])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if err := im.Read(bytes.NewReader(stream(t, two, 1))); !errors.As(err, &gap) || gap.Next != 0 {
		t.Fatalf("another stream: %v", err)
	}
	if err := im.Read(bytes.NewReader(data)); !errors.As(err, &gap) || gap.Next != im.Next() || gap.Next == 0 {
		t.Fatalf("the stream from its beginning: %v", err)
	}
	if err := im.Switch(newHard, nil); err == nil {
		t.Fatal("half a snapshot was taken")
	}
}

// TestSnapshotDamagedOnItsWay changes every byte that is looked at and some that
// are carried: nothing of it may be taken.
func TestSnapshotDamagedOnItsWay(t *testing.T) {
	t.Parallel()
	src := source(t)
	e := export(t, src)
	defer e.Close()
	data := stream(t, e, 0)
	dst := mustOpen(t, testConfig(newMem()))
	defer dst.Close()
	target(t, dst)
	old, _ := dump(dst, 7)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 250 {
		at := i
		if i >= 150 {
			at = rng.IntN(len(data))
		}
		bad := bytes.Clone(data)
		bad[at] ^= 1 << rng.IntN(8)
		err := takeIn(dst, bad)
		var refused *ErrBadSnapshot
		var gap *ErrSnapshotGap
		if !errors.As(err, &refused) && !errors.As(err, &gap) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
	}
	for _, n := range []int{0, 5, 100, len(data) / 2, len(data) - 1} {
		if err := takeIn(dst, data[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes of it: %v", n, err)
		}
	}
	if now, err := dump(dst, 7); err != nil || now != old {
		t.Fatalf("%v: the partition changed", err)
	}
	if ls, _ := dst.cfg.FS.List(dst.incomingDir()); len(ls) > 0 {
		t.Fatalf("left over: %v", ls)
	}
}

// TestSnapshotNamesDamage has a source that is damaged: it must not send it on.
func TestSnapshotNamesDamage(t *testing.T) {
	t.Parallel()
	src := source(t)
	key := appendEntryKey(nil, 7, 100)
	row, err := src.get(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	row[40] ^= 1
	b := src.NewBatch()
	_ = b.b.Set(key, row, nil)
	if err := src.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	e := export(t, src)
	defer e.Close()
	r, _ := e.From(0)
	_, err = io.ReadAll(r)
	var d *ErrDamaged
	if !errors.As(err, &d) || len(d.Ranges) != 1 || d.Ranges[0] != (Range{7, 100, 100}) {
		t.Fatalf("%v", err)
	}
}

// TestExportEnds: an export that nobody reads ends by itself, and with its store.
func TestExportEnds(t *testing.T) {
	t.Parallel()
	src := source(t)
	var over *ErrExportOver
	var e *Export
	var err error
	for idle := time.Millisecond; e == nil; idle *= 2 {
		// On a busy machine its time may be up before it is there.
		if e, err = src.Export(7, time.Hour, idle); err != nil && !errors.As(err, &over) {
			t.Fatal(err)
		}
	}
	for {
		if _, err = e.Meta('a'); err != nil {
			break
		}
		time.Sleep(time.Millisecond) // until its time is up
	}
	if !errors.As(err, &over) {
		t.Fatal(err)
	}
	e.Close()
	open := export(t, src)
	r, _ := open.From(0)
	if _, err := r.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

// TestSnapshotPowerCut lets the n-th write of taking a snapshot in fail, for every
// n, once or from then on (which is what a power cut there leaves), and cuts the
// power, before or after what was written but not synced. What is left on the disk opens, has the old partition or the new one,
// and the new one if that was said.
func TestSnapshotPowerCut(t *testing.T) {
	t.Parallel()
	src := source(t)
	e := export(t, src)
	data := stream(t, e, 0)
	e.Close()
	want := wanted(t, src)
	for _, sticky := range []bool{false, true} {
		olds, news := 0, 0
		for n := int64(1); ; n++ {
			if trials(0) <= 1 && (sticky && n%5 != 0 || n%2 != 0) {
				continue // a sample; LOGSTORE_TRIALS=2 runs them all
			}
			mem := newMem()
			var count atomic.Int64
			var armed atomic.Bool
			fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if !armed.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpRemove {
					return nil
				}
				if c := count.Add(1); c == n || sticky && c > n {
					return errorfs.ErrInjected
				}
				return nil
			}))
			s := mustOpen(t, testConfig(fsys))
			target(t, s)
			before := map[uint64]string{}
			for p := uint64(6); p <= 8; p++ {
				before[p], _ = dump(s, p)
			}
			acked := s.counter
			armed.Store(true)
			err := takeIn(s, data)
			hit := count.Load() >= n
			if err != nil && !errors.Is(err, errorfs.ErrInjected) {
				t.Fatalf("write %d: %v", n, err)
			}
			if f := s.Err(); f == nil && err != nil {
				// It was the snapshot's trouble alone. The store goes on, and the
				// next snapshot does.
				if now, derr := dump(s, 7); s.Err() == nil && (derr != nil || now != before[7]) {
					t.Fatalf("write %d: refused (%v), and changed: %v", n, err, derr)
				}
				if !sticky && s.Err() == nil {
					if err := takeIn(s, data); err != nil {
						t.Fatalf("write %d: the next one: %v", n, err)
					}
					before[7] = want
				}
			}
			armed.Store(false)
			for i, unsynced := range []int{0, 50, 100} {
				if n/2%3 != int64(i) && trials(0) <= 1 {
					continue
				}
				how := vfs.CrashCloneCfg{}
				if unsynced > 0 {
					how = vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rand.New(rand.NewPCG(uint64(n), uint64(unsynced)))}
				}
				left, oerr := Open(testConfig(mem.CrashClone(how)))
				if oerr != nil {
					t.Fatalf("write %d, %d%%: after the cut: %v", n, unsynced, oerr)
				}
				if left.counter < acked {
					t.Fatalf("write %d: batch %d after the cut, %d before", n, left.counter, acked)
				}
				for p := uint64(6); p <= 8; p++ {
					got, derr := dump(left, p)
					switch {
					case derr != nil:
						t.Fatalf("write %d: p%d: %v", n, p, derr)
					case p == 7 && got == want:
						news++
					case p == 7 && err == nil:
						t.Fatalf("write %d: it was said that the snapshot is on disk", n)
					case got != before[p]:
						t.Fatalf("write %d: p%d is neither old nor new:\n%.500s", n, p, got)
					default:
						olds++
					}
				}
				if ls, _ := left.cfg.FS.List(left.incomingDir()); len(ls) > 0 {
					t.Fatalf("write %d: left over: %v", n, ls)
				}
				noDamage(t, left)
				if n%8 == 0 {
					if err := takeIn(left, data); err != nil {
						t.Fatalf("write %d: the next snapshot: %v", n, err)
					}
				}
				if err := left.Close(); err != nil {
					t.Fatal(err)
				}
			}
			_ = s.Close()
			if !hit {
				t.Logf("sticky %v: %d writes, %d times old, %d times new", sticky, n-1, olds, news)
				break
			}
		}
		if olds == 0 || news == 0 {
			t.Fatalf("%d times old, %d times new: the test proves nothing", olds, news)
		}
	}
}

// FuzzImport gives an import any bytes: it may refuse them and must not do worse.
func FuzzImport(f *testing.F) {
	src := source(f)
	e := export(f, src)
	data := stream(f, e, 0)
	e.Close()
	f.Add(data[:2000])
	f.Add([]byte(snapshotMagic))
	dst := mustOpen(f, testConfig(newMem()))
	f.Cleanup(func() { dst.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		im, err := dst.NewImport(7)
		if err != nil {
			t.Fatal(err)
		}
		defer im.Discard()
		// Checksums would keep everything out: chunks are given behind them.
		if im.Read(bytes.NewReader(b)) == nil {
			t.Fatal("taken")
		}
		im.err = nil
		for rest := b; len(rest) > 0; {
			if rest, err = im.row(rest); err != nil {
				break
			}
		}
		_ = im.finish(b)
	})
}
