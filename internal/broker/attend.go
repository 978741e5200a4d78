package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The bounds of a stream of deliveries.
const (
	maxCredit       = 1_000_000
	maxWindow       = 10_000
	defaultWindow   = 100
	maxNumber       = 1 << 62 // of a delivery; no stream comes near it
	maxSettleRuns   = 1000
	frameBytes      = 1 << 20 // of keys, headers and bodies in a frame, beside the first delivery
	frameMessages   = 1000    // readable ones in a frame
	leastFrame      = 8 << 10 // the same when streams hold much
	leastGranted    = 64
	grantedAtOnce   = 8192   // of a member's credit, handed on to its partitions
	maxSettled      = 65_536 // deliveries that a frame's settlements name
	settlesInFlight = 65_536 // those of frames that are not yet answered
)

// A frame is what a stream of deliveries tells its member at once.
type frame struct {
	first      bool
	assignment *strandmqv1.Assignment // nil: as before
	deliveries []consumer.Handed
	settled    []consumer.SettleRunResult
	answers    int    // deliveries of settlements that are answered whole with this one
	idle       string // in a frame without deliveries
}

// An attendant serves one member's stream from its opening to its end: the
// session, the assignment as it changes, the deliveries as they are handed out,
// and what becomes of settlements. It runs on the goroutine that sends.
//
//	coordinator ── assignment ──┐
//	partitions ── hand-outs ────┼──► serve ── frame ──► send
//	partitions ── settlements ──┘      ▲
//	                credit, end ───────┘ from the goroutine that reads
//
// Member and session live as long as the member takes frames: one goes out at
// least every third of the session timeout, and the sender is cut when a frame
// is not taken within a whole one. So the attendant speaks for the member to the
// coordinator as often as it comes by. A member that sends signs of life has to go on
// sending something, too: see still.
type attendant struct {
	attendance
	b      *Broker
	flow   *flow
	topic  *topic
	name   string // of the group
	member string
	format strandmqv1.BodyFormat
	stream deliveries
	drains draining
	send   func(*frame) error
	meter  deliveryMeter

	taken int64           // serve's: counted for the frame that it has
	short <-chan struct{} // serve's: closed when there may be memory for a frame; nil: not waited for

	signs   atomic.Bool // the member sends signs of life: see still
	waits   atomic.Bool // the goroutine that reads waits for a frame
	moved   uint64      // deliver's: what flow.moved was at the last beat
	without int         // deliver's: beats in a row without anything from the member

	wake chan struct{} // one place: serve has something to look at
	sent chan struct{} // one place: a frame went out

	mu       sync.Mutex
	credit   int                        // guarded by mu: the member's, not handed on yet
	granted  int                        // guarded by mu: handed on and not sent
	sending  int                        // guarded by mu: of those, in the frame that is being sent
	results  []consumer.SettleRunResult // guarded by mu: known and not told
	answers  int                        // guarded by mu: deliveries of settlements whose results are known
	settling int                        // guarded by mu: those of frames that are not answered whole
	ending   *ending                    // guarded by mu: why it ends; the first reason stays
}

// An ending is why a stream ends, and whether what its member holds is charged.
type ending struct {
	err  error
	lost bool
}

// memberOf is who opens a stream.
type memberOf struct {
	topic, group, member string
	create               bool
	format               strandmqv1.BodyFormat
}

