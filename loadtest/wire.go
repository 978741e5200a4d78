package loadtest

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// maxFrameBytes is when a frame is sent before every partition has its part: a
// frame has at most 4 MiB, and the largest batch fits behind this.
const maxFrameBytes = 1 << 20

// outbox is a frame of a publish stream that is being filled. Its batches and
// their bytes are used again for the next one.
type outbox struct {
	frame strandmqv1.PublishStreamRequest
	spare []*strandmqv1.PublishBatch
	slab  []byte // the record batches of the frame
	size  int
}

// add puts a batch into the frame.
func (o *outbox) add(topic string, partition uint32, m record.Meta, recs []record.Record, readable bool) {
	n := len(o.frame.GetBatches())
	if n == len(o.spare) {
		o.spare = append(o.spare, &strandmqv1.PublishBatch{})
	}
	b := o.spare[n]
	if readable {
		fillMessages(b, topic, m, recs)
	} else {
		o.slab = fillRecords(b, topic, partition, m, recs, o.slab)
	}
	o.frame.Batches = o.spare[:n+1]
	o.size += proto.Size(b)
}

// clear makes it empty. What was in it has been sent.
func (o *outbox) clear() {
	o.frame.Batches, o.slab, o.size = nil, o.slab[:0], 0
}

// fillRecords makes b a record batch, which is appended to slab. topic may be
// empty: that of the batch before.
func fillRecords(b *strandmqv1.PublishBatch, topic string, partition uint32, m record.Meta, recs []record.Record, slab []byte) []byte {
	at := len(slab)
	slab = record.Append(slab, m, recs)
	b.Topic, b.Partition, b.RecordBatch = topic, partition, slab[at:len(slab):len(slab)]
	return slab
}

// fillMessages makes b a batch of readable messages.
func fillMessages(b *strandmqv1.PublishBatch, topic string, m record.Meta, recs []record.Record) {
	b.Topic, b.ProducerId, b.FirstSequence = topic, m.ProducerID, m.FirstSequence
	b.Messages = make([]*strandmqv1.Message, len(recs))
	for i := range recs {
		b.Messages[i] = &strandmqv1.Message{
			KeyKind: &strandmqv1.Message_Key{Key: string(recs[i].Key)}, Id: recs[i].ID, Body: &strandmqv1.Message_Bytes{Bytes: recs[i].Body},
		}
	}
}

// readAnswer tells how many messages of a batch were stored, and the problem of
// the whole batch, or the first of its messages'.
func readAnswer(r *strandmqv1.PublishBatchResult) (stored int, problem *strandmqv1.Problem) {
	stored = int(r.GetRun().GetCount())
	for _, x := range r.GetResults() {
		if x.GetProblem() == nil {
			stored++
		} else if problem == nil {
			problem = x.GetProblem()
		}
	}
	if r.GetProblem() != nil {
		problem = r.GetProblem()
	}
	return stored, problem
}

// numberOf gives an element of a list that a frame leaves out when every element
// is the same.
func numberOf(list []uint32, i int, otherwise uint32) uint32 {
	if i < len(list) {
		return list[i]
	}
	return otherwise
}

// settledRun gives the first and the last delivery that an answer speaks of.
func settledRun(r *strandmqv1.SettleRunResult) (first, last uint64, err error) {
	first, last = r.GetFirst(), r.GetLast()
	if last == 0 {
		last = first
	}
	if first == 0 || last < first || last-first >= mostInHand {
		return 0, 0, fmt.Errorf("%w: it settles deliveries %d to %d", errFrame, first, last)
	}
	return first, last, nil
}
