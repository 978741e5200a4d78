package partition

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// unknownBytes is how much of a log a replica that does not lead keeps beyond what
// it needs itself: it does not know what others need, and may have to feed them if
// it comes to lead.
const unknownBytes = 4 << 20

// needed is the first entry that has to stay although retention would let it go,
// because another replica may have to be fed it. It is bounded: who lags by more
// than FollowerBytes gets a snapshot, so one that is dead does not fill the disk.
// Nothing behind a snapshot that is on its way goes, or another would have to follow.
// What does not read stays for nobody.
func (r *replica) needed(applied Index) Index {
	least := applied + 1
	if r.single {
		return least
	}
	if r.isLead {
		allowed := r.rlog.sizes.from(r.c.cfg.FollowerBytes)
		r.rn.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			if next := p.Match + 1; ReplicaID(id) != r.self && next >= allowed {
				least = min(least, Index(next))
			}
		})
	} else {
		least = min(least, Index(r.rlog.sizes.from(min(unknownBytes, r.c.cfg.FollowerBytes))))
	}
	for _, at := range r.sending {
		least = min(least, at+1)
	}
	return max(least, min(r.shed, applied)+1)
}

// logSizes knows about how many bytes of log lie behind an entry, of what was
// appended since the replica was made. What was there before counts as too much.
type logSizes struct {
	step  int64      // between two marks
	marks []sizeMark // ascending
	bytes int64      // of all entries
}

// sizeMarks is how many marks lie in what a leader keeps for others.
const sizeMarks = 64

// sizeMark tells how many bytes were appended before an entry.
type sizeMark struct {
	index uint64
	bytes int64
}

func (s *logSizes) add(index uint64, size int) {
	for n := len(s.marks); n > 0 && s.marks[n-1].index >= index; n-- {
		s.bytes = s.marks[n-1].bytes // it is replaced
		s.marks = s.marks[:n-1]
	}
	if n := len(s.marks); n == 0 || s.bytes-s.marks[n-1].bytes > s.step {
		s.marks = append(s.marks, sizeMark{index, s.bytes})
	}
	s.bytes += int64(size) + entryOverhead
	if len(s.marks) > 4*sizeMarks {
		s.marks = append(s.marks[:0], s.marks[2*sizeMarks:]...)
	}
}

// from is the first entry behind which, with it, lie at most so many bytes.
func (s *logSizes) from(bytes int64) uint64 {
	for _, m := range s.marks {
		if s.bytes-m.bytes <= bytes {
			return m.index
		}
	}
	if n := len(s.marks); n > 0 && s.bytes > bytes {
		return s.marks[n-1].index // one step more than asked for
	}
	return 1<<63 - 1
}
