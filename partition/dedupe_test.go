package partition

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/record"
)

// naive is what dedupe must do, written with maps.
type naive struct {
	end   Offset
	log   []record.Record
	ids   map[string]Offset // by id and key
	seqs  map[string]map[uint64]Stored
	nexts map[string]uint64
	dups  uint64

	// What trims took.
	start  Offset
	begins []Offset          // of buckets
	in     map[string]Offset // the bucket of a producer's last sequence
	inSeq  map[string]Offset // and of each sequence
}

// bucket is where the rows of a publish go.
func (m *naive) bucket() Offset {
	if n := len(m.begins); n == 0 || m.end-m.begins[n-1] >= max(tinyBucket, (m.end-m.start)/2) {
		m.begins = append(m.begins, m.end)
		m.trim(m.start)
	}
	return m.begins[len(m.begins)-1]
}

const tinyBucket = 4

// trim forgets ids of what is gone, and producers of whom all is.
func (m *naive) trim(to Offset) {
	m.start = min(max(m.start, to), m.end)
	for len(m.begins) > 1 && m.begins[1] <= m.start {
		m.begins = m.begins[1:]
	}
	for name, at := range m.ids {
		if at < m.start {
			delete(m.ids, name)
		}
	}
	for name, b := range m.in {
		if b < m.begins[0] {
			delete(m.in, name)
			delete(m.nexts, name)
		}
	}
}

func seqName(producer string, seq uint64) string { return fmt.Sprint(producer, "/", seq) }

func idName(r record.Record) string { return fmt.Sprintf("%q %v %q", r.ID, r.HasKey, r.Key) }

func same(a, b record.Record) bool {
	return a.ID == b.ID && a.HasKey == b.HasKey && string(a.Key) == string(b.Key) && string(a.Body) == string(b.Body)
}

func (m *naive) publish(meta record.Meta, recs []record.Record) []Stored {
	out := make([]Stored, len(recs))
	var bucket Offset
	if meta.ProducerID != "" || slices.ContainsFunc(recs, func(r record.Record) bool { return r.ID != "" }) {
		bucket = m.bucket()
	}
	next := m.nexts[meta.ProducerID]
	if meta.ProducerID != "" && meta.FirstSequence > next {
		for i := range out {
			out[i].Err = &ErrSequenceGap{Expected: next}
		}
		return out
	}
	refused := false
	for i, r := range recs {
		seq := meta.FirstSequence + uint64(i)
		if meta.ProducerID != "" && seq < next {
			was := m.seqs[meta.ProducerID][seq]
			switch in, known := m.inSeq[seqName(meta.ProducerID, seq)]; {
			case !known || in < m.begins[0]:
				out[i].Err = &ErrSequenceExpired{}
			case was.Err == nil && was.Offset < m.start: // it was stored, whatever became of it
				out[i] = Stored{Offset: was.Offset, Duplicate: true}
				m.dups++
			case was.Err != nil:
				out[i] = was
			case !same(m.log[was.Offset], r):
				out[i].Err = &ErrSequenceReused{Offset: was.Offset}
			default:
				out[i] = Stored{Offset: was.Offset, Duplicate: true}
				m.dups++
			}
			continue
		}
		at, known := m.ids[idName(r)]
		switch {
		case r.ID != "" && known && string(m.log[at].Body) != string(r.Body):
			out[i].Err = &ErrIDReused{Offset: at}
			refused = meta.InOrder
		case r.ID != "" && known:
			out[i] = Stored{Offset: at, Duplicate: true}
			m.dups++
		case refused:
			out[i].Err = &ErrBehind{}
		default:
			out[i].Offset = m.end
			if r.ID != "" {
				m.ids[idName(r)] = m.end
			}
			m.log = append(m.log, r)
			m.end++
		}
		if meta.ProducerID != "" {
			if m.seqs[meta.ProducerID] == nil {
				m.seqs[meta.ProducerID] = make(map[uint64]Stored)
			}
			m.seqs[meta.ProducerID][seq] = out[i]
			m.nexts[meta.ProducerID] = seq + 1
			m.in[meta.ProducerID], m.inSeq[seqName(meta.ProducerID, seq)] = bucket, bucket
		}
	}
	return out
}

// errorOf makes errors comparable: their kind and what they point at.
func errorOf(err error) string {
	var reused *ErrIDReused
	var gap *ErrSequenceGap
	var seq *ErrSequenceReused
	var gone *ErrExpired
	var behind *ErrBehind
	var old *ErrSequenceExpired
	switch {
	case err == nil:
		return ""
	case errors.As(err, &reused):
		return fmt.Sprintf("id reused, first at %d", reused.Offset)
	case errors.As(err, &gap):
		return fmt.Sprintf("gap, %d is next", gap.Expected)
	case errors.As(err, &seq):
		return fmt.Sprintf("sequence reused, first at %d", seq.Offset)
	case errors.As(err, &behind):
		return "behind a refused one"
	case errors.As(err, &old):
		return "sequence expired"
	case errors.As(err, &gone):
		return fmt.Sprintf("expired, from %d on is kept", gone.Start)
	}
	return err.Error()
}

