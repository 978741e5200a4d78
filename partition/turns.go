package partition

// Source is who publishes, such as one stream. Batches of a source to one partition
// are stored in the order given; sources take turns. All who have no name for
// themselves are source 0.
type Source uint64

// Whoever has much on its way must not be in front of everybody who has little. Two
// rules keep a newcomer's wait short, however long the queues are; what is counted is
// work, not time:
//
//	stream 7 ─► lane ─┐
//	stream 8 ─► lane ─┼─ in turn ─► an entry of partition 1 ─┐
//	calls    ─► lane ─┘                                      ├─ together ─► one write
//	            …                ─► an entry of partition 2 ─┘  at most pumpWork
//
// In a partition the sources take turns, and a write takes a share of each partition
// that is bounded by the number of those that have something: see core.pump. Before,
// a write took a MiB of each partition, which with messages of 100 bytes was tens of
// thousands, and everybody waited for several such writes.
//
// The lanes are deficit round robin: M. Shreedhar and G. Varghese, "Efficient fair
// queuing using deficit round-robin", 1996.

const (
	// proposalWork is what a proposal counts for beside its bytes: about as many
	// bytes as are written in the time that one takes.
	proposalWork = 4 << 10
	// pumpWork is what a pump takes from all queues together: some ten milliseconds
	// of proposals, or as many bytes as make a write worth its fsync.
	pumpWork = 8 << 20
	// leastShare is what it takes of a partition in any case. With more partitions
	// than fit, it goes beyond pumpWork rather than make entries that are mostly
	// their own cost.
	leastShare = 64 << 10
	// laneQuantum is what a source may give in one of its turns.
	laneQuantum = 16 << 10
)

// work is what a proposal counts for when turns are shared.
func (p *proposal) work() int { return len(p.data) + proposalWork }

// shareOf divides a pump's work among n partitions that have something queued.
func shareOf(n int) int { return max(pumpWork/max(n, 1), leastShare) }

// lanes is a partition's queue of batches, in which sources take turns.
type lanes struct {
	of    map[Source]*lane // those with something in them
	ring  []*lane          // the same; the first one's turn it is
	count int
}

type lane struct {
	source Source
	fifo
	credit int // work that it may still give in its turn
}

func (l *lanes) len() int { return l.count }

func (l *lanes) push(p *proposal) {
	x := l.of[p.source]
	if x == nil {
		if l.of == nil {
			l.of = make(map[Source]*lane)
		}
		x = &lane{source: p.source, credit: laneQuantum}
		l.of[p.source] = x
		l.ring = append(l.ring, x)
	}
	x.push(p)
	l.count++
}

// pop takes the proposal whose turn it is. There must be one.
func (l *lanes) pop() *proposal {
	for {
		x := l.ring[0]
		if x.at(0).work() > x.credit {
			// What is left of its credit stays, so that a source of large
			// batches gets its part, too.
			x.credit += laneQuantum
			copy(l.ring, l.ring[1:])
			l.ring[len(l.ring)-1] = x
			continue
		}
		p := x.pop()
		x.credit -= p.work()
		l.count--
		if x.len() == 0 {
			delete(l.of, x.source)
			copy(l.ring, l.ring[1:])
			l.ring[len(l.ring)-1] = nil
			l.ring = l.ring[:len(l.ring)-1]
		}
		return p
	}
}
