package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// deliveries is a member's stream of deliveries as its attendant uses it.
type deliveries interface {
	SetShares(shares []consumer.Share)
	AddCredit(n int)
	Ready() <-chan struct{}
	First() (size int, elsewhere bool)
	Poll(maxBytes int) ([]consumer.Handed, error)
	Settle(ctx context.Context, runs []consumer.SettleRun, done func([]consumer.SettleRunResult))
	Forget()
	Token(h *consumer.Handed, i int) consumer.Token
	WhyIdle(ctx context.Context) string
	Close(ctx context.Context, lost bool) error
}

// openStream opens a member's stream over the partitions, wherever they are led.
// What other nodes hand out counts in mem until Poll gives it.
func (b *Broker) openStream(ctx context.Context, req consumer.StreamRequest, mem *holding) (deliveries, error) {
	if b.far == nil {
		return b.groups.Open(req)
	}
	return b.far.gather(ctx, req, mem)
}

// A gather is a member's stream over partitions that several nodes lead. The
// stream here numbers deliveries, remembers what is out, and has the member's
// credit; where others lead there is one attachment for each node, with a part of
// the credit on loan. So no more is handed out anywhere than the member takes:
//
//	member's credit = in the stream (for the partitions led here) + on loan
//
// A leader that has something and no credit says that it is hungry; then it gets
// some, which is called back from those who have some and nothing to hand out.
//
// When a partition is led by another node than before, it is asked there, and what
// its log says was handed out to the session and did not come, comes.
//
// Messages from other nodes are held here until the member takes them, so a node gets
// bytes on loan, too: see attachment.lend.
type gather struct {
	*consumer.Stream
	d       *dispatch
	req     consumer.StreamRequest
	mem     *holding        // for what comes from other nodes; nil: nothing is to come
	wake    chan struct{}   // one place: the stream has ends, or is hungry
	starved chan struct{}   // one place: someone is hungry, and there is no credit
	ctx     context.Context //nolint:containedctx // of all that runs for the stream, until Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	attach  func(*attachment) // runs one; a test has its own

	ending sync.Mutex // after all others: partitions hold it for a moment, too
	ended  bool       // guarded by ending: nothing more is made to run that settles

	mu      sync.Mutex // before the locks of attachments and of the stream
	shares  []consumer.Share
	own     map[partition.PartitionID]bool // asked here
	had     map[partition.PartitionID]bool // asked anywhere, ever
	at      map[partition.NodeID]*attachment
	adopted []consumer.Handed // wait for credit
	counted int64             // bytes that came and wait, as mem counts them
	owes    int               // handed out without credit
	turn    int               // who gets a single credit
	wait    time.Duration     // before partitions are placed anew
	timer   *time.Timer
	err     error // the end of the session
	closed  bool

	waiting atomic.Int64 // counted, for attachments
	crowd   atomic.Int64 // how many attachments share the least that is lent
}

// gather opens a stream that lives until it is closed, for the request that ctx has.
func (d *dispatch) gather(ctx context.Context, req consumer.StreamRequest, mem *holding) (*gather, error) {
	g := &gather{
		d: d, mem: mem, wake: make(chan struct{}, 1), starved: make(chan struct{}, 1), own: map[partition.PartitionID]bool{},
		had: map[partition.PartitionID]bool{}, at: map[partition.NodeID]*attachment{},
	}
	req.Elsewhere, req.Again = g.settleElsewhere, g.settleAgain
	req.Told = func() { nudge(g.wake) }
	var err error
	if g.Stream, err = d.b.groups.Open(req); err != nil {
		return nil, err
	}
	g.req = req
	g.ctx, g.cancel = context.WithCancel(withRequest(context.Background(), requestOf(ctx)))
	g.attach = func(a *attachment) { g.running.Go(a.run) }
	g.running.Go(g.listen)
	return g, nil
}

// listen hears what the stream here has to tell beside deliveries.
func (g *gather) listen() {
	for {
		select {
		case <-g.wake:
		case <-g.ctx.Done():
			return
		}
		for _, e := range g.Ends() {
			g.lost(e.Partition, e.Why)
		}
		if g.Hungry() {
			g.mu.Lock()
			g.recall()
			g.mu.Unlock()
		}
	}
}

