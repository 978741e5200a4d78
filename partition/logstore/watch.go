package logstore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A disk that fails says so; one that hangs says nothing, and whoever waits for
// it looks alive. So every write, fsync and change of a name is timed from
// outside:
//
//	slowWrite   logged and counted
//	StallAfter  the store is stuck: Stuck says so, callers should not queue up
//	StallStop   the store has failed: what is written later was never confirmed
//
// A write that comes back before StallStop ends the stall.
const slowWrite = time.Second

// ErrStuck tells that the disk did not come back from a write.
type ErrStuck struct {
	Op, Path string
	For      time.Duration
}

func (e *ErrStuck) Error() string {
	return fmt.Sprintf("the disk did not come back from %s %s for %v", e.Op, e.Path, e.For.Round(time.Millisecond))
}

// diskWatch knows what the disk is asked to do just now.
type diskWatch struct {
	mu    sync.Mutex
	next  uint64
	under map[uint64]*diskOp

	slow    atomic.Int64 // writes that took longer than slowWrite
	stuck   atomic.Int64 // since when the oldest one is under way, unix nanoseconds; 0: not stuck
	waiting atomic.Int64 // for how long the oldest one of a log file was, when looked at last; 0: none was
}

type diskOp struct {
	op, path string
	since    time.Time
	told     bool
}

// begin notes the beginning of an operation, and returns the id to end it by.
func (w *diskWatch) begin(op, path string) (id uint64) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under == nil {
		w.under = make(map[uint64]*diskOp)
	}
	w.next++
	w.under[w.next] = &diskOp{op: op, path: path, since: now}
	return w.next
}

func (w *diskWatch) end(id uint64) {
	w.mu.Lock()
	delete(w.under, id)
	w.mu.Unlock()
}

// oldest returns what is under way longest, also of log files alone, for which
// commits wait, and the operations that have become slow since it was last asked.
func (w *diskWatch) oldest(now time.Time) (op, log diskOp, slow []diskOp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.under {
		if op.since.IsZero() || o.since.Before(op.since) {
			op = *o
		}
		if strings.HasSuffix(o.path, ".log") && (log.since.IsZero() || o.since.Before(log.since)) {
			log = *o
		}
		if !o.told && now.Sub(o.since) >= slowWrite {
			o.told = true
			slow = append(slow, *o)
		}
	}
	return op, log, slow
}

// watch looks at what is under way until stop is closed. It is a goroutine of
// its own: the store's other one may be what hangs.
func (s *Store) watch(stop, stopped chan struct{}) {
	defer close(stopped)
	t := time.NewTicker(max(min(s.cfg.StallAfter/8, 100*time.Millisecond), time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-s.failedCh:
			return
		case now := <-t.C:
			s.look(now)
		}
	}
}

func (s *Store) look(now time.Time) {
	w := &s.fs.watch
	op, log, slow := w.oldest(now)
	waiting := int64(0)
	if !log.since.IsZero() {
		waiting = int64(now.Sub(log.since))
	}
	w.waiting.Store(waiting)
	for _, o := range slow {
		w.slow.Add(1)
		s.cfg.Logger.Warn("the disk is slow", "op", o.op, "path", o.path, "for", now.Sub(o.since))
	}
	age := time.Duration(0)
	if !op.since.IsZero() {
		age = now.Sub(op.since)
	}
	was := w.stuck.Load() != 0
	switch {
	case age >= s.cfg.StallStop:
		s.fail(op.op, op.path, &ErrStuck{Op: op.op, Path: op.path, For: age})
	case age >= s.cfg.StallAfter && !was:
		w.stuck.Store(op.since.UnixNano())
		s.cfg.Logger.Error("the disk hangs: nothing is published until it comes back", "op", op.op, "path", op.path,
			"for", age, "stopsAfter", s.cfg.StallStop)
	case age < s.cfg.StallAfter && was:
		w.stuck.Store(0)
		s.cfg.Logger.Info("the disk came back")
	}
}

// Waiting tells for how long the disk had not come back from what commits wait for when
// that was looked at last, a tenth of a second ago at most. It is cheap.
func (s *Store) Waiting() time.Duration { return time.Duration(s.fs.watch.waiting.Load()) }

// Stuck tells for how long the disk has not come back from a write, once that is
// StallAfter; else 0. It is cheap.
func (s *Store) Stuck() time.Duration {
	at := s.fs.watch.stuck.Load()
	if at == 0 {
		return 0
	}
	return time.Since(time.Unix(0, at))
}
