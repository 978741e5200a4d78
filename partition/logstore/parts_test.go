package logstore

import (
	"errors"
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// part is a piece of a file that is made of blocks.
type part struct {
	what string
	at   uint64
	len  uint64
}

// partsOf takes a table or a value file apart: what each block of it is for. Of a value
// file, which has no reader that tells, the first block, one in the middle, and what is
// at the end: its index and its footer.
func partsOf(t *testing.T, name string, data []byte) (ps []part) {
	t.Helper()
	if isValues(name) {
		n := uint64(len(data))
		return []part{{"values, first", 0, min(64, n)}, {"values", n / 2, 1}, {"values, index", n - min(100, n), 1}, {"values, footer", n - 30, 30}}
	}
	var opts pebble.Options
	opts.EnsureDefaults()
	r, err := sstable.NewMemReader(data, opts.MakeReaderOptions())
	if err != nil {
		t.Fatal(name, err)
	}
	defer func() { _ = r.Close() }()
	l, err := r.Layout()
	if err != nil {
		t.Fatal(name, err)
	}
	add := func(what string, at, len uint64) {
		if len > 0 {
			ps = append(ps, part{what, at, len})
		}
	}
	for _, b := range l.Data {
		add("data", b.Offset, b.Length)
	}
	for _, b := range l.Index {
		add("index", b.Offset, b.Length)
	}
	for _, b := range l.Filter {
		add("filter", b.Offset, b.Length)
	}
	add("top index", l.TopIndex.Offset, l.TopIndex.Length)
	add("deleted ranges", l.RangeDel.Offset, l.RangeDel.Length)
	add("properties", l.Properties.Offset, l.Properties.Length)
	add("list of blocks", l.MetaIndex.Offset, l.MetaIndex.Length)
	add("value files", l.BlobReferenceIndex.Offset, l.BlobReferenceIndex.Length)
	add("footer", l.Footer.Offset, l.Footer.Length)
	return ps
}

// TestEveryPartOfATable damages each kind of block of tables and value files, in each
// file: a bit in its middle, or all of it. Whatever it is for, what cannot be read for it
// is refused by name or was not needed, and the rest is served.
func TestEveryPartOfATable(t *testing.T) {
	t.Parallel()
	pic := makePictures(t, 21)["closed"]
	type sum struct{ files, refused, reported, harmless int }
	met := map[string]*sum{}
	for _, name := range slices.Sorted(maps.Keys(pic.now)) {
		if !isTable(name) && !isValues(name) {
			continue
		}
		seen := map[string]bool{}
		for _, p := range partsOf(t, name, pic.now[name]) {
			if seen[p.what] {
				continue // one of a kind in each file
			}
			seen[p.what] = true
			if met[p.what] == nil {
				met[p.what] = &sum{}
			}
			s := met[p.what]
			s.files++
			data, how := slices.Clone(pic.now[name]), "all"
			if s.files%2 == 0 {
				how = "bit"
				data[p.at+p.len/2] ^= 16
			} else {
				for i := p.at; i < p.at+p.len; i++ {
					data[i] ^= 0xff
				}
			}
			bad := maps.Clone(pic.now)
			bad[name] = data
			out, err := trial(t, bad, pic.want)
			if out == refused && !mayRefuse(t, pic.now, bad) {
				out, err = silent, errors.New("refused to open for no reason that is written down")
			}
			switch out {
			case refused:
				s.refused++
			case reported:
				s.reported++
			case harmless:
				s.harmless++
			case silent:
				t.Errorf("%s, %s, %s: SILENT: %v", path.Base(name), p.what, how, err)
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%-16s %+v", what, *met[what])
	}
	// Filters only spare lookups, and the list of value files only compactions read:
	// damage to them keeps nothing from being read.
	for _, what := range []string{"data", "index", "filter", "properties", "list of blocks", "footer", "value files", "values, first", "values", "values, index", "values, footer"} {
		if met[what] == nil {
			t.Errorf("no file has %q", what)
		} else if s := met[what]; what != "filter" && what != "value files" && s.refused+s.reported == 0 {
			t.Errorf("damage to %q was never told", what)
		}
	}
}

// TestKindsOfFiles holds the list of files that a store has: TestCorruption damages each
// of them in each way, and a kind that is not here is one that nobody thought of.
func TestKindsOfFiles(t *testing.T) {
	t.Parallel()
	want := []string{"MANIFEST", "OPTIONS", "PARTITIONS", "WITNESS", "LOCK", "blob", "log", "marker.format-version", "marker.manifest", "sst"}
	slices.Sort(want)
	seen := map[string]bool{}
	for _, pic := range makePictures(t, 22) {
		for name := range pic.now {
			seen[kind(name)] = true
		}
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("a store has files %v, want %v", got, want)
	}
}
