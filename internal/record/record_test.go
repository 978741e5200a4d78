package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/format"
)

var recordGen = rapid.Custom(func(t *rapid.T) Record {
	r := Record{KeyHash: rapid.Uint64().Draw(t, "hash")}
	if rapid.Bool().Draw(t, "keyed") {
		r.HasKey, r.Key = true, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "key")
	}
	r.ID = rapid.StringN(0, 40, 200).Draw(t, "id")
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, Header{
			Name:  rapid.StringN(0, 10, 40).Draw(t, "name"),
			Value: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "value"),
		})
	}
	r.Body = rapid.SliceOfN(rapid.Byte(), 0, 500).Draw(t, "body")
	return r
})

var metaGen = rapid.Custom(func(t *rapid.T) Meta {
	return Meta{
		ProducerID:    rapid.StringN(0, 20, 100).Draw(t, "producer"),
		FirstSequence: rapid.Uint64().Draw(t, "sequence"),
		PublishTime:   rapid.Int64().Draw(t, "time"),
	}
})

func metaOf(bt Batch) Meta {
	id, seq := bt.Producer()
	return Meta{ProducerID: string(id), FirstSequence: seq, PublishTime: bt.PublishTime(), InOrder: bt.InOrder()}
}

// What goes in comes out, through every accessor, and the sizes told are the
// sizes taken.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := metaGen.Draw(t, "meta")
		recs := rapid.SliceOfN(recordGen, 1, 8).Draw(t, "records")
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "prefix")
		suffix := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "suffix")

		b := Append(bytes.Clone(prefix), m, recs)
		if got := len(b) - len(prefix); got != Size(m, recs) {
			t.Fatalf("Size says %d, Append wrote %d", Size(m, recs), got)
		}
		b = append(b, suffix...)
		bt, rest, err := Parse(b[len(prefix):])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(rest, suffix) {
			t.Fatalf("rest is %x, want %x", rest, suffix)
		}
		bt.SetPublishTime(m.PublishTime ^ 77)
		m.PublishTime ^= 77
		if bt, _, err = Parse(bt.Bytes()); err != nil {
			t.Fatalf("after stamping: %v", err)
		}
		if d := cmp.Diff(m, metaOf(bt)); d != "" {
			t.Fatal(d)
		}
		var got []Record
		ids := false
		bt.Each(func(i int, r Raw) bool {
			rec := r.Record()
			if !bytes.Equal(r.Key(), rec.Key) || string(r.ID()) != rec.ID || !bytes.Equal(r.Body(), rec.Body) ||
				r.KeyHash() != rec.KeyHash || r.HasKey() != rec.HasKey || r.HasID() != (rec.ID != "") {
				t.Fatalf("record %d: accessors and Record disagree", i)
			}
			ids = ids || r.HasID()
			got = append(got, rec)
			return true
		})
		if ids != bt.HasIDs() {
			t.Fatal("HasIDs is wrong")
		}
		same := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
		if d := cmp.Diff(recs, got, same); d != "" {
			t.Fatal(d)
		}
		n := 0
		for c := bt.Cursor(); ; n++ {
			r, ok := c.Next()
			if !ok {
				break
			}
			if !bytes.Equal(r.b, got[n].append(nil)[uvarintLen(uint64(r.Size())):]) {
				t.Fatalf("cursor: record %d differs", n)
			}
		}
		if n != len(recs) {
			t.Fatalf("cursor saw %d of %d records", n, len(recs))
		}
	})
}

// Any one damaged bit is refused.
func TestEveryBitCounts(t *testing.T) {
	good := Append(nil, Meta{ProducerID: "p", FirstSequence: 7, PublishTime: 1}, []Record{
		{KeyHash: 1, HasKey: true, Key: []byte("k"), ID: "i", Headers: []Header{{"n", []byte("v")}}, Body: []byte("body")},
		{Body: []byte("x")},
	})
	for i := range len(good) * 8 {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		_, _, err := Parse(b)
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("bit %d of byte %d: got %v, want an *Error", i%8, i/8, err)
		}
	}
	for n := range len(good) {
		if _, _, err := Parse(good[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes: accepted", n, len(good))
		}
	}
}

