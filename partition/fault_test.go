package partition

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// The nth write to the disk fails, for good: nobody is left waiting, the host
// says that it stopped, and what was acknowledged is there afterwards.
func TestFailNthWrite(t *testing.T) {
	for n := int64(0); ; n++ {
		if !failNthWrite(t, n) {
			if n < 50 {
				t.Fatalf("the workload makes only %d writes: it proves little", n)
			}
			return
		}
		if n > 40 {
			n += n / 8
		}
	}
}

func failNthWrite(t *testing.T, n int64) (hit bool) {
	mem := vfs.NewCrashableMem()
	var armed, broke atomic.Bool
	var count atomic.Int64
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpRemove {
			return nil
		}
		if count.Add(1) > n {
			broke.Store(true)
			return errorfs.ErrInjected
		}
		return nil
	}))
	store, err := logstore.Open(logstore.Config{FS: fs, Dir: "store", MemTableBytes: 256 << 10, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Node: 1, Store: store, NewApp: newCounter(nil), CheckpointBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for id := range PartitionID(2) {
		if err := h.Create(within(t), id+1); err != nil {
			t.Fatal(err)
		}
	}
	armed.Store(true)
	acked := map[PartitionID][]string{}
	cmds := map[PartitionID]int{}
	var failure error
	for i := range 60 {
		id := PartitionID(i%2 + 1)
		body := fmt.Sprintf("b%d-%s", i, strings.Repeat("x", 300))
		if _, failure = h.Publish(within(t), id, batch(body)); failure != nil {
			break
		}
		acked[id] = append(acked[id], body)
		if i%3 == 0 {
			if _, failure = h.Propose(within(t), id, []byte(body)); failure != nil {
				break
			}
			cmds[id]++
		}
	}
	if failure != nil {
		var unknown *ErrOutcomeUnknown
		var stopped *ErrStopped
		if !errors.As(failure, &unknown) && !errors.As(failure, &stopped) {
			t.Fatalf("write %d: the caller got %T %v", n, failure, failure)
		}
		select {
		case err := <-h.Failed():
			if !errors.Is(err, errorfs.ErrInjected) {
				t.Fatalf("write %d: the host failed with %v", n, err)
			}
		case <-time.After(soon):
			t.Fatalf("write %d: the host did not say that it failed", n)
		}
		if _, err := h.Publish(within(t), 1, batch("late")); !errors.As(err, &stopped) {
			t.Fatalf("write %d: a stopped host gives %v", n, err)
		}
	}
	if err := h.Close(); (err == nil) != (failure == nil) && !broke.Load() {
		t.Fatalf("write %d: Close gives %v", n, err)
	}
	_ = store.Close() // it has failed, or fails now
	l := &ledger{acked: map[PartitionID]map[Offset]string{}, cmds: cmds}
	for id, bs := range acked {
		l.acked[id] = map[Offset]string{}
		for i, b := range bs {
			l.acked[id][Offset(i)] = b
		}
	}
	again := &node{t: t, fs: mem.CrashClone(vfs.CrashCloneCfg{}), cfg: Config{NewApp: newCounter(nil)}}
	again.start()
	l.check(again, 2)
	again.stop()
	return broke.Load()
}

// A command that its App cannot apply stops that partition, now and after a
// restart. The other one does not notice.
func TestPoisonStopsOnePartition(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1, 2)
	n.publish(1, batch("a1"))
	if _, err := n.Propose(within(t), 1, []byte("fine")); err != nil {
		t.Fatal(err)
	}
	var unknown *ErrOutcomeUnknown
	if _, err := n.Propose(within(t), 1, []byte("poison")); !errors.As(err, &unknown) {
		t.Fatalf("the proposer got %v", err)
	}
	for round := range 2 {
		var damaged *ErrDamaged
		for what, err := range map[string]error{
			"publish": func() error { _, err := n.Publish(within(t), 1, batch("a")); return err }(),
			"propose": func() error { _, err := n.Propose(within(t), 1, []byte("x")); return err }(),
			"view":    n.View(within(t), 1, func(App, Position) { t.Error("View shows a broken state") }),
			"read":    func() error { _, err := n.Read(1, 0, 1, 1); return err }(),
			"create":  n.Create(within(t), 1),
		} {
			if !errors.As(err, &damaged) || damaged.Partition != 1 || damaged.From == 0 || damaged.From != damaged.To {
				t.Fatalf("round %d: %s gives %v", round, what, err)
			}
		}
		if info, err := n.Info(1); err != nil || !strings.Contains(info.Fault, "does not decode") {
			t.Fatalf("round %d: info %+v, %v", round, info, err)
		}
		if s := n.publish(2, batch("b")); s[0].Offset != Offset(round) {
			t.Fatalf("round %d: the other partition stored at %d", round, s[0].Offset)
		}
		n.restart()
	}
	if err := n.Drop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	n.create(1)
	if s := n.publish(1, batch("new")); s[0].Offset != 0 {
		t.Fatalf("after dropping and creating it anew: stored at %d", s[0].Offset)
	}
}

