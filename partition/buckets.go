package partition

import "github.com/strandmq/strandmq/partition/logstore"

// buckets are where the rows that find duplicates lie: each bucket begins at an
// offset and ends where the next one begins. What came before the first one has
// no rows. They are part of the applied state, so every replica looks into the
// same ones, and when the last message of one is removed its rows go as a range,
// unread.
//
// A look for a message that is there costs a look into each bucket, newest
// first, so they must be few: a new one begins after as many offsets as half of
// what is kept, so that there are two or three under steady retention, and one
// more for every half that a log grows by without.
type buckets []Offset

// bucketOffsets is the least that a bucket covers.
const bucketOffsets = 64 << 10

// newest returns the bucket for what is stored at an offset, and the buckets with
// it. Each covers at least so many offsets as least says.
func (b buckets) newest(start, at, least Offset) (Offset, buckets) {
	if n := len(b); n > 0 && at-b[n-1] < max(least, (at-min(start, at))/2) {
		return b[n-1], b
	}
	next := make(buckets, len(b), len(b)+1)
	copy(next, b)
	return at, append(next, at).from(start) // the one before may have waited for its end
}

// from drops the buckets whose messages all stand before an offset.
func (b buckets) from(start Offset) buckets {
	n := 0
	for n+1 < len(b) && b[n+1] <= start {
		n++
	}
	return b[n:]
}

// live tells whether a bucket is one of them.
func (b buckets) live(x Offset) bool { return len(b) > 0 && x >= b[0] }

// forget deletes the rows of all buckets before the first one.
func (b buckets) forget(p PartitionID, wb *logstore.Batch) error {
	if len(b) == 0 {
		return nil
	}
	for _, ns := range []logstore.Namespace{logstore.IDs, logstore.Producers} {
		if err := wb.DeleteRange(ns, uint64(p), nil, bucketKey(nil, b[0])); err != nil {
			return err
		}
	}
	return nil
}
