package router

import (
	"fmt"
	"math"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/record"
)

// ErrStaleRoute is a record batch that was made by another routing table than
// the topic has now. Nothing of it was stored. Whoever made it should ask for
// the present table and make it again.
type ErrStaleRoute struct {
	Record int // which record, from 0; -1: the batch as a whole
	Why    string
}

// Error says what does not fit.
func (e *ErrStaleRoute) Error() string {
	if e.Record < 0 {
		return e.Why
	}
	return fmt.Sprintf("record %d: %s", e.Record, e.Why)
}

// ErrRecord is a record batch that was refused for what one record is. Nothing
// of the batch was stored, since its bytes are stored as they came or not at
// all.
type ErrRecord struct {
	Record int // which, from 0
	Err    *ErrMessage
}

// Error says which record, which field and why.
func (e *ErrRecord) Error() string { return fmt.Sprintf("record %d: %v", e.Record, e.Err) }

// Unwrap gives the record's refusal.
func (e *ErrRecord) Unwrap() error { return e.Err }

// ParsedBatch is a record batch that may be stored as it is.
type ParsedBatch struct {
	record.Batch
	Partition uint64 // its partition's id in the cluster, for the Log
	Bytes     int    // of keys, ids, headers and bodies
}

// Parse checks a record batch that a publisher made for partition number n, in
// one walk: the batch is whole, every record is one that Submit would have
// sent, and the hashes are the ones that lead there. maxBody is the topic's
// limit in bytes (0: record.MaxBody). Errors: *record.Error, *ErrRecord,
// *ErrStaleRoute, *ErrCall.
//
// A record without key and id may have any hash of the partition. A producer's
// sequence runs through the partition here, so its records may have any keys.
func (t *Table) Parse(b []byte, n uint32, maxBody int) (ParsedBatch, error) {
	if int64(n) >= int64(len(t.targets)) {
		return ParsedBatch{}, &ErrStaleRoute{-1, fmt.Sprintf("the topic has partitions 0 to %d, and no %d", len(t.targets)-1, n)}
	}
	if maxBody <= 0 {
		maxBody = record.MaxBody
	}
	target := t.targets[n]
	out := ParsedBatch{Partition: target.ID}
	batch, rest, err := record.ParseEach(b, func(i int, r record.Raw, f *record.Fields) error {
		out.Bytes += f.Bytes()
		return t.checkRaw(i, r.KeyHash(), f, target.Range, maxBody)
	})
	if err != nil {
		return ParsedBatch{}, err
	}
	if len(rest) > 0 {
		return ParsedBatch{}, &record.Error{Why: fmt.Sprintf("%d bytes behind the batch: send one at a time", len(rest))}
	}
	out.Batch = batch
	producer, first := batch.Producer()
	switch {
	case len(producer) == 0 && first != 0:
		return ParsedBatch{}, &ErrCall{"first_sequence", "it is set without a producer id; set both or neither"}
	case len(producer) == 0:
		return out, nil
	case first > math.MaxUint64-uint64(batch.Len()):
		return ParsedBatch{}, &ErrCall{"first_sequence", fmt.Sprintf("%d is not a sequence number to start from; the first message of a producer has 0", first)}
	}
	if err := names.ProducerID(string(producer)); err != nil {
		return ParsedBatch{}, &ErrCall{"producer_id", err.Error()}
	}
	return out, nil
}

// checkRaw is checkRecord and route for a record in its stored form.
func (t *Table) checkRaw(i int, hash uint64, f *record.Fields, owns keyspace.Range, maxBody int) error {
	want := hash
	switch {
	case f.HasKey:
		if len(f.Key) == 0 {
			return &ErrRecord{i, &ErrMessage{"key", &ErrKey{}}}
		}
		want = keyspace.Hash(t.seed, f.Key)
	case len(f.ID) > 0:
		want = keyspace.Hash(t.seed, f.ID)
	}
	if len(f.ID) > 0 && !names.IsMessageID(f.ID) {
		return &ErrRecord{i, &ErrMessage{"id", names.MessageID(string(f.ID))}}
	}
	if f.Headers.Len() > 0 {
		if err := checkRawHeaders(i, f.Headers); err != nil {
			return err
		}
	}
	if len(f.Body) > maxBody {
		return &ErrRecord{i, &ErrMessage{"body", &ErrTooLarge{Size: len(f.Body), Limit: maxBody}}}
	}
	if want != hash {
		return &ErrStaleRoute{i, fmt.Sprintf("its hash is %016x and should be %016x under the topic's seed", hash, want)}
	}
	if !owns.Contains(hash) {
		return &ErrStaleRoute{i, fmt.Sprintf("its hash %016x is not in the partition's range %v", hash, owns)}
	}
	return nil
}

func checkRawHeaders(i int, hs record.HeaderList) error {
	for n := 0; ; n++ {
		name, _, ok := hs.Next()
		if !ok {
			return nil
		}
		if !names.IsHeaderName(name) {
			return &ErrRecord{i, &ErrMessage{fmt.Sprintf("headers[%d].name", n), names.HeaderName(string(name))}}
		}
	}
}
