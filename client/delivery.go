package client

import (
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// deliveryOf reads record i of a batch of deliveries.
func deliveryOf(b *strandmqv1.DeliveryBatch, i int, offset uint64, published int64, r record.Raw) *Delivery {
	return &Delivery{
		Message:     messageOf(r),
		Partition:   b.GetPartition(),
		Offset:      offset,
		Attempt:     at(b.GetAttempts(), i, 1),
		PublishTime: time.UnixMilli(at(b.GetPublishMs(), i, published)),
		FirstSeen:   time.UnixMilli(at(b.GetFirstSeenMs(), i, b.GetHandedMs())),
		Fence:       at(b.GetFences(), i, b.GetFirstFence()+uint64(i)),
		Replayed:    slices.Contains(b.GetReplayed(), uint32(i)),
	}
}

// at gives an element of a list that a frame leaves out when there is nothing
// special to tell.
func at[T any](list []T, i int, otherwise T) T {
	if i < len(list) {
		return list[i]
	}
	return otherwise
}

// messageOf copies a record, which aliases its frame.
func messageOf(r record.Raw) Message {
	rec := r.Record()
	m := Message{Key: string(rec.Key), ID: rec.ID, Body: slices.Clone(rec.Body)}
	if len(rec.Headers) > 0 {
		m.Headers = make([]Header, len(rec.Headers))
		for i, h := range rec.Headers {
			m.Headers[i] = Header{Name: h.Name, Value: string(h.Value)}
		}
	}
	return m
}