// inOneTurn runs fn while the loop is held, so that what it queues is taken up
// in one turn.
func (n *node) inOneTurn(fn func()) {
	hold, held, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if err := n.View(context.Background(), n.Partitions()[0], func(App, Position) { close(held); <-hold }); err != nil {
			n.t.Error(err)
		}
	}()
	<-held
	fn()
	close(hold)
	<-done
}

// What was applied before a poison, in the same turn, stays applied, and is not
// applied a second time by a program that knows the poison.
func TestFaultKeepsWhatWasApplied(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	b := func() []byte { return record.Append(nil, record.Meta{}, []record.Record{{ID: "i", Body: []byte("x")}}) }
	answers := make(chan []Stored, 1)
	poisoned := make(chan error, 1)
	n.inOneTurn(func() {
		if err := n.PublishAsync(1, b(), func(s []Stored, _ error) { answers <- s }); err != nil {
			t.Fatal(err)
		}
		go func() { _, err := n.Propose(context.Background(), 1, []byte("poison")); poisoned <- err }()
		for n.queued.Load() < proposalBytes { // until it is queued
			runtime.Gosched()
		}
	})
	if s := <-answers; len(s) != 1 || s[0] != (Stored{}) {
		t.Fatalf("stored %+v", s)
	}
	if err := <-poisoned; err == nil {
		t.Fatal("the poison was applied")
	}
	n.cfg.NewApp = func(PartitionID, Rows) (App, error) { return immune{}, nil }
	n.restart()
	if s := n.publish(1, b()); s[0] != (Stored{Duplicate: true}) {
		t.Fatalf("the repeat is %+v", s[0])
	}
	if ms, err := n.Read(1, 0, 10, 1000); err != nil || len(ms) != 1 {
		t.Fatalf("stored are %v, %v", ms, err)
	}
}

// immune is an App that takes any command.
type immune struct{ noApp }

func (immune) Apply(Position, []byte) (any, error) { return nil, nil }

