package logstore

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

var trialsFlag = flag.Int("logstore.trials", 0, "how many trials each torture test runs; 0 takes LOGSTORE_TRIALS, or a small sample")

// trials is how many trials a torture test runs when a sample is enough.
func trials(sample int) int {
	if *trialsFlag > 0 {
		return *trialsFlag
	}
	if n, err := strconv.Atoi(os.Getenv("LOGSTORE_TRIALS")); err == nil && n > 0 {
		return n
	}
	if testing.Short() {
		return max(1, sample/4)
	}
	return sample
}

// modelLog is the naive twin of what the store keeps of a partition.
type modelLog struct {
	baseIndex, baseTerm uint64
	entries             []Entry // never changed in place
	hs                  HardState
	meta                string
	rows                map[string]string
}

func (l *modelLog) last() (index, term uint64) {
	if n := len(l.entries); n > 0 {
		return l.entries[n-1].Index, l.entries[n-1].Term
	}
	return l.baseIndex, l.baseTerm
}

// model is the twin of a store at one batch.
type model map[uint64]modelLog

func (m model) clone() model {
	out := maps.Clone(m)
	for p, l := range out {
		l.rows = maps.Clone(l.rows)
		l.entries = slices.Clip(l.entries)
		out[p] = l
	}
	return out
}

// run drives a store and remembers what it should hold after every batch.
type run struct {
	rng     *rand.Rand
	history map[uint64]model // by batch counter
	now     model
	at      uint64 // counter of now
	large   int    // size of large entries
	acked   uint64 // highest counter whose sync was confirmed
}

func newRun(seed uint64) *run {
	return &run{rng: rand.New(rand.NewPCG(seed, 1)), large: 60_000, history: map[uint64]model{1: {}}, now: model{}, at: 1, acked: 1}
}

// fill puts random writes into a batch and returns what they lead to.
func (r *run) fill(b *Batch) model {
	next := r.now.clone()
	for range 1 + r.rng.IntN(4) {
		p := uint64(1 + r.rng.IntN(4))
		l := next[p]
		if l.rows == nil {
			l.rows = map[string]string{}
		}
		last, term := l.last()
		switch k := r.rng.IntN(100); {
		case k < 60: // append, sometimes over a suffix
			first := last + 1
			if r.rng.IntN(8) == 0 && len(l.entries) > 0 {
				first = l.baseIndex + 1 + uint64(r.rng.IntN(len(l.entries)))
				term++
				l.entries = slices.Clip(l.entries[:first-l.baseIndex-1])
				l.hs.Commit = min(l.hs.Commit, first-1)
				_ = b.SetHardState(p, l.hs)
			}
			term = max(term, 1)
			var es []Entry
			for range 1 + r.rng.IntN(3) {
				size := r.rng.IntN(600)
				if r.rng.IntN(10) == 0 {
					size = r.rng.IntN(r.large)
				}
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(r.rng.Uint32())
				}
				es = append(es, Entry{Term: term, Index: first, Type: byte(r.rng.IntN(3)), Data: data})
				first++
			}
			_ = b.Append(p, es)
			l.entries = append(l.entries, es...)
		case k < 72:
			l.hs = HardState{Term: term, Vote: uint64(r.rng.IntN(5)), Commit: last}
			_ = b.SetHardState(p, l.hs)
		case k < 82:
			key := fmt.Sprintf("k%03d", r.rng.IntN(50))
			l.rows[key] = fmt.Sprint(r.rng.Uint64())
			_ = b.Set(IDs, p, []byte(key), []byte(l.rows[key]))
		case k < 86:
			key := fmt.Sprintf("k%03d", r.rng.IntN(50))
			delete(l.rows, key)
			_ = b.Delete(IDs, p, []byte(key))
		case k < 88:
			from, to := fmt.Sprintf("k%03d", r.rng.IntN(25)), fmt.Sprintf("k%03d", 25+r.rng.IntN(25))
			maps.DeleteFunc(l.rows, func(k, _ string) bool { return k >= from && k < to })
			for i := range 50 {
				if key := fmt.Sprintf("k%03d", i); key >= from && key < to {
					_ = b.Delete(IDs, p, []byte(key))
				}
			}
		case k < 94:
			l.meta = fmt.Sprint(r.rng.Uint64())
			_ = b.SetMeta(p, 'm', []byte(l.meta))
		case k < 98 && len(l.entries) > 0:
			n := 1 + r.rng.IntN(len(l.entries))
			l.baseIndex, l.baseTerm = l.entries[n-1].Index, l.entries[n-1].Term
			l.entries = l.entries[n:]
			_ = b.TruncatePrefix(p, l.baseIndex)
		case k == 98:
			l.baseIndex, l.baseTerm, l.entries = last+uint64(r.rng.IntN(9)), term+1, nil
			_ = b.ResetLog(p, l.baseIndex, l.baseTerm)
		case k == 99:
			l = modelLog{rows: map[string]string{}}
			_ = b.DropPartition(p)
		}
		next[p] = l
	}
	return next
}

// errForgot is what a store that lost acknowledged batches is accused of.
var errForgot = errors.New("forgot")