// SetShares implements deliveries.
func (g *gather) SetShares(shares []consumer.Share) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shares = slices.DeleteFunc(slices.Clone(shares), func(s consumer.Share) bool { return s.HeldOnly })
	g.wait = 0
	g.place()
}

// place asks every partition where it is led. mu is held.
func (g *gather) place() {
	if g.closed {
		return
	}
	by := g.d.byLeader(g.shares)
	self := g.d.b.cfg.Node
	own := map[partition.PartitionID]bool{}
	var adopt []partition.PartitionID
	for _, s := range by[self] {
		own[s.Partition] = true
		if g.had[s.Partition] && !g.own[s.Partition] {
			adopt = append(adopt, s.Partition)
		}
	}
	for _, s := range g.shares {
		g.had[s.Partition] = true
	}
	g.own = own
	for _, p := range adopt {
		g.Adopt(p, g.Seen(p))
	}
	g.Stream.SetShares(by[self])
	for n, a := range g.at {
		if len(by[n]) == 0 {
			a.setShares(nil)
		}
	}
	g.crowd.Store(int64(max(1, len(g.at), len(by))))
	for _, n := range g.d.inOrder(by) {
		if n == 0 || n == self {
			continue
		}
		a := g.at[n]
		if a == nil {
			a = newAttachment(g, n)
			g.at[n] = a
			g.attach(a)
		}
		a.setShares(by[n])
	}
	if len(by[0]) > 0 {
		g.placeLater()
	}
	g.distribute()
}

// placeLater places the partitions anew after a while. mu is held.
func (g *gather) placeLater() {
	if g.timer != nil || g.closed {
		return
	}
	g.wait = min(max(2*g.wait, firstLook), lastLook)
	g.timer = time.AfterFunc(g.wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.timer = nil
		g.place()
	})
}

// lost notes that a partition sent the stream away.
func (g *gather) lost(p partition.PartitionID, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.own, p)
	g.forget(func(of partition.PartitionID) bool { return of == p })
	g.d.learn(p, why)
	g.placeLater()
}

// forget drops what was adopted and not given out, of partitions that will be
// asked anew: it is told again then. mu is held.
func (g *gather) forget(of func(partition.PartitionID) bool) {
	g.adopted = slices.DeleteFunc(g.adopted, func(h consumer.Handed) bool { return of(h.Partition) })
	g.recount()
}

// recount counts what came from other nodes and waits. mu is held.
func (g *gather) recount() {
	n := g.Waiting()
	for i := range g.adopted {
		n += g.adopted[i].Bytes()
	}
	if g.mem == nil || n == g.counted {
		return
	}
	less := g.counted - n
	g.counted = n
	g.waiting.Store(n)
	g.mem.give(less * frameCopies)
	if less > 0 {
		for _, a := range g.at {
			nudge(a.wake)
		}
	}
}

// polled tells that what Poll gave counts elsewhere now.
func (g *gather) polled() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recount()
}

// fail ends the stream.
func (g *gather) fail(err error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = err
	}
	g.mu.Unlock()
	g.Signal()
}

// Poll implements deliveries.
func (g *gather) Poll(maxBytes int) ([]consumer.Handed, error) {
	hs, err := g.Stream.Poll(maxBytes)
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range hs {
		if hs[i].Again { // adopted here
			g.owes += len(hs[i].Deliveries)
		}
	}
	if g.owes > 0 {
		g.owes -= g.Lease(g.owes)
	}
	if err == nil && len(hs) == 0 {
		err = g.err
	}
	return hs, err
}

// AddCredit implements deliveries.
func (g *gather) AddCredit(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pays := min(n, g.owes)
	g.owes -= pays
	g.credit(n - pays)
	g.distribute()
}