func TestLimits(t *testing.T) {
	many := func(n int) []Record {
		rs := make([]Record, n)
		return rs
	}
	headers := make([]Header, MaxHeaders)
	for i := range headers {
		headers[i] = Header{Name: "h", Value: make([]byte, MaxHeaderBytes/MaxHeaders-1)}
	}
	for _, c := range []struct {
		name string
		recs []Record
		want string // part of the error; empty: accepted
	}{
		{"at the limits", []Record{{HasKey: true, Key: make([]byte, MaxKey), ID: strings.Repeat("i", MaxID), Headers: headers, Body: make([]byte, MaxBody)}}, ""},
		{"most records", many(MaxBatchRecords), ""},
		{"no records", nil, "1 to 1000"},
		{"too many records", many(MaxBatchRecords + 1), "1 to 1000"},
		{"key", []Record{{HasKey: true, Key: make([]byte, MaxKey+1)}}, "at most 4096"},
		{"id", []Record{{ID: strings.Repeat("i", MaxID+1)}}, "at most 256"},
		{"headers", []Record{{Headers: make([]Header, MaxHeaders+1)}}, "at most 64"},
		{"header bytes", []Record{{Headers: []Header{{"n", make([]byte, MaxHeaderBytes)}}}}, "at most 16384"},
		{"body", []Record{{}, {Body: make([]byte, MaxBody+1)}}, "record 1: the body has"}, // told from 0,
		{"batch bytes", []Record{{Body: make([]byte, MaxBody)}, {Body: make([]byte, MaxBody)}, {Body: make([]byte, MaxBody)}, {Body: make([]byte, MaxBody)}}, "smaller batches"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Parse(Append(nil, Meta{}, c.recs))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an *Error with %q", err, c.want)
			}
		})
		if len(c.recs) == 1 {
			if err := c.recs[0].Check(); (err == nil) != (c.want == "") {
				t.Errorf("%s: Check says %v", c.name, err)
			}
		}
	}
}