// step commits one random batch. between runs after the commit and before the
// wait for its sync.
func (r *run) step(s *Store, between func()) error {
	b := s.NewBatch()
	next := r.fill(b)
	if r.rng.IntN(5) == 0 {
		if err := s.CommitNoSync(b); err != nil {
			return err
		}
		r.took(next)
		return nil
	}
	p, err := s.Commit(b)
	if err != nil {
		// It may have reached the log file all the same.
		r.history[r.at+1] = next
		return err
	}
	r.took(next)
	if between != nil {
		between()
	}
	if err := p.Wait(); err != nil {
		return err
	}
	r.acked = r.at
	return nil
}

func (r *run) took(next model) {
	r.at++
	r.now = next
	r.history[r.at] = next
}

// check compares an opened store with the twin of the batch that it is at, and
// goes on from there. Nothing acknowledged may be missing.
func (r *run) check(s *Store) error {
	k := s.counter
	if k < r.acked {
		return fmt.Errorf("%w: store is at batch %d, batch %d was acknowledged", errForgot, k, r.acked)
	}
	m, ok := r.history[k]
	if !ok {
		return fmt.Errorf("store is at batch %d, which never was", k)
	}
	if err := m.compare(s); err != nil {
		return fmt.Errorf("at batch %d (acknowledged %d): %w", k, r.acked, err)
	}
	r.now, r.at, r.acked = m, k, k
	for n := range r.history {
		if n > k {
			delete(r.history, n)
		}
	}
	return nil
}

// compare reads everything. Damage that the store itself reports comes back as
// *ErrDamaged; any other error is a difference.
func (m model) compare(s *Store) error {
	ps, err := s.Partitions()
	if err != nil {
		return err
	}
	for _, p := range ps {
		if _, ok := m[p]; !ok {
			return fmt.Errorf("p%d was never written", p)
		}
	}
	var damage error
	for _, p := range slices.Sorted(maps.Keys(m)) {
		l := m[p]
		if index, _ := l.last(); index > 0 && !slices.Contains(ps, p) {
			return fmt.Errorf("p%d is not listed", p)
		}
		if err := l.compare(s, p); err != nil {
			var d *ErrDamaged
			if !errors.As(err, &d) {
				return fmt.Errorf("p%d: %w", p, err)
			}
			damage = err
		}
	}
	return damage
}

func (l *modelLog) compare(s *Store, p uint64) error {
	var damage error
	note := func(err error) error {
		var d *ErrDamaged
		if errors.As(err, &d) {
			damage = err
			return nil
		}
		return err
	}
	last, term := l.last()
	first, err := s.FirstIndex(p)
	if err == nil && first != l.baseIndex+1 {
		return fmt.Errorf("first index %d, want %d", first, l.baseIndex+1)
	}
	if err := note(err); err != nil {
		return err
	}
	if got, err := s.LastIndex(p); err == nil && got != last {
		return fmt.Errorf("last index %d, want %d", got, last)
	} else if err := note(err); err != nil {
		return err
	}
	if got, err := s.Term(p, last); err == nil && got != term {
		return fmt.Errorf("last term %d, want %d", got, term)
	} else if err := note(err); err != nil {
		return err
	}
	es, err := s.Entries(p, l.baseIndex+1, last+1, 0)
	if err == nil {
		if len(es) != len(l.entries) {
			return fmt.Errorf("%d entries, want %d", len(es), len(l.entries))
		}
		for i, e := range es {
			if w := l.entries[i]; e.Index != w.Index || e.Term != w.Term || e.Type != w.Type || !bytes.Equal(e.Data, w.Data) {
				return fmt.Errorf("entry %d is not what was written", w.Index)
			}
		}
	} else if err := note(err); err != nil {
		return err
	} else {
		// What is served one by one must be right, or refused.
		for _, w := range l.entries {
			es, err := s.Entries(p, w.Index, w.Index+1, 0)
			if err == nil && (len(es) != 1 || !bytes.Equal(es[0].Data, w.Data)) {
				return fmt.Errorf("entry %d is not what was written", w.Index)
			}
			if err := note(err); err != nil {
				return err
			}
		}
	}
	if hs, err := s.HardState(p); err == nil && hs != l.hs {
		return fmt.Errorf("hard state %v, want %v", hs, l.hs)
	} else if err := note(err); err != nil {
		return err
	}
	if v, err := s.Meta(p, 'm'); err == nil && string(v) != l.meta {
		return fmt.Errorf("meta %q, want %q", v, l.meta)
	} else if err := note(err); err != nil {
		return err
	}
	rows := map[string]string{}
	err = s.Iterate(IDs, p, nil, nil, func(k, v []byte) bool { rows[string(k)] = string(v); return true })
	if err == nil && !maps.Equal(rows, l.rows) {
		return fmt.Errorf("rows %v, want %v", rows, l.rows)
	}
	if err := note(err); err != nil {
		return err
	}
	for k, w := range l.rows {
		if v, err := s.Get(IDs, p, []byte(k)); err == nil && string(v) != w {
			return fmt.Errorf("row %s is %q, want %q", k, v, w)
		} else if err := note(err); err != nil {
			return err
		}
	}
	return damage
}

// TestModel runs random batches, clean stops in between, against the twin.
func TestModel(t *testing.T) {
	for seed := range uint64(trials(6)) {
		r := newRun(seed)
		cfg := testConfig(newMem())
		for range 3 {
			s := mustOpen(t, cfg)
			if err := r.check(s); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for range 60 {
				if err := r.step(s, nil); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if r.rng.IntN(20) == 0 {
					if err := r.now.compare(s); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			}
			if err := r.now.compare(s); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := s.Close(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			r.acked = r.at // a clean stop syncs
		}
	}
}
