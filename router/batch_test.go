package router

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
)

// parseTable is a table of n partitions.
func parseTable(t testing.TB, n int) *Table {
	t.Helper()
	var targets []Target
	for i, r := range keyspace.Ranges(n) {
		targets = append(targets, Target{ID: uint64(100 + i), Range: r})
	}
	table, err := NewTable(1, 42, targets)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// What Submit sends is what Parse accepts, for its own partition and no other,
// and counts alike.
func TestParseAcceptsWhatSubmitSends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zé]{0,12}`)
		recs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) record.Record {
			r := record.Record{HasKey: rapid.Bool().Draw(t, "key"), ID: text.Draw(t, "id"), Body: []byte(text.Draw(t, "body"))}
			if r.HasKey {
				r.Key = []byte("k" + text.Draw(t, "key"))
			}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				r.Headers = append(r.Headers, record.Header{Name: "h", Value: []byte(text.Draw(t, "value"))})
			}
			return r
		}), 1, 20).Draw(t, "records")
		var targets []Target
		for i, r := range keyspace.Ranges(3) {
			targets = append(targets, Target{ID: uint64(100 + i), Range: r})
		}
		table, err := NewTable(1, 42, targets)
		if err != nil {
			t.Fatal(err)
		}
		log := &memLog{stored: map[uint64][]record.Record{}}
		if _, err := NewPublisher(log, Config{}).Submit(Request{Table: table, Records: recs}); err != nil {
			t.Fatal(err)
		}
		want, got := 0, 0
		for _, r := range recs {
			want += len(r.Key) + len(r.ID) + len(r.Body)
			for _, h := range r.Headers {
				want += len(h.Name) + len(h.Value)
			}
		}
		for i, b := range log.batches {
			n := uint32(log.targets[i] - 100)
			p, err := table.Parse(b.Bytes(), n, 0)
			if err != nil || p.Partition != log.targets[i] || p.Len() != b.Len() {
				t.Fatalf("batch %d: %v, %+v", i, err, p)
			}
			got += p.Bytes
			var stale *ErrStaleRoute
			if _, err := table.Parse(b.Bytes(), (n+1)%3, 0); !errors.As(err, &stale) {
				t.Fatalf("batch %d for another partition: %v", i, err)
			}
		}
		if got != want {
			t.Fatalf("%d bytes are counted, want %d", got, want)
		}
	})
}

// Parse costs the same few allocations whatever a batch holds.
func TestParseAllocates(t *testing.T) {
	table := parseTable(t, 1)
	cost := func(n int) float64 {
		var recs []record.Record
		for i := range n {
			r := record.Record{HasKey: true, Key: fmt.Append(nil, "key-", i), ID: fmt.Sprint("id-é-", i), Headers: []record.Header{{Name: "Content-Type", Value: []byte("x")}}, Body: []byte("body")}
			r.KeyHash = keyspace.Hash(table.Seed(), r.Key)
			recs = append(recs, r)
		}
		b := record.Append(nil, record.Meta{}, recs)
		return testing.AllocsPerRun(20, func() {
			if _, err := table.Parse(b, 0, 0); err != nil {
				t.Fatal(err)
			}
		})
	}
	if one, many := cost(1), cost(1000); many != one || one > 5 {
		t.Errorf("%v allocations for one record, %v for a thousand", one, many)
	}
}

// Whatever bytes come, Parse accepts nothing that it would not make itself.
func FuzzParse(f *testing.F) {
	table := parseTable(f, 2)
	r := record.Record{HasKey: true, Key: []byte("k"), ID: "i", Headers: []record.Header{{Name: "h"}}, Body: []byte("b")}
	r.KeyHash = keyspace.Hash(table.Seed(), r.Key)
	whole := record.Append(nil, record.Meta{ProducerID: "p"}, []record.Record{r})
	f.Add(whole, uint32(0))
	f.Add(whole, uint32(1))
	f.Add(whole[:len(whole)-1], uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, n uint32) {
		p, err := table.Parse(slices.Clone(b), n, 100)
		if err != nil {
			return
		}
		p.Each(func(i int, raw record.Raw) bool {
			x := raw.Record()
			if err := CheckRecord(&x, 100); err != nil || !table.Target(int(n)).Range.Contains(x.KeyHash) || x.HasKey && x.KeyHash != keyspace.Hash(table.Seed(), x.Key) {
				t.Fatalf("record %d: %v, %+v", i, err, x)
			}
			return true
		})
	})
}

func BenchmarkParse(b *testing.B) {
	table := parseTable(b, 1)
	recs := make([]record.Record, 1000)
	for i := range recs {
		recs[i] = record.Record{HasKey: true, Key: fmt.Append(nil, "key-", i), Body: make([]byte, 100)}
		recs[i].KeyHash = keyspace.Hash(table.Seed(), recs[i].Key)
	}
	batch := record.Append(nil, record.Meta{}, recs)
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := table.Parse(batch, 0, 0); err != nil {
			b.Fatal(err)
		}
	}
}
