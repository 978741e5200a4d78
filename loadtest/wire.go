package loadtest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The frames of a stream, written and read by hand: a frame is read once, where
// it lies, and nothing is allocated for one that carries no problem. The field numbers are those
// of proto/strandmq/v1; a test holds every frame against the generated code.
const (
	fieldBatches = 1 // PublishStreamRequest.batches

	fieldBatchTopic     = 1 // PublishBatch
	fieldBatchRecords   = 5
	fieldBatchPartition = 6

	fieldResults = 1 // PublishStreamResponse.results

	fieldResultBatch   = 1 // PublishBatchResult
	fieldResultEach    = 2
	fieldResultRun     = 3
	fieldResultProblem = 4

	fieldRunCount = 3 // ReceiptRun

	fieldCredits     = 2 // ConsumeRequest
	fieldSettlements = 3

	fieldRunFirst  = 1 // SettleRun, SettleRunResult
	fieldRunLast   = 2
	fieldRunAction = 3
	fieldRunReason = 5

	fieldSettledProblem = 3 // SettleRunResult
	fieldSettledDead    = 5

	fieldSession    = 1 // ConsumeResponse
	fieldBatchesOut = 5
	fieldSettled    = 6

	fieldOutPartition   = 1 // DeliveryBatch
	fieldOutFirstNumber = 2
	fieldOutRecords     = 3
	fieldOutFirstOffset = 4
	fieldOutSteps       = 5
	fieldOutAttempts    = 6
	fieldOutDeadline    = 10
)

// lengthBytes is the room for a length that is known only afterwards: a varint
// that is longer than it need be, which every reader of protobuf takes.
const lengthBytes = 4

func openLength(b []byte) []byte { return append(b, 0x80, 0x80, 0x80, 0) }

// closeLength writes the length of what follows b[at:at+lengthBytes].
func closeLength(b []byte, at int) {
	n := len(b) - at - lengthBytes
	b[at] = byte(n) | 0x80
	b[at+1] = byte(n>>7) | 0x80
	b[at+2] = byte(n>>14) | 0x80
	b[at+3] = byte(n>>21) & 0x7f
}

// appendRecordBatch writes one entry of PublishStreamRequest.batches. topic may
// be empty: that of the batch before.
func appendRecordBatch(b []byte, topic string, partition uint32, m record.Meta, recs []record.Record) []byte {
	b = protowire.AppendTag(b, fieldBatches, protowire.BytesType)
	b = openLength(b)
	whole := len(b) - lengthBytes
	if topic != "" {
		b = protowire.AppendTag(b, fieldBatchTopic, protowire.BytesType)
		b = protowire.AppendString(b, topic)
	}
	if partition != 0 {
		b = protowire.AppendTag(b, fieldBatchPartition, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(partition))
	}
	b = protowire.AppendTag(b, fieldBatchRecords, protowire.BytesType)
	b = openLength(b)
	records := len(b) - lengthBytes
	b = record.Append(b, m, recs)
	closeLength(b, records)
	closeLength(b, whole)
	return b
}

var errFrame = errors.New("the broker sent a frame that cannot be read: it is of another version")

// wireFields walks the fields of a message.
type wireFields struct {
	b   []byte
	num protowire.Number
	n   uint64 // of a varint
	v   []byte // of a string, bytes or message
	bad bool
}

// next moves to the next field.
func (f *wireFields) next() bool {
	if len(f.b) == 0 || f.bad {
		return false
	}
	num, kind, k := protowire.ConsumeTag(f.b)
	if k < 0 {
		f.bad = true
		return false
	}
	f.b, f.num, f.n, f.v = f.b[k:], num, 0, nil
	switch kind {
	case protowire.VarintType:
		f.n, k = protowire.ConsumeVarint(f.b)
	case protowire.BytesType:
		f.v, k = protowire.ConsumeBytes(f.b)
	default:
		k = protowire.ConsumeFieldValue(num, kind, f.b)
	}
	if k < 0 {
		f.bad = true
		return false
	}
	f.b = f.b[k:]
	return true
}

// end tells whether all was read.
func (f *wireFields) end() error {
	if f.bad {
		return errFrame
	}
	return nil
}

// batchAnswer is one PublishBatchResult. A problem of the whole batch, or the
// first of its messages', is in problem.
type batchAnswer struct {
	batch   uint64
	stored  uint32
	problem *strandmqv1.Problem
}

