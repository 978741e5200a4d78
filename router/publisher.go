package router

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/record"
)

// Log is where record batches are stored: partition hosts on this node, or
// their leaders elsewhere.
type Log interface {
	// PublishAsync takes one valid record batch for a partition. It does not
	// wait for the disk; without room it refuses the batch, or holds its caller
	// back. An error means that the batch was not taken and will not be stored.
	// Otherwise done is called once, from any goroutine, with a result per record
	// or with the error of the whole batch, when the records are on disk, fsynced. Batches of a partition that were taken one after the other
	// are stored in that order. The batch belongs to the Log from the call on.
	PublishAsync(partition uint64, batch []byte, done func([]Stored, error)) error
}

// Stored is what became of one record.
type Stored struct {
	Offset    uint64
	Duplicate bool  // it had been stored before, at Offset
	Err       error // why it was not stored
}

// Request is one call's messages for one topic.
type Request struct {
	Table *Table
	// Records are the messages. The publisher fills in KeyHash; whatever was
	// there is overwritten. Keys, headers and bodies are read until Submit
	// returns.
	Records []record.Record
	// ProducerID and FirstSequence number the messages for idempotent
	// publishing; all of them must then have the same key. Empty: not numbered.
	ProducerID    string
	FirstSequence uint64
	// InOrder: nothing that stands behind a message that is refused for good is
	// stored either. What the publisher refuses stops all that follows in the call;
	// what the log refuses, all that follows in its partition. Not with a producer,
	// whose sequence does the same.
	InOrder bool
	// MaxBody is the topic's limit in bytes. 0: record.MaxBody.
	MaxBody int
}

// Result is what became of one message.
type Result struct {
	Partition int // the partition's number in the topic
	Offset    uint64
	Duplicate bool  // it had been stored before
	Err       error // why it was refused; Partition and Offset are then void
}

// Config is how a Publisher works.
type Config struct {
	// Seed begins the rotation of keyless messages over partitions, so that
	// many publishers do not start on the same one. Any value will do.
	Seed uint64
	// Now stamps batches with the time in milliseconds since the Unix epoch.
	// Nil: 0, for a Log that stamps them on arrival.
	Now func() int64
}

// Publisher carries publishes to a Log. It has no goroutine of its own, holds
// nothing between calls but a counter, and is safe for concurrent use.
type Publisher struct {
	log  Log
	cfg  Config
	turn atomic.Uint64 // calls with keyless messages so far
}

// NewPublisher makes a publisher over a log.
func NewPublisher(log Log, cfg Config) *Publisher {
	return &Publisher{log: log, cfg: cfg}
}

// Publish is Submit and Wait.
func (p *Publisher) Publish(ctx context.Context, req Request) ([]Result, error) {
	call, err := p.Submit(req)
	if err != nil {
		return nil, err
	}
	return call.Wait(ctx), nil
}

// Submit checks, routes and sends a call's messages and returns without waiting
// for the answers; it waits as long as the Log holds it back. Messages of one key that are submitted one call after the
// other are stored in that order. The error is an *ErrCall and means that
// nothing was sent; what is wrong with single messages stands in the results.
func (p *Publisher) Submit(req Request) (*Call, error) { return p.submit(req, nil) }

// SubmitThen is Submit for who does not wait either: then is called once, when
// every message has its answer, from any goroutine and perhaps before
// SubmitThen returns. It must not block.
func (p *Publisher) SubmitThen(req Request, then func([]Result)) error {
	_, err := p.submit(req, then)
	return err
}

func (p *Publisher) submit(req Request, then func([]Result)) (*Call, error) {
	if err := check(&req); err != nil {
		return nil, err
	}
	c := newCall(len(req.Records), then)
	var scratch []record.Record
	parts := p.route(&req, c.results)
	if req.InOrder {
		for _, part := range parts {
			if err := oneBatch(&req, part); err != nil {
				return nil, err
			}
		}
	}
	for _, part := range parts {
		scratch = p.send(c, &req, part, scratch)
	}
	c.sent()
	return c, nil
}

// check refuses calls that are wrong as a whole.
func check(req *Request) error {
	switch n := len(req.Records); {
	case n == 0:
		return &ErrCall{"messages", "there are none; send at least one"}
	case n > record.MaxBatchRecords:
		return &ErrCall{"messages", fmt.Sprintf("there are %d; send at most %d in one call", n, record.MaxBatchRecords)}
	}
	if req.InOrder && req.ProducerID != "" {
		return &ErrCall{"in_order", "a producer's sequence is in order by itself; set one of the two"}
	}
	if req.ProducerID == "" {
		if req.FirstSequence != 0 {
			return &ErrCall{"first_sequence", "it is set without a producer_id; set both or neither"}
		}
		return nil
	}
	if err := names.ProducerID(req.ProducerID); err != nil {
		return &ErrCall{"producer_id", err.Error()}
	}
	if req.FirstSequence == 0 || req.FirstSequence > math.MaxUint64-uint64(len(req.Records)) {
		return &ErrCall{"first_sequence", fmt.Sprintf("%d is not a sequence number to start from; the first message of a producer has 1", req.FirstSequence)}
	}
	first := &req.Records[0]
	for i := range req.Records {
		r := &req.Records[i]
		if r.HasKey != first.HasKey || !bytes.Equal(r.Key, first.Key) {
			return &ErrCall{fmt.Sprintf("messages[%d].key", i), "it differs from the first message's key; with a producer sequence all messages of a call have one key: send one call per key, each with a producer id of its own"}
		}
		if !r.HasKey && r.ID != "" {
			return &ErrCall{fmt.Sprintf("messages[%d].id", i), "a message without key is routed by its id or by its producer, not both; leave out the id or the producer_id"}
		}
	}
	return nil
}

