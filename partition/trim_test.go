package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// keeper is a counter that needs messages from an offset on ("need 7"), and
// takes a copy of each fifth one that is removed.
type keeper struct {
	*counter
	need  Offset
	leave Offset // one that is not copied
}

func newKeeper(id PartitionID, rows Rows) (App, error) {
	c, err := newCounter(nil)(id, rows)
	if err != nil {
		return nil, err
	}
	k := &keeper{counter: c.(*counter), need: 1 << 60, leave: 1 << 60}
	v, err := rows.Get([]byte("need"))
	if len(v) > 0 {
		fmt.Sscan(string(v), &k.need)
	}
	if err == nil {
		v, err = rows.Get([]byte("leave"))
	}
	if len(v) > 0 {
		fmt.Sscan(string(v), &k.leave)
	}
	return k, err
}

func (k *keeper) Apply(at Position, cmd []byte) (any, error) {
	if v, ok := strings.CutPrefix(string(cmd), "need "); ok {
		fmt.Sscan(v, &k.need)
		k.rows.Put([]byte("need"), []byte(v))
		return nil, nil
	}
	if v, ok := strings.CutPrefix(string(cmd), "leave "); ok {
		fmt.Sscan(v, &k.leave)
		k.rows.Put([]byte("leave"), []byte(v))
		return nil, nil
	}
	return k.counter.Apply(at, cmd)
}

func (k *keeper) Keeps(at Position, t TrimTo, log Kept) (Offset, error) {
	if t.Done {
		return min(at.End, k.need), nil
	}
	return min(t.To, k.need), nil
}

func (k *keeper) Takes(at Position, to Offset) (os []Offset, err error) {
	for o := at.Start; o < to; o++ {
		if o%5 == 0 && o != k.leave {
			os = append(os, o)
		}
	}
	return os, nil
}

func (k *keeper) Trim(at Position, t TrimTo, to Offset, log Kept) error {
	os, err := k.Takes(at, to)
	if err != nil {
		return err
	}
	ms, err := log.Read(os)
	if err != nil {
		return err
	}
	for i, m := range ms {
		if m.Offset != os[i] {
			return fmt.Errorf("offset %d where %d was asked for", m.Offset, os[i])
		}
		key := fmt.Appendf(nil, "copy/%08d", m.Offset)
		if was, err := k.rows.Get(key); err != nil || was != nil {
			return fmt.Errorf("offset %d was removed before (%v)", m.Offset, err)
		}
		k.rows.Put(key, m.Record.Body())
	}
	return nil
}

func (n *node) trim(id PartitionID, t TrimTo) Offset {
	n.t.Helper()
	start, err := n.Trim(within(n.t), id, t)
	if err != nil {
		n.t.Fatal(err)
	}
	return start
}

