package broker

import (
	"context"
	"fmt"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// readable calls send with the deliveries of a frame as readable messages, not
// more at a time than a frame may have. It is called once at least.
func (a *attendant) readable(hs []consumer.Handed, send func([]*strandmqv1.Delivery) error) error {
	var out []*strandmqv1.Delivery
	for i := range hs {
		h := &hs[i]
		for j := range h.Deliveries {
			if len(out) == frameMessages {
				a.meter.done()
				if err := send(out); err != nil {
					return err
				}
				out = nil
			}
			d := &h.Deliveries[j]
			out = append(out, &strandmqv1.Delivery{
				Message:   fromRecord(d.Message.Record.Record(), int64(d.Message.PublishTime), a.format),
				Topic:     a.topic.Name,
				Partition: a.topic.place[h.Partition],
				Offset:    uint64(d.Message.Offset),
				Attempt:   d.Attempt,
				Token:     a.stream.Token(h, j).String(),
				Deadline:  timestampOrNil(int64(d.Deadline)),
				FirstSeen: timestampOrNil(int64(d.FirstSeen)),
				Fence:     d.Fence,
				Replayed:  d.Replayed,
				Number:    h.First + uint64(j),
				Settled:   d.Settled,
			})
			a.meter.delivery(d.Attempt, d.Replayed, d.Message.PublishTime)
		}
	}
	a.meter.done()
	return send(out)
}

// A packer makes record batches of deliveries. Its memory is used again for the
// next frame.
type packer struct {
	build record.Builder
	buf   []byte
	out   []*strandmqv1.DeliveryBatch
	held  int64 // counted for buf between frames
}

// keepBuffer is the largest buffer that a packer keeps between frames.
const keepBuffer = 2 << 20

// rest ends a frame. The buffer stays for the next one only while there is memory for
// many such.
func (p *packer) rest(mem *holding) {
	mem.give(p.held)
	if p.held = int64(cap(p.buf)); p.held > min(keepBuffer, mem.room()/2) {
		p.buf, p.held = nil, 0
	}
	mem.add(p.held)
}

// pack makes the batches of a frame. They are valid until the next call.
func (p *packer) pack(a *attendant, hs []consumer.Handed) []*strandmqv1.DeliveryBatch {
	p.buf, p.out = p.buf[:0], p.out[:0]
	for i := range hs {
		h := &hs[i]
		for from := 0; from < len(h.Deliveries); {
			from = p.one(a, h, from)
		}
	}
	a.meter.done()
	return p.out
}

// one makes one batch, of deliveries that were handed out together, and tells
// where the next begins.
func (p *packer) one(a *attendant, h *consumer.Handed, from int) int {
	ds := h.Deliveries[from:]
	first := &ds[0]
	published := first.Message.PublishTime
	at := len(p.buf)
	p.build.Reset(p.buf, record.Meta{PublishTime: int64(published)})
	n := 0
	steps, tries, fences, seen, times := false, false, false, false, false
	for ; n < len(ds); n++ {
		d := &ds[n]
		if d.HandedAt != first.HandedAt || d.Deadline != first.Deadline || d.Settled != first.Settled || n > 0 && !p.build.Fits(d.Message.Record.Size()) {
			break
		}
		p.build.Add(d.Message.Record)
		steps = steps || n > 0 && d.Message.Offset != ds[n-1].Message.Offset+1
		tries = tries || d.Attempt != 1
		fences = fences || d.Fence != first.Fence+uint64(n)
		seen = seen || d.FirstSeen != d.HandedAt
		times = times || d.Message.PublishTime != published
		a.meter.delivery(d.Attempt, d.Replayed, d.Message.PublishTime)
	}
	p.buf = p.build.Seal()
	out := &strandmqv1.DeliveryBatch{
		Partition: a.topic.place[h.Partition], FirstNumber: h.First + uint64(from), Records: p.buf[at:],
		FirstOffset: uint64(first.Message.Offset), FirstFence: first.Fence,
		HandedMs: int64(first.HandedAt), DeadlineMs: int64(first.Deadline), Settled: first.Settled,
	}
	for i := range ds[:n] {
		d := &ds[i]
		if steps && i > 0 {
			out.OffsetSteps = append(out.OffsetSteps, uint32(d.Message.Offset-ds[i-1].Message.Offset))
		}
		if tries {
			out.Attempts = append(out.Attempts, d.Attempt)
		}
		if fences {
			out.Fences = append(out.Fences, d.Fence)
		}
		if seen {
			out.FirstSeenMs = append(out.FirstSeenMs, int64(d.FirstSeen))
		}
		if times {
			out.PublishMs = append(out.PublishMs, int64(d.Message.PublishTime))
		}
		if d.Replayed {
			out.Replayed = append(out.Replayed, uint32(i))
		}
	}
	p.out = append(p.out, out)
	return from + n
}

// settledResults are results of settlements as a frame tells them.
func (b *Broker) settledResults(ctx context.Context, results []consumer.SettleRunResult) []*strandmqv1.SettleRunResult {
	if len(results) == 0 {
		return nil
	}
	out := make([]*strandmqv1.SettleRunResult, len(results))
	for i := range results {
		r := &results[i]
		out[i] = &strandmqv1.SettleRunResult{First: r.First, Last: r.Last, Deadline: timestampOrNil(int64(r.Deadline)), DeadLettered: r.Dead}
		if r.Err != nil {
			why := *b.explain(r.Err)
			if why.field == "token" {
				why.field = "first" // a stream names its deliveries by number
			}
			out[i].Problem = b.problemIn(ctx, &why, fmt.Sprintf("settlements[%d]", r.Run))
		}
	}
	return out
}