// credit divides new credit among those who hand out. mu is held.
func (g *gather) credit(n int) {
	asks := g.asks()
	of := len(asks)
	if len(g.own) > 0 {
		of++
	}
	if of > 0 && len(g.adopted) == 0 {
		each := n / of
		for _, a := range asks {
			if each > 0 && a.grant(each) {
				n -= each
			}
		}
		if each == 0 && n > 0 && len(g.own) == 0 {
			g.turn++
			if asks[g.turn%len(asks)].grant(n) {
				n = 0
			}
		}
	}
	if n > 0 {
		g.Stream.AddCredit(n)
	}
}

// asks are the attachments that have partitions, in the order of nodes. mu is held.
func (g *gather) asks() []*attachment {
	out := make([]*attachment, 0, len(g.at))
	for _, a := range g.at {
		if a.asking() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *attachment) int { return int(a.node) - int(b.node) })
	return out
}

// distribute gives what credit there is to those who wait for some, and calls some
// back if there is none. mu is held.
func (g *gather) distribute() {
	for len(g.adopted) > 0 {
		h := &g.adopted[0]
		n := g.Lease(len(h.Deliveries))
		if n == 0 {
			g.recall()
			return
		}
		part := *h
		part.Deliveries = h.Deliveries[:n:n]
		part.Again = false // it has its credit: Poll must not take another for it
		g.Take(part)
		if h.Deliveries = h.Deliveries[n:]; len(h.Deliveries) == 0 {
			g.adopted = g.adopted[1:]
		}
	}
	var hungry []*attachment
	for _, a := range g.asks() {
		if a.hungers() {
			hungry = append(hungry, a)
		}
	}
	if len(hungry) == 0 {
		return
	}
	all := g.Lease(maxCredit)
	if all == 0 {
		g.recall()
		nudge(g.starved)
		return
	}
	of := len(hungry)
	if len(g.own) > 0 && all > of {
		of++
	}
	for _, a := range hungry {
		if n := min(all, max(1, all/of)); n > 0 && a.grant(n) {
			all -= n
			of = max(1, of-1)
		}
	}
	if all > 0 {
		g.Stream.AddCredit(all)
	}
}

// recall calls credit back from those who do not use it. mu is held.
func (g *gather) recall() {
	nudge(g.starved)
	for _, a := range g.at {
		a.recallIdle()
	}
}

// came takes what an attachment brought. The leased credit was counted there.
func (g *gather) came(a *attachment, hs []consumer.Handed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = 0
	for _, h := range hs {
		if !h.Again {
			n := len(h.Deliveries)
			if !a.asks(h.Partition) {
				g.News(&h) // it moved meanwhile, and who leads now may have told of it
			}
			g.Take(h)
			if back := n - len(h.Deliveries); back > 0 {
				g.Stream.AddCredit(back)
			}
			continue
		}
		if !a.asks(h.Partition) {
			continue // whoever is asked now tells it
		}
		g.News(&h)
		if len(h.Deliveries) > 0 {
			g.adopted = append(g.adopted, h)
			g.distribute()
		}
	}
	g.recount()
}

// back takes credit back that was on loan.
func (g *gather) back(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n > 0 {
		g.Stream.AddCredit(n)
	}
	g.distribute()
}

// hungry hears that someone is.
func (g *gather) hungry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.distribute()
}

// gone forgets an attachment that ended.
func (g *gather) gone(a *attachment, shares []consumer.Share, loan int, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem != nil {
		g.mem.give(bytes * frameCopies)
	}
	if g.at[a.node] == a {
		delete(g.at, a.node)
	}
	g.forget(func(p partition.PartitionID) bool {
		return slices.ContainsFunc(shares, func(s consumer.Share) bool { return s.Partition == p })
	})
	if loan > 0 {
		g.Stream.AddCredit(loan)
	}
	if g.ctx.Err() == nil {
		g.placeLater()
	}
}

// settleElsewhere implements StreamRequest.Elsewhere.
func (g *gather) settleElsewhere(p partition.PartitionID, list []consumer.Settlement, done func([]consumer.SettleResult)) bool {
	n := g.d.leader(p)
	if n == g.d.b.cfg.Node {
		return false
	}
	again := func(results []consumer.SettleResult) { g.settleAgain(list, results, done) }
	g.mu.Lock()
	a := g.at[n]
	g.mu.Unlock()
	if a == nil || !a.settle(p, list, again) {
		again(settledAs(len(list), notLed(p)))
	}
	return true
}

