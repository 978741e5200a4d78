package broker

import (
	"context"
	"fmt"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// Hand-outs and settlements on their way between nodes.

func sharesTo(shares []consumer.Share, seen func(partition.PartitionID) uint64) []*nodev1.Share {
	out := make([]*nodev1.Share, len(shares))
	for i, s := range shares {
		out[i] = &nodev1.Share{Partition: uint64(s.Partition), Share: s.Share, Shares: s.Shares, HeldOnly: s.HeldOnly}
		if seen != nil {
			out[i].Seen = seen(s.Partition)
		}
	}
	return out
}

func sharesFrom(shares []*nodev1.Share) []consumer.Share {
	out := make([]consumer.Share, len(shares))
	for i, s := range shares {
		out[i] = consumer.Share{Partition: partition.PartitionID(s.GetPartition()), Share: s.GetShare(), Shares: s.GetShares(), HeldOnly: s.GetHeldOnly()}
	}
	return out
}

// handedTo packs hand-outs as they stand in the log.
func handedTo(hs []consumer.Handed) []*nodev1.Handed {
	out := make([]*nodev1.Handed, len(hs))
	var build record.Builder
	for i := range hs {
		h := &hs[i]
		x := &nodev1.Handed{Partition: uint64(h.Partition), Epoch: h.Epoch, Again: h.Again, HandOuts: make([]*nodev1.HandOut, len(h.Deliveries))}
		build.Reset(nil, record.Meta{})
		for j := range h.Deliveries {
			d := &h.Deliveries[j]
			if build.Len() > 0 && !build.Fits(d.Message.Record.Size()) {
				x.Records = append(x.Records, build.Seal())
				build.Reset(nil, record.Meta{})
			}
			build.Add(d.Message.Record)
			x.HandOuts[j] = &nodev1.HandOut{
				Offset: uint64(d.Message.Offset), Fence: d.Fence, Ordinal: d.Ordinal, Attempt: d.Attempt, HandedMs: int64(d.HandedAt),
				DeadlineMs: int64(d.Deadline), FirstSeenMs: int64(d.FirstSeen), PublishMs: int64(d.Message.PublishTime),
				Replayed: d.Replayed, Settled: d.Settled,
			}
		}
		if build.Len() > 0 {
			x.Records = append(x.Records, build.Seal())
		}
		out[i] = x
	}
	return out
}

// deliveriesTo packs what a Receive was handed out.
func deliveriesTo(ds []consumer.Delivery) []*nodev1.Handed {
	var out []*nodev1.Handed
	var last *nodev1.Handed
	for i := range ds {
		d := &ds[i]
		if last == nil || last.GetPartition() != uint64(d.Partition) || last.GetEpoch() != d.Token.Epoch {
			last = &nodev1.Handed{Partition: uint64(d.Partition), Epoch: d.Token.Epoch}
			out = append(out, last)
		}
		last.Records = append(last.Records, record.Append(nil, record.Meta{}, []record.Record{d.Message.Record}))
		last.HandOuts = append(last.HandOuts, &nodev1.HandOut{
			Offset: uint64(d.Message.Offset), Fence: d.Fence, Ordinal: d.Token.Ordinal, Attempt: d.Attempt, DeadlineMs: int64(d.Deadline),
			FirstSeenMs: int64(d.FirstSeen), PublishMs: int64(d.Message.PublishTime), Replayed: d.Replayed, Settled: d.Settled,
		})
	}
	return out
}

// handedFrom unpacks hand-outs.
func handedFrom(hs []*nodev1.Handed) ([]consumer.Handed, error) {
	out := make([]consumer.Handed, len(hs))
	for i, h := range hs {
		raws, err := rawsOf(h.GetRecords(), len(h.GetHandOuts()))
		if err != nil {
			return nil, fmt.Errorf("hand-outs of partition %d: %w", h.GetPartition(), err)
		}
		out[i] = consumer.Handed{Partition: partition.PartitionID(h.GetPartition()), Epoch: h.GetEpoch(), Again: h.GetAgain(), Deliveries: make([]consumer.StreamDelivery, len(raws))}
		for j, d := range h.GetHandOuts() {
			out[i].Deliveries[j] = consumer.StreamDelivery{
				Message: partition.RawMessage{Offset: partition.Offset(d.GetOffset()), PublishTime: partition.Millis(d.GetPublishMs()), Record: raws[j]},
				Fence:   d.GetFence(), Ordinal: d.GetOrdinal(), Attempt: d.GetAttempt(), HandedAt: partition.Millis(d.GetHandedMs()),
				Deadline: partition.Millis(d.GetDeadlineMs()), FirstSeen: partition.Millis(d.GetFirstSeenMs()), Replayed: d.GetReplayed(), Settled: d.GetSettled(),
			}
		}
	}
	return out, nil
}

func settlementsTo(list []consumer.Settlement) []*nodev1.Settlement {
	out := make([]*nodev1.Settlement, len(list))
	for i := range list {
		s := &list[i]
		out[i] = &nodev1.Settlement{Token: s.Token.String(), Action: uint32(s.Action), DelayMs: int64(s.Delay), Reason: s.Reason, Member: s.Member, PublishedMs: int64(s.Published)}
	}
	return out
}

// settlementsFrom unpacks settlements. What has no readable token is refused by
// whoever settles it, as a token of nobody.
func settlementsFrom(list []*nodev1.Settlement) []consumer.Settlement {
	out := make([]consumer.Settlement, len(list))
	for i, s := range list {
		out[i] = consumer.Settlement{Action: consumer.Action(min(s.GetAction(), 255)), Delay: partition.Millis(s.GetDelayMs()), Reason: s.GetReason(), Member: s.GetMember(), Published: partition.Millis(s.GetPublishedMs())}
		out[i].Token, _ = consumer.ParseToken(s.GetToken())
	}
	return out
}

func (b *Broker) settledTo(ctx context.Context, results []consumer.SettleResult) []*nodev1.SettleResult {
	out := make([]*nodev1.SettleResult, len(results))
	for i := range results {
		out[i] = &nodev1.SettleResult{Failure: b.failureOn(ctx, results[i].Err), DeadlineMs: int64(results[i].Deadline), Dead: results[i].Dead}
	}
	return out
}

// settledFrom unpacks the results of n settlements. nil: they are not as many.
func settledFrom(results []*nodev1.SettleResult, n int) []consumer.SettleResult {
	if len(results) != n {
		return nil
	}
	out := make([]consumer.SettleResult, n)
	for i, r := range results {
		out[i] = consumer.SettleResult{Err: errorOf(r.GetFailure()), Deadline: partition.Millis(r.GetDeadlineMs()), Dead: r.GetDead()}
	}
	return out
}

// settledAs is n results that are all the same error.
func settledAs(n int, err error) []consumer.SettleResult {
	out := make([]consumer.SettleResult, n)
	for i := range out {
		out[i].Err = err
	}
	return out
}
