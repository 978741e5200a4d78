//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// C16: over kills and lost answers, what was sent is in the log once and in
// order, and a retry gets the first copy's receipt. Two producers work at a
// time, one with sequence numbers and one with message ids.
func dedupeOverKills(t *testing.T, s *stage) {
	total, kills := uint64(10_000), 8
	if testing.Short() {
		total = 1_500
	}
	if s.nodes() > 1 {
		total, kills = 3_000, 6 // each takes seconds
	}
	seed := uint64(envNumber(t, "STRANDMQ_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("STRANDMQ_SEED=%d", seed)
	// Both reach each milestone before the broker is killed in their work.
	var producers []*producer
	for i, ids := range []bool{false, true} {
		topic := []string{"c16-sequences", "c16-ids"}[i]
		s.scene(t, topic, 1, nil, nil)
		producers = append(producers, &producer{
			t: t, topic: topic, ids: ids, total: total, offsets: make(map[uint64]uint64), r: rand.New(rand.NewPCG(seed, uint64(i))),
			api:        strandmqv1connect.NewPublishServiceClient(newHTTPClient(t), s.url()),
			milestones: make(chan struct{}, kills), every: total / uint64(kills+1),
		})
	}
	var working sync.WaitGroup
	defer working.Wait()
	for _, p := range producers {
		working.Go(p.work)
	}
	for i := range kills {
		for _, p := range producers {
			<-p.milestones
		}
		topic := producers[i%2].topic
		switch {
		case i == kills/2:
			s.handOver(topic)
		case s.nodes() > 1 && i == 1:
			s.pause(topic, nil)
		case s.nodes() > 1 && i == 4:
			s.dark(topic)
		default:
			s.crash(topic)
		}
	}
	working.Wait()
	if t.Failed() {
		return
	}
	s.crash(producers[0].topic)
	for _, p := range producers {
		t.Logf("%s: %d calls, %d answers lost, %d duplicates", p.topic, p.calls, p.lost, p.duplicates)
		// Of each ten calls one loses its answer: that it is fewer than one of a hundred,
		// of five hundred or more, is less likely than one in 10^11.
		if p.lost < p.calls/100 || p.duplicates == 0 {
			t.Errorf("%s: too little went wrong to prove anything", p.topic)
		}
		p.resend(total - 100)
		p.reuse()
		p.judge(readBack(t.Context(), t, s.api, p.topic))
	}
}

// producer sends the numbers from 1 to total, each until it is stored.
type producer struct {
	t          *testing.T
	api        strandmqv1connect.PublishServiceClient
	topic      string
	ids        bool // message ids over five keys; else a producer's sequence of one key
	total      uint64
	every      uint64
	milestones chan struct{}
	r          *rand.Rand

	offsets                 map[uint64]uint64 // by number, from the first receipt
	calls, lost, duplicates int
}

func (p *producer) message(n uint64) *strandmqv1.Message {
	m := &strandmqv1.Message{
		KeyKind: &strandmqv1.Message_Key{Key: "k"}, Body: &strandmqv1.Message_Text{Text: fmt.Sprintf("body %d", n)},
	}
	if p.ids {
		m.KeyKind = &strandmqv1.Message_Key{Key: fmt.Sprintf("k%d", n%5)}
		m.Id = fmt.Sprintf("id-%d", n)
	}
	return m
}

// send sends the numbers from first on, in one call.
func (p *producer) send(ctx context.Context, first uint64, messages ...*strandmqv1.Message) ([]*strandmqv1.PublishResult, error) {
	req := &strandmqv1.PublishRequest{Topic: p.topic, Messages: messages}
	if !p.ids {
		req.ProducerId, req.FirstSequence = "p", first
	}
	res, err := p.api.Publish(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(res.GetResults()) != len(messages) {
		return nil, fmt.Errorf("%d results for %d messages", len(res.GetResults()), len(messages))
	}
	return res.GetResults(), nil
}

// sent sends, until it is known what became of each.
func (p *producer) sent(first uint64, messages ...*strandmqv1.Message) []*strandmqv1.PublishResult {
	p.t.Helper()
	return insist(p.t, func() ([]*strandmqv1.PublishResult, error) {
		results, err := p.send(p.t.Context(), first, messages...)
		if err != nil {
			return nil, explain(err, p.topic)
		}
		for _, r := range results {
			if again(r.GetProblem()) {
				return nil, errAgain
			}
		}
		return results, nil
	})
}

// receipt notes a receipt, which must be that of the first copy.
func (p *producer) receipt(n uint64, r *strandmqv1.Receipt) {
	if at, ok := p.offsets[n]; ok && (!r.GetDuplicate() || at != r.GetOffset()) {
		p.t.Errorf("%s: number %d was stored at %d, and its retry got %v", p.topic, n, at, r)
	}
	p.offsets[n] = r.GetOffset()
	if r.GetDuplicate() {
		p.duplicates++
	}
}

func (p *producer) work() {
	milestone := p.every
	for next := uint64(1); next <= p.total; {
		// Mostly one at a time; a retry may be cut into other batches.
		n := uint64(1)
		if p.r.IntN(3) == 0 {
			n = 2 + p.r.Uint64N(9)
		}
		var list []*strandmqv1.Message
		for i := next; i < next+n && i <= p.total; i++ {
			list = append(list, p.message(i))
		}
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		chance := p.r.IntN(20)
		call := ctx
		if chance == 0 {
			// Gives up as soon as the request is on its way.
			call = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { cancel() }})
		}
		results, err := p.send(call, next, list...)
		cancel()
		p.calls++
		if p.t.Context().Err() != nil {
			return
		}
		if err != nil || chance == 1 {
			// No answer, or one that is lost on its way: all of it again.
			p.lost++
			if err != nil && connect.CodeOf(err) == connect.CodeUnavailable {
				time.Sleep(5 * time.Millisecond) // the broker is away
			}
			for i, r := range results {
				if r.GetReceipt() != nil {
					p.receipt(next+uint64(i), r.GetReceipt())
				}
			}
			continue
		}
		for _, r := range results {
			if r.GetProblem() != nil {
				if reason := r.GetProblem().GetReason(); r.GetProblem().GetRetryAfterMs() == 0 && reason != "NOT_SENT" && reason != "OUTCOME_UNKNOWN" {
					p.t.Errorf("%s: number %d: %v", p.topic, next, r.GetProblem())
					p.giveUp()
					return
				}
				p.lost++
				break // and so from here on
			}
			p.receipt(next, r.GetReceipt())
			next++
		}
		for next > milestone && len(p.milestones) < cap(p.milestones) {
			p.milestones <- struct{}{}
			milestone += p.every
		}
	}
	p.giveUp()
}

// giveUp lets go of who waits for a milestone.
func (p *producer) giveUp() { close(p.milestones) }

// resend sends everything from a number on once more, alone and in batches:
// each must get the original receipt.
func (p *producer) resend(from uint64) {
	for _, size := range []uint64{1, 7} {
		for next := from; next <= p.total; next += size {
			var list []*strandmqv1.Message
			for i := next; i < next+size && i <= p.total; i++ {
				list = append(list, p.message(i))
			}
			for i, r := range p.sent(next, list...) {
				if r.GetProblem() != nil {
					p.t.Errorf("%s: resent number %d: %v", p.topic, next+uint64(i), r.GetProblem())
					continue
				}
				p.receipt(next+uint64(i), r.GetReceipt())
			}
		}
	}
}

// reuse sends old numbers with another body, and skips some: refused.
func (p *producer) reuse() {
	want := "SEQUENCE_REUSED"
	if p.ids {
		want = "ID_REUSED"
	}
	for _, n := range []uint64{1, p.total / 2, p.total} {
		m := p.message(n)
		m.Body = &strandmqv1.Message_Text{Text: "another body"}
		r := p.sent(n, m)[0]
		if r.GetReceipt() != nil || r.GetProblem().GetReason() != want {
			p.t.Errorf("%s: number %d with another body: %v, want %s", p.topic, n, r, want)
		}
	}
	if p.ids {
		return
	}
	r := p.sent(p.total+2, p.message(p.total+2))[0]
	if r.GetReceipt() != nil || r.GetProblem().GetReason() != "SEQUENCE_GAP" {
		p.t.Errorf("%s: a gap: %v, want SEQUENCE_GAP", p.topic, r)
	}
}

// judge says that the log holds 1 to total once, in order, where the receipts
// said. The sender waits for each call, so the order holds over keys too.
func (p *producer) judge(log []check.Stored) {
	if uint64(len(log)) != p.total {
		p.t.Errorf("%s: %d messages in the log, want %d", p.topic, len(log), p.total)
	}
	for i, x := range log {
		n := uint64(i) + 1
		want := p.message(n)
		if x.Message.Body != want.GetText() || x.Message.Key != want.GetKey() || x.Message.ID != want.GetId() {
			p.t.Fatalf("%s: the log has %v as number %d", p.topic, x, n)
		}
		if at, ok := p.offsets[n]; !ok || at != x.Place.Offset {
			p.t.Errorf("%s: number %d is at offset %d, its receipt says %d", p.topic, n, x.Place.Offset, at)
		}
	}
}

// newHTTPClient is a client with connections of its own.
func newHTTPClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