// settleAgain implements StreamRequest.Again, for what other nodes did not take, too.
func (g *gather) settleAgain(list []consumer.Settlement, results []consumer.SettleResult, done func([]consumer.SettleResult)) {
	if !retries(list, results) {
		done(results)
		return
	}
	g.ending.Lock()
	defer g.ending.Unlock()
	if g.ended {
		why := &partition.ErrOutcomeUnknown{Partition: list[0].Token.Partition, Why: "the stream ended before its answer came"}
		go done(settledAs(len(list), why)) // not here: who is told may look at the stream
		return
	}
	g.running.Go(func() { // ends with the patience of one call, or the stream
		ctx, cancel := context.WithTimeout(g.ctx, leaderPatience)
		defer cancel()
		done(g.d.settle(ctx, g.req.Group, list))
	})
}

// retries tells whether settlements that did not get through may be made again.
func retries(list []consumer.Settlement, results []consumer.SettleResult) bool {
	for i := range results {
		if err := results[i].Err; notTaken(err) || errors.As(err, new(*partition.ErrOutcomeUnknown)) && list[i].Action != consumer.Release {
			return true
		}
	}
	return false
}

// WhyIdle implements deliveries.
func (g *gather) WhyIdle(ctx context.Context) string {
	g.mu.Lock()
	shares, loans := slices.Clone(g.shares), 0
	for _, a := range g.at {
		loans += a.loaned()
		a.shrink() // nothing goes out: others may need the memory
	}
	free := g.Lease(maxCredit)
	g.Stream.AddCredit(free)
	g.mu.Unlock()
	if free+loans <= 0 {
		return "the member gave no credit"
	}
	return g.d.whyIdle(ctx, g.req.Group, shares)
}

// whyIdle asks every node why its partitions hand nothing out.
func (d *dispatch) whyIdle(ctx context.Context, gid consumer.GroupID, shares []consumer.Share) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var whys []string
	by := d.byLeader(shares)
	for _, n := range d.inOrder(by) {
		why := "a partition has no leader at the moment"
		switch n {
		case 0:
		case d.b.cfg.Node:
			why = d.b.groups.WhyIdle(ctx, gid, by[n])
		default:
			why = fmt.Sprintf("node %v, which leads partitions of the topic, was not asked in time", n)
			if r, err := d.remote(n); err == nil {
				if res, err := r.parts.WhyIdle(ctx, &nodev1.WhyIdleRequest{Group: uint64(gid), Shares: sharesTo(by[n], nil)}); err == nil {
					why = res.GetWhy()
				}
			}
		}
		if why != consumer.NothingLeft && !slices.Contains(whys, why) && len(whys) < 3 {
			whys = append(whys, why)
		}
	}
	switch {
	case len(shares) == 0:
		return d.b.groups.WhyIdle(ctx, gid, nil)
	case len(whys) == 0:
		return consumer.NothingLeft
	}
	return strings.Join(whys, "; ")
}

// Close implements deliveries: the attachments end, and every partition that the
// stream asked is told of its session's end.
func (g *gather) Close(ctx context.Context, lost bool) error {
	had := g.detach()
	var calls errgroup.Group
	calls.SetLimit(64)
	var mu sync.Mutex
	var errs []error
	for p := range had {
		calls.Go(func() error {
			err := g.d.EndSession(ctx, p, g.req.Group, g.req.Member, g.req.Session+1, lost)
			if err != nil && !errors.As(err, new(*consumer.ErrUnknownGroup)) {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = calls.Wait()
	return errors.Join(errs...)
}

// detach ends all that runs for the stream, and leaves the session as it is.
func (g *gather) detach() map[partition.PartitionID]bool {
	g.mu.Lock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
	had := g.had
	g.had = nil
	g.mu.Unlock()
	g.ending.Lock()
	g.ended = true
	g.ending.Unlock()
	g.cancel()
	g.Detach()
	g.running.Wait()
	return had
}
