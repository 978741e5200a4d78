package partition

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/internal/record"
)

// Host runs the partitions of one node: it is the shell around the core. Its
// goroutines end with Close:
//
//	callers ─► inbox ─► loop (owns the core) ─► syncer (waits for the disk) ─► inbox
//	                      ├──► answerer (calls back) ─► callers
//	other nodes ─► inbox  └──► Config.Send ─► other nodes
//
// A fourth, the learner, reads the message ids that were stored before; a fifth,
// where there are other nodes, tells them when the disk hangs or is full.
//
// The loop never waits for the disk and never runs a caller's code but View's.
// While SyncsInFlight writes are on their way to the disk it gathers, and what
// it gathered becomes one write.
type Host struct {
	cfg   Config
	core  *core // the loop's
	inbox inbox
	began time.Time // of core.clock
	syncs chan *write
	back  outbox

	mu      sync.RWMutex
	shelves map[PartitionID]*shelf // what callers see of each partition
	near    map[NodeID]bool        // the other nodes that are up

	full     atomic.Bool  // the disk has no room
	hanging  atomic.Bool  // the disk does not come back; watch's
	queued   atomic.Int64 // bytes of all partitions
	rate     drain
	arriving atomic.Int64       // bytes of frames that were received and are not in the store yet
	dropped  atomic.Int64       // frames for which there was no room
	byNode   map[NodeID][]Frame // scratch of the loop

	stopMu   sync.RWMutex // held for reading while input is handed over
	stopped  bool         // no input is taken any more
	cause    error        // why, if not by Close
	failed   chan error
	loopDone chan struct{}
	syncDone chan struct{}
	backDone chan struct{}
	learn    chan []PartitionID // whose message ids the learner is to read
	learned  chan struct{}      // closed when it has read the first ones
	learning atomic.Bool
	learnEnd chan struct{}
	watchEnd chan struct{}
	snaps    *snapshots
}

// Open starts a host over cfg.Store and restores every partition found in it.
// A damaged partition comes up stopped (see Info.Fault); an error is the whole
// node's.
func Open(cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, err
		}
		cfg.Seed = binary.LittleEndian.Uint64(b[:])
	}
	h := newHost(cfg)
	if err := h.restore(); err != nil {
		return nil, err
	}
	if err := h.settle(); err != nil {
		return nil, err
	}
	var unread []PartitionID
	for _, r := range h.core.order {
		if r.fault == nil && !r.log.dup.covered {
			unread = append(unread, r.id)
		}
	}
	h.learning.Store(true)
	h.learn <- unread
	if cfg.Send != nil {
		go h.watch()
	} else {
		close(h.watchEnd)
	}
	go h.learner()
	go h.syncer()
	go h.answerer()
	go h.loop()
	cfg.Logger.Info("partitions open", "node", cfg.Node.String(), "partitions", len(h.shelves), "tick", cfg.Tick,
		"tailCacheBytes", cfg.TailCacheBytes, "queueBytes", cfg.QueueBytes, "partitionQueueBytes", cfg.PartitionQueueBytes,
		"entryBytes", cfg.EntryBytes, "syncsInFlight", cfg.SyncsInFlight, "checkpointBytes", cfg.CheckpointBytes,
		"nodeCheckpointBytes", cfg.NodeCheckpointBytes, "rowBytes", cfg.RowBytes, "nodeRowBytes", cfg.NodeRowBytes, "idFilterBytes", cfg.IDFilterBytes)
	return h, nil
}

// newHost makes a host that nothing moves yet.
func newHost(cfg Config) *Host {
	return &Host{
		cfg: cfg, core: newCore(cfg), began: time.Now(),
		inbox: inbox{wake: make(chan struct{}, 1)}, back: outbox{wake: make(chan struct{}, 1)},
		syncs: make(chan *write, cfg.SyncsInFlight+1), shelves: make(map[PartitionID]*shelf),
		failed: make(chan error, 1), loopDone: make(chan struct{}), syncDone: make(chan struct{}), backDone: make(chan struct{}),
		learn: make(chan []PartitionID, 1), learned: make(chan struct{}), learnEnd: make(chan struct{}),
		watchEnd: make(chan struct{}), snaps: newSnapshots(cfg.SnapshotBytesPerSecond), byNode: make(map[NodeID][]Frame), near: make(map[NodeID]bool),
	}
}

// restore brings every partition of the store to life.
func (h *Host) restore() error {
	ids, err := h.cfg.Store.Partitions()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := h.core.open(PartitionID(id)); err != nil {
			return err
		}
		h.shelves[PartitionID(id)] = h.core.replicas[PartitionID(id)].shelf
	}
	return nil
}

