package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/record"
)

// filled has 60 batches of one to four messages with times 1000, 1010, ..., and
// commands between them, on a node whose memory keeps only the newest few.
func filled(t *testing.T, cache int64) (*node, []Message) {
	var clock atomic.Int64
	clock.Store(1000)
	n := newNode(t, Config{TailCacheBytes: cache, NewApp: newCounter(nil), Now: func() Millis { return Millis(clock.Load()) }})
	n.create(1)
	var want []Message
	for i := range 60 {
		var recs []record.Record
		for k := range 1 + i%4 {
			r := record.Record{KeyHash: uint64(i), HasKey: true, Key: fmt.Append(nil, "k", k), ID: fmt.Sprintf("%d-%d", i, k), Body: fmt.Append(nil, "body ", i, k)}
			if k == 1 && i > 4 {
				r = record.Record{HasKey: true, Key: []byte("k0"), ID: fmt.Sprintf("%d-0", i-4), Body: fmt.Append(nil, "body ", i-4, 0), KeyHash: uint64(i - 4)}
			}
			recs = append(recs, r)
		}
		for k, s := range n.publish(1, record.Append(nil, record.Meta{}, recs)) {
			if !s.Duplicate {
				want = append(want, Message{Offset: s.Offset, PublishTime: Millis(clock.Load()), Record: recs[k]})
			}
		}
		if i%5 == 0 {
			if _, err := n.Propose(within(t), 1, fmt.Append(nil, "c", i)); err != nil {
				t.Fatal(err)
			}
		}
		clock.Add(10)
	}
	if err := n.View(within(t), 1, func(App, Position) {
		if l := n.core.replicas[1].log; len(l.rows.ops) > 0 || len(l.dup.ids) > 0 {
			t.Errorf("%d rows and %d ids are kept although they are in the store", len(l.rows.ops), len(l.dup.ids))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n, want
}

func shown(m Message) string {
	return fmt.Sprintf("%d@%d %s %s %s %d", m.Offset, m.PublishTime, m.Record.ID, m.Record.Key, m.Record.Body, m.Record.KeyHash)
}

// Reading by range and by offset gives what was stored, from memory, from disk
// and across the two.
func TestReads(t *testing.T) {
	for _, cache := range []int64{1, 2000, 1 << 20} {
		n, want := filled(t, cache)
		rapid.Check(t, func(t *rapid.T) {
			from := rapid.IntRange(0, len(want)+2).Draw(t, "from")
			most := rapid.IntRange(1, 200).Draw(t, "max")
			bytes := rapid.IntRange(0, 3000).Draw(t, "bytes")
			ms, err := n.Read(1, Offset(from), most, bytes)
			if err != nil {
				t.Fatal(err)
			}
			if from < len(want) && len(ms) == 0 || len(ms) > most {
				t.Fatalf("%d messages from %d, at most %d", len(ms), from, most)
			}
			size := 0
			for i, m := range ms {
				size += len(m.Record.Body) + len(m.Record.Key) + len(m.Record.ID)
				if from+i >= len(want) || shown(m) != shown(want[from+i]) {
					t.Fatalf("message %d is %s", from+i, shown(m))
				}
			}
			if len(ms) > 1 && size > bytes {
				t.Fatalf("%d bytes, at most %d", size, bytes)
			}
			offsets := rapid.SliceOfNDistinct(rapid.IntRange(0, len(want)-1), 0, 20, rapid.ID).Draw(t, "offsets")
			slices.Sort(offsets)
			var os []Offset
			for _, o := range offsets {
				os = append(os, Offset(o))
			}
			ms, err = n.ReadAt(1, os)
			if err != nil || len(ms) != len(os) {
				t.Fatalf("%d messages at %v, %v", len(ms), os, err)
			}
			for i, m := range ms {
				if shown(m) != shown(want[offsets[i]]) {
					t.Fatalf("at %d: %s", offsets[i], shown(m))
				}
			}
			at := Millis(rapid.IntRange(900, 1700).Draw(t, "time"))
			first := Offset(len(want))
			for _, m := range slices.Backward(want) {
				if m.PublishTime >= at {
					first = m.Offset
				}
			}
			if o, err := n.OffsetAt(1, at); err != nil || o != first {
				t.Fatalf("at time %d is offset %d, %v; want %d", at, o, err, first)
			}
		})
		var later *ErrNotStored
		if _, err := n.ReadAt(1, []Offset{0, Offset(len(want))}); !errors.As(err, &later) || later.End != Offset(len(want)) {
			t.Fatalf("beyond the end: %v", err)
		}
		if _, err := n.IndexOf(1, Offset(len(want))); !errors.As(err, &later) {
			t.Fatalf("beyond the end: %v", err)
		}
	}
}

// Scan shows everything in order, agrees with IndexOf, and begins anywhere.
func TestScan(t *testing.T) {
	n, want := filled(t, 2000)
	keep := func(list *[]LogEntry) func(LogEntry) bool {
		return func(e LogEntry) bool {
			e.Data = bytes.Clone(e.Data)
			*list = append(*list, e)
			return true
		}
	}
	var all []LogEntry
	if err := n.Scan(within(t), 1, 0, keep(&all)); err != nil {
		t.Fatal(err)
	}
	next, cmds := Offset(0), 0
	for _, e := range all {
		if e.First != next {
			t.Fatalf("entry %d begins at %d, want %d", e.Index, e.First, next)
		}
		if e.Kind == Command {
			cmds++
			continue
		}
		for range e.Count {
			if i, err := n.IndexOf(1, next); err != nil || i != e.Index {
				t.Fatalf("offset %d is in entry %d, %v; Scan says %d", next, i, err, e.Index)
			}
			if e.Time != want[next].PublishTime {
				t.Fatalf("offset %d has time %d, want %d", next, e.Time, want[next].PublishTime)
			}
			next++
		}
	}
	if int(next) != len(want) || cmds != 12 {
		t.Fatalf("%d messages and %d commands, want %d and 12", next, cmds, len(want))
	}
	for from := range all[len(all)-1].Index + 2 {
		var got []LogEntry
		if err := n.Scan(within(t), 1, from, keep(&got)); err != nil {
			t.Fatal(err)
		}
		rest := slices.DeleteFunc(slices.Clone(all), func(e LogEntry) bool { return e.Index < from })
		if fmt.Sprint(got) != fmt.Sprint(rest) {
			t.Fatalf("from %d: %d entries, want %d", from, len(got), len(rest))
		}
		// The same commands without the messages.
		rest = slices.DeleteFunc(rest, func(e LogEntry) bool { return e.Kind != Command })
		if err := n.Commands(within(t), 1, from, func(e LogEntry) bool {
			if len(rest) == 0 || e.Index != rest[0].Index || e.Term != rest[0].Term || e.Term == 0 || !bytes.Equal(e.Data, rest[0].Data) {
				t.Errorf("from %d: command %q of entry %d in term %d, want the first of %v", from, e.Data, e.Index, e.Term, rest)
				return false
			}
			rest = rest[1:]
			return true
		}); err != nil || len(rest) > 0 {
			t.Fatalf("from %d: %v, and %d commands are missing", from, err, len(rest))
		}
	}
}

// An id is found under each key that it came with.
func TestFind(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	n.publish(1, record.Append(nil, record.Meta{}, []record.Record{
		{ID: "i"}, {ID: "i", HasKey: true, Key: []byte("k")}, {ID: "i", HasKey: true}, {ID: "j"},
	}))
	os, err := n.FindByMessageID(within(t), 1, "i")
	if err != nil || !slices.Equal(os, []Offset{0, 1, 2}) {
		t.Fatalf("i is at %v, %v", os, err)
	}
	if os, err := n.FindByMessageID(within(t), 1, "none"); err != nil || os != nil {
		t.Fatalf("none: %v, %v", os, err)
	}
}

// The App drives: after events, after messages and when the time it asked for
// has come; its commands are applied in order; its log shows what is applied.
func TestDrive(t *testing.T) {
	n := newNode(t, Config{TailCacheBytes: 1, NewApp: newCounter(func(c *counter, _ Millis, log Log) ([][]byte, Millis) {
		var cmds [][]byte
		for _, ev := range c.events {
			cmds = append(cmds, []byte("event "+ev), []byte("after "+ev))
		}
		c.events = nil
		if c.n == 2 {
			var keys []string
			if err := log.Keys(1, 1<<20, func(o Offset, h uint64, _ int) bool {
				keys = append(keys, fmt.Sprintf("%d:%d", o, h))
				return true
			}); err != nil {
				t.Error(err)
			}
			cmds = append(cmds, []byte(strings.Join(keys, " ")))
		}
		return cmds, 0
	})})
	n.create(1)
	n.publish(1, batch("a", "b", "c"))
	if err := n.Post(1, "x"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for late := deadline(); len(got) < 5; got = n.state(1) {
		if late() {
			t.Fatalf("state %q", got)
		}
	}
	for i, want := range []string{" event x", " after x", " 1:98 2:99"} {
		if !strings.HasSuffix(got[i+1], want) {
			t.Fatalf("command %d is %q, want %q", i, got[i+1], want)
		}
	}
	// Both commands of one turn came in one entry, at one position.
	if a, b := strings.Fields(got[1])[0], strings.Fields(got[2])[0]; a[strings.Index(a, "=")+1:] != b[strings.Index(b, "=")+1:] {
		t.Fatalf("%q and %q", got[1], got[2])
	}
}

// An App gets the turn that it asked for although nothing happens.
func TestWake(t *testing.T) {
	woken := make(chan Millis, 100)
	first := Millis(0)
	n := newNode(t, Config{NewApp: newCounter(func(_ *counter, now Millis, _ Log) ([][]byte, Millis) {
		if first == 0 {
			first = now
			return nil, now + 30
		}
		woken <- now - first
		return nil, 0
	})})
	n.create(1)
	select {
	case d := <-woken:
		if d < 30 {
			t.Fatalf("woken after %d ms, asked for 30", d)
		}
	case <-within(t).Done():
		t.Fatal("not woken")
	}
}

// A clock that is set back does not keep an App from the turn it asked for.
func TestWakeWhenTheClockGoesBack(t *testing.T) {
	var clock atomic.Int64
	clock.Store(5_000_000)
	turns := make(chan Millis, 100)
	n := newNode(t, Config{
		Now: func() Millis { return Millis(clock.Load()) },
		NewApp: newCounter(func(_ *counter, now Millis, _ Log) ([][]byte, Millis) {
			turns <- now
			return nil, now + 20
		}),
	})
	n.create(1)
	<-turns
	clock.Store(1_000_000)
	for {
		select {
		case now := <-turns:
			if now == 1_000_000 {
				return
			}
		case <-within(t).Done():
			t.Fatal("no turn since the clock was set back")
		}
	}
}

// An App whose wish for a turn is due while the host stops does not keep it
// from stopping: it gets no more turns.
func TestCloseWithADueWake(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(func(_ *counter, now Millis, _ Log) ([][]byte, Millis) {
		return nil, now
	})})
	n.create(1)
	closed := make(chan struct{})
	go func() { n.stop(); close(closed) }()
	select {
	case <-closed:
	case <-within(t).Done():
		t.Fatal("the host does not stop")
	}
}

// A restart applies again what is behind the checkpoint, and no more; after a
// clean stop nothing.
func TestReplaysOnlyTheTail(t *testing.T) {
	var applied int
	cfg := Config{CheckpointBytes: 2000, NewApp: func(id PartitionID, rows Rows) (App, error) {
		app, err := newCounter(nil)(id, rows)
		if err != nil {
			return nil, err
		}
		return &counting{app.(*counter), &applied}, nil
	}}
	n := newNode(t, cfg)
	n.create(1)
	const total = 200
	for i := range total {
		if _, err := n.Propose(within(t), 1, fmt.Appendf(nil, "%0100d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.View(within(t), 1, func(App, Position) {
		r := n.core.replicas[1]
		if r.rows.over.bytes > 10_000 || len(r.log.rows.ops) > 0 {
			t.Errorf("%d bytes of rows and %d staged rows are kept in memory", r.rows.over.bytes, len(r.log.rows.ops))
		}
	}); err != nil {
		t.Fatal(err)
	}
	info, err := n.Info(1)
	if err != nil || info.Checkpoint < 150 || info.LastIndex-info.Checkpoint > 40 {
		t.Fatalf("info %+v, %v", info, err)
	}
	cut := n.fs.CrashClone(cleanCut)
	n.stop()
	n.fs = cut
	applied = 0
	n.start()
	if applied == 0 || applied > 40 {
		t.Fatalf("%d of %d commands were applied again", applied, total)
	}
	applied = 0
	n.restart()
	if applied != 0 {
		t.Fatalf("after a clean stop %d commands were applied again", applied)
	}
	if err := n.View(within(t), 1, func(a App, _ Position) {
		if got := a.(*counting).n; got != total {
			t.Errorf("%d commands are counted, want %d", got, total)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

type counting struct {
	*counter
	applied *int
}

func (c *counting) Apply(at Position, cmd []byte) (any, error) {
	*c.applied++
	return c.counter.Apply(at, cmd)
}

// The node's bound on what a restart has to apply again is kept over all
// partitions.
func TestNodeBoundsReplay(t *testing.T) {
	n := newNode(t, Config{NodeCheckpointBytes: 4000})
	n.create(1, 2, 3)
	for i := range 60 {
		n.publish(PartitionID(i%3+1), batch(strings.Repeat("x", 200)))
	}
	var behind Index
	for id := range PartitionID(3) {
		info, err := n.Info(id + 1)
		if err != nil {
			t.Fatal(err)
		}
		behind += info.LastIndex - info.Checkpoint
	}
	if behind > 30 {
		t.Fatalf("%d entries are behind the checkpoints", behind)
	}
}

// The node's bound on rows that wait in memory is kept over all partitions. What
// failed or was dropped is no part of it: it makes no checkpoint.
func TestNodeBoundsRows(t *testing.T) {
	n := newNode(t, Config{NodeRowBytes: 4000, NewApp: newCounter(nil)})
	n.create(1, 2, 3)
	propose := func(id PartitionID, times int) {
		for range times {
			if _, err := n.Propose(within(t), id, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func(of PartitionID) (sum, total int64) {
		if err := n.View(within(t), of, func(App, Position) {
			for _, r := range n.core.order {
				if r.fault == nil {
					sum += r.rows.over.bytes
				}
			}
			total = n.core.rows
		}); err != nil {
			t.Fatal(err)
		}
		return sum, total
	}
	for i := range 60 {
		propose(PartitionID(i%3+1), 1)
		// A checkpoint comes with the turn after the one that made it due.
		if sum, total := look(1); sum != total || sum > 4500 {
			t.Fatalf("rows of %d bytes wait, %d are counted, at most 4000 are to", sum, total)
		}
	}
	propose(2, 8)
	if _, err := n.Propose(within(t), 2, []byte("poison")); err == nil {
		t.Fatal("the partition does not stop")
	}
	propose(3, 5)
	if err := n.Drop(within(t), 3); err != nil {
		t.Fatal(err)
	}
	if sum, total := look(1); sum != total {
		t.Fatalf("rows of %d bytes wait, %d are counted", sum, total)
	}
}