// A length may be spelled one way only.
func TestOneSpelling(t *testing.T) {
	b := Append(nil, Meta{}, []Record{{Body: []byte("x")}})
	at := fixedSize
	long := append(bytes.Clone(b[:at]), b[at]|0x80, 0)
	long = append(long, b[at+1:]...)
	binary.LittleEndian.PutUint32(long[offLength:], uint32(len(long)-offLength-4))
	seal(long)
	if _, _, err := Parse(long); err == nil {
		t.Fatal("a length of two bytes where one does was accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(Append(nil, Meta{}, []Record{{}}))
	f.Add(Append(nil, Meta{ProducerID: "prod", FirstSequence: 3, PublishTime: 99}, []Record{
		{KeyHash: 5, HasKey: true, Key: []byte("key"), ID: "id", Headers: []Header{{"a", []byte("1")}, {"a", nil}}, Body: []byte("body")},
		{HasKey: true, Body: make([]byte, 200)},
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		try(t, b)
		// The checksum keeps a fuzzer out of the framing: let it in.
		if len(b) >= fixedSize {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint16(b, Magic)
			b[2] = Version
			b[offFlags] &= flagIDs | flagInOrder
			binary.LittleEndian.PutUint32(b[offLength:], uint32(len(b)-offLength-4))
			seal(b)
			try(t, b)
		}
	})
}

// try parses; what is accepted must come out the same when it is encoded anew.
func try(t *testing.T, b []byte) {
	seen := 0
	bt, rest, err := ParseEach(b, func(i int, r Raw, f *Fields) error {
		seen++
		rec := r.Record()
		if i != seen-1 || f.HasKey != rec.HasKey || !bytes.Equal(f.Key, rec.Key) || string(f.ID) != rec.ID || !bytes.Equal(f.Body, rec.Body) || f.Headers.Len() != len(rec.Headers) {
			t.Fatalf("record %d has fields %+v and is %+v", i, f, rec)
		}
		n := len(rec.Key) + len(rec.ID) + len(rec.Body)
		for _, h := range rec.Headers {
			name, value, ok := f.Headers.Next()
			if !ok || string(name) != h.Name || !bytes.Equal(value, h.Value) {
				t.Fatalf("header %q: %q is not %q", h.Name, value, h.Value)
			}
			n += len(h.Name) + len(h.Value)
		}
		if _, _, more := f.Headers.Next(); more || f.Bytes() != n {
			t.Fatalf("%d bytes are counted, want %d, and more headers: %v", f.Bytes(), n, more)
		}
		return nil
	})
	if _, _, plain := Parse(b); (plain == nil) != (err == nil) {
		t.Fatalf("Parse says %v, ParseEach %v", plain, err)
	}
	if err == nil && seen != bt.Len() {
		t.Fatalf("saw %d of %d records", seen, bt.Len())
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%v is not an *Error", err)
		}
		return
	}
	var recs []Record
	bt.Each(func(_ int, r Raw) bool { recs = append(recs, r.Record()); return true })
	if len(recs) != bt.Len() {
		t.Fatalf("%d of %d records seen", len(recs), bt.Len())
	}
	again := Append(nil, metaOf(bt), recs)
	if !bytes.Equal(again, b[:len(b)-len(rest)]) {
		t.Fatalf("encoded anew:\n%x\nfrom\n%x", again, b)
	}
}

func BenchmarkParse(b *testing.B) {
	recs := make([]Record, 500)
	for i := range recs {
		recs[i] = Record{KeyHash: uint64(i), HasKey: true, Key: []byte("AAPL"), Body: make([]byte, 100)}
	}
	buf := Append(nil, Meta{}, recs)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, _, err := Parse(buf); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
}

// A batch built of copies is the batch that its records would make.
func TestBuilder(t *testing.T) {
	recs := []Record{
		{KeyHash: 1, HasKey: true, Key: []byte("k"), Body: []byte("one")},
		{KeyHash: 2, ID: "id", Headers: []Header{{"h", []byte("v")}}, Body: bytes.Repeat([]byte("x"), 300)},
		{KeyHash: 3, HasKey: true, Body: nil},
	}
	m := Meta{PublishTime: 77}
	from, _, err := Parse(Append(nil, Meta{ProducerID: "p", FirstSequence: 9, PublishTime: 1}, recs))
	if err != nil {
		t.Fatal(err)
	}
	var b Builder
	for _, pick := range [][]int{{0, 1, 2}, {0, 2}, {1}} {
		var want []Record
		b.Reset([]byte("before"), m)
		for _, i := range pick {
			want = append(want, recs[i])
			from.Each(func(n int, r Raw) bool {
				if n == i {
					if !b.Fits(r.Size()) {
						t.Errorf("record %d does not fit", i)
					}
					b.Add(r)
				}
				return true
			})
		}
		if got := b.Seal(); !bytes.Equal(got, append([]byte("before"), Append(nil, m, want)...)) {
			t.Errorf("records %v: %x", pick, got)
		}
		if b.Len() != len(pick) {
			t.Errorf("%d records, want %d", b.Len(), len(pick))
		}
	}
	b.Reset(nil, Meta{})
	var one Raw
	from.Each(func(_ int, r Raw) bool { one = r; return false })
	for b.Fits(one.Size()) {
		b.Add(one)
	}
	if b.Len() != MaxBatchRecords {
		t.Errorf("%d small records fit", b.Len())
	}
	if _, _, err := Parse(b.Seal()); err != nil {
		t.Errorf("a full batch: %v", err)
	}
	if b.Reset(nil, Meta{}); b.Fits(MaxBatchBytes) {
		t.Error("a record as large as a batch fits")
	}
}

// A batch of a newer format is not a damaged one.
func TestNewer(t *testing.T) {
	b := Append(nil, Meta{}, []Record{{Body: []byte("x")}})
	for version, isNewer := range map[byte]bool{0: false, Version + 1: true, 255: true} {
		b[2] = version
		for what, read := range map[string]func([]byte) (Batch, []byte, error){"Parse": Parse, "View": View} {
			_, _, err := read(b)
			var bad *Error
			var newer *format.ErrNewer
			if !errors.As(err, &bad) || errors.As(err, &newer) != isNewer || isNewer && newer.Found != uint64(version) {
				t.Errorf("%s of format %d: %v", what, version, err)
			}
		}
	}
}

// A pile makes the same bytes as Append, whatever room it has.
func TestPile(t *testing.T) {
	recs := []Record{
		{KeyHash: 1, HasKey: true, Key: []byte("k"), Body: []byte("one")},
		{KeyHash: 2, ID: "id", Headers: []Header{{"a", []byte("b")}}},
		{KeyHash: 3, Body: make([]byte, 300)},
	}
	for _, producer := range []string{"", "p", "longer than there is room for"} {
		for _, p := range []Pile{{}, NewPile(10, 0), NewPile(10, 1000)} {
			for i := range recs {
				p.Add(&recs[i])
			}
			bytes := p.Bytes()
			var again []Record
			p.Each(func(r Raw) { again = append(again, r.Record()) })
			m := Meta{ProducerID: producer, FirstSequence: 7, PublishTime: 5}
			want := Append(nil, m, recs)
			if got := p.Batch(m); string(got) != string(want) || p.Len() != len(recs) || bytes != len(want)-fixedSize-len(producer) {
				t.Errorf("%q: %x, %d records of %d bytes, want %x", producer, got, p.Len(), bytes, want)
			}
			if string(Append(nil, m, again)) != string(want) {
				t.Errorf("%q: the records are %v", producer, again)
			}
		}
	}
}