// newAttendant opens a session for a stream. A session of the same member that is
// still open ends, charged.
func (b *Broker) newAttendant(ctx context.Context, who memberOf) (*attendant, error) {
	if err := names.Member(who.member); err != nil {
		return nil, inField(err, "member")
	}
	if r := checkFormat(who.format); r != nil {
		return nil, r
	}
	seen := b.revision()
	t, g, err := b.ensureGroup(ctx, who.topic, who.group, who.create)
	if err != nil && missing(err) && b.caughtUp(ctx, seen) {
		t, g, err = b.ensureGroup(ctx, who.topic, who.group, who.create)
	}
	if err != nil {
		return nil, err
	}
	j, err := b.join(ctx, b.members.JoinStream, t.Name, g.Name, who.member)
	if err != nil {
		return nil, err
	}
	a := &attendant{
		attendance: attendance{group: consumer.GroupID(j.Group.ID), session: j.Member.Session},
		b:          b, flow: flowOf(ctx), topic: t, name: g.Name, member: who.member, format: who.format, meter: b.deliveryMeter(t.Name, g.Name),
		wake: make(chan struct{}, 1), sent: make(chan struct{}, 1),
	}
	a.flow.takeTime = b.cfg.SessionTimeout
	a.stream, err = b.openStream(ctx, consumer.StreamRequest{Group: a.group, Member: who.member, Session: a.session, MaxBytes: frameBytes}, a.flow.mem)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// join opens a session, by Join or JoinStream, and ends an earlier one of the same
// member.
func (b *Broker) join(ctx context.Context, open func(ctx context.Context, topic, group, member string) (coordinator.Joined, error), topic, group, member string) (coordinator.Joined, error) {
	j, err := open(ctx, topic, group, member)
	if err == nil && j.Replaced != 0 {
		// The watcher would do this too; the answer means that it is done.
		b.sessionEnded(ctx, j.Topic, consumer.GroupID(j.Group.ID), j.Member.Name, j.Replaced)
	}
	return j, err
}

// addCredit lets the member be handed out n more, unless it drains.
func (a *attendant) addCredit(n int) error {
	if a.isDraining() {
		return nil
	}
	a.mu.Lock()
	a.credit += n
	if all := a.credit + a.granted - a.sending; all > maxCredit {
		a.mu.Unlock()
		return refuse("BAD_VALUE", "credits", "with these the stream has %d credits that are not used up: at most %d may be", all, maxCredit)
	}
	a.grant()
	return nil
}

// grant hands credit on, and unlocks. Only some at a time, so that what waits
// here to be sent is little however much the member takes.
func (a *attendant) grant() {
	most := min(grantedAtOnce, max(leastGranted, a.granted+int(a.flow.mem.room()/4/grantCost)))
	n := max(0, min(a.credit, most-a.granted))
	a.flow.mem.add(int64(n) * grantCost)
	a.credit -= n
	a.granted += n
	a.mu.Unlock()
	if n > 0 {
		a.stream.AddCredit(n)
	}
}

// end tells the stream to end. The first reason stays.
func (a *attendant) end(e ending) {
	a.mu.Lock()
	if a.ending == nil {
		a.ending = &e
	}
	a.mu.Unlock()
	nudge(a.wake)
}

// settle settles runs of n deliveries. It waits while too many are on their way,
// and gives up when the stream ends.
func (a *attendant) settle(ctx context.Context, runs []consumer.SettleRun, n int) {
	for {
		a.mu.Lock()
		over, room := a.ending != nil, a.settling+n <= settlesInFlight
		if room && !over {
			a.settling += n
		}
		a.mu.Unlock()
		if over {
			return
		}
		if room {
			break
		}
		select {
		case <-a.sent:
		case <-ctx.Done():
			return
		}
	}
	a.stream.Settle(ctx, runs, func(results []consumer.SettleRunResult) {
		a.countRefused(ctx, results)
		a.mu.Lock()
		a.answers += n
		a.results = append(a.results, results...)
		a.mu.Unlock()
		nudge(a.wake)
	})
}

// serve sends frames until the stream ends, and closes the session. The error is
// the stream's.
func (a *attendant) serve(ctx context.Context) error {
	a.b.live.add(&a.attendance)
	e := ending{lost: true}
	defer func() { // after a panic, too
		a.end(e)
		nudge(a.sent) // the reader may wait for room to settle, which nobody makes any more
		a.close(e.lost)
	}()
	e = a.deliver(ctx)
	return e.err
}

// deliver sends frames until the stream ends.
func (a *attendant) deliver(ctx context.Context) ending {
	beat := time.NewTicker(a.b.cfg.SessionTimeout / beats)
	defer beat.Stop()
	out := frame{first: true}
	shares, changed, err := a.assign(nil)
	if err != nil {
		return ending{err, true}
	}
	out.assignment = assignmentOf(shares)
	quiet := false // nothing went out since the last beat
	stop := func() {}
	defer func() { stop() }()
	for {
		if a.tellDrain() {
			stop = a.telling(ctx) // once at most
		}
		if !out.first { // which says what comes, before anything does
			if e := a.fill(ctx, &out); e != nil {
				return *e
			}
		}
		if out.first || out.assignment != nil || len(out.deliveries) > 0 || len(out.settled) > 0 || out.answers > 0 || out.idle != "" {
			a.sends(&out)
			if err := a.send(&out); err != nil {
				return ending{fmt.Errorf("the stream broke: %w", context.Canceled), true}
			}
			quiet = false
			a.told(&out)
			out = frame{}
			nudge(a.sent)
			continue
		}
		select {
		case <-a.stream.Ready():
		case <-a.wake:
		case <-a.short:
		case <-changed:
			var now []coordinator.Share
			if now, changed, err = a.assign(shares); err != nil {
				return a.ended(err)
			}
			if !slices.Equal(now, shares) {
				shares, out.assignment = now, assignmentOf(now)
			}
		case <-beat.C:
			if a.still() {
				return ending{a.silent(), true}
			}
			if _, err := a.b.members.Heartbeat(ctx, coordinator.GroupID(a.group), a.member, a.session); err != nil {
				return a.ended(err)
			}
			if a.window != nil {
				a.window.lapsed(a.b.groups.Now())
			}
			a.ask(sharesOf(a.topic, shares)) // a partition that was led elsewhere is asked again
			switch {
			case quiet && a.isDraining():
				out.idle = drains
			case quiet:
				out.idle = a.stream.WhyIdle(ctx)
			}
			quiet = true
		case <-ctx.Done():
			return ending{ctx.Err(), true}
		case <-a.b.serving.Done():
			return ending{a.b.stopping(), false}
		}
	}
}

// beats is how often in a session timeout the attendant speaks for its member.
const beats = 6

// still tells at a beat whether the member has been silent for a whole session timeout, if
// it sends signs of life. Its kernel takes frames and answers pings also while the process
// stands still, so that they come is all that there is to see. Beats are counted and not
// time, since this process may have stood still itself, with signs that nobody has read.
func (a *attendant) still() bool {
	moved := a.flow.moved.Load()
	if !a.signs.Load() || !a.waits.Load() || moved != a.moved {
		a.moved, a.without = moved, 0
		return false
	}
	a.without++
	return a.without > beats
}

// silent is the end of a stream whose member stands still. When it comes back it may begin
// another session at once, unlike one whose name another process has.
func (a *attendant) silent() error {
	r := refuse("SESSION_ENDED", "session", "member %s sent signs of life, and then nothing for %v: open another stream", plain.Quote(a.member), a.b.cfg.SessionTimeout)
	r.retryAfter = time.Millisecond
	return r
}

// fill takes what is there to tell. An ending comes behind the settlements that
// are on their way.
func (a *attendant) fill(ctx context.Context, out *frame) *ending {
	a.mu.Lock()
	if n := min(len(a.results), frameMessages); n > 0 {
		out.settled = append(out.settled, a.results[:n]...)
		a.results = slices.Delete(a.results, 0, n)
	}
	if len(a.results) == 0 {
		a.results = nil
		out.answers, a.answers = out.answers+a.answers, 0
	}
	e, settling := a.ending, a.settling
	a.mu.Unlock()
	if e != nil {
		if e.lost || settling == 0 {
			return e
		}
		return nil
	}
	if len(out.deliveries) > 0 {
		return nil
	}
	hs, err := a.poll()
	for err == nil && len(hs) > 0 && a.isDraining() {
		if hs = a.giveBack(ctx, hs); len(hs) > 0 {
			break
		}
		hs, err = a.poll()
	}
	if err != nil {
		e := a.ended(err)
		return &e
	}
	if out.deliveries = hs; len(hs) > 0 {
		out.idle = "" // they came meanwhile
	}
	return nil
}

// poll takes deliveries for a frame: as many as the memory of streams has room for,
// but one at least. While there is none for that, it gives nothing and a.short tells
// when to come again.
func (a *attendant) poll() ([]consumer.Handed, error) {
	mem, most := a.flow.mem, leastFrame
	first, elsewhere := a.stream.First()
	if first > 0 {
		most = max(most, first, min(frameBytes, int(mem.room()/frameCopies)))
	}
	cost, counted := int64(most)*frameCopies, int64(0)
	if elsewhere {
		// It counts since the other node was let send it. So it goes on even when such
		// messages are all that there is memory for.
		counted = int64(first) * frameCopies
	}
	var taken bool
	if taken, a.short = mem.take(cost-counted, most == first); !taken {
		return nil, nil
	}
	hs, err := a.stream.Poll(most)
	for i := range hs {
		a.taken += hs[i].Bytes()*frameCopies + int64(len(hs[i].Deliveries))*deliveryCost
	}
	mem.give(cost - counted - a.taken)
	if g, ok := a.stream.(*gather); ok {
		g.polled()
	}
	return hs, err
}

// sends notes what goes out: the member may have it, and give more credit, before
// the sender comes back.
func (a *attendant) sends(out *frame) {
	n := 0
	for i := range out.deliveries {
		n += len(out.deliveries[i].Deliveries)
	}
	a.mu.Lock()
	a.sending = n
	a.mu.Unlock()
}

// told notes what went out.
func (a *attendant) told(out *frame) {
	a.flow.mem.give(a.taken)
	a.taken = 0
	n := 0
	for i := range out.deliveries {
		n += len(out.deliveries[i].Deliveries)
	}
	a.mu.Lock()
	a.settling -= out.answers
	a.granted -= n
	a.sending = 0
	a.flow.mem.give(int64(n) * grantCost)
	a.grant()
}

// ended is the end of a stream whose session is no more. After a Leave that is
// as it should be.
func (a *attendant) ended(err error) ending {
	if a.left.Load() {
		return ending{nil, false}
	}
	return ending{a.b.ended(a.topic, coordinator.GroupID(a.group), err), true}
}

// assign looks at the member's present shares and asks their partitions.
func (a *attendant) assign(before []coordinator.Share) ([]coordinator.Share, <-chan struct{}, error) {
	m, changed := a.b.coord.Watch()
	g, ok := m.GroupByID(coordinator.GroupID(a.group))
	if !ok {
		return nil, nil, errGroupGone()
	}
	member, err := g.Session(a.member, a.session)
	if err != nil {
		return nil, nil, err
	}
	if before != nil && slices.Equal(before, member.Shares) {
		return before, changed, nil
	}
	if member.Draining {
		a.drain(false)
	}
	a.ask(a.b.sessions.shares(a.topic, member))
	return member.Shares, changed, nil
}

// close ends the session, in the partitions and then in the map.
func (a *attendant) close(lost bool) {
	b := a.b
	b.live.remove(&a.attendance)
	ctx, cancel := b.finishing(withRequest(b.calls, a.flow.by))
	defer cancel()
	if b.groupGone(a.topic, coordinator.GroupID(a.group)) != nil {
		// What it held goes with its group, and so does the session. The partitions may be
		// gone, too, and nobody is to wait for a leader of theirs.
		cancel()
		_ = a.stream.Close(ctx, lost)
		b.sessions.take(a.session)
		return
	}
	if err := a.stream.Close(ctx, lost); err != nil && b.serving.Err() == nil && !errors.As(err, new(*partition.ErrDamaged)) && !errors.As(err, new(*partition.ErrUnknownPartition)) {
		// The deliveries lapse at their deadlines instead.
		b.log.WarnContext(ctx, "cannot end a stream's session in all partitions", "topic", a.topic.Name, "group", a.name, "member", a.member, "err", err)
	}
	b.sessions.take(a.session)
	err := b.members.Leave(ctx, coordinator.GroupID(a.group), a.member, a.session)
	if err == nil || b.serving.Err() != nil || errors.As(err, new(*coordinator.ErrSessionEnded)) || errors.As(err, new(*coordinator.ErrNotFound)) {
		return
	}
	b.log.WarnContext(ctx, "cannot end a stream's session", "topic", a.topic.Name, "group", a.name, "member", a.member, "err", err)
}

func assignmentOf(shares []coordinator.Share) *strandmqv1.Assignment {
	return &strandmqv1.Assignment{Shares: assignment(&coordinator.Member{Shares: shares})}
}
