package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// take receives from the partitions, wherever they are led.
func (b *Broker) take(ctx context.Context, req consumer.ReceiveRequest) ([]consumer.Delivery, string, error) {
	if b.far == nil || !slices.ContainsFunc(req.Shares, func(s consumer.Share) bool { return !b.far.here(s.Partition) }) {
		return b.groups.Receive(ctx, req)
	}
	return b.far.receive(ctx, req)
}

// receive is Receive over several nodes. First all are asked what the session
// holds, so that a retry gets the same again; then one after the other for as much
// as is still wanted, so that nothing is handed out beyond it. Without anything, a
// stream without credit waits until some partition has something.
func (d *dispatch) receive(ctx context.Context, req consumer.ReceiveRequest) ([]consumer.Delivery, string, error) {
	end := time.Now().Add(req.Wait)
	pause := time.Duration(0)
	for {
		held, room, err := d.held(ctx, req)
		if err != nil {
			return nil, "", err
		}
		if len(held) > 0 && (req.RequestID != "" || len(held) >= req.Max) {
			return held[:min(len(held), req.Max)], "", nil
		}
		got, idle := held, "the member holds as many deliveries as the group allows: settle some"
		if credit := min(req.Max-len(held), room); credit > 0 {
			if got, idle, err = d.fresh(ctx, req, held, credit); err != nil {
				return nil, "", err
			}
		}
		if len(got) > 0 {
			return got, "", nil
		}
		left := time.Until(end)
		if left <= 0 {
			return nil, idle, nil
		}
		if err := d.awaitSome(ctx, req, min(left, pause), left); err != nil {
			return nil, "", err
		}
		pause = min(max(2*pause, 5*time.Millisecond), 100*time.Millisecond)
	}
}

// held gives what a session holds, and how many more its member may get.
func (d *dispatch) held(ctx context.Context, req consumer.ReceiveRequest) (held []consumer.Delivery, room int, err error) {
	by := d.byLeader(req.Shares)
	var mu sync.Mutex
	var calls sync.WaitGroup
	inFlight, limit, heard := 0, 0, false
	var failed, final error
	var unsure []consumer.Share
	for _, n := range d.inOrder(by) {
		calls.Go(func() {
			ds, has, most, err := d.heldAt(ctx, n, req, by[n])
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				heard = true
				held, inFlight, limit = append(held, ds...), inFlight+has, max(limit, most)
			case errors.As(err, new(*consumer.ErrUnknownGroup)) || errors.As(err, new(*consumer.ErrSessionEnded)):
				final = err
			default:
				failed = err
				unsure = append(unsure, by[n]...)
				for _, s := range by[n] {
					d.learn(s.Partition, err)
				}
			}
		})
	}
	calls.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, 0, ctx.Err()
	case final != nil:
		return nil, 0, final
	case !heard && failed != nil:
		return nil, 0, refused(req.Shares[0].Partition, failed)
	}
	if len(held) > 0 && req.RequestID != "" { // it is asked again
		lost, err := d.regain(ctx, req, unsure)
		if err != nil {
			return nil, 0, err
		}
		held = append(held, lost...)
	}
	sortDeliveries(held)
	if limit == 0 {
		return held, req.Max, nil
	}
	return held, limit - inFlight, nil
}

func sortDeliveries(ds []consumer.Delivery) {
	slices.SortStableFunc(ds, func(a, b consumer.Delivery) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Message.Offset, b.Message.Offset))
	})
}

func (d *dispatch) heldAt(ctx context.Context, n partition.NodeID, req consumer.ReceiveRequest, shares []consumer.Share) (ds []consumer.Delivery, inFlight, limit int, err error) {
	req.Shares = shares
	switch n {
	case 0:
		return nil, 0, 0, notLed(shares[0].Partition)
	case d.b.cfg.Node:
		return d.b.groups.Held(ctx, req)
	}
	res, err := d.receiveAt(ctx, n, req, true)
	if err != nil {
		return nil, 0, 0, err
	}
	hs, err := handedFrom(res.GetHanded())
	return d.b.groups.Deliveries(req.Group, req.Member, hs), int(res.GetInFlight()), int(res.GetLimit()), err
}

func (d *dispatch) receiveAt(ctx context.Context, n partition.NodeID, req consumer.ReceiveRequest, heldOnly bool) (*nodev1.ReceiveResponse, error) {
	r, err := d.remote(n)
	if err != nil {
		return nil, err
	}
	res, err := r.parts.Receive(ctx, &nodev1.ReceiveRequest{
		Group: uint64(req.Group), Member: req.Member, Session: req.Session, Shares: sharesTo(req.Shares, nil), Max: uint32(req.Max),
		MaxBytes: uint64(req.MaxBytes), RequestId: req.RequestID, HeldOnly: heldOnly,
	})
	return res, r.looked(ctx, req.Shares[0].Partition, err)
}

