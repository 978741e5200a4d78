package consumer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
)

// keyLog is a Log that only has key hashes.
type keyLog struct {
	hashes []uint64
	at     partition.Index
}

func (l *keyLog) Position() partition.Position {
	return partition.Position{Index: l.at, End: partition.Offset(len(l.hashes))}
}

func (l *keyLog) Foreseen() partition.Offset { return l.Position().End }

func (l *keyLog) Keys(from partition.Offset, maxBytes int, fn func(partition.Offset, uint64, int) bool) error {
	for o := from; o < partition.Offset(len(l.hashes)) && maxBytes > 0; o++ {
		if !fn(o, l.hashes[o], 100) {
			return nil
		}
		maxBytes -= 100
	}
	return nil
}

// benchTaker takes up to so many.
type benchTaker struct {
	credit int
	got    []handOut
}

func (y *benchTaker) Room() (bool, bool) { return y.credit > 0, y.credit > 0 || y.got == nil }
func (y *benchTaker) Reserve(int) bool {
	if y.credit == 0 {
		return false
	}
	y.credit--
	return true
}
func (y *benchTaker) Return(n, _ int) { y.credit += n }
func (y *benchTaker) Handed(_ partition.PartitionID, hs []handOut) {
	y.got = append(y.got, hs...)
}
func (y *benchTaker) Ended(partition.PartitionID, error) {}

// BenchmarkMachine plans, applies, delivers and acks: all that this package
// does for a message on the goroutine of its partition, with the encoding of
// commands and without the log below.
func BenchmarkMachine(b *testing.B) {
	for _, keys := range []int{100_000, 1000, 100, 1} {
		for _, batch := range []int{500, 50} {
			b.Run(fmt.Sprintf("keys=%d/batch=%d", keys, batch), func(b *testing.B) {
				benchMachine(b, keys, batch, 4)
			})
		}
	}
}

func benchMachine(b *testing.B, keys, batch, members int) {
	rows := newMemRows()
	app, err := NewApp(1, rows)
	if err != nil {
		b.Fatal(err)
	}
	log := &keyLog{}
	apply := func(cmd []byte) any {
		log.at++
		res, err := app.Apply(log.Position(), cmd)
		if err != nil {
			b.Fatal(err)
		}
		return res
	}
	p := Default()
	p.MaxDeferredKey = 100_000
	apply(encodeCreate(1, GroupSpec{ID: 1, Name: "G", Policy: p}))
	app.Lead(true)
	for i := range b.N {
		log.hashes = append(log.hashes, keyspace.Mix(uint64(i%keys)))
	}
	takers := make([]*benchTaker, members)
	done := 0
	now := partition.Millis(1)
	ss := make([]Settlement, 0, batch)
	b.ReportAllocs()
	b.ResetTimer()
	for done < b.N {
		now++
		for m := range takers {
			takers[m] = &benchTaker{credit: batch}
			app.Event(demand{
				Group: 1, Member: fmt.Sprint("m", m), Session: 1, Request: uint64(now), Taker: takers[m],
				Share: uint32(m), Shares: uint32(members),
			})
		}
		for {
			cmds, _ := app.Drive(now, log)
			if len(cmds) == 0 {
				break
			}
			for _, c := range cmds {
				apply(c)
			}
		}
		got := 0
		for _, y := range takers {
			y.credit = 0
			if len(y.got) == 0 {
				y.got = []handOut{}
				continue
			}
			got += len(y.got)
			ss = ss[:0]
			for i := range y.got {
				h := &y.got[i]
				ss = append(ss, Settlement{Token: Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal}, Action: Ack})
			}
			apply(encodeSettle(now, 1, ss))
		}
		done += got
		if now%100 == 0 {
			if err := app.Checkpoint(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkHotKey is the machine beside a key that never flows, with a message of
// that key for each of the others, and without: both handle the same messages of
// other keys, a slice each in turn, and the rates are of those alone. What is told
// is the median over pairs of slices.
func BenchmarkHotKey(b *testing.B) {
	const turns = 21
	without, with := newHotBench(b, b.N, false), newHotBench(b, b.N, true)
	n := max(b.N/turns, 1)
	var plain, hot, ratio []float64
	b.ResetTimer()
	for range turns {
		p, h := without.run(n), with.run(n)
		plain, hot, ratio = append(plain, p), append(hot, h), append(ratio, h/p)
	}
	b.StopTimer()
	for _, fs := range [][]float64{plain, hot, ratio} {
		slices.Sort(fs)
	}
	b.ReportMetric(plain[turns/2], "msg/s-without")
	b.ReportMetric(hot[turns/2], "msg/s-with")
	b.ReportMetric(ratio[turns/2], "with/without")
}

// hotBench is a group with a member that acks all but the first message of a key.
type hotBench struct {
	b     *testing.B
	app   *App
	log   keyLog
	now   partition.Millis
	first bool // to come, of the hot key
}

func newHotBench(b *testing.B, others int, hot bool) *hotBench {
	app, err := NewApp(1, newMemRows())
	if err != nil {
		b.Fatal(err)
	}
	x := &hotBench{b: b, app: app, now: 1, first: hot}
	x.apply(encodeCreate(1, GroupSpec{ID: 1, Name: "G", Policy: Default()}))
	app.Lead(true)
	for i := range others + 21 {
		if hot {
			x.log.hashes = append(x.log.hashes, 1)
		}
		x.log.hashes = append(x.log.hashes, keyspace.Mix(uint64(i%1000)))
	}
	return x
}

func (x *hotBench) apply(cmd []byte) {
	x.log.at++
	if _, err := x.app.Apply(x.log.Position(), cmd); err != nil {
		x.b.Fatal(err)
	}
}

// run handles so many messages of other keys, and returns how many a second.
func (x *hotBench) run(n int) float64 {
	begun := time.Now()
	for done := 0; done < n; x.now++ {
		y := &benchTaker{credit: min(200, n-done)}
		if x.first {
			y.credit++
		}
		x.app.Event(demand{Group: 1, Member: "m", Session: 1, Request: uint64(x.now), Taker: y})
		for {
			cmds, _ := x.app.Drive(x.now, &x.log)
			if len(cmds) == 0 {
				break
			}
			for _, c := range cmds {
				x.apply(c)
			}
		}
		y.credit = 0
		ss := make([]Settlement, 0, len(y.got))
		for i := range y.got {
			h := &y.got[i]
			if x.first {
				x.first = false
				continue // the head of the hot key
			}
			ss = append(ss, Settlement{Token: Token{Epoch: h.Epoch, Offset: h.Offset, HandOut: h.Number, Ordinal: h.Ordinal}, Action: Ack})
		}
		if y.got == nil {
			y.got = []handOut{}
		}
		done += len(ss)
		x.apply(encodeSettle(x.now, 1, ss))
		if x.now%100 == 0 {
			if err := x.app.Checkpoint(); err != nil {
				x.b.Fatal(err)
			}
		}
	}
	return float64(n) / time.Since(begun).Seconds()
}

func BenchmarkToken(b *testing.B) {
	s := newSealer(7)
	t := Token{Partition: 12, Group: 3, Offset: 123456, HandOut: 234567, Ordinal: 1, Holder: holderOf("m")}
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			s.seal(&t)
		}
	})
	text := t.String()
	b.Run("print", func(b *testing.B) {
		for b.Loop() {
			_ = t.String()
		}
	})
	b.Run("parse", func(b *testing.B) {
		for b.Loop() {
			if _, err := ParseToken(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}
