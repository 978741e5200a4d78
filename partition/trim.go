package partition

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// Retention is decided in the log. The leader proposes from where on a log is
// kept; what comes of it is decided when that entry is applied, on every replica
// and after every restart alike: the App may need messages, and takes what it
// keeps of others. From then on they are gone for every reader.
//
//	leader: TrimTo{To} ──► log ──► App.Trim ──► Position.Start        at once
//	                                               │
//	                        checkpoint ────────────┴──► entries, rows   at the next checkpoint
//
// Their bytes go later, in the batch of the next checkpoint: until that is on
// disk a restart may have to apply the same entry again, and look at the same
// messages.

// TrimReason is why messages are not to be kept any longer.
type TrimReason byte

// The reasons: they are too old, or they are too many bytes.
const (
	ByAge  TrimReason = 1
	BySize TrimReason = 2
)

// String prints the reason as age, size.
func (r TrimReason) String() string {
	switch r {
	case ByAge:
		return "age"
	case BySize:
		return "size"
	}
	return "none"
}

// TrimTo proposes from where on a log is kept.
type TrimTo struct {
	To  Offset // nothing before is to be kept any longer
	Why TrimReason
	Now Millis // the proposer's clock
	// Done goes on to where the App has need of nothing, if it has a need at all.
	Done bool
	// Firm keeps what the App has need of, whatever it may ask for otherwise.
	Firm bool
}

// Trimmer is an App that has a say in what is removed from its log.
type Trimmer interface {
	// Keeps decides from where on the log has to be kept, given a TrimTo whose To
	// lies within the log; at most at.End. It changes nothing, and says the same
	// on every replica. The leader asks before it proposes, too.
	Keeps(at Position, t TrimTo, log Kept) (Offset, error)
	// Takes lists the messages before to that Trim would read, in order. The
	// leader reads them before it proposes: one that does not read must not stop
	// the partition now, and again whenever the trim is applied once more.
	Takes(at Position, to Offset) ([]Offset, error)
	// Trim hears that the log is kept from to on, which is what Keeps said and
	// beyond at.Start. What it needs of the messages before, it takes now. It is
	// like Apply, and so is its error.
	Trim(at Position, t TrimTo, to Offset, log Kept) error
}

// Kept is what is kept of a log while it is decided what is removed.
type Kept interface {
	// Read returns the messages at offsets, which are kept and sorted.
	Read(offsets []Offset) ([]RawMessage, error)
	// Before is how many bytes of batches were ever stored before the batch that
	// holds an offset, and when that one was published.
	Before(o Offset) (bytes uint64, published Millis, err error)
	// Find is the first message of the batch that holds the byte behind the first
	// so many that were ever stored, or of the first later one that was published
	// at t or later; the end, if none is. So what is behind those bytes is kept.
	Find(bytes uint64, t Millis) (Offset, error)
}

// A trim in the log:
//
//	ver u8 │ flags u8 │ why u8 │ to u64 │ now i64
const (
	trimVersion byte = 1
	trimLen          = 3 + 8 + 8

	trimDone byte = 1
	trimFirm byte = 2
)

func (t *TrimTo) encode() []byte {
	var flags byte
	if t.Done {
		flags |= trimDone
	}
	if t.Firm {
		flags |= trimFirm
	}
	b := []byte{trimVersion, flags, byte(t.Why)}
	b = binary.LittleEndian.AppendUint64(b, uint64(t.To))
	return binary.LittleEndian.AppendUint64(b, uint64(t.Now))
}

func decodeTrim(b []byte) (TrimTo, error) {
	if len(b) > 0 {
		if err := format.Check("trim", uint64(b[0]), uint64(trimVersion)); err != nil {
			return TrimTo{}, err
		}
	}
	if len(b) != trimLen {
		return TrimTo{}, fmt.Errorf("a trim has %d bytes, want %d", len(b), trimLen)
	}
	if b[0] != trimVersion || b[1]&^(trimDone|trimFirm) != 0 || b[2] > byte(BySize) {
		return TrimTo{}, fmt.Errorf("a trim of version %d with flags %x and reason %d; this program knows version %d", b[0], b[1], b[2], trimVersion)
	}
	return TrimTo{
		To: Offset(binary.LittleEndian.Uint64(b[3:])), Now: Millis(binary.LittleEndian.Uint64(b[11:])),
		Why: TrimReason(b[2]), Done: b[1]&trimDone != 0, Firm: b[1]&trimFirm != 0,
	}, nil
}

// keeps is from where on a log is to be kept after a trim.
func keeps(app App, at Position, t TrimTo, read reader) (Offset, error) {
	t.To = min(max(t.To, at.Start), at.End)
	a, ok := app.(Trimmer)
	if !ok {
		return t.To, nil
	}
	to, err := a.Keeps(at, t, kept{read, at})
	if err == nil && to > at.End {
		err = fmt.Errorf("the app trims a log that ends at %d to %d", at.End, to)
	}
	return max(to, at.Start), err
}

// trimApp applies a trim to an App and returns from where on the log is kept.
func trimApp(app App, at Position, data []byte, read reader) (Offset, error) {
	t, err := decodeTrim(data)
	if err != nil {
		return 0, err
	}
	to, err := keeps(app, at, t, read)
	if err == nil && to > at.Start {
		if a, ok := app.(Trimmer); ok {
			err = a.Trim(at, t, to, kept{read, at})
		}
	}
	if err != nil {
		return 0, fmt.Errorf("applying a trim: %w", err)
	}
	return to, nil
}