// fresh asks node after node for so many more, this one first, beginning
// elsewhere each time.
func (d *dispatch) fresh(ctx context.Context, req consumer.ReceiveRequest, held []consumer.Delivery, credit int) ([]consumer.Delivery, string, error) {
	by := d.byLeader(req.Shares)
	nodes := d.inOrder(by)
	d.mu.Lock()
	d.turn++
	first := int(d.turn % uint64(len(nodes)))
	d.mu.Unlock()
	got := held
	bytes := req.MaxBytes
	for i := range held {
		bytes -= recordBytes(held[i].Message.Record)
	}
	var idle []string
	var unsure []consumer.Share // something may have been handed out there
	for i := range nodes {
		n := nodes[(first+i)%len(nodes)]
		if credit <= 0 || bytes <= 0 && len(got) > 0 || n == 0 {
			continue
		}
		part := req
		part.Shares, part.Max, part.Wait, part.MaxBytes = by[n], credit, 0, max(bytes, 1)
		for _, h := range held { // it gives those too
			if slices.ContainsFunc(by[n], func(s consumer.Share) bool { return s.Partition == h.Partition }) {
				part.Max++
				part.MaxBytes += recordBytes(h.Message.Record)
			}
		}
		ds, why, err := d.freshAt(ctx, n, part)
		if err != nil {
			if ctx.Err() != nil {
				return nil, "", ctx.Err() // what was handed out is the session's, and found again
			}
			if errors.As(err, new(*consumer.ErrSessionEnded)) || errors.As(err, new(*consumer.ErrSuperseded)) || reasonOf(err) == "SUPERSEDED" {
				return nil, "", err
			}
			for _, s := range by[n] {
				d.learn(s.Partition, err)
			}
			if !notTaken(err) && req.RequestID != "" {
				unsure = append(unsure, by[n]...)
			}
			continue // the others go on
		}
		if why != "" && !slices.Contains(idle, why) {
			idle = append(idle, why)
		}
		before := len(got)
		got = others(got, ds)
		for _, x := range got[before:] {
			credit--
			bytes -= recordBytes(x.Message.Record)
		}
	}
	lost, err := d.regain(ctx, req, unsure)
	if err != nil {
		return nil, "", err
	}
	got = others(got, lost)
	sortDeliveries(got)
	return got, strings.Join(idle[:min(len(idle), 3)], "; "), nil
}

// others adds what is not there yet.
func others(got, more []consumer.Delivery) []consumer.Delivery {
	for _, x := range more {
		if !slices.ContainsFunc(got, func(y consumer.Delivery) bool { return y.Partition == x.Partition && y.Fence == x.Fence }) {
			got = append(got, x)
		}
	}
	return got
}

// regain asks for what was handed out to a request of which a leader's answer was lost,
// where the partitions are led by then. It belongs to this request: the session's next
// one gets others, and it would wait for its deadline and cost an attempt. What has no
// leader for longer than patience lasts does so.
func (d *dispatch) regain(ctx context.Context, req consumer.ReceiveRequest, shares []consumer.Share) (got []consumer.Delivery, err error) {
	for p := newPatience(ctx); len(shares) > 0; {
		var rest []consumer.Share
		for n, some := range d.byLeader(shares) {
			ds, _, _, err := d.heldAt(ctx, n, req, some)
			switch {
			case err == nil:
				got = append(got, ds...)
			case errors.As(err, new(*consumer.ErrUnknownGroup)) || errors.As(err, new(*consumer.ErrSessionEnded)):
				return nil, err
			default:
				for _, s := range some {
					d.learn(s.Partition, err)
				}
				rest = append(rest, some...)
			}
		}
		if shares = rest; len(shares) > 0 && !p.wait(ctx) {
			break
		}
	}
	return got, ctx.Err()
}

func (d *dispatch) freshAt(ctx context.Context, n partition.NodeID, req consumer.ReceiveRequest) ([]consumer.Delivery, string, error) {
	if n == d.b.cfg.Node {
		return d.b.groups.Receive(ctx, req)
	}
	res, err := d.receiveAt(ctx, n, req, false)
	if err != nil {
		return nil, "", err
	}
	hs, err := handedFrom(res.GetHanded())
	return d.b.groups.Deliveries(req.Group, req.Member, hs), res.GetIdle(), err
}

