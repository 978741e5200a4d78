package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/strandmq/strandmq/partition/logstore"
)

// snapshotsAtOnce is how many snapshots a node sends, and how many it takes in, at
// the same time: each reads or writes as fast as the disk does.
const snapshotsAtOnce = 2

// ErrSnapshotGap tells who sends a snapshot at which chunk the other side goes on.
// Config.SendSnapshot returns it when ReceiveSnapshot on the other node did.
type ErrSnapshotGap = logstore.ErrSnapshotGap

// AppendSnapshotAnswer writes what ReceiveSnapshot said, for a transport to carry
// back: see ParseSnapshotAnswer.
//
//	what u8 │ stream u64 │ next u64 │ text
func AppendSnapshotAnswer(dst []byte, err error) []byte {
	var gap *ErrSnapshotGap
	switch {
	case err == nil:
		return append(dst, snapTaken)
	case errors.As(err, &gap):
		dst = binary.LittleEndian.AppendUint64(append(dst, snapGap), gap.Stream)
		return binary.LittleEndian.AppendUint64(dst, gap.Next)
	}
	return append(append(dst, snapRefused), err.Error()...)
}

// ParseSnapshotAnswer returns what the other node's ReceiveSnapshot said.
func ParseSnapshotAnswer(id PartitionID, b []byte) error {
	switch {
	case len(b) == 1 && b[0] == snapTaken:
		return nil
	case len(b) == 1+8+8 && b[0] == snapGap:
		return &ErrSnapshotGap{Partition: uint64(id), Stream: binary.LittleEndian.Uint64(b[1:]), Next: binary.LittleEndian.Uint64(b[9:])}
	case len(b) > 0 && b[0] == snapRefused:
		return &ErrSnapshotRefused{Partition: id, Why: string(b[1:])}
	}
	return fmt.Errorf("partition %v: an answer to a snapshot that does not read, of %d bytes", id, len(b))
}

const (
	snapTaken   byte = 0
	snapGap     byte = 1
	snapRefused byte = 2
)

// snapshots is what a host sends, takes in and switches, off its loop.
type snapshots struct {
	ctx  context.Context // ends with the host
	stop context.CancelFunc
	wg   sync.WaitGroup
	rate *rate.Limiter // of what is sent; nil: none

	mu      sync.Mutex
	ended   bool
	waiting []neededSnapshot
	sending []neededSnapshot
	staged  map[PartitionID]*arrival
	taking  int
}

// arrival is a snapshot that is on its way in, or was when its stream broke off.
type arrival struct {
	im     *logstore.Import
	busy   bool
	broke  int         // how often it broke off
	expiry *time.Timer // of half of one that nobody adds to
}