// settle drives the core until nothing is left to do, so that partitions whose
// only voter is this node lead, and have applied what they had committed, when
// Open returns.
func (h *Host) settle() error {
	for h.core.ready() {
		w, _, err := h.core.pump(h.cfg.Now())
		if err != nil {
			return err
		}
		if w == nil {
			continue
		}
		if err := h.wait(w); err != nil {
			return err
		}
		h.core.durable(w)
	}
	return nil
}

// Create makes a partition with this node as its only voter and returns when it
// leads. Creating one that exists is success.
func (h *Host) Create(ctx context.Context, id PartitionID) error {
	return h.call(ctx, id, func(reply func(error)) {
		if err := h.core.create(id, h.cfg.Node.Replica(), h.cfg.Node.Replica()); err != nil {
			reply(err)
			return
		}
		r := h.list(id)
		switch {
		case r.fault != nil:
			reply(r.fault)
		case r.leading, !r.single:
			reply(nil)
		default:
			r.atLead = append(r.atLead, reply)
		}
	})
}

// list lets callers see a partition that the core has.
func (h *Host) list(id PartitionID) *replica {
	r := h.core.replicas[id]
	h.mu.Lock()
	h.shelves[id] = r.shelf
	h.mu.Unlock()
	return r
}

// Drop deletes a partition and all it holds. Dropping one that does not exist
// is success.
func (h *Host) Drop(ctx context.Context, id PartitionID) error {
	return h.call(ctx, id, func(reply func(error)) {
		h.mu.Lock()
		delete(h.shelves, id)
		h.mu.Unlock()
		if r := h.core.away[id]; r != nil {
			r.taking.dropped = append(r.taking.dropped, reply)
			return
		}
		w, err := h.core.drop(id)
		if err != nil {
			reply(err)
			return
		}
		w.then = reply
		h.core.writes = append(h.core.writes, w)
	})
}

// Partitions lists the partitions on this node, in order.
func (h *Host) Partitions() []PartitionID {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return slices.Sorted(maps.Keys(h.shelves))
}

// Publish stores one record batch and returns what became of each record when
// all are on disk. It stamps the batch, in place. If ctx ends first, the error
// is *ErrOutcomeUnknown and the batch must not be touched any more.
func (h *Host) Publish(ctx context.Context, id PartitionID, batch []byte) ([]Stored, error) {
	type answer struct {
		stored []Stored
		err    error
	}
	ch := make(chan answer, 1)
	if err := h.PublishAsync(id, batch, func(s []Stored, err error) { ch <- answer{s, err} }); err != nil {
		return nil, err
	}
	select {
	case a := <-ch:
		return a.stored, a.err
	case <-ctx.Done():
		return nil, &ErrOutcomeUnknown{Partition: id, Why: context.Cause(ctx).Error()}
	}
}

// PublishAsync is Publish without the wait: done is called once, from a
// goroutine of the host, and must neither block nor call the host's blocking
// methods. When an error is returned, done is not called. The batch must not be
// touched until then. Batches of one partition given in one order by one caller
// are stored in that order.
//
// The batch is checked here, on the caller's time: an error that is a
// *record.Error tells what is wrong with it.
func (h *Host) PublishAsync(id PartitionID, batch []byte, done func([]Stored, error)) error {
	b, rest, err := record.Parse(batch)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return &record.Error{Why: fmt.Sprintf("%d bytes behind the batch: publish one at a time", len(rest))}
	}
	return h.PublishBatch(id, b, done)
}

// PublishBatch is PublishAsync for a batch that record.Parse has accepted and
// that nobody changed since.
func (h *Host) PublishBatch(id PartitionID, b record.Batch, done func([]Stored, error)) error {
	return h.PublishFrom(0, id, b, done)
}

