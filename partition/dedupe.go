package partition

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// dedupe decides which records of a batch are messages that the log has
// already. It decides when a batch is applied and never before, so every
// replica decides the same.
//
// Its memory is what was decided since the last commit of rows, and a bounded
// cache of producers; everything else is rows. Rows only raise a suspicion: the
// message that stands at the offset they name is read and compared, so two ids
// with one hash can never suppress a message.
type dedupe struct {
	id    PartitionID
	store *logstore.Store
	read  reader
	least Offset // that a bucket covers

	ids       map[idRowName][]idRef // rows written since the last commit
	seen      *idFilter             // every id that is written is added
	covered   bool                  // those that were written before this host, too
	producers map[string]*producer  // a cache; with runs written since the last commit
	touched   []*producer
	key       []byte // scratch

	// The message looked at last: repeats come in the order of the originals.
	near     stored
	nearAt   Offset
	nearOdd  []uint16
	nearRec  int
	nearWalk record.Cursor
}

// idRowName is a row of the message ids.
type idRowName struct {
	bucket Offset
	key    idKey
}

// maxProducers bounds the cache of producers of a partition.
const maxProducers = 4096

type producer struct {
	next  uint64
	in    Offset // the bucket that next was read from or written to
	fresh []run  // not yet committed
}

// pending is the batch being decided.
type pending struct {
	batch record.Batch
	start Offset // first offset kept
	base  Offset // offset of its first message, if any is stored
	odd   []verdict

	buckets buckets // with the one that its rows go into
	bucket  Offset
}

// offset is the one that record i gets if it is stored.
func (p *pending) offset(i int) Offset { return p.base + Offset(i-len(p.odd)) }

func (p *pending) judge(i int, what fate, at Offset) {
	p.odd = append(p.odd, verdict{record: uint16(i), what: what, offset: at})
}

// decide fills p.odd and stages the rows that remember the decision.
func (d *dedupe) decide(p *pending, rows *rowBuf) error {
	p.bucket, p.buckets = p.buckets.newest(p.start, p.base, d.least)
	name, first := p.batch.Producer()
	n, from := p.batch.Len(), 0
	var prod *producer
	if len(name) > 0 {
		var err error
		if prod, err = d.producer(p, name); err != nil {
			return err
		}
		if first > prod.next || first > math.MaxUint64-uint64(n) {
			for i := range n {
				p.judge(i, fateGap, Offset(prod.next))
			}
			return nil
		}
		if first < prod.next {
			from = int(min(uint64(n), prod.next-first))
			if err := d.repeats(p, name, prod, first, from); err != nil {
				return err
			}
		}
	}
	repeats := len(p.odd)
	if p.batch.HasIDs() && from < n {
		if err := d.byID(p, from, rows); err != nil {
			return err
		}
	}
	if prod == nil || from == n {
		return nil
	}
	r := run{first: first + uint64(from), base: p.base, count: uint16(n - from), in: p.bucket}
	for _, v := range p.odd[repeats:] {
		v.record -= uint16(from)
		r.odd = append(r.odd, v)
	}
	prod.next, prod.in = first+uint64(n), p.bucket
	if len(prod.fresh) == 0 {
		d.touched = append(d.touched, prod)
	}
	prod.fresh = append(prod.fresh, r)

	d.key = runKey(d.key[:0], p.bucket, name, r.first)
	rows.end(appendRunRow(rows.begin(logstore.Producers, d.key), r))
	d.key = nextKey(d.key[:0], p.bucket, name)
	rows.end(appendNextRow(rows.begin(logstore.Producers, d.key), prod.next))
	return nil
}