// part is a call's messages for one partition, in the order of the call.
type part struct {
	number  int
	members []int // places in the call
}

// route judges each message, gives it its hash and sorts it to its partition.
// Refusals go to results.
func (p *Publisher) route(req *Request, results []Result) []part {
	var (
		parts []part
		slot  = make(map[int]int, min(len(req.Records), req.Table.Len()))
		loose = -1 // the partition of this call's keyless messages
		turn  uint64
	)
	for i := range req.Records {
		r := &req.Records[i]
		if err := CheckRecord(r, req.MaxBody); err != nil {
			results[i].Err = err
			if req.ProducerID == "" && !req.InOrder {
				continue
			}
			// What follows would overtake. In a sequence it would leave a gap, which
			// the log refuses: say so here, in words that name the culprit.
			for j := i + 1; j < len(results); j++ {
				results[j].Err = &ErrNotSent{Earlier: i, Err: err}
			}
			break
		}
		number, placed := req.Table.Place(r)
		if !placed {
			if loose < 0 {
				turn = p.turn.Add(1)
				loose = p.loosePartition(req, turn)
			}
			number = loose
			r.KeyHash = req.Table.Loose(number, p.cfg.Seed^keyspace.Mix(turn)^uint64(i))
		}
		at, ok := slot[number]
		if !ok {
			at = len(parts)
			slot[number] = at
			parts = append(parts, part{number: number})
		}
		parts[at].members = append(parts[at].members, i)
	}
	return parts
}

// loosePartition is where this call's messages without key and id go: each call
// to the next partition, but a producer's always to the same, where its
// sequence is known.
func (p *Publisher) loosePartition(req *Request, turn uint64) int {
	if req.ProducerID != "" {
		return req.Table.Lookup(keyspace.HashString(req.Table.Seed(), req.ProducerID))
	}
	return int((p.cfg.Seed + turn) % uint64(req.Table.Len()))
}

// CheckRecord refuses a message for what it is: *ErrMessage. maxBody is the
// topic's limit in bytes (0: record.MaxBody).
func CheckRecord(r *record.Record, maxBody int) error {
	if r.HasKey && len(r.Key) == 0 {
		return &ErrMessage{"key", &ErrKey{}}
	}
	if r.ID != "" {
		if err := names.MessageID(r.ID); err != nil {
			return &ErrMessage{"id", err}
		}
	}
	for i := range r.Headers {
		if err := names.HeaderName(r.Headers[i].Name); err != nil {
			return &ErrMessage{fmt.Sprintf("headers[%d].name", i), err}
		}
	}
	if maxBody > 0 && len(r.Body) > maxBody {
		return &ErrMessage{"body", &ErrTooLarge{Size: len(r.Body), Limit: maxBody}}
	}
	if err := r.Check(); err != nil {
		return &ErrMessage{fieldOf(r), err}
	}
	return nil
}

// fieldOf names the field that record.Check refused.
func fieldOf(r *record.Record) string {
	switch {
	case !r.HasKey && len(r.Key) > 0, len(r.Key) > record.MaxKey:
		return "key"
	case len(r.ID) > record.MaxID:
		return "id"
	case len(r.Body) > record.MaxBody && len(r.Headers) <= record.MaxHeaders:
		return "body"
	}
	return "headers"
}

// oneBatch refuses what does not fit into one batch of a partition: of a second
// one the log would not know that it stands behind a refused record.
func oneBatch(req *Request, pt part) error {
	size := record.Size(record.Meta{}, nil)
	empty := size
	for _, i := range pt.members {
		size += record.Size(record.Meta{}, req.Records[i:i+1]) - empty
	}
	if size > record.MaxBatchBytes {
		return &ErrCall{"messages", fmt.Sprintf("they take %d bytes in partition %d; in order, send at most %d in one call", size, pt.number, record.MaxBatchBytes)}
	}
	return nil
}

// send gives one partition its messages, in as few batches as the limits allow.
// When one batch is not taken, the rest of the partition is not sent either:
// it would overtake. recs is room for one batch's records, handed from partition
// to partition.
func (p *Publisher) send(c *Call, req *Request, pt part, recs []record.Record) []record.Record {
	meta := record.Meta{ProducerID: req.ProducerID, InOrder: req.InOrder}
	if p.cfg.Now != nil {
		meta.PublishTime = p.cfg.Now()
	}
	empty := record.Size(meta, nil)
	for rest := pt.members; len(rest) > 0; {
		recs = recs[:0]
		size := empty
		for _, i := range rest {
			more := record.Size(meta, req.Records[i:i+1]) - empty
			if len(recs) > 0 && size+more > record.MaxBatchBytes {
				break
			}
			size += more
			recs = append(recs, req.Records[i])
		}
		batch := rest[:len(recs)]
		rest = rest[len(recs):]
		if req.ProducerID != "" {
			// Callers count from 1, so that 0 can say that there is no number; the
			// record batch counts from 0.
			meta.FirstSequence = req.FirstSequence - 1 + uint64(batch[0])
		}
		c.begin(batch)
		err := p.log.PublishAsync(req.Table.Target(pt.number).ID, record.Append(make([]byte, 0, size), meta, recs), func(stored []Stored, err error) {
			c.answer(pt.number, batch, stored, err)
		})
		if err != nil {
			c.answer(pt.number, batch, nil, err)
			c.notSent(rest, batch[0], err)
			break
		}
	}
	return recs
}
