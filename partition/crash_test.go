package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
)

// mapRows is the naive twin of appRows.
type mapRows map[string][]byte

func (m mapRows) Get(key []byte) ([]byte, error) { return m[string(key)], nil }
func (m mapRows) Put(key, value []byte)          { m[string(key)] = slices.Clone(value) }
func (m mapRows) Delete(key []byte)              { delete(m, string(key)) }
func (m mapRows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	var keys []string
	for k := range m {
		if len(k) >= len(prefix) && k[:len(prefix)] == string(prefix) && k >= string(from) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !fn([]byte(k), m[k]) {
			break
		}
	}
	return nil
}

// twin is what a counter would be that had applied the whole log without ever
// stopping.
func (n *node) twin(id PartitionID) []string {
	n.t.Helper()
	app, err := newCounter(nil)(id, mapRows{})
	if err != nil {
		n.t.Fatal(err)
	}
	c := app.(*counter)
	var end Offset
	err = n.Scan(within(n.t), id, 0, func(e LogEntry) bool {
		end = e.First + Offset(e.Count)
		if e.Kind == Command {
			if _, err := c.Apply(Position{Index: e.Index, End: e.First}, e.Data); err != nil {
				n.t.Error(err)
			}
		}
		return true
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return append(c.state(), fmt.Sprintf("end=%d", end))
}

// ledger is what publishers were told.
type ledger struct {
	mu    sync.Mutex
	acked map[PartitionID]map[Offset]string
	cmds  map[PartitionID]int
	tries map[string]record.Record // by id: published, with an unknown outcome perhaps
}

// check holds a node against what was told before its last cut.
func (l *ledger) check(n *node, partitions int) {
	n.t.Helper()
	for p := range partitions {
		id := PartitionID(p + 1)
		pos, err := n.Position(id)
		if err != nil {
			n.t.Fatal(err)
		}
		var all []Message
		for o := pos.Start; o < pos.End; {
			ms, err := n.Read(id, o, 100, 1<<20)
			if err != nil {
				n.t.Fatal(err)
			}
			if len(ms) == 0 {
				n.t.Fatalf("%v: nothing to read at %d of %v", id, o, pos)
			}
			for _, m := range ms {
				if m.Offset != o {
					n.t.Fatalf("%v: offset %d where %d is next", id, m.Offset, o)
				}
				o++
			}
			all = append(all, ms...)
		}
		for o, body := range l.acked[id] {
			if o >= pos.End || string(all[o].Record.Body) != body {
				n.t.Fatalf("%v: %q was acknowledged at %d and is not there (%v)", id, body, o, pos)
			}
		}
		seen := make(map[string]Offset)
		for _, m := range all {
			if m.Record.ID == "" {
				continue
			}
			if was, dup := seen[m.Record.ID]; dup {
				n.t.Fatalf("%v: id %s stands at %d and at %d", id, m.Record.ID, was, m.Offset)
			}
			seen[m.Record.ID] = m.Offset
			if got, err := n.FindByMessageID(n.t.Context(), id, m.Record.ID); err != nil || !slices.Equal(got, []Offset{m.Offset}) {
				n.t.Fatalf("%v: id %s stands at %d, it is found at %v, %v", id, m.Record.ID, m.Offset, got, err)
			}
		}
		if got, want := n.state(id), n.twin(id); !slices.Equal(got, want) {
			n.t.Fatalf("%v: state\n%q\ntwin\n%q", id, got, want)
		}
		if got := len(n.state(id)) - 2; got < l.cmds[id] {
			n.t.Fatalf("%v: %d commands were acknowledged, %d are there", id, l.cmds[id], got)
		}
	}
}

// Power cuts at any moment: what was acknowledged is there, offsets are dense,
// an id stands once, and the App's state is that of one that never stopped.
func TestPowerCuts(t *testing.T) {
	const partitions = 3
	rng := rand.New(rand.NewPCG(1, 2))
	cfg := Config{NewApp: newCounter(nil), CheckpointBytes: 20 << 10, TailCacheBytes: 8 << 10}
	n := newNode(t, cfg)
	n.create(1, 2, 3)
	l := &ledger{acked: map[PartitionID]map[Offset]string{1: {}, 2: {}, 3: {}}, cmds: map[PartitionID]int{}, tries: map[string]record.Record{}}
	rounds := 25
	if testing.Short() {
		rounds = 6 // each looks at all that the ones before stored
	}
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		reached := make(chan struct{})
		goal := 20 + rng.IntN(100)
		var once sync.Once
		count := 0
		note := func(fn func()) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if ctx.Err() != nil {
				return // told after the cut: does not count
			}
			fn()
			if count++; count == goal {
				once.Do(func() { close(reached) })
			}
		}
		for w := range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				id := PartitionID(w%partitions + 1)
				for i := 0; ctx.Err() == nil; i++ {
					if w >= 3 && i%3 == 0 {
						if _, err := n.Propose(ctx, id, fmt.Appendf(nil, "r%d w%d i%d", round, w, i)); err == nil {
							note(func() { l.cmds[id]++ })
						}
						continue
					}
					var recs []record.Record
					for k := range 1 + i%4 {
						name := fmt.Sprintf("r%d-w%d-i%d-k%d", round, w, i, k)
						r := record.Record{HasKey: true, Key: []byte{byte('a' + k)}, Body: []byte(name)}
						if w%2 == 0 {
							r.ID = name
							if i%5 == 4 { // a repeat of something older
								r.ID = fmt.Sprintf("r%d-w%d-i%d-k%d", round, w, i-1, k)
								r.Body = []byte(r.ID)
							}
						}
						recs = append(recs, r)
					}
					got, err := n.Publish(ctx, id, record.Append(nil, record.Meta{}, recs))
					if err != nil {
						continue
					}
					note(func() {
						for k, s := range got {
							if s.Err != nil {
								t.Errorf("%v: %v", recs[k].ID, s.Err)
							} else {
								l.acked[id][s.Offset] = string(recs[k].Body)
							}
						}
					})
				}
			}()
		}
		<-reached
		l.mu.Lock()
		cut := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		cancel()
		l.mu.Unlock()
		wg.Wait()
		n.stop()
		n.fs = cut
		n.start()
		l.check(n, partitions)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// The control: a cut that loses everything unsynced must be seen by the check
