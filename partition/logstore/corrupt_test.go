package logstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// image is a store folder taken apart: file names to contents.
type image map[string][]byte

func takeImage(t *testing.T, mem *vfs.MemFS) image {
	t.Helper()
	img := image{}
	for _, dir := range []string{"store", "store/" + pebbleName} {
		ls, err := mem.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range ls {
			if name == pebbleName {
				continue
			}
			p := path.Join(dir, name)
			if img[p], err = readAll(mem, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return img
}

func (img image) fs(t *testing.T) *vfs.MemFS {
	t.Helper()
	mem := newMem()
	if err := mem.MkdirAll("store/"+pebbleName, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range img {
		f, err := mem.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 {
			// Write may change what it is given.
			if _, err := f.Write(slices.Clone(data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"", "store", "store/" + pebbleName} { // or a power cut would lose the names
		d, err := mem.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return mem
}

var digits = regexp.MustCompile(`[0-9]+`)

// kind is the type of a file by its name.
func kind(name string) string {
	base := path.Base(name)
	if strings.HasPrefix(base, "marker.") {
		return strings.Join(strings.Split(base, ".")[:2], ".")
	}
	return strings.Trim(digits.ReplaceAllString(base, ""), "-.")
}

// faults are the ways in which a file may come to be something else.
var faults = []string{"flip", "truncate", "zero", "delete", "swap", "stale", "grow"}

// damage returns a copy with one file damaged, and what was done to it; nil if
// it cannot be done or changes nothing. old is the same store some time before.
func (img image) damage(rng *rand.Rand, old image, name, how string) (image, string) {
	out := maps.Clone(img)
	data := slices.Clone(img[name])
	if len(data) == 0 && (how == "flip" || how == "truncate" || how == "zero") {
		return nil, ""
	}
	var what string
	switch how {
	case "delete":
		delete(out, name)
		return out, "deleted " + name
	case "swap":
		// Two of a kind are the most alike; else any other one.
		var same, all []string
		for _, other := range slices.Sorted(maps.Keys(img)) {
			if other == name || slices.Equal(img[other], data) {
				continue
			}
			all = append(all, other)
			if kind(other) == kind(name) {
				same = append(same, other)
			}
		}
		if len(same) > 0 && rng.IntN(4) > 0 {
			all = same
		}
		other := all[rng.IntN(len(all))]
		out[name], out[other] = img[other], img[name]
		return out, fmt.Sprintf("exchanged %s and %s", name, other)
	case "stale":
		// The file as it was, or one of its kind that was there then.
		was, ok := old[name]
		if !ok || slices.Equal(was, data) {
			for _, other := range slices.Sorted(maps.Keys(old)) {
				if _, there := img[other]; !there && kind(other) == kind(name) {
					out[other] = old[other]
					return out, "put back " + other
				}
			}
			return nil, ""
		}
		out[name] = was
		return out, "put an older copy back in the place of " + name
	case "grow":
		more := make([]byte, 1+rng.IntN(5000))
		if rng.IntN(2) == 0 {
			for i := range more {
				more[i] = byte(rng.Uint32())
			}
		}
		out[name] = append(data, more...)
		return out, fmt.Sprintf("added %d bytes to %s", len(more), name)
	case "flip":
		i, bit := rng.IntN(len(data)), rng.IntN(8)
		data[i] ^= 1 << bit
		what = fmt.Sprintf("flipped bit %d of byte %d", bit, i)
	case "truncate":
		n := rng.IntN(len(data))
		data = data[:n]
		what = fmt.Sprintf("truncated to %d bytes", n)
	case "zero":
		at := rng.IntN(len(data)) &^ 511
		end := min(at+512, len(data))
		clear(data[at:end])
		what = fmt.Sprintf("zeroed bytes %d to %d", at, end)
	}
	if slices.Equal(data, img[name]) {
		return nil, ""
	}
	out[name] = data
	return out, what + " of " + name
}

// picture is a store's folder as it was left, what it was some time before, and
// what it must hold.
type picture struct {
	now, old image
	want     model
}

// makePictures builds a store and takes its picture, once after a clean stop and
// once as a crash leaves it, when the witness knows of all that was acknowledged.
func makePictures(t *testing.T, seed uint64) map[string]picture {
	t.Helper()
	r := newRun(seed)
	mem := newMem()
	cfg := testConfig(mem)
	cfg.tableBytes = 16 << 10 // so that some hold nothing of the store itself
	var old image
	for range 3 {
		s := mustOpen(t, cfg)
		for range 40 {
			if err := r.step(s, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if old == nil {
			old = takeImage(t, mem)
		}
	}
	out := map[string]picture{"closed": {takeImage(t, mem), old, r.now}}
	s := mustOpen(t, cfg)
	old = nil
	for i := range 60 {
		if err := r.step(s, nil); err != nil {
			t.Fatal(err)
		}
		if i == 40 {
			old = takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{}))
		}
	}
	commit(t, s, func(b *Batch) { r.took(r.fill(b)) })
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	out["crashed"] = picture{takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{})), old, r.now}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

// outcome is what became of a damaged store.
type outcome int

const (
	refused  outcome = iota // at the start, with an error of a type
	reported                // opened; what is damaged is named, the rest served
	harmless                // everything is there
	silent                  // anything else
)

// trial opens a damaged store, reads all of it, and lets it work: it must name
// what is damaged, serve the rest, take writes, and outlive its compactions.
func trial(t *testing.T, img image, want model) (outcome, error) {
	s, err := Open(testConfig(img.fs(t)))
	if err != nil {
		var d *ErrDamaged
		if !errors.As(err, &d) && !isTyped(err) {
			return silent, fmt.Errorf("refused without a type: %w", err)
		}
		return refused, nil
	}
	defer func() { _ = s.Close() }()
	out := harmless
	var d *ErrDamaged
	switch err := want.compare(s); {
	case err == nil:
	case errors.As(err, &d):
		out = reported
		if len(d.Ranges) == 0 {
			return silent, fmt.Errorf("damage reported without a range: %w", err)
		}
		if len(s.Damage()) == 0 {
			return silent, fmt.Errorf("damage is not on the list: %w", err)
		}
	default:
		return silent, err
	}
	const other = 77
	b := s.NewBatch()
	_ = b.Append(other, []Entry{entry(1, 1, 1000)})
	p, err := s.Commit(b)
	if err == nil {
		err = p.Wait()
	}
	if errors.As(err, &d) {
		return reported, nil // the damage lies where the new log would
	}
	if err != nil {
		return silent, fmt.Errorf("it takes no writes: %w", err)
	}
	if err := s.flush(); err != nil {
		return silent, err
	}
	s.compactAll()
	if err := s.Err(); err != nil {
		return silent, fmt.Errorf("the store stopped: %w", err)
	}
	if es, err := s.Entries(other, 1, 2, 0); err != nil || len(es) != 1 {
		return silent, fmt.Errorf("what was written since: %d entries, %w", len(es), err)
	}
	// Damage may be gone by now, with rows that were deleted or written over.
	if err := want.with(other).compare(s); err != nil && !errors.As(err, &d) {
		return silent, fmt.Errorf("after compactions: %w", err)
	}
	return out, nil
}

// compactAll merges everything, and so meets whatever is damaged. Pebble picks what
// it finds by itself before what it is asked for: once a compaction has met damage
// it may be picked before this one for ever, so this one waits no longer.
func (s *Store) compactAll() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.db.Compact(ctx, []byte{keyFormat}, []byte{keyFormat + 1}, false)
	}()
	met := func() bool {
		s.merges.mu.Lock()
		defer s.merges.mu.Unlock()
		return s.merges.inRow > 0
	}
	for {
		select {
		case <-ended:
			cancel()
			return
		case <-time.After(time.Millisecond): // nobody tells of it
			if met() {
				cancel()
			}
		}
	}
}

// with is a model that has one more partition.
func (m model) with(p uint64) model {
	out := m.clone()
	out[p] = modelLog{entries: []Entry{entry(1, 1, 1000)}}
	return out
}

// TestCorruption damages every file of a store in every way. The store must
// refuse to open, or refuse to read what is damaged, or have lost nothing.
func TestCorruption(t *testing.T) {
	t.Parallel()
	n := trials(1)
	for round := range max(1, n/50) {
		pictures := makePictures(t, 7+uint64(round))
		for _, state := range slices.Sorted(maps.Keys(pictures)) {
			t.Run(fmt.Sprint(state, round), func(t *testing.T) {
				t.Parallel()
				corrupt(t, pictures[state], state, round, min(n, 50))
			})
		}
	}
}

// corrupt damages a store in one state: each file in each way as often as count
// says, those in which much depends on the place more often.
func corrupt(t *testing.T, pic picture, state string, round, count int) {
	table := map[string]*[4]int{}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(pic.now)) {
		for _, how := range faults {
			count := count
			switch {
			case how == "delete" || how == "stale" || testing.Short():
				count = 1
			case kind(name) == "MANIFEST", kind(name) == "log", kind(name) == "WITNESS":
				count *= 6
			}
			for i := range count {
				rng := rand.New(rand.NewPCG(uint64(round)<<32|uint64(i), uint64(crc32.ChecksumIEEE([]byte(name+how)))))
				bad, what := pic.now.damage(rng, pic.old, name, how)
				if bad == nil {
					continue
				}
				key := fmt.Sprintf("%-8s %-8s %s", state, how, kind(name))
				if table[key] == nil {
					table[key] = &[4]int{}
				}
				out, err := trial(t, bad, pic.want)
				if out == refused && !mayRefuse(t, pic.now, bad) {
					out, err = silent, errors.New("refused to open, and not silent, but for no reason that is written down")
				}
				if err != nil {
					t.Errorf("%s: %s: SILENT: %v", state, what, err)
				}
				table[key][out]++
				total++
			}
		}
	}
	var sum [4]int
	for _, k := range slices.Sorted(maps.Keys(table)) {
		o := table[k]
		t.Logf("%-40s refused %5d, reported %5d, harmless %5d, silent %d", k, o[refused], o[reported], o[harmless], o[silent])
		for i := range sum {
			sum[i] += o[i]
		}
	}
	t.Logf("%d trials: refused %d, reported %d, harmless %d, silent %d", total, sum[refused], sum[reported], sum[harmless], sum[silent])
}

// mayRefuse tells whether the store may refuse to open: what tells which files
// there are and how far the store came is damaged, a log file, a table with rows
// of the store itself, or both what lists the partitions and a table.
func mayRefuse(t *testing.T, good, bad image) bool {
	t.Helper()
	m := newManifestState()
	for name, data := range good {
		if kind(name) == "MANIFEST" {
			if _, _, err := scanRecords(data, 0, m.apply); err != nil {
				t.Fatal(err)
			}
		}
	}
	own := map[string]bool{}
	for k, f := range m.tables {
		if num := k.num; ownRows(f.first) {
			if f.virtual {
				num = f.backing
			}
			own[tableName(num)] = true
		}
	}
	list, tables := false, false
	for name := range good {
		if is, ok := bad[name]; ok && slices.Equal(is, good[name]) {
			continue
		}
		list = list || kind(name) == "PARTITIONS"
		tables = tables || kind(name) == "sst"
		switch k := kind(name); {
		case k == "WITNESS", k == "MANIFEST", k == "log", k == "OPTIONS", strings.HasPrefix(k, "marker"), own[path.Base(name)]:
			return true
		}
	}
	return list && tables
}

func isTyped(err error) bool {
	var (
		foreign *ErrForeign
		newer   *ErrNewerFormat
	)
	return errors.As(err, &foreign) || errors.As(err, &newer)
}
