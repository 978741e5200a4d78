package consumer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
)

// madeLog is a Log whose messages are made as they are looked at: it takes no
// memory, so that what is measured is the machine's.
type madeLog struct {
	at   partition.Index
	end  partition.Offset
	hash func(o partition.Offset) uint64
}

func (l *madeLog) Position() partition.Position {
	return partition.Position{Index: l.at, End: l.end}
}

func (l *madeLog) Foreseen() partition.Offset { return l.end }

func (l *madeLog) Keys(from partition.Offset, maxBytes int, fn func(partition.Offset, uint64, int) bool) error {
	for o := from; o < l.end && maxBytes > 0; o++ {
		if !fn(o, l.hash(o), 100) {
			return nil
		}
		maxBytes -= 100
	}
	return nil
}

// flow is one group whose member takes what it gets and settles it as it is told.
type flow struct {
	t    testing.TB
	app  *App
	base int64 // of the heap, without any of it
	rows *memRows
	log  *madeLog
	now  partition.Millis
	got  uint64
}

func newFlow(t testing.TB, p Policy, hash func(partition.Offset) uint64) *flow {
	base := inUse()
	rows := newMemRows()
	app, err := NewApp(1, rows)
	if err != nil {
		t.Fatal(err)
	}
	f := &flow{t: t, app: app, base: base, rows: rows, log: &madeLog{hash: hash}, now: 1}
	f.apply(encodeCreate(1, GroupSpec{ID: 1, Name: "G", Policy: p}))
	app.Lead(true)
	return f
}

func (f *flow) apply(cmd []byte) any {
	f.log.at++
	res, err := f.app.Apply(f.log.Position(), cmd)
	if err != nil {
		f.t.Fatal(err)
	}
	return res
}

// until lets messages flow up to an end of the log, or until nothing comes any
// more. settle says what becomes of a hand-out; 0: it is kept.
func (f *flow) until(end partition.Offset, settle func(handOut) (Action, partition.Millis)) {
	f.log.end = end
	for idle := 0; idle < 3; {
		f.now++
		y := &benchTaker{credit: 500}
		f.app.Event(demand{Group: 1, Member: "m", Session: 1, Request: uint64(f.now), Taker: y})
		for {
			cmds, _ := f.app.Drive(f.now, f.log)
			if len(cmds) == 0 {
				break
			}
			for _, c := range cmds {
				f.apply(c)
			}
		}
		y.credit = 0
		if idle++; len(y.got) > 0 {
			idle = 0
		}
		ss := make([]Settlement, 0, len(y.got))
		for i := range y.got {
			h := &y.got[i]
			if a, delay := settle(*h); a != 0 {
				ss = append(ss, Settlement{Token: Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal}, Action: a, Delay: delay})
			}
		}
		f.got += uint64(len(ss))
		y.got = append(y.got, handOut{}) // wants no more
		f.apply(encodeSettle(f.now, 1, ss))
		if f.now%64 == 0 {
			f.save()
		}
	}
	f.save()
}

func (f *flow) save() {
	if err := f.app.Checkpoint(); err != nil {
		f.t.Fatal(err)
	}
}

// heap is what the machine holds in memory, as it has become: the heap without
// its rows, less what was there before it.
func (f *flow) heap() int64 {
	f.save()
	f.rows.spill(f.t)
	size := inUse() - f.base
	f.rows.load(f.t)
	runtime.KeepAlive(f.app)
	return size
}