// when answers come before the sync.
func TestCheckSeesLoss(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	n.publish(1, batch("a1"))
	cut := n.fs.CrashClone(vfs.CrashCloneCfg{})
	n.publish(1, batch("a2"))
	n.stop()
	n.fs = cut
	n.start()
	if pos, err := n.Position(1); err != nil || pos.End != 1 {
		t.Fatalf("position %v, %v: the cut came before the second publish", pos, err)
	}
}

// Close answers whoever waits: what it acknowledges is stored, and everybody
// else is told that the host stopped.
func TestCloseAnswersEverybody(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	h := n.Host // n's own goes with stop
	var wg sync.WaitGroup
	var stopped, fine int
	enough := make(chan struct{})
	var mu sync.Mutex
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				_, err := h.Publish(t.Context(), 1, batch("a"))
				mu.Lock()
				var s *ErrStopped
				if errors.As(err, &s) {
					stopped++
					mu.Unlock()
					return
				}
				if err != nil {
					t.Errorf("publish gives %v", err)
					mu.Unlock()
					return
				}
				if fine++; fine == 100 {
					close(enough)
				}
				mu.Unlock()
			}
		}()
	}
	<-enough
	n.stop()
	wg.Wait()
	if stopped != 8 {
		t.Fatalf("%d of 8 publishers were told", stopped)
	}
	n.Host = nil
	n.start()
	if pos, _ := n.Position(1); int(pos.End) != fine {
		t.Fatalf("%d publishes were acknowledged, %d are stored", fine, pos.End)
	}
	if err := h.Close(); err != nil { // again
		t.Fatal(err)
	}
}
