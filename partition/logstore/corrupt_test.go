package logstore

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

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

// damage returns a damaged copy, and what was done to it; nil if the file is
// too small for it.
func (img image) damage(rng *rand.Rand, name, how string) (image, string) {
	out := maps.Clone(img)
	data := slices.Clone(img[name])
	if len(data) == 0 && how != "delete" {
		return nil, ""
	}
	var what string
	switch how {
	case "delete":
		delete(out, name)
		return out, "deleted " + name
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

// makeImages builds a store and takes its image, once after a clean stop and
// once as a crash leaves it, when the witness knows of all that was
// acknowledged.
func makeImages(t *testing.T, seed uint64) (images map[string]image, want map[string]model) {
	t.Helper()
	r := newRun(seed)
	// Pebble's search for the flipped bit takes time quadratic in the size.
	r.large = 8 << 10
	mem := newMem()
	cfg := testConfig(mem)
	for range 2 {
		s := mustOpen(t, cfg)
		for range 60 {
			if err := r.step(s, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	images, want = map[string]image{}, map[string]model{}
	images["closed"], want["closed"] = takeImage(t, mem), r.now
	s := mustOpen(t, cfg)
	for range 30 {
		if err := r.step(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, s, func(b *Batch) { r.took(r.fill(b)) })
	if err := s.SyncWitness(); err != nil {
		t.Fatal(err)
	}
	images["crashed"], want["crashed"] = takeImage(t, mem.CrashClone(vfs.CrashCloneCfg{})), r.now
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return images, want
}

// TestCorruption damages every file of a store in every way. The store must
// refuse to open, or refuse to read what is damaged, or have lost nothing.
func TestCorruption(t *testing.T) {
	t.Parallel()
	images, want := makeImages(t, 7)
	type outcome struct{ refused, reported, harmless, silent int }
	table := map[string]*outcome{}
	n := trials(1)
	for _, state := range slices.Sorted(maps.Keys(images)) {
		img := images[state]
		for _, name := range slices.Sorted(maps.Keys(img)) {
			for _, how := range []string{"flip", "truncate", "zero", "delete"} {
				count := n * 2
				switch {
				case how == "delete":
					count = 1
				case kind(name) == "MANIFEST", kind(name) == "log", kind(name) == "WITNESS":
					count = n * 8
				}
				for i := range count {
					rng := rand.New(rand.NewPCG(uint64(i), uint64(len(name))))
					bad, what := img.damage(rng, name, how)
					if bad == nil {
						continue
					}
					what = state + ": " + what
					key := fmt.Sprintf("%-8s %-8s %s", state, how, kind(name))
					o := table[key]
					if o == nil {
						o = &outcome{}
						table[key] = o
					}
					s, err := Open(testConfig(bad.fs(t)))
					if err != nil {
						var d *ErrDamaged
						if !errors.As(err, &d) && !isTyped(err) {
							t.Errorf("%s: refused without a type: %v", what, err)
						}
						o.refused++
						continue
					}
					var d *ErrDamaged
					switch err := want[state].compare(s); {
					case err == nil:
						o.harmless++
					case errors.As(err, &d):
						if len(d.Ranges) == 0 {
							t.Errorf("%s: damage reported without a range: %v", what, err)
						}
						o.reported++
					default:
						o.silent++
						t.Errorf("%s: SILENT: %v", what, err)
					}
					_ = s.Close()
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(table)) {
		o := table[k]
		t.Logf("%-36s refused %5d, reported when read %5d, harmless %5d, silent %d", k, o.refused, o.reported, o.harmless, o.silent)
	}
}

func isTyped(err error) bool {
	var (
		foreign *ErrForeign
		newer   *ErrNewerFormat
	)
	return errors.As(err, &foreign) || errors.As(err, &newer)
}
