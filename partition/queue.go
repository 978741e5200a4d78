package partition

import (
	"time"

	"github.com/strandmq/strandmq/internal/record"
)

// proposal is a batch or a command on its way into a log.
type proposal struct {
	id     uint64
	kind   EntryKind
	data   []byte
	batch  record.Batch  // of data, for Batches
	source Source        // whose, for Batches
	size   int64         // held in the queues until answered; 0: the App's own
	term   uint64        // in which it was given to raft
	own    bool          // what the App returned from a turn
	given  time.Duration // the first of an entry: when the entry was given to raft, by core.clock; 0 for the others

	// One of them is called, once. Both nil: nobody waits.
	stored func([]Stored, error)
	result func(any, error)
}

// answer is what the shell has to tell a proposal's caller.
type answer struct {
	shelf  *shelf
	p      *proposal
	out    outcome
	result any
	err    error
}

// fifo is a queue of proposals.
type fifo struct {
	q       []*proposal
	head    int
	records int // in its batches
	work    int // see proposal.work
	own     int // of the App
}

func (f *fifo) len() int           { return len(f.q) - f.head }
func (f *fifo) at(i int) *proposal { return f.q[f.head+i] }

func (f *fifo) push(p *proposal) {
	f.q = append(f.q, p)
	f.count(p, 1)
}

func (f *fifo) pop() *proposal {
	p := f.q[f.head]
	f.count(p, -1)
	f.q[f.head] = nil
	f.head++
	if f.head == len(f.q) {
		f.q, f.head = f.q[:0], 0
	} else if f.head >= 256 && f.head > len(f.q)/2 {
		n := copy(f.q, f.q[f.head:])
		clear(f.q[n:])
		f.q, f.head = f.q[:n], 0
	}
	return p
}

func (f *fifo) count(p *proposal, by int) {
	f.work += by * p.work()
	if p.kind == Batches {
		f.records += by * p.batch.Len()
	}
	if p.own {
		f.own += by
	}
}