// kept implements Kept.
type kept struct {
	read reader
	pos  Position
}

func (k kept) Read(offsets []Offset) ([]RawMessage, error) {
	out := make([]RawMessage, 0, len(offsets))
	err := k.read.at(offsets, func(o Offset, t Millis, raw record.Raw) {
		out = append(out, RawMessage{Offset: o, PublishTime: t, Record: raw})
	})
	return out, err
}

func (k kept) Before(o Offset) (uint64, Millis, error) {
	if k.pos.Start == k.pos.End {
		return 0, 0, nil
	}
	if o >= k.pos.End {
		row, err := k.read.row(k.pos.End - 1)
		return row.bytes, row.time, err
	}
	row, err := k.read.row(max(o, k.pos.Start))
	return row.before(), row.time, err
}

func (k kept) Find(bytes uint64, t Millis) (Offset, error) {
	return k.read.search(k.pos, func(row *indexRow) bool { return row.bytes > bytes && row.time >= t })
}

// trim makes a later offset the first one kept.
func (l *messageLog) trim(to Offset) error {
	st := &l.state
	switch {
	case to <= st.start:
		return nil
	case to >= st.end:
		st.start, st.before, st.oldest = st.end, st.bytes, 0
	default:
		row, err := l.read.row(to)
		if err != nil {
			return err
		}
		st.start, st.before, st.oldest = to, row.before(), row.time
	}
	st.buckets = st.buckets.from(st.start)
	return nil
}

// trim applies a trim. It asks for a checkpoint, which removes the bytes.
func (r *replica) trim(at Position, data []byte) (Offset, error) {
	to, err := trimApp(r.app, at, data, r.log.read)
	if err != nil || to == at.Start {
		return at.Start, err
	}
	r.checkpointDue = true
	return to, r.log.trim(to)
}

// plannedTrim is what a trim would do.
type plannedTrim struct {
	start, to Offset   // the log is kept from there, and would be from here
	takes     []Offset // what the App would read
}

// wouldTrim tells what a trim would do. It changes nothing, so an error stops
// nothing.
func (c *core) wouldTrim(id PartitionID, t TrimTo) (w plannedTrim, err error) {
	r, err := c.replica(id)
	if err != nil {
		return w, err
	}
	err = c.guard(r, func() error {
		at := r.log.Position()
		w.start = at.Start
		if w.to, err = keeps(r.app, at, t, r.log.read); err != nil || w.to <= w.start {
			return err
		}
		if a, ok := r.app.(Trimmer); ok {
			w.takes, err = a.Takes(at, w.to)
		}
		return err
	})
	return w, storeError(id, err)
}

// reclaimed is how far the front of a log is gone from disk.
type reclaimed struct {
	start  Offset // it was done for a log kept from there on
	rows   Offset // the offset index begins there
	bucket Offset // and the rows that find duplicates there
	first  Index  // and the log; 0: where the store has it
	held   bool   // more of it would be gone if nobody needed it
}

// reclaim removes what no reader can ask for and no restart can need, in the
// batch of a checkpoint at a position: entries and rows before the batch that
// holds the first message kept. The commands among them go too, for they can
// concern none that is kept; those behind stay with the messages. Of a log
// without messages nothing but its end is kept.
//
// Entries that other replicas may need stay for a while: see replica.needed. Then
// the next checkpoint removes them.
//
// What cannot be read keeps its place: to remove it is no reason to stop. The
// next removal tries again.
func (r *replica) reclaim(at Position) error {
	empty := at.Start == at.End
	if at.Start == r.cut.start && !empty && !r.cut.held {
		return nil
	}
	next := r.cut
	next.start, next.rows, next.first = at.Start, at.End, at.Index
	if !empty {
		row, err := r.log.read.row(at.Start)
		if err != nil {
			return r.keepDamaged(err)
		}
		next.rows, next.first = row.base, row.index
	}
	if least := r.needed(at.Index); least < next.first {
		next.first, next.held = least, true
	} else {
		next.held = false
	}
	p := uint64(r.id)
	if next.first > Index(r.rlog.first) {
		// The chain goes on from the last entry that goes, so that must be read.
		if _, err := r.c.store.Term(p, uint64(next.first)-1); err != nil {
			return r.keepDamaged(err)
		}
	}
	// Readers must hear of it before it happens: what is missing then is known
	// to be gone, and not taken for lost.
	r.shelf.startAt(at.Start)
	wb := r.c.batch()
	if next.first > Index(r.rlog.first) {
		if err := wb.TruncatePrefix(p, uint64(next.first)-1); err != nil {
			return err
		}
	}
	if next.rows > r.cut.rows {
		if err := wb.DeleteRange(logstore.Offsets, p, offsetKey(nil, r.cut.rows), offsetKey(nil, next.rows)); err != nil {
			return err
		}
	}
	if b := r.log.state.buckets; len(b) > 0 && b[0] > r.cut.bucket {
		if err := b.forget(r.id, wb); err != nil {
			return err
		}
		next.bucket, r.c.seen.gone = b[0], true
	}
	r.cut = next
	return nil
}

// keepDamaged lets a reader, or the store's own search, find what is damaged.
func (r *replica) keepDamaged(err error) error {
	var d *ErrDamaged
	if err = storeError(r.id, err); !errors.As(err, &d) {
		return err
	}
	r.c.cfg.Logger.Warn("what retention removed keeps its room, since it cannot be read", "partition", r.c.cfg.Name(r.id), "entries", d.Entries(), "why", d.Why)
	return nil
}