// repeats judges the first n records of a batch: their producer has sent their
// sequences before.
func (d *dedupe) repeats(p *pending, name []byte, prod *producer, first uint64, n int) error {
	var r run
	c := p.batch.Cursor()
	for i := range n {
		raw, _ := c.Next()
		seq := first + uint64(i)
		if r.count == 0 || seq-r.first >= uint64(r.count) {
			var ok bool
			var err error
			if r, ok, err = d.run(p, name, prod, seq); err != nil {
				return err
			}
			if !ok {
				r = run{}
				p.judge(i, fateForgotten, 0)
				continue
			}
		}
		v := r.verdict(seq)
		if v.what == fateDuplicate {
			if v.offset < p.start {
				v.what = fateExpired
			} else {
				was, err := d.message(p, v.offset)
				if err != nil {
					return err
				}
				if !sameKey(was, raw) || !bytes.Equal(was.ID(), raw.ID()) || !bytes.Equal(was.Body(), raw.Body()) {
					v.what = fateSequenceReused
				}
			}
		}
		p.judge(i, v.what, v.offset)
	}
	return nil
}

// verdict returns what a repeat of a sequence of the run has to be told.
func (r *run) verdict(seq uint64) verdict {
	rel := uint16(seq - r.first)
	before := 0
	for _, v := range r.odd {
		if v.record == rel {
			return v
		}
		if v.record < rel {
			before++
		}
	}
	return verdict{what: fateDuplicate, offset: r.base + Offset(int(rel)-before)}
}

// byID judges the records from one on by their message ids.
func (d *dedupe) byID(p *pending, from int, rows *rowBuf) error {
	c := p.batch.Cursor()
	refused := false // one before, in a batch in order
	for i := 0; ; i++ {
		raw, ok := c.Next()
		if !ok {
			return nil
		}
		if i < from {
			continue
		}
		if !raw.HasID() {
			if refused {
				p.judge(i, fateBehind, 0)
			}
			continue
		}
		key := keyOf(raw.ID(), raw.Key(), raw.HasKey())
		was, found, err := d.stored(p, raw, key)
		if err != nil {
			return err
		}
		if found {
			what := fateIDReused
			if bytes.Equal(was.raw.Body(), raw.Body()) {
				what = fateDuplicate
			}
			p.judge(i, what, was.offset)
			refused = refused || what == fateIDReused && p.batch.InOrder()
			continue
		}
		if refused {
			p.judge(i, fateBehind, 0)
			continue
		}
		name := idRowName{p.bucket, key}
		keep, err := d.refs(name)
		if err != nil {
			return err
		}
		keep = append(keep[:len(keep):len(keep)], idRef{offset: p.offset(i), body: xxhash.Sum64(raw.Body())})
		d.ids[name] = keep
		d.seen.add(d.id, key)
		d.key = idRowKey(d.key[:0], p.bucket, key)
		rows.end(appendIDRow(rows.begin(logstore.IDs, d.key), keep))
	}
}

// found is a message that was stored under an id.
type found struct {
	offset Offset
	raw    record.Raw
}

// stored finds the message that is kept under a record's id and key.
func (d *dedupe) stored(p *pending, raw record.Raw, key idKey) (found, bool, error) {
	if d.covered && !d.seen.has(d.id, key) {
		return found{}, false, nil
	}
	for b := len(p.buckets) - 1; b >= 0; b-- {
		refs, err := d.refs(idRowName{p.buckets[b], key})
		if err != nil {
			return found{}, false, err
		}
		for _, ref := range refs {
			if ref.offset < p.start {
				continue // its message is no longer kept: the id is free again
			}
			was, err := d.message(p, ref.offset)
			if err != nil {
				return found{}, false, err
			}
			if bytes.Equal(was.ID(), raw.ID()) && sameKey(was, raw) {
				return found{ref.offset, was}, true, nil
			}
			// Else another id with the same hash.
		}
	}
	return found{}, false, nil
}

func sameKey(a, b record.Raw) bool { return a.HasKey() == b.HasKey() && bytes.Equal(a.Key(), b.Key()) }

// noKey stands for the key hash of keyless messages. A key that hashes to it
// is told apart by comparing.
const noKey = 0

func keyOf(id, key []byte, hasKey bool) (k idKey) {
	h := uint64(noKey)
	if hasKey {
		h = xxhash.Sum64(key)
	}
	binary.BigEndian.PutUint64(k[:8], xxhash.Sum64(id))
	binary.BigEndian.PutUint64(k[8:], h)
	return k
}