// readAnswer reads a PublishBatchResult.
func readAnswer(b []byte) (a batchAnswer, err error) {
	f := wireFields{b: b}
	for f.next() && err == nil {
		switch f.num {
		case fieldResultBatch:
			a.batch = f.n
		case fieldResultEach:
			var r strandmqv1.PublishResult
			err = proto.Unmarshal(f.v, &r)
			if r.GetProblem() == nil {
				a.stored++
			} else if a.problem == nil {
				a.problem = r.GetProblem()
			}
		case fieldResultRun:
			run := wireFields{b: f.v}
			for run.next() {
				if run.num == fieldRunCount {
					a.stored = uint32(run.n)
				}
			}
			err = run.end()
		case fieldResultProblem:
			a.problem = &strandmqv1.Problem{}
			err = proto.Unmarshal(f.v, a.problem)
		}
	}
	return a, errors.Join(err, f.end())
}

// deliveryBatch is a DeliveryBatch as far as it is looked at.
type deliveryBatch struct {
	partition   uint32
	firstNumber uint64
	firstOffset uint64
	deadline    int64
	records     []byte
	steps       []byte // packed varints
	attempts    []byte // the same
}

func readDeliveryBatch(b []byte) (d deliveryBatch, err error) {
	f := wireFields{b: b}
	for f.next() {
		switch f.num {
		case fieldOutPartition:
			d.partition = uint32(f.n)
		case fieldOutFirstNumber:
			d.firstNumber = f.n
		case fieldOutRecords:
			d.records = f.v
		case fieldOutFirstOffset:
			d.firstOffset = f.n
		case fieldOutSteps:
			d.steps = f.v
		case fieldOutAttempts:
			d.attempts = f.v
		case fieldOutDeadline:
			d.deadline = int64(f.n)
		}
	}
	return d, f.end()
}

// packed reads the next of packed varints; otherwise when there are none.
func packed(b *[]byte, otherwise uint64) (uint64, error) {
	if len(*b) == 0 {
		return otherwise, nil
	}
	n, k := binary.Uvarint(*b)
	if k <= 0 {
		return 0, errFrame
	}
	*b = (*b)[k:]
	return n, nil
}

// settledRun is a SettleRunResult as far as it is looked at.
type settledRun struct {
	first, last uint64
	dead        bool
	problem     *strandmqv1.Problem
}

func readSettledRun(b []byte) (r settledRun, err error) {
	f := wireFields{b: b}
	for f.next() && err == nil {
		switch f.num {
		case fieldRunFirst:
			r.first = f.n
		case fieldRunLast:
			r.last = f.n
		case fieldSettledProblem:
			r.problem = &strandmqv1.Problem{}
			err = proto.Unmarshal(f.v, r.problem)
		case fieldSettledDead:
			r.dead = f.n != 0
		}
	}
	if r.last == 0 {
		r.last = r.first
	}
	if err = errors.Join(err, f.end()); err == nil && (r.first == 0 || r.last < r.first) {
		err = fmt.Errorf("%w: it settles deliveries %d to %d", errFrame, r.first, r.last)
	}
	return r, err
}

// appendSettleRun writes one entry of ConsumeRequest.settlements.
func appendSettleRun(b []byte, first, last uint64, action strandmqv1.SettleAction, reason string) []byte {
	b = protowire.AppendTag(b, fieldSettlements, protowire.BytesType)
	n := 4 + protowire.SizeVarint(first) + protowire.SizeVarint(last)
	if reason != "" {
		n += 1 + protowire.SizeBytes(len(reason))
	}
	b = protowire.AppendVarint(b, uint64(n))
	b = protowire.AppendTag(b, fieldRunFirst, protowire.VarintType)
	b = protowire.AppendVarint(b, first)
	b = protowire.AppendTag(b, fieldRunLast, protowire.VarintType)
	b = protowire.AppendVarint(b, last)
	b = protowire.AppendTag(b, fieldRunAction, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(action))
	if reason != "" {
		b = protowire.AppendTag(b, fieldRunReason, protowire.BytesType)
		b = protowire.AppendString(b, reason)
	}
	return b
}

// appendCredits writes ConsumeRequest.credits.
func appendCredits(b []byte, n uint32) []byte {
	b = protowire.AppendTag(b, fieldCredits, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(n))
}
