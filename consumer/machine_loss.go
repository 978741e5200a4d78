package consumer

import (
	"encoding/binary"

	"github.com/strandmq/strandmq/partition"
)

// lossCause is why messages were lost.
type lossCause byte

const (
	lossByAge   lossCause = 1
	lossBySize  lossCause = 2
	lossByLimit lossCause = 3 // the group's own, of what it may hold
)

// String prints the cause as age, size, hold-limit.
func (c lossCause) String() string {
	switch c {
	case lossByAge:
		return "age"
	case lossBySize:
		return "size"
	case lossByLimit:
		return "hold-limit"
	default:
		return "unknown"
	}
}

// loss is messages that retention took before they were settled: count of those
// from first to last.
type loss struct {
	first, last partition.Offset
	count       uint64
	cause       lossCause
	from, until partition.Millis
}

const (
	// lossGap is how far apart two losses of one cause are to be records of
	// their own.
	lossGap = hour
	// maxLosses bounds the records of a group in a partition. Beyond it the two
	// oldest become one: nothing is ever left out of the sums.
	maxLosses = 100
)

// keeping is the row of what retention did to a group: its losses, and how much
// it has copied.
type keeping struct {
	copies, bytes uint64
	losses        []loss
}

func (g *group) keeping() keeping {
	k, err := g.rows.keeping()
	g.fault(err)
	return k
}

func (r rowsOf) keeping() (k keeping, err error) {
	key := r.prefix(rowKeeping)
	v, err := r.Get(key)
	if err != nil || v == nil {
		return keeping{}, err
	}
	d := reader{b: v}
	d.version("delivery row", rowVersion)
	k.copies, k.bytes = d.uvarint(), d.uvarint()
	for range d.count(5) {
		l := loss{first: partition.Offset(d.uvarint())}
		l.last = l.first + partition.Offset(d.uvarint())
		l.count, l.cause = d.uvarint(), lossCause(d.byte())
		l.from = partition.Millis(d.varint())
		l.until = l.from + partition.Millis(d.varint())
		k.losses = append(k.losses, l)
	}
	if why := d.finish(); why != "" {
		return keeping{}, d.ofRow(key, why)
	}
	return k, nil
}

func (r rowsOf) putKeeping(k keeping) {
	b := binary.AppendUvarint([]byte{rowVersion}, k.copies)
	b = binary.AppendUvarint(b, k.bytes)
	b = binary.AppendUvarint(b, uint64(len(k.losses)))
	for _, l := range k.losses {
		b = binary.AppendUvarint(b, uint64(l.first))
		b = binary.AppendUvarint(b, uint64(l.last-l.first))
		b = append(binary.AppendUvarint(b, l.count), byte(l.cause))
		b = binary.AppendVarint(b, int64(l.from))
		b = binary.AppendVarint(b, int64(l.until-l.from))
	}
	r.Put(r.prefix(rowKeeping), b)
}

// addLoss writes a loss down. One that goes on is one record.
func (g *group) addLoss(l loss) {
	k := g.keeping()
	if n := len(k.losses); n > 0 {
		if was := &k.losses[n-1]; was.cause == l.cause && l.from-was.until <= lossGap && l.first > was.last {
			was.last, was.until = l.last, max(was.until, l.until)
			was.count += l.count
			g.rows.putKeeping(k)
			return
		}
	}
	k.losses = append(k.losses, l)
	if n := len(k.losses); n > maxLosses {
		one, two := k.losses[0], k.losses[1]
		two.first, two.from = min(one.first, two.first), min(one.from, two.from)
		two.count += one.count
		k.losses = k.losses[1:]
		k.losses[0] = two
	}
	g.rows.putKeeping(k)
}