// refs returns what a row says was stored under an id's hash.
func (d *dedupe) refs(name idRowName) ([]idRef, error) {
	if d.covered && !d.seen.has(d.id, name.key) {
		return nil, nil
	}
	if refs, ok := d.ids[name]; ok {
		return refs, nil
	}
	var buf [64]byte
	var key [idRowKeyLen]byte
	row, err := d.store.AppendGet(buf[:0], logstore.IDs, uint64(d.id), idRowKey(key[:0], name.bucket, name.key))
	if err != nil || row == nil {
		return nil, err
	}
	return decodeIDRow(row)
}

// producer returns what is known of a producer; one that is not known, or whose
// messages were all removed, has sent nothing.
func (d *dedupe) producer(p *pending, name []byte) (*producer, error) {
	if prod, ok := d.producers[string(name)]; ok && (prod.next == 0 || p.buckets.live(prod.in)) {
		return prod, nil
	}
	prod := &producer{}
	for b := len(p.buckets) - 1; b >= 0; b-- {
		row, err := d.store.Get(logstore.Producers, uint64(d.id), nextKey(nil, p.buckets[b], name))
		if err != nil {
			return nil, err
		}
		if row == nil {
			continue
		}
		if prod.next, err = decodeNextRow(row); err != nil {
			return nil, err
		}
		prod.in = p.buckets[b]
		break
	}
	d.producers[string(name)] = prod
	return prod, nil
}

// run returns the run that holds a sequence; false when it is no longer kept.
func (d *dedupe) run(p *pending, name []byte, prod *producer, seq uint64) (r run, ok bool, err error) {
	for _, r := range prod.fresh {
		if seq >= r.first && seq-r.first < uint64(r.count) && p.buckets.live(r.in) {
			return r, true, nil
		}
	}
	for b := len(p.buckets) - 1; b >= 0 && !ok && err == nil; b-- {
		var bad error
		from, to := runKey(nil, p.buckets[b], name, seq), runKey(nil, p.buckets[b], name, 0)
		err = d.store.Iterate(logstore.Producers, uint64(d.id), from, append(to, 0), func(k, v []byte) bool {
			r, bad = decodeRunRow(k, v)
			ok = bad == nil && seq-r.first < uint64(r.count)
			return false
		})
		if err == nil {
			err = bad
		}
	}
	return r, ok, err
}

// message returns the message at an offset: of the log, or of the batch that is
// being decided.
func (d *dedupe) message(p *pending, o Offset) (record.Raw, error) {
	if o >= p.base {
		b := stored{row: indexRow{base: p.base}, batch: p.batch}
		for _, v := range p.odd {
			b.row.suppressed = append(b.row.suppressed, v.record)
		}
		if raw, ok := b.at(o); ok {
			return raw, nil
		}
		return record.Raw{}, fmt.Errorf("offset %d is not in the batch that begins at %d", o, p.base)
	}
	if d.near.row.stored == 0 || o < d.nearAt || o >= d.near.row.end() {
		d.near = stored{}
		err := d.read.visit(o, o+1, func(b stored) bool { d.near = b; return false })
		if err != nil {
			return record.Raw{}, err
		}
		d.nearAt, d.nearRec, d.nearOdd, d.nearWalk = d.near.row.base, 0, d.near.row.suppressed, d.near.batch.Cursor()
	}
	for {
		raw, ok := d.nearWalk.Next()
		if !ok {
			d.near = stored{}
			return record.Raw{}, fmt.Errorf("offset %d is not in the batch that the index names", o)
		}
		i := d.nearRec
		d.nearRec++
		if len(d.nearOdd) > 0 && int(d.nearOdd[0]) == i {
			d.nearOdd = d.nearOdd[1:]
			continue
		}
		d.nearAt++
		if d.nearAt == o+1 {
			return raw, nil
		}
	}
}

// committed tells that the rows staged so far can be read from the store.
func (d *dedupe) committed() {
	if len(d.ids) > 0 {
		clear(d.ids)
	}
	for i, p := range d.touched {
		p.fresh = nil
		d.touched[i] = nil
	}
	d.touched = d.touched[:0]
	if len(d.producers) > maxProducers {
		clear(d.producers)
	}
	d.near = stored{} // it would keep memory
}
