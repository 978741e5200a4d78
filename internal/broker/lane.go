package broker

import (
	"errors"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/router"
)

// The bounds of what waits for other nodes.
const (
	laneBytes  = 8 << 20  // of one partition; one batch always fits
	lanesBytes = 64 << 20 // of all
	laneFull   = 10 * time.Millisecond
)

// A lane is the batches of one partition on their way to wherever it is led, in
// order. When one is refused nothing behind it is taken, neither there (the leader
// refuses what follows until the lane opens it again) nor from here: what was
// refused goes again, in order, once everything that was sent has its answer.
//
//	submit ──► queue: [sent, sent │ refused │ waiting] ──► pipe of the leader's node
//	   │         ▲   ▲                 │ all answered: look for the leader, send again
//	   │         │   └─────────────────┘
//	   └─led here, and no lane──► own host: what it refuses, since it lost the lead
//
// A batch of which nobody knows whether it was stored goes again if it is harmless
// twice. If not, that is its answer, and what stands behind it is refused, so that
// its publisher can send it again before them.
type lane struct {
	d  *dispatch
	id partition.PartitionID

	// Guarded by d.mu.
	queue   []*parcel
	sent    int              // without an answer
	to      partition.NodeID // where those went
	bytes   int              // of the queue
	next    uint64           // numbers the parcels
	stops   error            // what was refused, or broke: nothing is sent until sent is 0
	final   bool             // that does not pass by asking elsewhere
	unknown uint64           // the first parcel that ended unknown; 0: none
	closed  bool             // there was a refusal: the next batch opens the lane at the leader
	wait    time.Duration
	timer   *time.Timer // a look for the leader is to come
}

// A parcel is one batch on its way.
type parcel struct {
	number uint64
	batch  record.Batch
	done   func([]partition.Stored, error)
	from   *source
	until  time.Time // it is not sent again later
	sent   bool
	maybe  bool  // it was sent once, and may be stored
	err    error // why it was refused
	told   []partition.Stored
}

// harmless tells whether storing a batch again changes nothing.
func harmless(b record.Batch) bool {
	if id, _ := b.Producer(); len(id) > 0 {
		return true
	}
	if !b.HasIDs() {
		return false
	}
	all := true
	b.Each(func(_ int, r record.Raw) bool {
		all = r.HasID()
		return all
	})
	return all
}

// PublishAsync implements router.Log.
func (d *dispatch) PublishAsync(id uint64, batch []byte, done func([]router.Stored, error)) error {
	return d.publishRaw(d.own, nil, id, batch, done)
}

func (d *dispatch) publishRaw(here outlet, from *source, id uint64, batch []byte, done func([]router.Stored, error)) error {
	parsed, rest, err := record.Parse(batch)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errNotWhole
	}
	return d.publish(here, from, id, parsed, func(stored []partition.Stored, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(routerStored(stored), nil)
	})
}

// PublishBatch implements outlet.
func (d *dispatch) PublishBatch(id uint64, b record.Batch, done func([]partition.Stored, error)) error {
	return d.publish(d.own, nil, id, b, done)
}

// From implements partitions. Sources take turns where they come in; on their way
// to another node they are that node's one source.
func (d *dispatch) From(s partition.Source) outlet { return farSource{d, d.own.From(s), &source{}} }

// farSource is one source's way to partitions anywhere.
type farSource struct {
	d    *dispatch
	own  outlet
	from *source
}

// A source is who wants its batches stored in the order in which it gives them, such as
// a publish stream. It hears of a refusal a moment after the refusal, and may give
// another batch in between: that is refused as well, or the one that was refused and is
// sent again would be stored behind it.
type source struct {
	refused error // guarded by dispatch.mu
}

// refuse notes what became of a batch. The dispatch's mu is held.
func (s *source) refuse(id partition.PartitionID, err error) {
	switch {
	case s == nil || err == nil || s.refused != nil || !passes(err):
	case errors.As(err, new(*partition.ErrOutcomeUnknown)):
		s.refused = notLed(id) // of what comes behind it is known
	default:
		s.refused = err
	}
}

// over is why nothing more is taken; nil: it is. The dispatch's mu is held.
func (s *source) over() error {
	if s == nil {
		return nil
	}
	return s.refused
}

// PublishAsync implements router.Log.
func (f farSource) PublishAsync(id uint64, batch []byte, done func([]router.Stored, error)) error {
	return f.d.publishRaw(f.own, f.from, id, batch, done)
}