// What is removed is gone for every reader, at once and after a restart: its
// messages, ids, entries and rows. What is kept, is.
func TestTrimRemoves(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil), bucketOffsets: 4})
	n.create(1, 2)
	one := func(i int) []byte {
		return record.Append(nil, record.Meta{ProducerID: "p", FirstSequence: uint64(i)}, []record.Record{{ID: fmt.Sprint("id", i), Body: []byte(fmt.Sprint("b", i))}})
	}
	for i := range 20 {
		n.publish(1, one(i))
		n.publish(2, one(i))
	}
	if _, err := n.Propose(within(t), 1, []byte("before")); err != nil {
		t.Fatal(err)
	}
	before, _ := n.Info(1)
	if got := n.trim(1, TrimTo{To: 12, Why: ByAge}); got != 12 {
		t.Fatalf("kept from %d on", got)
	}
	if got := n.trim(1, TrimTo{To: 7, Why: ByAge}); got != 12 {
		t.Fatalf("a trim that comes late leaves the log kept from %d on", got)
	}
	rows := func(ns logstore.Namespace) (n2 int) {
		if err := n.store.Iterate(ns, 1, nil, nil, func(_, _ []byte) bool { n2++; return true }); err != nil {
			t.Fatal(err)
		}
		return n2
	}
	for range 2 {
		info, err := n.Info(1)
		if err != nil || info.Position.Start != 12 || info.Position.End != 20 || info.Bytes != 8*uint64(len(one(12))) || info.Oldest == 0 {
			t.Fatalf("info %+v, %v; before it was %+v", info, err, before)
		}
		if info.FirstIndex <= before.FirstIndex+10 {
			t.Fatalf("the log begins at %d still, after %d", info.FirstIndex, before.FirstIndex)
		}
		if got := rows(logstore.Offsets); got != 8 {
			t.Fatalf("%d rows of the offset index are left, want 8", got)
		}
		if got := rows(logstore.IDs); got > 12 {
			t.Fatalf("%d rows of the message ids are left, of 8 messages and the rest of a bucket", got)
		}
		var gone *ErrExpired
		for what, err := range map[string]error{
			"read":    func() error { _, err := n.Read(1, 11, 1, 1); return err }(),
			"read at": func() error { _, err := n.ReadAt(1, []Offset{3, 15}); return err }(),
			"index":   func() error { _, err := n.IndexOf(1, 0); return err }(),
		} {
			if !errors.As(err, &gone) || gone.Start != 12 {
				t.Errorf("%s: %v", what, err)
			}
		}
		if os, err := n.FindByMessageID(t.Context(), 1, "id3"); err != nil || len(os) != 0 {
			t.Errorf("an id that is gone is found at %v, %v", os, err)
		}
		if o, err := n.OffsetAt(1, 0); err != nil || o != 12 {
			t.Errorf("the oldest message is %d, %v", o, err)
		}
		ms, err := n.Read(1, 12, 100, 1<<20)
		if err != nil || len(ms) != 8 || string(ms[0].Record.Body) != "b12" {
			t.Fatalf("kept: %q, %v", bodies(ms), err)
		}
		kinds := map[EntryKind]int{}
		if err := n.Scan(t.Context(), 1, 0, func(e LogEntry) bool { kinds[e.Kind]++; return true }); err != nil {
			t.Fatal(err)
		}
		if kinds[Batches] != 8 || kinds[Command] != 1 || kinds[Trim] != 1 {
			t.Fatalf("the log has %v", kinds)
		}
		if ms, err := n.Read(2, 0, 100, 1<<20); err != nil || len(ms) != 20 {
			t.Fatalf("the other partition keeps %d, %v", len(ms), err)
		}
		n.restart()
		<-n.learned
	}
	// The id is free again, the producer goes on.
	if s := n.publish(1, record.Append(nil, record.Meta{}, []record.Record{{ID: "id3", Body: []byte("b3")}}))[0]; s != (Stored{Offset: 20}) {
		t.Fatalf("an id whose message is gone: %+v", s)
	}
	if s := n.publish(1, record.Append(nil, record.Meta{}, []record.Record{{ID: "id15", Body: []byte("b15")}}))[0]; s != (Stored{Offset: 15, Duplicate: true}) {
		t.Fatalf("an id whose message is kept: %+v", s)
	}
	if s := n.publish(1, one(20))[0]; s != (Stored{Offset: 21}) {
		t.Fatalf("the producer's next: %+v", s)
	}
	if s := n.publish(1, one(2))[0]; !errors.As(s.Err, new(*ErrSequenceExpired)) {
		t.Fatalf("a repeat of what is gone: %+v", s)
	}
	// All of it.
	if got := n.trim(1, TrimTo{To: 100}); got != 22 {
		t.Fatalf("kept from %d on", got)
	}
	if info, _ := n.Info(1); info.Bytes != 0 || info.Oldest != 0 || rows(logstore.Offsets) != 0 || info.FirstIndex+1 < info.LastIndex {
		t.Fatalf("an empty log: %+v, %d rows", info, rows(logstore.Offsets))
	}
	n.restart()
	if s := n.publish(1, batch("next"))[0]; s != (Stored{Offset: 22}) {
		t.Fatalf("the first message after: %+v", s)
	}
	if ms, err := n.Read(1, 22, 1, 1); err != nil || len(ms) != 1 {
		t.Fatalf("%v, %v", ms, err)
	}
}

