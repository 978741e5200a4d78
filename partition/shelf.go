package partition

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/record"
)

// stored is one stored batch and its place.
type stored struct {
	row   indexRow
	batch record.Batch
}

// weight is what the batch takes in memory.
func (b *stored) weight() int64 { return int64(len(b.batch.Bytes())) + batchOverhead }

// batchOverhead is about what a batch takes beside its bytes: its row, its places on a
// shelf and in the order of leaving, and what the allocator rounds up. Of single small
// messages it is most.
const batchOverhead = 256

// each walks the stored messages of a batch from an offset on.
func (b *stored) each(from Offset, fn func(o Offset, r record.Raw) bool) {
	o := b.row.base
	odd := b.row.suppressed
	c := b.batch.Cursor()
	for i := 0; ; i++ {
		r, ok := c.Next()
		if !ok {
			return
		}
		if len(odd) > 0 && int(odd[0]) == i {
			odd = odd[1:]
			continue
		}
		if o >= from && !fn(o, r) {
			return
		}
		o++
	}
}

// at returns the message at an offset that the batch holds.
func (b *stored) at(o Offset) (r record.Raw, ok bool) {
	b.each(o, func(_ Offset, x record.Raw) bool { r, ok = x, true; return false })
	return r, ok
}

// shelf is what callers of a partition share with the host's loop: the newest
// batches, and how far the partition is applied. The loop alone changes those.
type shelf struct {
	id     PartitionID
	queued atomic.Int64 // what callers that wait to be written and answered hold
	coming atomic.Int64 // of those, the bytes of batches

	refusal atomic.Pointer[error] // why publishes are refused for now
	bound   atomic.Pointer[bound] // how far they may go; nil: any

	mu      sync.RWMutex
	batches []stored // ascending; those before head are gone
	head    int
	pages   []page // older ones that were read from disk; ascending, none meets another
	info    Info
	buckets buckets  // where the rows of message ids lie
	pos     Position // what readers may see: applied, and the rows of it committed
	fault   error    // the partition stopped: *ErrDamaged, or *ErrNotLeader where there are other replicas
}

// position returns what readers may see.
func (s *shelf) position() (Position, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pos, s.fault
}

func (s *shelf) idBuckets() buckets {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.buckets
}

// startAt lets readers know that messages are about to go.
func (s *shelf) startAt(o Offset) {
	s.mu.Lock()
	s.pos.Start = max(s.pos.Start, min(o, s.pos.End))
	s.mu.Unlock()
}

// find returns the batch that holds an offset, if it is in memory.
func (s *shelf) find(o Offset) (stored, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.batches[s.head:]
	if len(b) == 0 || o < b[0].row.base {
		return s.findPage(o)
	}
	i := sort.Search(len(b), func(i int) bool { return b[i].row.end() > o })
	if i == len(b) {
		return stored{}, false
	}
	return b[i], true
}

// next returns the lowest offset behind o that is in memory; false when none is.
func (s *shelf) next(o Offset) (Offset, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := s.pageBehind(o); i < len(s.pages) {
		return s.pages[i].first(), true
	}
	if s.head == len(s.batches) {
		return 0, false
	}
	return s.batches[s.head].row.base, true
}

// tail is the memory that all shelves of a node share: the oldest batch of the
// node leaves first. It belongs to the loop.
type tail struct {
	pages        pages // beside it, with a limit of their own
	limit, bytes int64
	order        []*shelf // whose batch leaves next
	head         int
}

// newTail divides the memory: a quarter is for pages.
func newTail(bytes int64) tail {
	return tail{limit: bytes - bytes/4, pages: pages{limit: bytes / 4}}
}

// add puts a batch on a shelf. Readers do not see it before they are told of
// the position; it stays at least until the next trim.
func (t *tail) add(s *shelf, b stored) {
	s.mu.Lock()
	s.batches = append(s.batches, b)
	s.mu.Unlock()
	t.bytes += b.weight()
	t.order = append(t.order, s)
}

// trim makes room. It must run only when the rows of every batch on the shelves
// are in the store.
func (t *tail) trim() {
	for t.bytes > t.limit && t.head < len(t.order) {
		s := t.order[t.head]
		t.order[t.head] = nil
		t.head++
		s.mu.Lock()
		if s.head < len(s.batches) {
			t.bytes -= s.batches[s.head].weight()
			s.batches[s.head] = stored{}
			s.head++
			if s.head > 64 && s.head > len(s.batches)/2 {
				n := copy(s.batches, s.batches[s.head:])
				clear(s.batches[n:])
				s.batches, s.head = s.batches[:n], 0
			}
		}
		s.mu.Unlock()
	}
	if t.head > 1024 && t.head > len(t.order)/2 {
		n := copy(t.order, t.order[t.head:])
		clear(t.order[n:])
		t.order, t.head = t.order[:n], 0
	}
}

// drop empties a shelf whose partition is gone. Its places in the order stay
// and find nothing.
func (t *tail) drop(s *shelf) {
	t.pages.drop(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := s.head; i < len(s.batches); i++ {
		t.bytes -= s.batches[i].weight()
	}
	s.batches, s.head = nil, 0
}