// Whatever is published, in whatever order, with trims, restarts and power cuts
// anywhere, every record meets the fate that the naive model gives it.
func TestDedupeModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{Seed: 1, bucketOffsets: tinyBucket}
		if rapid.Bool().Draw(rt, "tiny cache") {
			cfg.TailCacheBytes = 1
		}
		n := newNode(t, cfg)
		n.create(1)
		m := &naive{ids: map[string]Offset{}, seqs: map[string]map[uint64]Stored{}, nexts: map[string]uint64{}, in: map[string]Offset{}, inSeq: map[string]Offset{}}

		gen := rapid.Custom(func(t *rapid.T) record.Record {
			r := record.Record{Body: []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "body"))}
			if rapid.Bool().Draw(t, "keyed") {
				r.HasKey, r.Key = true, []byte(rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"))
			}
			if rapid.IntRange(0, 2).Draw(t, "with id") > 0 {
				r.ID = fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "id"))
			}
			return r
		})
		publish := func(rt *rapid.T, meta record.Meta, recs []record.Record) {
			got, err := n.Publish(within(t), 1, record.Append(nil, meta, recs))
			if err != nil {
				rt.Fatal(err)
			}
			want := m.publish(meta, recs)
			for i := range want {
				if got[i].Offset != want[i].Offset && want[i].Err == nil || got[i].Duplicate != want[i].Duplicate || errorOf(got[i].Err) != errorOf(want[i].Err) {
					rt.Fatalf("record %d %+v of %+v:\ngot  %+v (%s)\nwant %+v (%s)", i, recs[i], meta, got[i], errorOf(got[i].Err), want[i], errorOf(want[i].Err))
				}
			}
		}
		var sent []func(*rapid.T) // to repeat
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) {
				meta := record.Meta{}
				if rapid.Bool().Draw(rt, "producer") {
					meta.ProducerID = rapid.SampledFrom([]string{"p", "pq", "r"}).Draw(rt, "name")
					step := rapid.SampledFrom([]int{0, 0, 0, 0, -1, -2, -5, 1}).Draw(rt, "step")
					if at := int(m.nexts[meta.ProducerID]) + step; at > 0 {
						meta.FirstSequence = uint64(at)
					}
				} else {
					meta.InOrder = rapid.Bool().Draw(rt, "in order")
				}
				recs := rapid.SliceOfN(gen, 1, 6).Draw(rt, "records")
				publish(rt, meta, recs)
				sent = append(sent, func(rt *rapid.T) { publish(rt, meta, recs) })
			},
			"repeat": func(rt *rapid.T) {
				if len(sent) > 0 {
					sent[rapid.IntRange(0, len(sent)-1).Draw(rt, "which")](rt)
				}
			},
			"trim": func(rt *rapid.T) {
				to := m.start + Offset(rapid.IntRange(0, int(m.end-m.start)+1).Draw(rt, "to"))
				got, err := n.Trim(within(t), 1, TrimTo{To: to, Why: ByAge})
				if m.trim(to); err != nil || got != m.start {
					rt.Fatalf("trimmed to %d, %v; want %d", got, err, m.start)
				}
				if o := m.start - 1; m.start > 0 {
					if _, err := n.Read(1, o, 1, 1); errorOf(err) != errorOf(&ErrExpired{Start: m.start}) {
						rt.Fatalf("reading what is gone gives %v", err)
					}
				}
			},
			"restart": func(rt *rapid.T) {
				if rapid.IntRange(0, 6).Draw(rt, "do") == 0 {
					n.restart()
				}
			},
			"cut": func(rt *rapid.T) {
				if rapid.IntRange(0, 6).Draw(rt, "do") == 0 {
					cut := n.fs.CrashClone(vfs.CrashCloneCfg{})
					n.stop()
					n.fs = cut
					n.start()
				}
			},
			"": func(rt *rapid.T) {
				info, err := n.Info(1)
				if err != nil || info.Position.Start != m.start || info.Position.End != m.end || info.Duplicates != m.dups {
					rt.Fatalf("info %+v, %v; want end %d, %d duplicates", info, err, m.end, m.dups)
				}
			},
		})
		ms, err := n.Read(1, m.start, len(m.log)+1, 1<<30)
		if err != nil || len(ms) != len(m.log)-int(m.start) {
			rt.Fatalf("%d messages, %v; want %d", len(ms), err, len(m.log)-int(m.start))
		}
		for i, r := range m.log[m.start:] {
			if !same(ms[i].Record, r) {
				rt.Fatalf("message %d is %+v, want %+v", i, ms[i].Record, r)
			}
		}
		n.stop()
		n.Host = nil
	})
}

// Two ids whose rows have one key must not suppress each other.
func TestHashCollisionSuppressesNothing(t *testing.T) {
	n := newNode(t, Config{})
	n.create(1)
	msg := func(id, body string) []byte {
		return record.Append(nil, record.Meta{}, []record.Record{{ID: id, Body: []byte(body)}})
	}
	n.publish(1, msg("first", "x"))
	// As if the second id's hash were that of the first: its row names a
	// message with another id.
	k := keyOf([]byte("second"), nil, false)
	wb := n.store.NewBatch()
	if err := wb.Set(0x21, 1, idRowKey(nil, 0, k), appendIDRow(nil, []idRef{{offset: 0}})); err != nil {
		t.Fatal(err)
	}
	if err := n.store.CommitNoSync(wb); err != nil {
		t.Fatal(err)
	}
	if s := n.publish(1, msg("second", "x"))[0]; s != (Stored{Offset: 1}) {
		t.Fatalf("stored as %+v: a hash was taken for the id", s)
	}
	if s := n.publish(1, msg("second", "x"))[0]; s != (Stored{Offset: 1, Duplicate: true}) {
		t.Fatalf("the repeat is %+v", s)
	}
	if s := n.publish(1, msg("first", "x"))[0]; s != (Stored{Offset: 0, Duplicate: true}) {
		t.Fatalf("the first one's repeat is %+v", s)
	}
	if os, err := n.FindByMessageID(t.Context(), 1, "second"); err != nil || len(os) != 1 || os[0] != 1 {
		t.Fatalf("found at %v, %v", os, err)
	}
}
