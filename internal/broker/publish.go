package broker

import (
	"context"
	"fmt"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// A publication is one call's messages on their way: those that could be turned
// into records go to the router, the others are refused in their places.
type publication struct {
	records []record.Record
	place   []int         // records[i] was messages[place[i]]
	refused map[int]error // by place
	bytes   int           // of keys, ids, headers and bodies
}

// prepare turns messages into records, one by one. In order, as with a producer's
// sequence, what follows a refused message is not sent: it would overtake, or
// leave a gap.
func prepare(messages []*strandmqv1.Message, inOrder bool) publication {
	p := publication{records: make([]record.Record, 0, len(messages)), place: make([]int, 0, len(messages))}
	for i, m := range messages {
		r, refused := toRecord(m)
		if refused != nil {
			if p.refused == nil {
				p.refused = map[int]error{}
			}
			p.refused[i] = refused
			if inOrder {
				for j := i + 1; j < len(messages); j++ {
					p.refused[j] = &router.ErrNotSent{Earlier: i, Err: refused}
				}
				break
			}
			continue
		}
		p.bytes += recordBytes(r)
		p.records = append(p.records, r)
		p.place = append(p.place, i)
	}
	return p
}

// recordBytes is what a message counts in limits and metrics.
func recordBytes(r record.Record) int {
	n := len(r.Key) + len(r.ID) + len(r.Body)
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// answer puts the router's results and the refusals in the order of the call.
func (b *Broker) answer(ctx context.Context, p publication, n int, results []router.Result) []*strandmqv1.PublishResult {
	out := make([]*strandmqv1.PublishResult, n)
	for i, r := range results {
		at := p.place[i]
		if r.Err != nil {
			out[at] = &strandmqv1.PublishResult{Problem: b.itemProblem(ctx, "messages", at, r.Err)}
			continue
		}
		out[at] = &strandmqv1.PublishResult{Receipt: &strandmqv1.Receipt{Partition: uint32(r.Partition), Offset: r.Offset, Duplicate: r.Duplicate}}
	}
	for at, err := range p.refused {
		out[at] = &strandmqv1.PublishResult{Problem: b.itemProblem(ctx, "messages", at, err)}
	}
	return out
}

// itemProblem is the refusal of one item of a list.
func (b *Broker) itemProblem(ctx context.Context, list string, i int, err error) *strandmqv1.Problem {
	return b.problemIn(ctx, b.explain(err), fmt.Sprintf("%s[%d]", list, i))
}

// recordProblem is the refusal of one record of a batch that was stored as it came.
func (b *Broker) recordProblem(ctx context.Context, i int, err error) *strandmqv1.Problem {
	return b.problemIn(ctx, explainer{partition: b.partitionName}.translate(err), fmt.Sprintf("record_batch.records[%d]", i))
}

// problemIn is the refusal of a part of a request, whose field it names.
func (b *Broker) problemIn(ctx context.Context, why *refusal, field string) *strandmqv1.Problem {
	r := *why
	if r.reason == "INTERNAL" {
		r.text = "the broker failed to handle this one" + underID(requestOf(ctx))
	}
	if r.field != "" {
		field += "." + r.field
	}
	r.field = field
	return r.problem(requestOf(ctx))
}

// wholeCall tells whether nothing was stored for one reason that passes: then
// the call as a whole is refused, so that every client's retry sees it.
func wholeCall(results []router.Result) error {
	var reason string
	for i, r := range results {
		if r.Err == nil {
			return nil
		}
		if i > 0 && reasonOf(r.Err) != reason {
			return nil
		}
		reason = reasonOf(r.Err)
	}
	switch reason {
	case "QUEUE_FULL", "HOLD_LIMIT", "NOT_LEADER", "NOT_READY", "DISK_STUCK":
		return results[0].Err
	}
	return nil
}