// awaitSome waits until some partition may have something to hand out, for at
// least a while and at most another.
func (d *dispatch) awaitSome(ctx context.Context, req consumer.ReceiveRequest, least, most time.Duration) error {
	g, err := d.gather(ctx, consumer.StreamRequest{Group: req.Group, Member: req.Member, Session: req.Session}, nil) // messages need not come
	if err != nil {
		return err
	}
	defer g.detach()
	begun := time.Now()
	g.SetShares(req.Shares)
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return nil
	case <-g.Ready():
		if _, err := g.Poll(frameBytes); err != nil {
			return err
		}
	case <-g.starved:
	}
	rest := time.NewTimer(least - time.Since(begun))
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-rest.C:
		return nil
	}
}

// settle settles deliveries where their partitions are led by now.
func (b *Broker) settle(ctx context.Context, gid consumer.GroupID, list []consumer.Settlement) []consumer.SettleResult {
	if b.far == nil {
		return b.groups.Settle(ctx, gid, list)
	}
	return b.far.settle(ctx, gid, list)
}

// settle settles those of partitions led here.
func (l own) settle(ctx context.Context, gid consumer.GroupID, list []consumer.Settlement) []consumer.SettleResult {
	out := make([]consumer.SettleResult, len(list))
	led := map[partition.PartitionID]error{}
	some, place := make([]consumer.Settlement, 0, len(list)), make([]int, 0, len(list))
	for i := range list {
		p := list[i].Token.Partition
		err, known := led[p]
		if !known {
			err = l.b.led(uint64(p))
			led[p] = err
		}
		if out[i].Err = err; err == nil {
			some, place = append(some, list[i]), append(place, i)
		}
	}
	for i, r := range l.b.groups.Settle(ctx, gid, some) {
		out[place[i]] = r
	}
	return out
}

// settle settles, and goes after partitions whose leaders change. The order within
// a partition is kept: what is not taken there is none of it taken.
func (d *dispatch) settle(ctx context.Context, gid consumer.GroupID, list []consumer.Settlement) []consumer.SettleResult {
	out := make([]consumer.SettleResult, len(list))
	todo := make([]int, 0, len(list))
	for i := range list {
		todo = append(todo, i)
	}
	p := newPatience(ctx)
	for {
		by := map[partition.NodeID][]int{}
		for _, i := range todo {
			id := list[i].Token.Partition
			if _, known := d.b.coord.View().Place(id); !known {
				out[i].Err = &consumer.ErrStale{Why: "its partition is no more"}
				continue
			}
			n := d.leader(id)
			by[n] = append(by[n], i)
		}
		var calls sync.WaitGroup
		for n, places := range by {
			calls.Go(func() {
				some := make([]consumer.Settlement, len(places))
				for k, i := range places {
					some[k] = list[i]
				}
				for k, r := range d.settleAt(ctx, n, gid, some) {
					out[places[k]] = r
				}
			})
		}
		calls.Wait()
		todo = todo[:0]
		for i := range list {
			err := out[i].Err
			if notTaken(err) || errors.As(err, new(*partition.ErrOutcomeUnknown)) && list[i].Action != consumer.Release && ctx.Err() == nil {
				d.learn(list[i].Token.Partition, err)
				todo = append(todo, i)
			}
		}
		if len(todo) == 0 || !p.wait(ctx) {
			break
		}
	}
	for i := range out {
		if out[i].Err != nil {
			out[i].Err = refused(list[i].Token.Partition, out[i].Err)
		}
	}
	return out
}

func (d *dispatch) settleAt(ctx context.Context, n partition.NodeID, gid consumer.GroupID, list []consumer.Settlement) []consumer.SettleResult {
	switch n {
	case 0:
		out := make([]consumer.SettleResult, len(list))
		for i := range out {
			out[i].Err = notLed(list[i].Token.Partition)
		}
		return out
	case d.b.cfg.Node:
		return d.own.settle(ctx, gid, list)
	}
	r, err := d.remote(n)
	if err != nil {
		return settledAs(len(list), err)
	}
	res, err := r.parts.Settle(ctx, &nodev1.SettleRequest{Group: uint64(gid), Settlements: settlementsTo(list)})
	if err != nil {
		return settledAs(len(list), r.failed(list[0].Token.Partition, err))
	}
	if out := settledFrom(res.GetResults(), len(list)); out != nil {
		return out
	}
	return settledAs(len(list), &partition.ErrOutcomeUnknown{Partition: list[0].Token.Partition, Why: "no results came back"})
}
