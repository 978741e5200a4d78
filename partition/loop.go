package partition

import (
	"context"
	"errors"
	"sync"
	"time"
)

// input is what callers and the syncer give to the loop.
type input struct {
	what  inputKind
	id    PartitionID
	shelf *shelf
	p     *proposal
	ev    any
	call  func()
	fail  func(error) // of a call that will not run
	w     *write
	err   error
	from  NodeID // of frames; of inUp and inDown, whom it is about
	fs    []Frame
	bytes int64 // of frames
}

type inputKind byte

const (
	inProposal inputKind = iota
	inEvent
	inCall
	inDurable
	inFrames
	inUp
	inDown
)

// inbox is the loop's only input. It is bounded by what reserve lets through;
// calls are bounded by their callers, who wait.
type inbox struct {
	mu   sync.Mutex
	in   []input
	over bool // nobody takes any more
	wake chan struct{}
}

// put returns false when nobody will take the input.
func (b *inbox) put(in input) bool {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return false
	}
	b.in = append(b.in, in)
	first := len(b.in) == 1
	b.mu.Unlock()
	if first {
		b.nudge()
	}
	return true
}

// end takes what is left, and lets nothing more in.
func (b *inbox) end() []input {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	b.in, b.over = nil, true
	return in
}

func (b *inbox) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take swaps the inbox for an empty one.
func (b *inbox) take(spare []input) []input {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	b.in = spare
	return in
}

// loop owns the core.
func (h *Host) loop() {
	defer close(h.loopDone)
	defer close(h.syncs)
	defer close(h.learn)
	defer h.back.close()
	ticker := time.NewTicker(h.cfg.Tick)
	defer ticker.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	c := h.core
	var spare []input
	inflight := 0
	arrived := int64(0) // bytes of frames that the next pump takes into the store
	var next time.Time  // when the store wants the next write: see logstore.Store.Pace
	for {
		stopped := h.isStopped() // before the inbox is emptied, so that nothing is overlooked
		c.stopping = stopped
		in := h.inbox.take(spare)
		for i := range in {
			if in[i].what == inDurable {
				inflight--
				if in[i].err != nil {
					h.fall(in[i].err, in[i:])
					return
				}
			}
			h.feed(&in[i])
			arrived += in[i].bytes
			in[i] = input{}
		}
		spare = in[:0]
		if cap(spare) > 1<<16 {
			spare = nil
		}

		now := h.cfg.Now()
		if !stopped { // Apps get no more turns, so a wake that is due would be due for ever
			c.due(now)
		}
		hold := time.Duration(0)
		if c.ready() && !stopped && !next.IsZero() {
			hold = time.Until(next)
		}
		moved := c.ready() && inflight < h.cfg.SyncsInFlight && hold <= 0
		if moved {
			c.clock = time.Since(h.began)
			w, answers, err := c.pump(now)
			h.back.put(answers, c.takeRoles())
			if err != nil {
				h.fall(err, nil)
				return
			}
			for i, sh := range c.taken {
				h.release(sh, proposalBytes)
				c.taken[i] = nil
			}
			c.taken = c.taken[:0]
			if w != nil {
				c.writes = append(c.writes, w)
			}
			if d := h.cfg.Store.Pace(); d > 0 && !h.cfg.unpaced {
				// What comes meanwhile waits in the queues, which are bounded,
				// and becomes one write.
				next = time.Now().Add(d - max(-hold, 0))
			}
		}
		if c.seen.full() && !stopped && h.learning.CompareAndSwap(false, true) {
			h.learn <- c.relearn()
		}
		if moved || !c.ready() {
			h.arriving.Add(-arrived)
			arrived = 0
		}
		h.moveSnapshots()
		c.reply()
		h.flush()
		for i, w := range c.writes {
			c.writes[i] = nil
			inflight++
			h.syncs <- w
		}
		c.writes = c.writes[:0]
		if moved {
			continue // look at the inbox before waiting
		}
		if stopped && len(in) == 0 && inflight == 0 && !c.ready() {
			h.end()
			return
		}

		d := time.Hour
		if wake := c.nextWake(); wake != never {
			d = min(d, max(time.Duration(wake-now)*time.Millisecond, time.Millisecond))
		}
		if hold > 0 {
			d = min(d, hold)
		}
		timer.Reset(d)
		select {
		case <-h.inbox.wake:
		case <-h.cfg.Store.Failed():
			// What is under way may never come back.
			h.fall(h.cfg.Store.Err(), nil)
			return
		case <-ticker.C:
			c.hangs, c.full = h.hangs(), h.full.Load()
			c.tick()
			if c.hangs {
				h.back.put(c.takeAnswers(), nil) // they tell of nothing that a commit makes true
			}
		case <-timer.C:
		}
	}
}

// feed gives one input to the core.
func (h *Host) feed(in *input) {
	c := h.core
	switch in.what {
	case inProposal:
		c.enqueue(in.id, in.shelf, in.p)
	case inEvent:
		if !c.post(in.id, in.ev) {
			h.release(in.shelf, proposalBytes)
		}
	case inCall:
		in.call()
	case inDurable:
		c.durable(in.w)
	case inFrames:
		for _, f := range in.fs {
			if f.From.Node() == in.from {
				c.receive(f)
			}
		}
	case inUp:
		c.up(in.from)
	case inDown:
		c.down(in.from)
	}
}

// isStopped tells whether Close was called. Everything that callers gave was
// in the inbox before.
func (h *Host) isStopped() bool {
	h.stopMu.RLock()
	defer h.stopMu.RUnlock()
	return h.stopped
}

