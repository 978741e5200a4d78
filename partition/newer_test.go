package partition

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/partition/logstore"
)

// What a newer version wrote stops its partition with an error that says so, and
// stays as it is: the version that wrote it goes on where it was.
func TestNewerFormat(t *testing.T) {
	later := func(b []byte) []byte { b[2]++; return b } // a record batch's version
	for name, c := range map[string]struct {
		data  []byte
		want  format.ErrNewer
		entry bool
	}{
		"an entry":             {[]byte{byte(Command), entryVersion + 1, 7}, format.ErrNewer{What: "log entry", Found: 2, Known: 1}, true},
		"an entry of new kind": {[]byte{200, entryVersion + 1}, format.ErrNewer{What: "log entry", Found: 2, Known: 1}, true},
		"a record batch":       {appendItem(beginEntry(nil, Batches), 1, later(batch("abc"))), format.ErrNewer{What: "record batch", Found: 2, Known: 1}, true},
		"a command":            {appendItem(beginEntry(nil, Command), 1, []byte("newer")), format.ErrNewer{What: "command", Found: 9, Known: 8}, true},
		"the app's rows":       {nil, format.ErrNewer{What: "row", Found: 9, Known: 8}, false},
	} {
		t.Run(name, func(t *testing.T) {
			refuses := false
			n := newNode(t, Config{NewApp: func(id PartitionID, rows Rows) (App, error) {
				if refuses && id == 1 {
					return nil, format.Check("row", 9, 8)
				}
				app, err := newCounter(nil)(id, rows)
				return behind{app}, err
			}})
			n.create(1, 2)
			n.publish(1, batch("a1", "a2"))
			n.publish(2, batch("b1"))
			if err := n.Host.Close(); err != nil {
				t.Fatal(err)
			}
			refuses = !c.entry
			var last uint64
			if c.entry {
				last = appendTo(t, n.store, c.data)
			}
			for range 2 { // the second time finds what the first one left
				if err := n.store.Close(); err != nil {
					t.Fatal(err)
				}
				n.start()
				_, err := n.Read(1, 0, 10, 1000)
				var stopped *ErrDamaged
				var newer *format.ErrNewer
				if !errors.As(err, &stopped) || !errors.As(err, &newer) || *newer != c.want || uint64(stopped.To) != last {
					t.Fatalf("%v (%+v)", err, newer)
				}
				if !strings.Contains(err.Error(), "run that version or newer") || strings.Contains(err.Error(), "restore") {
					t.Fatalf("%v", err)
				}
				if _, err := n.Publish(within(t), 1, batch("more")); !errors.As(err, &newer) {
					t.Fatalf("a publish gives %v", err)
				}
				if ms, err := n.Read(2, 0, 10, 1000); err != nil || !slices.Equal(bodies(ms), []string{"b1"}) {
					t.Fatalf("the other partition gives %v, %v", ms, err)
				}
				if err := n.Host.Close(); err != nil {
					t.Fatal(err)
				}
				// A leader's term begins with an empty entry; nothing else changes.
				end, err := n.store.LastIndex(1)
				if err != nil {
					t.Fatal(err)
				}
				err = n.store.Scan(1, 2, end+1, func(e logstore.Entry, _ uint32) bool {
					if e.Index > last && c.entry && len(e.Data) > 0 || e.Index == last && !slices.Equal(e.Data, c.data) {
						t.Errorf("entry %d is now %x", e.Index, e.Data)
					}
					return true
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := n.store.Close(); err != nil {
				t.Fatal(err)
			}
			n.Host = nil
		})
	}
}

// A record batch of a newer format that is already applied is met by who reads
// it: a downgrade does that.
func TestNewerBatchIsRead(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	n.publish(1, batch("a"))
	if err := n.Host.Close(); err != nil {
		t.Fatal(err)
	}
	b := batch("abc")
	b[2]++
	row, at := indexRow{base: 1, at: entryHeaderLen + itemHeaderLen, records: 1, stored: 1, bytes: 999}, []byte(nil)
	row.index = Index(appendTo(t, n.store, appendItem(beginEntry(nil, Batches), 1, b)))
	st := appliedRow{index: row.index, end: 2, bytes: 999}
	wb := n.store.NewBatch()
	at = offsetKey(at, row.base)
	if err := wb.Set(logstore.Offsets, 1, at, row.append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := wb.SetMeta(1, metaApplied, st.append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := n.store.CommitNoSync(wb); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}
	n.start()
	var newer *format.ErrNewer
	if ms, err := n.Read(1, 0, 1, 1000); err != nil || !slices.Equal(bodies(ms), []string{"a"}) {
		t.Fatalf("what is known reads as %v, %v", ms, err)
	}
	if _, err := n.ReadAt(1, []Offset{1}); !errors.As(err, &newer) || newer.What != "record batch" {
		t.Fatalf("%v", err)
	}
}

// appendTo puts an entry behind a partition's log and returns its index.
func appendTo(t *testing.T, s *logstore.Store, data []byte) uint64 {
	t.Helper()
	last, err := s.LastIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	hs, err := s.HardState(1)
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	if err := b.Append(1, []logstore.Entry{{Term: hs.Term, Index: last + 1, Data: data}}); err != nil {
		t.Fatal(err)
	}
	if err := s.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	return last + 1
}

// behind is an App that does not know the commands of a newer version.
type behind struct{ App }

func (b behind) Apply(at Position, cmd []byte) (any, error) {
	if string(cmd) == "newer" {
		return nil, format.Check("command", 9, 8)
	}
	return b.App.Apply(at, cmd)
}