// PublishBatch implements outlet.
func (f farSource) PublishBatch(id uint64, b record.Batch, done func([]partition.Stored, error)) error {
	return f.d.publish(f.own, f.from, id, b, done)
}

// publish stores a batch here by its source, or puts it into its lane.
func (d *dispatch) publish(here outlet, from *source, id uint64, b record.Batch, done func([]partition.Stored, error)) error {
	pid := partition.PartitionID(id)
	if number := d.takeOff(pid, from); number > 0 {
		if r := d.b.disk.refuse(); r != nil {
			d.land(pid)
			return r
		}
		err := d.misled(pid, here.PublishBatch(id, b, func(stored []partition.Stored, err error) {
			if err != nil {
				d.fellBack(pid, &parcel{number: number, batch: b, done: done, from: from}, err)
				return
			}
			done(stored, nil) // first: then who gave it knows
			d.land(pid)
		}))
		if err == nil {
			return nil
		}
		d.land(pid)
		if !notTaken(err) {
			return err
		}
	}
	size := len(b.Bytes())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return &partition.ErrStopped{}
	}
	if err := from.over(); err != nil {
		return err
	}
	l := d.lane(pid)
	if len(l.queue) > 0 && l.bytes+size > laneBytes || d.queued > 0 && d.queued+size > lanesBytes {
		return &partition.ErrFull{Partition: pid, RetryAfter: laneFull}
	}
	l.next++
	l.bytes += size
	d.queued += size
	l.queue = append(l.queue, &parcel{number: l.next, batch: b, done: done, from: from, until: time.Now().Add(leaderPatience)})
	if l.stops == nil {
		l.send()
	}
	return nil
}

// lane finds the lane of a partition, or makes one. mu is held.
func (d *dispatch) lane(id partition.PartitionID) *lane {
	l := d.lanes[id]
	if l == nil {
		l = &lane{d: d, id: id, next: d.aloft[id].last}
		d.lanes[id] = l
	}
	return l
}

// send gives what was not sent to the pipe of the leader's node. d.mu is held.
func (l *lane) send() {
	n := l.d.leader1(l.id)
	if l.sent > 0 && n != l.to || l.d.aloft[l.id].n > 0 {
		l.stops = errMoved
		return
	}
	l.to = n
	var p *pipe
	if n != 0 && n != l.d.b.cfg.Node {
		p = l.d.pipe(n)
	}
	// Where a lane sends, what it sent before stands in front: a refusal stops it
	// until nothing is on its way.
	for _, x := range l.queue[l.sent:] {
		x.sent, x.err = true, nil
		opens := l.closed
		l.closed = false
		l.sent++
		switch {
		case n == 0:
			go l.answer(x, nil, notLed(l.id)) // not here, where the lock is held
		case p != nil:
			p.put(packet{lane: l, parcel: x, opens: opens})
		default:
			go l.toOwn(x) // the only one: the others wait for its answer
			l.stops = errMoved
			return
		}
	}
}

// errMoved holds a lane until everything that was sent has its answer, since the
// partition is led elsewhere: what is on its way may yet be refused, and what
// followed it at once would be stored before it. To this node batches go one by one.
var errMoved = errors.New("the partition moved, and batches for where it was led have no answer yet")

// toOwn stores a parcel where the partition came back to this node.
func (l *lane) toOwn(x *parcel) {
	err := l.d.own.PublishBatch(uint64(l.id), x.batch, func(stored []partition.Stored, err error) { l.answer(x, stored, err) })
	if err != nil {
		l.answer(x, nil, err)
	}
}

// answer takes what became of a parcel. It may be called from any goroutine but
// with d.mu held.
func (l *lane) answer(x *parcel, stored []partition.Stored, err error) {
	d := l.d
	err = d.misled(l.id, err)
	d.mu.Lock()
	l.sent--
	unknown := errors.As(err, new(*partition.ErrOutcomeUnknown))
	switch {
	case err == nil, !unknown && !passes(err):
		x.told, x.err = stored, err
		l.drop(x)
	case unknown && !harmless(x.batch):
		x.err = err
		l.drop(x)
		if l.unknown == 0 || x.number < l.unknown {
			l.unknown = x.number
		}
		l.stop(err, false)
	default:
		x.sent, x.err, x.maybe = false, err, x.maybe || unknown
		l.stop(err, !unknown && !notTaken(err))
	}
	var over []*parcel
	if x.sent { // else it goes again
		over = append(over, x)
	}
	over = append(over, l.goOn()...)
	d.mu.Unlock()
	tell(over)
}