// A repeat is found although its original is in the same turn, and memory keeps
// nothing.
func TestRepeatInOneTurn(t *testing.T) {
	n := newNode(t, Config{TailCacheBytes: 1})
	n.create(1)
	got := make(chan Stored, 3)
	n.inOneTurn(func() {
		for range 3 {
			b := record.Append(nil, record.Meta{ProducerID: "p"}, []record.Record{{ID: "i", Body: []byte("x")}})
			if err := n.PublishAsync(1, b, func(s []Stored, err error) {
				if err != nil {
					t.Error(err)
				}
				got <- s[0]
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
	for i := range 3 {
		if s := <-got; s != (Stored{Duplicate: i > 0}) {
			t.Fatalf("answer %d is %+v", i, s)
		}
	}
}

// An App that panics is its partition's fault only.
func TestPanicStopsOnePartition(t *testing.T) {
	late := deadline()
	n := newNode(t, Config{NewApp: newCounter(func(c *counter, _ Millis, _ Log) ([][]byte, Millis) {
		if len(c.events) > 0 {
			panic("boom")
		}
		return nil, 0
	})})
	n.create(1, 2)
	if err := n.Post(1, "x"); err != nil {
		t.Fatal(err)
	}
	var damaged *ErrDamaged
	if err := n.View(within(t), 1, func(App, Position) {}); err != nil && !errors.As(err, &damaged) {
		t.Fatal(err)
	}
	for errors.As(n.View(within(t), 1, func(App, Position) {}), &damaged) == false {
		if late() {
			t.Fatal("the partition goes on")
		}
	}
	if !strings.Contains(damaged.Why, "boom") {
		t.Fatal(damaged)
	}
	n.publish(2, batch("b"))
}

// What cannot be read at start stops one partition and names it.
func TestDamageAtStart(t *testing.T) {
	for name, hurt := range map[string]func(*logstore.Store, *logstore.Batch) error{
		"applied":    func(_ *logstore.Store, b *logstore.Batch) error { return b.SetMeta(1, metaApplied, []byte("short")) },
		"checkpoint": func(_ *logstore.Store, b *logstore.Batch) error { return b.SetMeta(1, metaCheckpoint, nil) },
		"replicas":   func(_ *logstore.Store, b *logstore.Batch) error { return b.SetMeta(1, metaConf, nil) },
		"replicas in another form": func(_ *logstore.Store, b *logstore.Batch) error {
			return b.SetMeta(1, metaConf, []byte("a list of nodes"))
		},
		"no replicas": func(_ *logstore.Store, b *logstore.Batch) error { return b.SetMeta(1, metaConf, []byte{}) },
		"a replica twice": func(_ *logstore.Store, b *logstore.Batch) error {
			return b.SetMeta(1, metaConf, confRow(&raftpb.ConfState{Voters: []uint64{1, 1}}))
		},
		"a replica that votes and learns": func(_ *logstore.Store, b *logstore.Batch) error {
			return b.SetMeta(1, metaConf, confRow(&raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{1}}))
		},
		"the future": func(_ *logstore.Store, b *logstore.Batch) error {
			return b.SetMeta(1, metaApplied, (&appliedRow{index: 1000}).append(nil))
		},
		"an entry of an unknown kind": func(s *logstore.Store, b *logstore.Batch) error {
			last, err := s.LastIndex(1)
			if err != nil {
				return err
			}
			hs, err := s.HardState(1)
			if err != nil {
				return err
			}
			return b.Append(1, []logstore.Entry{{Term: hs.Term, Index: last + 1, Data: []byte{9, 9, 9}}})
		},
		"half a batch": func(s *logstore.Store, b *logstore.Batch) error {
			last, _ := s.LastIndex(1)
			hs, _ := s.HardState(1)
			whole := batch("abc")
			return b.Append(1, []logstore.Entry{{Term: hs.Term, Index: last + 1, Data: appendItem(beginEntry(nil, Batches), 1, whole[:len(whole)-1])}})
		},
		"the app's rows": func(s *logstore.Store, b *logstore.Batch) error {
			return b.Set(logstore.AppRows, 1, []byte("n"), []byte("xx"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Config{NewApp: newCounter(nil)})
			n.create(1, 2)
			n.publish(1, batch("a1", "a2"))
			n.publish(2, batch("b1"))
			if err := n.Host.Close(); err != nil {
				t.Fatal(err)
			}
			b := n.store.NewBatch()
			if err := hurt(n.store, b); err != nil {
				t.Fatal(err)
			}
			if err := n.store.CommitNoSync(b); err != nil {
				t.Fatal(err)
			}
			if err := n.store.Close(); err != nil {
				t.Fatal(err)
			}
			n.start()
			var damaged *ErrDamaged
			if _, err := n.Read(1, 0, 10, 1000); !errors.As(err, &damaged) || damaged.Partition != 1 {
				t.Fatalf("the damaged partition gives %v", err)
			}
			// The counter of these tests looks at no row before it reads it.
			if strings.Contains(damaged.Why, "panic") && name != "the app's rows" {
				t.Fatalf("found by a panic: %v", damaged)
			}
			if ms, err := n.Read(2, 0, 10, 1000); err != nil || !slices.Equal(bodies(ms), []string{"b1"}) {
				t.Fatalf("the other one gives %v, %v", ms, err)
			}
		})
	}
}

// Damage that an App meets when it reads the log stops the partition and is
// told to everybody, instead of an App that looks again and again.
func TestDamageInDrive(t *testing.T) {
	late := deadline()
	var led atomic.Int32
	n := newNode(t, Config{NewApp: func(id PartitionID, rows Rows) (App, error) {
		app, err := newCounter(func(_ *counter, _ Millis, log Log) ([][]byte, Millis) {
			// The error is not the App's to act on.
			_ = log.Keys(log.Position().Start, 1<<20, func(Offset, uint64, int) bool { return true })
			return nil, 0
		})(id, rows)
		return leads{app, &led}, err
	}})
	n.create(1, 2)
	n.publish(1, batch("a1", "a2"))
	n.publish(2, batch("b1"))
	if err := n.Host.Close(); err != nil {
		t.Fatal(err)
	}
	b := n.store.NewBatch()
	if err := b.Set(logstore.Offsets, 1, offsetKey(nil, 0), []byte("xx")); err != nil {
		t.Fatal(err)
	}
	if err := n.store.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}
	led.Store(0)
	n.start()
	var damaged *ErrDamaged
	for !errors.As(n.View(within(t), 1, func(App, Position) {}), &damaged) {
		if late() {
			t.Fatal("the partition goes on")
		}
	}
	if info, err := n.Info(1); err == nil && info.Fault == "" {
		t.Fatal("its state says nothing of the damage")
	}
	// Whoever waits for an App that is no more is told, whether the event was
	// on its way or came later.
	heard := make(waiter, 1)
	if err := n.Post(1, heard); err == nil {
		select {
		case err = <-heard:
		case <-within(t).Done():
			t.Fatal("an event for the stopped partition is answered by nobody")
		}
		if !errors.As(err, &damaged) {
			t.Fatalf("an event gives %v", err)
		}
	}
	if _, err := n.Host.Publish(within(t), 1, batch("a3")); !errors.As(err, &damaged) {
		t.Fatalf("a publish gives %v", err)
	}
	n.publish(2, batch("b2"))
	if led.Load() != 1 {
		t.Fatalf("%d partitions lead, want the sound one alone", led.Load())
	}
}

// waiter is an event that waits for its App.
type waiter chan error

func (w waiter) Unheard(err error) { w <- err }

// Events that are queued when a partition stops are answered.
func TestEventsOfAStoppedPartition(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	heard := make(waiter, 2)
	if err := n.View(within(t), 1, func(App, Position) {
		// The loop is here: both come behind.
		for range 2 {
			if err := n.Post(1, heard); err != nil {
				t.Error(err)
			}
		}
		n.core.fail(n.core.replicas[1], errors.New("planted"))
	}); err != nil {
		t.Fatal(err)
	}
	var damaged *ErrDamaged
	for range 2 {
		select {
		case err := <-heard:
			if !errors.As(err, &damaged) {
				t.Fatal(err)
			}
		case <-within(t).Done():
			t.Fatal("an event is answered by nobody")
		}
	}
}

// leads counts the Apps that lead.
type leads struct {
	App
	n *atomic.Int32
}

func (l leads) Lead(leading bool) {
	l.App.Lead(leading)
	if leading {
		l.n.Add(1)
	} else {
		l.n.Add(-1)
	}
}

// Queues are bounded in bytes, per partition and per node; beyond that callers
// are told when to come again, and what was let in is answered.
func TestQueuesAreBounded(t *testing.T) {
	late := deadline()
	n := newNode(t, Config{PartitionQueueBytes: 10_000, QueueBytes: 15_000})
	n.create(1, 2)
	hold, held := make(chan struct{}), make(chan struct{})
	go func() {
		_ = n.View(context.Background(), 1, func(App, Position) { close(held); <-hold })
	}()
	<-held
	b := batch(strings.Repeat("x", 900))
	size := int64(len(b)) + proposalBytes
	var done atomic.Int64
	fill := func(id PartitionID) (taken int64) {
		for {
			own := slices.Clone(b)
			err := n.PublishAsync(id, own, func(s []Stored, err error) {
				if err != nil || len(s) != 1 {
					t.Errorf("answer %v, %v", s, err)
				}
				done.Add(1)
			})
			var full *ErrFull
			if errors.As(err, &full) {
				if full.RetryAfter < time.Millisecond || full.RetryAfter > 10*time.Second || full.Partition != id {
					t.Fatalf("told %+v", full)
				}
				return taken
			}
			if err != nil {
				t.Fatal(err)
			}
			taken++
			if taken*size > 10_000 {
				t.Fatalf("%d bytes were taken in, the bound is 10000", taken*size)
			}
		}
	}
	one, two := fill(1), fill(2)
	if one*size < 8_000 || (one+two)*size > 15_000 || (one+two)*size < 13_000 {
		t.Fatalf("took in %d and %d batches of %d bytes", one, two, len(b))
	}
	var full *ErrFull
	if _, err := n.Propose(within(t), 1, make([]byte, 2000)); !errors.As(err, &full) {
		t.Fatalf("a command gets past the bound: %v", err)
	}
	close(hold)
	for done.Load() != one+two {
		if late() {
			t.Fatal("not everybody was answered")
		}
		n.Info(1)
	}
	for n.queued.Load() != 0 {
		if late() {
			t.Fatalf("%d bytes are still held", n.queued.Load())
		}
	}
	n.publish(1, batch(strings.Repeat("y", 20_000))) // larger than the bound, alone
}

// Events are bounded too, and none is lost below the bound.
func TestEventsAreBounded(t *testing.T) {
	late := deadline()
	n := newNode(t, Config{PartitionQueueBytes: 100 * proposalBytes, NewApp: newCounter(nil)})
	n.create(1)
	hold, held := make(chan struct{}), make(chan struct{})
	go func() {
		_ = n.View(context.Background(), 1, func(App, Position) { close(held); <-hold })
	}()
	<-held
	posted := 0
	for ; posted <= 100; posted++ {
		if err := n.Post(1, posted); err != nil {
			var full *ErrFull
			if !errors.As(err, &full) {
				t.Fatal(err)
			}
			break
		}
	}
	if posted != 100 {
		t.Fatalf("%d events were taken in, want 100", posted)
	}
	close(hold)
	if err := n.View(within(t), 1, func(a App, _ Position) {
		if got := len(a.(*counter).events); got != 100 {
			t.Errorf("the app saw %d events", got)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for n.queued.Load() != 0 {
		if late() {
			t.Fatalf("%d bytes are still held", n.queued.Load())
		}
	}
}

// Bad batches never reach the log.
func TestPublishRefusesBadBatches(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	good := batch("a")
	bad := slices.Clone(good)
	bad[len(bad)-1] ^= 1
	for name, b := range map[string][]byte{"empty": nil, "flipped": bad, "cut": good[:len(good)-1], "two": append(slices.Clone(good), good...)} {
		var e *record.Error
		if _, err := n.Publish(within(t), 1, b); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var unknown *ErrUnknownPartition
	if _, err := n.Publish(within(t), 7, good); !errors.As(err, &unknown) {
		t.Errorf("unknown partition: %v", err)
	}
	if pos, err := n.Position(1); err != nil || pos.End != 0 {
		t.Errorf("position %v, %v", pos, err)
	}
}

// deadline returns what tells that a test waited too long for something.
func deadline() func() bool {
	end := time.Now().Add(soon)
	return func() bool {
		runtime.Gosched()
		return time.Now().After(end)
	}
}

// While the store waits for its disk, publishes are turned away at once, though
// the queues have room; what was taken in before is stored, and when the disk
// goes on so do publishes.
func TestStallTurnsAway(t *testing.T) {
	gate := make(chan struct{})
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			<-gate // no memory table gets to the disk
		}
		return nil
	}))
	store, err := logstore.Open(logstore.Config{FS: fs, Dir: "store", MemTableBytes: 256 << 10, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Node: 1, Store: store, QueueBytes: 1 << 30, PartitionQueueBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Create(within(t), 1); err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 1000)
	taken := 0
	var full *ErrFull
	for deadline := time.Now().Add(soon); ; {
		// Enough for all memory tables, and then only once the store is stuck.
		for taken >= 200 && !store.Stalled() && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		err := h.PublishAsync(1, batch(strings.Repeat("x", 30<<10)), func(_ []Stored, err error) { answers <- err })
		if errors.As(err, &full) {
			break
		}
		if err != nil || taken > 200 {
			t.Fatalf("%d publishes were taken, then %v", taken, err)
		}
		taken++
	}
	if full.RetryAfter < stallRetry || !store.Stalled() {
		t.Errorf("turned away with %v, stalled %v", full, store.Stalled())
	}
	close(gate)
	for range taken {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	for {
		_, err := h.Publish(within(t), 1, batch("after"))
		if err == nil {
			break
		}
		if !errors.As(err, &full) {
			t.Fatal(err)
		}
	}
	if pos, err := h.Position(1); err != nil || int(pos.End) != taken+1 {
		t.Errorf("%v, %v: %d were taken", pos, err, taken+1)
	}
	if err := errors.Join(h.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
}