// end makes the last checkpoint.
func (h *Host) end() {
	for _, r := range h.core.order {
		r.resign()
		r.stop(h.stoppedError(), &ErrOutcomeUnknown{Partition: r.id, Why: "the node stopped"})
	}
	h.core.forsake(h.stoppedError())
	h.flush()
	w, err := h.core.checkpointAll()
	h.core.reply()
	h.back.put(h.core.takeAnswers(), nil)
	if err == nil && w != nil {
		err = h.wait(w)
	}
	if err != nil {
		h.setCause(err)
	}
}

// fall ends the host: its store has stopped. What waits may be on disk or not.
func (h *Host) fall(err error, rest []input) {
	h.setCause(err)
	h.failed <- err
	// The store has logged why, and whoever takes the failure says what to do.
	h.cfg.Logger.Error("the node's partitions stopped, since its store did")
	h.stopMu.Lock()
	h.stopped = true
	h.stopMu.Unlock()
	stopped := h.stoppedError()
	for _, in := range append(rest, h.inbox.end()...) {
		switch {
		case in.p != nil:
			h.core.answers = append(h.core.answers, answer{shelf: in.shelf, p: in.p, err: stopped})
		case in.fail != nil:
			in.fail(stopped)
		case in.ev != nil:
			unheard(in.ev, stopped)
		case in.w != nil && in.w.then != nil:
			in.w.then(stopped)
		}
	}
	for _, r := range h.core.order {
		r.resign()
		r.stop(stopped, &ErrOutcomeUnknown{Partition: r.id, Why: "the node's store stopped"})
	}
	h.core.forsake(stopped)
	for _, w := range h.core.writes {
		if w.then != nil {
			w.then(stopped)
		}
	}
	h.flush()
	h.core.reply()
	h.back.put(h.core.takeAnswers(), nil)
	if h.core.wb != nil {
		h.core.wb.Close()
	}
}

func (h *Host) setCause(err error) {
	h.stopMu.Lock()
	defer h.stopMu.Unlock()
	if h.cause == nil {
		h.cause = err
	}
}

// wait returns when a write is on disk, and the witness knows of a vote in it.
func (h *Host) wait(w *write) error {
	if w.pending != nil {
		if err := w.pending.Wait(); err != nil {
			return err
		}
	}
	if w.vote {
		return h.cfg.Store.SyncWitness()
	}
	return nil
}

// syncer waits for the disk, in the loop's stead and in the order of the
// writes.
func (h *Host) syncer() {
	defer close(h.syncDone)
	for w := range h.syncs {
		err := h.wait(w)
		if !h.inbox.put(input{what: inDurable, w: w, err: err}) && w.then != nil {
			w.then(h.stoppedError()) // the loop has ended without it
		}
	}
}

// learner reads the message ids that partitions had before this host, so that
// new ones need no look at the disk, and all of them again when the filter has
// filled up with those that are gone. Until a partition's are read they do.
func (h *Host) learner() {
	defer close(h.learnEnd)
	first := true
	for ids := range h.learn {
		for _, id := range ids {
			err := h.learnOne(id)
			if stopped := (*ErrStopped)(nil); errors.As(err, &stopped) {
				break
			}
			if err != nil {
				h.cfg.Logger.Warn("a partition's message ids were not read: new ones take longer", "partition", id.String(), "err", err)
			}
		}
		// When the host stops, nothing more is to be learned.
		_ = h.call(context.Background(), Metadata, func(reply func(error)) {
			h.core.seen.live = h.core.seen.added
			reply(nil)
		})
		h.learning.Store(false)
		if first {
			close(h.learned)
			first = false
		}
	}
}

func (h *Host) learnOne(id PartitionID) error {
	const page = 4096 // less than a millisecond of the loop
	r, _, err := h.reader(id)
	if err != nil {
		return err
	}
	var from []byte
	for {
		keys, next, err := r.ids(from, page)
		if err != nil {
			return err
		}
		err = h.call(context.Background(), id, func(reply func(error)) { reply(h.core.learn(id, keys, next == nil)) })
		if err != nil || next == nil {
			return err
		}
		from = next
	}
}

// outbox is the answerer's input. What it holds is bounded: every answer's
// proposal keeps its room in the queues until it is called back.
type outbox struct {
	mu     sync.Mutex
	out    []answer
	roles  []role
	closed bool
	wake   chan struct{}
}

func (b *outbox) put(a []answer, roles []role) {
	if len(a) == 0 && len(roles) == 0 {
		return
	}
	b.mu.Lock()
	b.roles = append(b.roles, roles...)
	if len(b.out) == 0 {
		b.out = a
	} else {
		b.out = append(b.out, a...)
	}
	b.mu.Unlock()
	b.nudge()
}

func (b *outbox) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.nudge()
}

func (b *outbox) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *outbox) take() ([]answer, []role, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, roles := b.out, b.roles
	b.out, b.roles = nil, nil
	return a, roles, b.closed
}

// answerer calls back. It is a goroutine of its own so that a slow caller
// delays answers, and not the log.
func (h *Host) answerer() {
	defer close(h.backDone)
	for {
		answers, roles, closed := h.back.take()
		h.tellRoles(roles)
		if len(answers) == 0 && len(roles) == 0 {
			if closed {
				return
			}
			<-h.back.wake
			continue
		}
		h.callBack(answers)
	}
}

// callBack gives answers to who waits for them.
func (h *Host) callBack(answers []answer) {
	var bytes int64
	for i := range answers {
		a := &answers[i]
		bytes += a.p.size
		switch {
		case a.p.stored == nil:
			a.p.result(a.result, a.err)
		case a.err != nil:
			a.p.stored(nil, a.err)
		default:
			a.p.stored(a.out.stored(a.shelf.id, a.p.batch), nil)
		}
	}
	h.rate.drained(bytes, time.Now())
}
