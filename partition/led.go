package partition

import (
	"encoding/binary"
	"slices"
)

// Who led in which term is not in the log: an entry has its term, and raft gives a term
// one leader at most, but no entry names it. Each replica notes it when it hears of a
// leader, which is once for each leadership, in a row that goes with the next batch and
// with snapshots. It decides nothing. A term in which a replica heard of nobody, and
// those before an upgrade to a version that notes it, stay unknown.

// maxLed is how many stretches of terms are kept: the newest.
const maxLed = 128

// ledRow is who led in which term, as the row metaLed has it: stretches of terms in a
// row with one leader, in order.
//
//	ver u8 │ { first term, less the last one before, uvarint │ how many more uvarint │ node uvarint } …
type ledRow []byte

const ledVersion byte = 1

// Leadership is terms in a row that one node led.
type Leadership struct {
	First, Last uint64
	Node        NodeID
}

// stretches reads the row: what it tells as far as it reads. One of another version
// tells nothing.
func (r ledRow) stretches() (out []Leadership) {
	if len(r) == 0 || r[0] != ledVersion {
		return nil
	}
	b, last := r[1:], uint64(0)
	for len(b) > 0 {
		var v [3]uint64
		for i := range v {
			n := 0
			if v[i], n = binary.Uvarint(b); n <= 0 {
				return out
			}
			b = b[n:]
		}
		s := Leadership{First: last + v[0], Node: NodeID(v[2])}
		s.Last = s.First + v[1]
		if s.First <= last || s.Last < s.First || v[2] == 0 || v[2] > uint64(MaxNode) {
			return out
		}
		out, last = append(out, s), s.Last
	}
	return out
}

// with is the row with one more leadership; false: it says so already, or of a later
// term.
func (r ledRow) with(term uint64, node NodeID) (ledRow, bool) {
	all := r.stretches()
	n := len(all)
	switch {
	case term == 0 || node == 0 || n > 0 && all[n-1].Last >= term:
		return r, false
	case n > 0 && all[n-1].Node == node && all[n-1].Last+1 == term:
		all[n-1].Last = term
	default:
		all = append(all, Leadership{term, term, node})
	}
	out, last := ledRow{ledVersion}, uint64(0)
	for _, s := range all[max(0, len(all)-maxLed):] {
		for _, v := range [...]uint64{s.First - last, s.Last - s.First, uint64(s.Node)} {
			out = binary.AppendUvarint(out, v)
		}
		last = s.Last
	}
	return out, true
}

// Led tells who led a partition in which term, in order, as far as this node's replica
// heard of it.
type Led []Leadership

// By is the node that led in a term; 0: not known.
func (l Led) By(term uint64) NodeID {
	i, ok := slices.BinarySearchFunc(l, term, func(s Leadership, term uint64) int {
		switch {
		case s.Last < term:
			return -1
		case s.First > term:
			return 1
		}
		return 0
	})
	if !ok {
		return 0
	}
	return l[i].Node
}

// Led returns who led a partition in which term, as far as it is known here. It reads
// from disk.
func (h *Host) Led(id PartitionID) (Led, error) {
	if _, err := h.shelf(id); err != nil {
		return nil, err
	}
	b, err := h.cfg.Store.Meta(uint64(id), metaLed)
	return ledRow(b).stretches(), storeError(id, err)
}

// noteLeader notes who leads, in the batch of the turn. It is not synced for this.
func (r *replica) noteLeader() error {
	if r.term <= r.ledIn || r.leader == 0 {
		return nil
	}
	r.ledIn = r.term
	led, more := r.led.with(r.term, r.leader.Node())
	if !more {
		return nil
	}
	r.led = led
	return r.c.batch().SetMeta(uint64(r.id), metaLed, led)
}
