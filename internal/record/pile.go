package record

import "encoding/binary"

// Pile gathers records of which a batch is made later, when what they have in common is
// known. It keeps room before them, so that they stay where they are. The zero value is
// ready, and keeps none.
type Pile struct {
	b     []byte
	room  int
	count int
	flags byte
}

// NewPile gives a pile with room for the header of a producer whose id has so many bytes
// at most, and for records of about so many bytes.
func NewPile(producer, bytes int) Pile {
	room := fixedSize + producer
	return Pile{b: make([]byte, room, room+bytes), room: room}
}

// Add encodes a record. It does not check limits (see Record.Check).
func (p *Pile) Add(r *Record) {
	if r.ID != "" {
		p.flags |= flagIDs
	}
	p.b = r.append(p.b)
	p.count++
}

// Len returns how many records were added.
func (p *Pile) Len() int { return p.count }

// Bytes returns what they take in a batch.
func (p *Pile) Bytes() int { return len(p.b) - p.room }

// Each calls fn for each record, which aliases the pile.
func (p *Pile) Each(fn func(Raw)) {
	for b := p.b[p.room:]; len(b) > 0; {
		n, k := binary.Uvarint(b)
		fn(Raw{b: b[k : k+int(n) : k+int(n)]})
		b = b[k+int(n):]
	}
}

// Batch makes a batch of all of them, of which there must be one. The pile must not be
// used any more.
func (p *Pile) Batch(m Meta) []byte {
	out := p.b
	if at := p.room - fixedSize - len(m.ProducerID); at >= 0 {
		appendHeader(out[at:at:p.room], m, p.count)
		out = out[at:]
	} else {
		out = append(appendHeader(make([]byte, 0, fixedSize+len(m.ProducerID)+p.Bytes()), m, p.count), p.b[p.room:]...)
	}
	finish(out, m.flags()|p.flags, p.count)
	return out
}