// A limit of age and one of bytes meet at whole batches; the stricter one says
// why.
func TestTrimPoint(t *testing.T) {
	var now atomic.Int64
	now.Store(1000)
	n := newNode(t, Config{Now: func() Millis { return Millis(now.Load()) }})
	n.create(1)
	size := uint64(len(batch("a")))
	for range 10 {
		n.publish(1, batch("a"))
		now.Add(100) // the batches are from 1000, 1100 … 1900
	}
	n.trim(1, TrimTo{To: 2, Why: ByAge})
	if n, at, err := n.Between(1, 0, 5); err != nil || n != 3*size || at != 1200 {
		t.Errorf("5 messages of which 3 are kept have %d bytes and are of %d, %v", n, at, err)
	}
	if n, at, err := n.Between(1, 8, 100); err != nil || n != 2*size || at != 1800 {
		t.Errorf("the last two messages have %d bytes and are of %d, %v", n, at, err)
	}
	why := errors.New("not now")
	if err := n.Refuse(1, why); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Publish(within(t), 1, batch("a")); !errors.Is(err, why) {
		t.Errorf("a refused publish gives %v", err)
	}
	if err := n.Refuse(1, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		t     Millis
		bytes uint64
		to    Offset
		why   TrimReason
	}{
		{0, 0, 2, 0},
		{1200, 0, 2, 0},
		{1201, 0, 3, ByAge},
		{1900, 0, 9, ByAge},
		{5000, 0, 10, ByAge},
		{0, 100 * size, 2, 0},
		{0, 8 * size, 2, 0},
		{0, 8*size - 1, 2, 0}, // the batch that lies across the limit stays
		{0, 7*size + 1, 2, 0},
		{0, 7 * size, 3, BySize},
		{0, size, 9, BySize},
		{0, 1, 9, BySize}, // never nothing
		{1500, 2 * size, 8, BySize},
		{1900, 2 * size, 9, ByAge},
	} {
		if to, why, err := n.TrimPoint(1, c.t, c.bytes); err != nil || to != c.to || why != c.why {
			t.Errorf("from %d on at least %d bytes: %d, %v, %v; want %d, %v", c.t, c.bytes, to, why, err, c.to, c.why)
		}
	}
}

// The App's word counts, and it sees the messages for the last time.
func TestTrimAsksTheApp(t *testing.T) {
	n := newNode(t, Config{NewApp: newKeeper})
	n.create(1)
	for i := range 30 {
		n.publish(1, batch(fmt.Sprint("b", i)))
	}
	need := func(o int) {
		if _, err := n.Propose(within(t), 1, fmt.Appendf(nil, "need %d", o)); err != nil {
			t.Fatal(err)
		}
	}
	need(12)
	if got := n.trim(1, TrimTo{To: 20}); got != 12 {
		t.Fatalf("kept from %d on, the app needs 12", got)
	}
	need(27)
	n.restart()
	if got := n.trim(1, TrimTo{To: 15, Done: true}); got != 27 {
		t.Fatalf("kept from %d on, the app is done up to 27", got)
	}
	err := n.View(within(t), 1, func(a App, _ Position) {
		for o := 0; o < 30; o += 5 {
			v, err := a.(*keeper).rows.Get(fmt.Appendf(nil, "copy/%08d", o))
			if err != nil || (string(v) == fmt.Sprint("b", o)) != (o < 27) {
				t.Errorf("the copy of %d is %q, %v", o, v, err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Power cuts at any moment while messages come at one end and go at the other:
// what was acknowledged and is kept is there, nothing that was removed comes
// back, and what the App took of it is there once.
func TestPowerCutsWhileTrimming(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	n := newNode(t, Config{NewApp: newKeeper, CheckpointBytes: 20 << 10, TailCacheBytes: 8 << 10, bucketOffsets: 16})
	n.create(1)
	acked := map[Offset]string{}
	var start Offset
	rounds := 25
	if testing.Short() {
		rounds = 6
	}
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var wg sync.WaitGroup
		reached := make(chan struct{})
		goal, count := 20+rng.IntN(80), 0
		note := func(fn func()) {
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				return // told after the cut: does not count
			}
			fn()
			if count++; count == goal {
				close(reached)
			}
		}
		for w := range 3 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					body := fmt.Sprintf("r%d-w%d-i%d-%s", round, w, i, strings.Repeat("x", 100))
					got, err := n.Publish(ctx, 1, record.Append(nil, record.Meta{}, []record.Record{{ID: body, Body: []byte(body)}}))
					if err == nil {
						note(func() { acked[got[0].Offset] = body })
					}
				}
			})
		}
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				pos, err := n.Position(1)
				if err != nil {
					return
				}
				if i%3 == 0 {
					// The answer does not matter; that it is applied at the same place does.
					_, _ = n.Propose(ctx, 1, fmt.Appendf(nil, "need %d", pos.Start+(pos.End-pos.Start)/2))
				}
				got, err := n.Trim(ctx, 1, TrimTo{To: pos.End - min(pos.End, 10), Why: BySize})
				if err == nil {
					note(func() { start = max(start, got) })
				}
			}
		})
		<-reached
		mu.Lock()
		cut := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		cancel()
		mu.Unlock()
		wg.Wait()
		n.stop()
		n.fs = cut
		n.start()

		pos, err := n.Position(1)
		if err != nil || pos.Start < start {
			t.Fatalf("round %d: kept from %v on, %v; %d was removed for good", round, pos, err, start)
		}
		ms, err := n.Read(1, pos.Start, 1<<20, 1<<30)
		if err != nil || len(ms) != int(pos.End-pos.Start) {
			t.Fatalf("round %d: %d messages of %v, %v", round, len(ms), pos, err)
		}
		for o, body := range acked {
			if o >= pos.Start && (o >= pos.End || string(ms[o-pos.Start].Record.Body) != body) {
				t.Fatalf("round %d: %q was acknowledged at %d and is not there (%v)", round, body, o, pos)
			}
			os, err := n.FindByMessageID(t.Context(), 1, body)
			if want := o >= pos.Start; err != nil || slices.Contains(os, o) != want || len(os) > 1 {
				t.Fatalf("round %d: the id of %d is found at %v, %v (%v)", round, o, os, err, pos)
			}
		}
		err = n.View(within(t), 1, func(a App, at Position) {
			copies := 0
			if err := a.(*keeper).rows.Scan([]byte("copy/"), nil, func(k, v []byte) bool {
				var o Offset
				fmt.Sscanf(string(k), "copy/%d", &o)
				if o >= at.Start || acked[o] != "" && acked[o] != string(v) {
					t.Errorf("round %d: the copy of %d is %q (%v)", round, o, v, at)
				}
				copies++
				return true
			}); err != nil {
				t.Error(err)
			}
			if want := int(at.Start+4) / 5; copies != want {
				t.Errorf("round %d: %d copies, want %d (%v)", round, copies, want, at)
			}
		})
		if err != nil || t.Failed() {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if start == 0 {
		t.Fatal("nothing was ever removed")
	}
}