// goOn goes on if everything that was sent has its answer. It returns the parcels
// that are over. d.mu is held.
func (l *lane) goOn() (over []*parcel) {
	if l.sent == 0 && l.stops != nil && l.timer == nil && l.d.aloft[l.id].n == 0 {
		over = l.drained()
	}
	if len(l.queue) == 0 {
		l.stops, l.wait = nil, 0
		if !l.closed {
			delete(l.d.lanes, l.id)
		}
	}
	return over
}

// tell tells what became of parcels.
func tell(over []*parcel) {
	for _, x := range over {
		if x.err != nil {
			x.done(nil, x.err)
		} else {
			x.done(x.told, nil)
		}
	}
}

// passes tells whether an error is one behind which nothing may be stored.
func passes(err error) bool {
	if errors.As(err, new(*errUnreached)) {
		return true
	}
	switch rowOf(reasonOf(err)).code {
	case "unavailable", "resource_exhausted", "canceled", "deadline_exceeded":
		return true
	}
	return false
}

func (l *lane) stop(err error, final bool) {
	if l.stops == nil || errors.Is(l.stops, errMoved) {
		l.stops = err
	}
	l.final = l.final || final
	l.closed = true
}

// drop lets go of a parcel, which has its answer.
func (l *lane) drop(x *parcel) {
	x.from.refuse(l.id, x.err)
	n := len(x.batch.Bytes())
	l.bytes -= n
	l.d.queued -= n
	if l.queue[0] == x { // answers come in order, but for those of this node
		l.queue[0] = nil
		l.queue = l.queue[1:]
		return
	}
	i := slices.Index(l.queue, x)
	l.queue = slices.Delete(l.queue, i, i+1)
}

// drained goes on after everything that was sent has its answer. It returns the
// parcels that are over. d.mu is held.
func (l *lane) drained() (over []*parcel) {
	why := l.stops
	end := func(x *parcel) {
		switch {
		case x.maybe:
			x.err = &partition.ErrOutcomeUnknown{Partition: l.id, Why: "its leader was lost, and no other was found in time"}
		case x.err == nil || errors.As(x.err, new(*errUnreached)) || errors.As(x.err, new(*partition.ErrOutcomeUnknown)):
			x.err = refused(l.id, why)
			if errors.As(x.err, new(*partition.ErrOutcomeUnknown)) || errors.Is(x.err, errMoved) {
				x.err = notLed(l.id) // it is known of this one: it was not sent
			}
		}
		l.drop(x)
		over = append(over, x)
	}
	now := time.Now()
	late := l.final || l.d.shut || len(l.queue) > 0 && now.After(l.queue[0].until)
	for _, x := range slices.Clone(l.queue) {
		if late || l.unknown != 0 && x.number > l.unknown {
			end(x)
		}
	}
	l.final, l.unknown = false, 0
	if len(l.queue) == 0 {
		return over
	}
	if errors.Is(why, errMoved) {
		l.stops = nil
		l.send()
		return over
	}
	l.d.learn1(l.id, why)
	l.wait = min(max(2*l.wait, firstLook), lastLook)
	l.timer = time.AfterFunc(l.wait, l.again)
	return over
}

// again sends what was refused once more.
func (l *lane) again() {
	l.d.mu.Lock()
	l.timer = nil
	var over []*parcel
	switch {
	case l.d.shut:
		l.stops = &partition.ErrStopped{}
		over = l.drained()
	case l.sent == 0 && len(l.queue) > 0:
		l.stops = nil
		l.send()
	}
	l.d.mu.Unlock()
	tell(over)
}

// close ends all lanes: what waits is refused, what was sent is not known.
func (d *dispatch) close() {
	d.mu.Lock()
	d.shut = true
	pipes := make([]*pipe, 0, len(d.pipes))
	for _, p := range d.pipes {
		pipes = append(pipes, p)
	}
	var over []*parcel
	for _, l := range d.lanes {
		if l.timer != nil && l.timer.Stop() {
			l.stops = &partition.ErrStopped{}
			over = append(over, l.drained()...)
		}
	}
	d.mu.Unlock()
	tell(over)
	for _, p := range pipes {
		p.end()
	}
}