// restart restores the machine from its rows.
func (f *flow) restart() {
	f.save()
	app, err := NewApp(1, f.rows)
	if err != nil {
		f.t.Fatal(err)
	}
	f.app = app
	f.app.Lead(true)
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers let go of
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// spill moves the rows out of memory, into a file, and load back.
func (r *memRows) spill(t testing.TB) {
	t.Helper()
	var b []byte
	for _, m := range []map[string][]byte{r.disk, r.now} {
		b = binary.AppendUvarint(b, uint64(len(m)))
		for k, v := range m {
			b = append(binary.AppendUvarint(b, uint64(len(k))), k...)
			b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
		}
	}
	r.spilled = filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(r.spilled, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.disk, r.now, r.keys, r.more = nil, nil, nil, nil
}

func (r *memRows) load(t testing.TB) {
	t.Helper()
	b, err := os.ReadFile(r.spilled)
	if err != nil {
		t.Fatal(err)
	}
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		b = b[size:]
		return n
	}
	field := func() []byte {
		n := number()
		f := bytes.Clone(b[:n])
		b = b[n:]
		return f
	}
	for _, m := range []*map[string][]byte{&r.disk, &r.now} {
		n := number()
		*m = make(map[string][]byte, n)
		for range n {
			k := string(field())
			(*m)[k] = field()
		}
	}
	r.more = slices.Collect(maps.Keys(r.now))
}

func flat(t *testing.T, what string, before, after int64) {
	t.Helper()
	t.Logf("%s: %d bytes in memory, and then %d", what, before, after)
	// What a table or a list happens to have grown to is not what is looked for.
	if most := before + before/10 + 128<<10; after > most {
		t.Errorf("%s: memory grew from %d to %d bytes, at most %d were expected", what, before, after, most)
	}
}

func counts(long, short int) partition.Offset {
	if testing.Short() {
		return partition.Offset(short)
	}
	return partition.Offset(long)
}

// TestMemoryBehindOneKey: half of all messages are of a key whose first one is
// never settled. The others flow, what waits does not grow in memory, and the
// key is told with its head and all that waits behind it. Void hand-outs, of
// which each costs a row, do not come with it. Then the key flows, in order.
func TestMemoryBehindOneKey(t *testing.T) {
	p := Default()
	p.AckDeadline = 12 * hour
	f := newFlow(t, p, func(o partition.Offset) uint64 {
		if o%2 == 0 {
			return 7
		}
		return keyspace.Mix(uint64(o) % 2000)
	})
	first := true
	var head handOut
	keepHead := func(h handOut) (Action, partition.Millis) {
		if h.Offset%2 == 0 {
			if !first {
				t.Fatalf("P3: message %d of the key is out", h.Offset)
			}
			first, head = false, h
			return 0, 0
		}
		return Ack, 0
	}
	n := counts(2_000_000, 200_000)
	f.until(n/10, keepHead)
	before := f.heap()
	f.until(n, keepHead)
	flat(t, fmt.Sprintf("%d messages behind one key", n/2-1), before, f.heap())
	if f.got != uint64(n/2) {
		t.Fatalf("%d other messages flowed, want %d", f.got, n/2)
	}
	g := f.app.groups[0]
	st := g.state(f.log.Position(), f.now)
	if st.Counts.Blocked != uint64(n/2-1) || st.Counts.NotScanned != 0 || st.Oldest != 0 {
		t.Errorf("counts: %+v, the oldest %d", st.Counts, st.Oldest)
	}
	if len(st.Stalls) == 0 || !st.Stalls[0].OfKey || st.Stalls[0].Offset != 0 || st.Stalls[0].Waiting != uint64(n/2-1) || st.Stalls[0].Attempts != 1 {
		t.Errorf("stalls: %+v", st.Stalls)
	}
	voids, rows := 0, 0
	_ = f.rows.Scan(nil, nil, func(k, _ []byte) bool {
		if rows++; k[0] == rowOf && k[9] == rowVoid {
			voids++
		}
		return true
	})
	if voids > 100 || rows > int(n/2)/rowMessages+memoryOfKey+voids+20 {
		t.Errorf("%d rows, of them %d of void hand-outs", rows, voids)
	}
	f.apply(encodeSettle(f.now, 1, []Settlement{{Token: Token{Offset: head.Offset, HandOut: head.Number, Ordinal: 1}, Action: Ack}}))
	next := partition.Offset(2)
	f.now++
	for range 1000 {
		y := &benchTaker{credit: 1}
		f.app.Event(demand{Group: 1, Member: "m", Session: 1, Request: uint64(f.now), Taker: y})
		for {
			cmds, _ := f.app.Drive(f.now, f.log)
			if len(cmds) == 0 {
				break
			}
			for _, c := range cmds {
				f.apply(c)
			}
		}
		f.now++
		if len(y.got) != 1 || y.got[0].Offset != next {
			t.Fatalf("the key goes on with %+v, want %d", y.got, next)
		}
		h := y.got[0]
		f.apply(encodeSettle(f.now, 1, []Settlement{{Token: Token{Offset: h.Offset, HandOut: h.Number, Ordinal: 1}, Action: Ack}}))
		next += 2
	}
}

// TestMemoryOfHoles: every other message is acked, and what is not backs off for
// an hour, each of a key of its own. Neither grows in memory. After a restart
// nothing that was acked comes back, its ack can be repeated, and the others
// come when their time has.
func TestMemoryOfHoles(t *testing.T) {
	p := Default()
	p.MaxAttempts = 0
	f := newFlow(t, p, func(o partition.Offset) uint64 { return keyspace.Mix(uint64(o)) })
	acked := make(map[partition.Offset]handOut)
	settle := func(h handOut) (Action, partition.Millis) {
		if h.Attempt == 1 && h.Offset%2 == 0 {
			return Nack, hour
		}
		if h.Offset%2 == 1 && h.Offset%1001 == 0 {
			acked[h.Offset] = h
		}
		return Ack, 0
	}
	n := counts(40_000, 40_000)
	f.until(n/2, settle)
	before := f.heap()
	f.until(n, settle)
	flat(t, fmt.Sprintf("%d holes", n/2), before, f.heap())
	f.restart()
	flat(t, "after a restart", before, f.heap())
	st := f.app.groups[0].state(f.log.Position(), f.now)
	if st.Counts.Acked != uint64(n/2) || st.Counts.BackingOff != uint64(n/2) {
		t.Fatalf("counts: %+v", st.Counts)
	}
	for o, h := range acked {
		res := f.apply(encodeSettle(f.now, 1, []Settlement{{Token: Token{Offset: o, HandOut: h.Number, Ordinal: 1}, Action: Ack}})).([]SettleResult)
		if res[0].Err != nil {
			t.Fatalf("the ack of %d again: %v", o, res[0].Err)
		}
	}
	f.now += hour + minute
	f.got = 0
	f.apply(encodeLeap(f.now, 1, f.now))
	f.until(n, func(h handOut) (Action, partition.Millis) {
		if h.Offset%2 == 1 || h.Attempt != 2 {
			t.Fatalf("message %d came back, attempt %d", h.Offset, h.Attempt)
		}
		return Ack, 0
	})
	if f.got != uint64(n/2) {
		t.Errorf("%d messages came when their wait was over, want %d", f.got, n/2)
	}
}

// TestMemoryOfIdleGroups: groups that were busy and have nothing to do cost at
// most 4 KiB each.
func TestMemoryOfIdleGroups(t *testing.T) {
	const groups = 10_000
	f := newFlow(t, Default(), func(o partition.Offset) uint64 { return keyspace.Mix(uint64(o)) })
	f.log.end = 60
	for g := GroupID(2); g <= groups; g++ {
		f.apply(encodeCreate(1, GroupSpec{ID: g, Name: fmt.Sprint("group-", g), Policy: Default()}))
	}
	for g := GroupID(1); g <= groups; g++ {
		f.now++
		y := &benchTaker{credit: 60}
		f.app.Event(demand{Group: g, Member: "member", Session: 1, Request: uint64(f.now), Taker: y})
		for {
			cmds := f.app.group(g).hand.drive1(f.now, f.log)
			if len(cmds) == 0 {
				break
			}
			for _, c := range cmds {
				f.apply(c)
			}
		}
		var ss []Settlement
		for _, h := range y.got {
			ss = append(ss, Settlement{Token: Token{Offset: h.Offset, HandOut: h.Number, Ordinal: 1}, Action: Ack})
		}
		y.credit = 0
		if len(ss) != 60 {
			t.Fatalf("group %v got %d messages", g, len(ss))
		}
		f.apply(encodeSettle(f.now, g, ss))
		if g%500 == 0 {
			f.save()
		}
	}
	size := f.heap()
	t.Logf("%d bytes for each of %d groups", size/groups, groups)
	if size/groups > 4096 {
		t.Errorf("an idle group takes %d bytes, at most 4096 were expected", size/groups)
	}
}

func (h *hand) drive1(now partition.Millis, log partition.Log) [][]byte {
	cmds, _ := h.drive(now, log, nil)
	return cmds
}