// PublishFrom is PublishBatch for one of many sources, which take turns: what one of
// them has queued does not keep what another one gives later.
func (h *Host) PublishFrom(source Source, id PartitionID, b record.Batch, done func([]Stored, error)) error {
	sh, err := h.shelf(id)
	if err != nil {
		return err
	}
	batch := b.Bytes()
	size := int64(len(batch)) + proposalBytes
	if why := sh.refusal.Load(); why != nil {
		return *why
	}
	if err := h.leaves(id, sh); err != nil {
		return err
	}
	if d := h.cfg.Store.Stuck(); d > 0 {
		return &ErrDiskStuck{Partition: id, For: d}
	}
	if h.cfg.Store.Stalled() {
		// The next write waits for the disk, and everything queued waits behind
		// it: more would only be told later. Commands still go in, since they
		// are small and their callers have less to fall back on.
		return &ErrFull{Partition: id, RetryAfter: max(h.rate.timeFor(h.queued.Load()), stallRetry)}
	}
	if err := h.reserve(id, sh, size); err != nil {
		return err
	}
	sh.coming.Add(int64(len(batch)))
	release := func() { sh.coming.Add(-int64(len(batch))); h.release(sh, size) }
	if err := sh.admit(int64(len(batch))); err != nil {
		release()
		return err
	}
	b.SetPublishTime(int64(h.cfg.Now()))
	p := &proposal{kind: Batches, data: batch, batch: b, source: source, size: size}
	p.stored = func(s []Stored, err error) { release(); done(s, err) }
	if err := h.give(input{what: inProposal, id: id, shelf: sh, p: p}); err != nil {
		release()
		return err
	}
	return nil
}

// Propose puts a command into a partition's log and returns what App.Apply made
// of it. If ctx ends first, the error is *ErrOutcomeUnknown. The command must not be
// changed any more.
func (h *Host) Propose(ctx context.Context, id PartitionID, cmd []byte) (any, error) {
	return h.propose(ctx, id, Command, cmd)
}

// ProposeAsync is Propose without the wait: done is called once, from a
// goroutine of the host, and must neither block nor call the host's blocking
// methods. When an error is returned, done is not called. Commands given in one
// order by one caller are applied in that order.
func (h *Host) ProposeAsync(id PartitionID, cmd []byte, done func(any, error)) error {
	return h.proposeAsync(id, Command, cmd, done)
}

func (h *Host) propose(ctx context.Context, id PartitionID, kind EntryKind, data []byte) (any, error) {
	type answer struct {
		result any
		err    error
	}
	ch := make(chan answer, 1)
	if err := h.proposeAsync(id, kind, data, func(r any, err error) { ch <- answer{r, err} }); err != nil {
		return nil, err
	}
	select {
	case a := <-ch:
		return a.result, a.err
	case <-ctx.Done():
		return nil, &ErrOutcomeUnknown{Partition: id, Why: context.Cause(ctx).Error()}
	}
}

func (h *Host) proposeAsync(id PartitionID, kind EntryKind, data []byte, done func(any, error)) error {
	if len(data) > maxCommandBytes {
		return fmt.Errorf("partition %v: a command of %d bytes; at most %d are taken", id, len(data), maxCommandBytes)
	}
	sh, err := h.shelf(id)
	if err != nil {
		return err
	}
	if err := h.leaves(id, sh); err != nil {
		return err
	}
	size := int64(len(data)) + proposalBytes
	if err := h.reserve(id, sh, size); err != nil {
		return err
	}
	p := &proposal{kind: kind, data: data, size: size}
	p.result = func(r any, err error) { h.release(sh, size); done(r, err) }
	if err := h.give(input{what: inProposal, id: id, shelf: sh, p: p}); err != nil {
		h.release(sh, size)
		return err
	}
	return nil
}

// stallRetry is when to come again while the store waits for its disk. Stalls
// last from some tens of milliseconds to seconds.
const stallRetry = 100 * time.Millisecond

// proposalBytes is what a queued proposal or event is counted for beside its
// bytes.
const proposalBytes = 256

// Post gives an event to a partition's App: App.Event, then App.Drive.
func (h *Host) Post(id PartitionID, ev any) error {
	sh, err := h.shelf(id)
	if err != nil {
		return err
	}
	if err := h.reserve(id, sh, proposalBytes); err != nil {
		return err
	}
	if err := h.give(input{what: inEvent, id: id, shelf: sh, ev: ev}); err != nil {
		h.release(sh, proposalBytes)
		return err
	}
	return nil
}

// Tell is Post for senders that have one event on its way for each thing they
// wait for, and to whom it must not get lost: it is not refused for want of
// room. An App may call it.
func (h *Host) Tell(id PartitionID, ev any) error {
	sh, err := h.shelf(id)
	if err != nil {
		return err
	}
	sh.queued.Add(proposalBytes)
	h.queued.Add(proposalBytes)
	if err := h.give(input{what: inEvent, id: id, shelf: sh, ev: ev}); err != nil {
		h.release(sh, proposalBytes)
		return err
	}
	return nil
}