func newSnapshots(bytesPerSecond int64) *snapshots {
	s := &snapshots{staged: make(map[PartitionID]*arrival), rate: snapshotRate(bytesPerSecond)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// run starts a goroutine that ends with the host; false when that has ended.
func (s *snapshots) run(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.wg.Go(fn)
	return true
}

// end waits for everything under way.
func (s *snapshots) end() {
	s.stop()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.staged {
		if a.expiry != nil {
			a.expiry.Stop()
		}
		if !a.busy {
			a.im.Discard()
		}
	}
}

// moveSnapshots takes what the core has for others to do. The loop calls it.
func (h *Host) moveSnapshots() {
	for _, n := range h.core.takeNeeded() {
		h.queueSnapshot(n)
	}
	for _, r := range h.core.takeSwitches() {
		ok := h.snaps.run(func() {
			err := r.taking.change()
			gerr := h.give(input{what: inCall, call: func() {
				// An error is the store's, which the loop hears of itself.
				_ = h.core.switched(r, err)
			}, fail: r.taking.reply})
			if gerr != nil {
				r.taking.reply(gerr)
			}
		})
		if !ok {
			r.taking.reply(h.stoppedError())
		}
	}
	if len(h.core.unread) > 0 && h.learning.CompareAndSwap(false, true) {
		h.learn <- h.core.unread
		h.core.unread = nil
	}
}

// queueSnapshot has a snapshot sent when it is its turn.
func (h *Host) queueSnapshot(n neededSnapshot) {
	s := h.snaps
	s.mu.Lock()
	// One of an earlier replica of this node answers for that one alone.
	same := func(o neededSnapshot) bool { return o.id == n.id && o.from == n.from && o.to == n.to }
	switch {
	case slices.ContainsFunc(s.waiting, same), slices.ContainsFunc(s.sending, same):
		s.mu.Unlock()
		return // its answer will do for both
	case len(s.sending) == snapshotsAtOnce || s.ended:
		s.waiting = append(s.waiting, n)
		s.mu.Unlock()
		return
	}
	s.sending = append(s.sending, n)
	s.wg.Go(func() { h.sendSnapshots(n) })
	s.mu.Unlock()
}

// sendSnapshots sends one and then what waits.
func (h *Host) sendSnapshots(n neededSnapshot) {
	s := h.snaps
	for {
		err := h.sendSnapshot(n)
		if err != nil && s.ctx.Err() == nil {
			h.cfg.Logger.Warn("a snapshot was not sent", "partition", n.id.String(), "to", n.to.String(), "err", err)
			// Raft would have it tried again at once.
			select {
			case <-time.After(h.cfg.snapshotPause):
			case <-s.ctx.Done():
			}
		}
		s.mu.Lock()
		s.sending = slices.DeleteFunc(s.sending, func(o neededSnapshot) bool { return o == n })
		s.mu.Unlock()
		// After it left the list: what raft asks for next is another one.
		sent, ok := n, err == nil // the loop reads them when n is the next one
		_ = h.give(input{what: inCall, call: func() { h.core.snapshotSent(sent, ok) }, fail: func(error) {}})
		s.mu.Lock()
		if len(s.waiting) == 0 || s.ended {
			s.mu.Unlock()
			return
		}
		n = s.waiting[0]
		s.waiting = s.waiting[1:]
		s.sending = append(s.sending, n)
		s.mu.Unlock()
	}
}

// snapshotTries is how often a stream that broke off goes on before all begins anew.
const snapshotTries = 4

func (h *Host) sendSnapshot(n neededSnapshot) error {
	e, err := n.export(&h.cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	start, next, most := time.Now(), uint64(0), uint64(0)
	for try := 0; ; {
		r, err := e.From(next)
		if err != nil {
			return err
		}
		if h.snaps.rate != nil {
			r = &paced{h.snaps.ctx, r, h.snaps.rate}
		}
		if err = h.cfg.SendSnapshot(h.snaps.ctx, n.to.Node(), n.id, r); err == nil {
			h.cfg.Logger.Info("a snapshot was sent", "partition", n.id.String(), "to", n.to.String(), "entry", e.Head().Index, "took", time.Since(start))
			return nil
		}
		// What broke off is asked for again where it began; the answer tells where
		// the other side is. Only one that has more than ever costs no try.
		var gap *ErrSnapshotGap
		known := errors.As(err, &gap) && (gap.Next == 0 || gap.Stream == e.Head().Stream)
		if known {
			next = gap.Next
		}
		if known && next > most {
			most = next
			continue
		}
		var refused *ErrSnapshotRefused
		if try++; try >= snapshotTries || errors.As(err, &refused) || h.snaps.ctx.Err() != nil {
			return err
		}
	}
}

// ReceiveSnapshot takes in a partition's snapshot that another node sends
// (Config.SendSnapshot there), and returns when this node's replica is that of the
// snapshot, on disk. When r breaks off, what came is kept for ten minutes, and
// *ErrSnapshotGap tells where to go on; so it does when r does not begin there. *ErrSnapshotRefused
// tells that it is not needed, does not read, or that too many come at once.
func (h *Host) ReceiveSnapshot(ctx context.Context, from NodeID, id PartitionID, r io.Reader) error {
	if _, err := h.shelf(id); err != nil {
		return err
	}
	a, err := h.arrive(id)
	if err != nil {
		return err
	}
	err = a.im.Read(r)
	var gap *ErrSnapshotGap
	switch {
	case err == nil:
	case errors.As(err, &gap):
		h.arrived(id, a, true)
		return err
	case a.im.Broken() == nil:
		h.cfg.Logger.Info("a snapshot broke off", "partition", id.String(), "from", from.String(), "chunk", a.im.Next(), "err", err)
		gap = &ErrSnapshotGap{Partition: uint64(id), Stream: a.im.Head().Stream, Next: a.im.Next()}
		h.arrived(id, a, true) // the rest may come
		return gap
	default:
		h.arrived(id, a, false)
		a.im.Discard()
		var bad *logstore.ErrBadSnapshot
		if errors.As(err, &bad) {
			return &ErrSnapshotRefused{Partition: id, Why: err.Error()}
		}
		return err
	}
	defer h.arrived(id, a, false)
	m, err := checkStaged(id, from, a.im)
	if err != nil {
		a.im.Discard()
		return err
	}
	// It is the core's now, whatever becomes of ctx.
	ch := make(chan error, 1)
	fail := func(err error) { a.im.Discard(); ch <- err }
	if err := h.give(input{what: inCall, id: id, call: func() { h.core.take(id, m, a.im, func(err error) { ch <- err }) }, fail: fail}); err != nil {
		a.im.Discard()
		return err
	}
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return &ErrOutcomeUnknown{Partition: id, Why: context.Cause(ctx).Error()}
	}
}

// arrive finds room for a snapshot that comes.
func (h *Host) arrive(id PartitionID) (*arrival, error) {
	s := h.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, h.stoppedError()
	}
	for p, a := range s.staged {
		if !a.busy && p != id && len(s.staged) > 2*snapshotsAtOnce {
			a.expiry.Stop()
			a.im.Discard()
			delete(s.staged, p)
		}
	}
	a := s.staged[id]
	switch {
	case a != nil && a.busy:
		return nil, &ErrSnapshotRefused{Partition: id, Why: "another one is on its way"}
	case s.taking >= snapshotsAtOnce:
		return nil, &ErrSnapshotRefused{Partition: id, Why: "the node takes in as many as it can"}
	}
	if a == nil {
		im, err := h.cfg.Store.NewImport(uint64(id))
		if err != nil {
			return nil, err
		}
		a = &arrival{im: im}
		s.staged[id] = a
	}
	a.busy = true
	s.taking++
	return a, nil
}

// arrived gives the room back. What is kept waits for its rest.
func (h *Host) arrived(id PartitionID, a *arrival, keep bool) {
	s := h.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	a.busy = false
	s.taking--
	if !keep || s.ended {
		if keep {
			a.im.Discard()
		}
		delete(s.staged, id)
		return
	}
	a.broke++
	broke := a.broke
	a.expiry = time.AfterFunc(h.cfg.snapshotKept, func() { h.expire(id, a, broke) })
}

// expire throws half a snapshot away that got nothing since it broke off: it may
// be many gigabytes, and nobody else looks at it.
func (h *Host) expire(id PartitionID, a *arrival, broke int) {
	s := h.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.staged[id] != a || a.busy || a.broke != broke {
		return
	}
	a.im.Discard()
	delete(s.staged, id)
	h.cfg.Logger.Info("half a snapshot was thrown away: the rest did not come", "partition", h.cfg.Name(id), "after", h.cfg.snapshotKept)
}