// Readers that are at work while messages go get them, or the error that says
// from where on they are kept. Nothing is taken for damage.
func TestReadWhileTrimming(t *testing.T) {
	n := newNode(t, Config{TailCacheBytes: 1})
	n.create(1)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				pos, err := n.Position(1)
				if err != nil {
					t.Error(err)
					return
				}
				var gone *ErrExpired
				if _, err := n.Read(1, pos.Start, 20, 1<<20); err != nil && !errors.As(err, &gone) {
					t.Errorf("read: %v", err)
				}
				if _, err := n.OffsetAt(1, 1); err != nil {
					t.Errorf("offset at: %v", err)
				}
				if err := n.Scan(context.Background(), 1, 0, func(LogEntry) bool { return true }); err != nil && !errors.As(err, &gone) {
					t.Errorf("scan: %v", err)
				}
			}
		})
	}
	for i := range 150 {
		for range 3 {
			n.publish(1, batch("a", "b"))
		}
		n.trim(1, TrimTo{To: Offset(6*i + 1)})
	}
	close(done)
	wg.Wait()
}

// A filter that is full of ids that are gone is made anew, and what is kept is
// known before, while and after it is.
func TestFilterIsMadeAnew(t *testing.T) {
	n := newNode(t, Config{IDFilterBytes: 640, bucketOffsets: 64}) // for 512 ids
	n.create(1)
	<-n.learned
	made := 0
	last := int64(0)
	for i := range 60 {
		recs := make([]record.Record, 50)
		for k := range recs {
			recs[k].ID = fmt.Sprintf("%d-%d", i, k)
		}
		b := record.Append(nil, record.Meta{}, recs)
		for _, s := range n.publish(1, slices.Clone(b)) {
			if s.Duplicate || s.Err != nil {
				t.Fatalf("round %d: a new id is %+v", i, s)
			}
		}
		for _, s := range n.publish(1, b) {
			if !s.Duplicate {
				t.Fatalf("round %d: a repeat is %+v", i, s)
			}
		}
		if i > 2 {
			n.trim(1, TrimTo{To: Offset(50 * (i - 2))})
		}
		err := n.View(within(t), 1, func(App, Position) {
			if n.core.seen.added < last {
				made++
			}
			last = n.core.seen.added
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if made == 0 {
		t.Fatalf("it holds %d ids of 150 that are kept", last)
	}
}

// What is no trim is refused.
func TestTrimDoesNotDecode(t *testing.T) {
	if _, err := decodeTrim([]byte{2}); err == nil {
		t.Error("a trim of one byte was taken")
	}
	for _, b := range [][]byte{{0, 0, 1}, {1, 8, 1}, {1, 0, 3}} {
		if _, err := decodeTrim(append(b, make([]byte, 16)...)); err == nil {
			t.Errorf("a trim that begins with % x was taken", b)
		}
	}
}