// View calls fn with a partition's App, after everything applied and posted so
// far and before anything else. fn runs on the goroutine that moves every
// partition of the node: it must be quick, must not keep the App, and must not
// write.
func (h *Host) View(ctx context.Context, id PartitionID, fn func(App, Position)) error {
	if _, err := h.shelf(id); err != nil {
		return err
	}
	// A caller that left must not see fn run: the two may share memory.
	var mu sync.Mutex
	left := false
	err := h.call(ctx, id, func(reply func(error)) {
		mu.Lock()
		defer mu.Unlock()
		if !left {
			reply(h.core.view(id, fn))
		}
	})
	mu.Lock()
	left = true
	mu.Unlock()
	return err
}

// Refuse makes PublishAsync give an error for a partition, until it is told nil.
// Commands go in: whoever knows why publishes must wait counts on them.
func (h *Host) Refuse(id PartitionID, why error) error {
	sh, err := h.shelf(id)
	if err != nil {
		return err
	}
	if why == nil {
		sh.refusal.Store(nil)
	} else {
		sh.refusal.Store(&why)
	}
	return nil
}

// Failed yields the error that stopped the whole host, once.
func (h *Host) Failed() <-chan error { return h.failed }

// Close stops the host. What was taken in is stored and answered first, then
// every partition makes its checkpoint, so that the next Open has nothing to
// apply again. Calls that come later get *ErrStopped.
func (h *Host) Close() error {
	h.stopMu.Lock()
	h.stopped = true
	h.stopMu.Unlock()
	h.inbox.nudge()
	h.snaps.stop()
	<-h.loopDone
	h.snaps.end()
	<-h.syncDone
	<-h.backDone
	<-h.learnEnd
	<-h.watchEnd
	return h.cause
}

// shelf returns what callers see of a partition.
func (h *Host) shelf(id PartitionID) (*shelf, error) {
	h.mu.RLock()
	sh := h.shelves[id]
	h.mu.RUnlock()
	if sh == nil {
		return nil, &ErrUnknownPartition{Partition: id}
	}
	return sh, nil
}

// call runs fn on the loop and waits until it replied.
func (h *Host) call(ctx context.Context, id PartitionID, fn func(reply func(error))) error {
	ch := make(chan error, 1)
	if err := h.give(input{what: inCall, id: id, call: func() { fn(func(err error) { ch <- err }) }, fail: func(err error) { ch <- err }}); err != nil {
		return err
	}
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return &ErrOutcomeUnknown{Partition: id, Why: context.Cause(ctx).Error()}
	}
}

// give hands input to the loop. The loop sees everything that was given before
// it is told to stop.
func (h *Host) give(in input) error {
	h.stopMu.RLock()
	defer h.stopMu.RUnlock()
	if h.stopped {
		return h.stoppedError()
	}
	h.inbox.put(in)
	return nil
}

func (h *Host) stoppedError() error { return &ErrStopped{Cause: h.cause} }

// reserve takes room in the queues, or tells when to try again. One proposal
// always fits an empty queue.
func (h *Host) reserve(id PartitionID, sh *shelf, size int64) error {
	if n := sh.queued.Add(size); n > h.cfg.PartitionQueueBytes && n > size {
		sh.queued.Add(-size)
		return &ErrFull{Partition: id, RetryAfter: h.rate.timeFor(n)}
	}
	if n := h.queued.Add(size); n > h.cfg.QueueBytes && n > size {
		h.queued.Add(-size)
		sh.queued.Add(-size)
		return &ErrFull{Partition: id, RetryAfter: h.rate.timeFor(n)}
	}
	return nil
}

func (h *Host) release(sh *shelf, size int64) {
	sh.queued.Add(-size)
	h.queued.Add(-size)
}

// drain measures how fast the queues drain, to tell callers when to come again.
// The answerer writes it.
type drain struct {
	perSecond atomic.Int64
	bytes     int64
	since     time.Time
}

func (r *drain) drained(n int64, now time.Time) {
	r.bytes += n
	if r.since.IsZero() {
		r.since = now
	}
	if d := now.Sub(r.since); d >= 100*time.Millisecond {
		r.perSecond.Store(int64(float64(r.bytes) / d.Seconds()))
		r.bytes, r.since = 0, now
	}
}

// timeFor returns about how long n bytes take, halved, since the queue need
// only have some room again.
func (r *drain) timeFor(n int64) time.Duration {
	v := max(r.perSecond.Load(), 1<<20)
	d := time.Duration(float64(n) / float64(v) / 2 * float64(time.Second))
	return min(max(d.Round(time.Millisecond), 5*time.Millisecond), 2*time.Second)
}
