package partition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
)

// spoil changes a byte behind a pattern in every file of a folder that has it,
// and tells in how many.
func spoil(t *testing.T, fs *vfs.MemFS, dir string, pattern []byte) (n int) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			continue // a folder
		}
		all, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(all, pattern); at >= 0 {
			if _, err := f.WriteAt([]byte{all[at] ^ 1}, int64(at)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// A damaged message that is no longer to be kept is no reason to stop: it goes,
// and its room with the next trim.
func TestTrimPastDamage(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1)
	body := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "message %d.", i), 500) }
	for i := range 10 {
		n.publish(1, record.Append(nil, record.Meta{}, []record.Record{{Body: body(i)}}))
	}
	n.stop()
	if spoil(t, n.fs, "store/pebble", body(5)[:40]) == 0 {
		t.Fatal("the message is nowhere")
	}
	n.start()
	var damaged *ErrDamaged
	if _, err := n.Read(1, 5, 1, 1); !errors.As(err, &damaged) {
		t.Fatalf("the damaged message reads: %v", err)
	}
	before, _ := n.Info(1)
	if got := n.trim(1, TrimTo{To: 6}); got != 6 {
		t.Fatalf("kept from %d on", got)
	}
	if info, err := n.Info(1); err != nil || info.Fault != "" || info.FirstIndex != before.FirstIndex {
		t.Fatalf("with the last entry before it unreadable, the log begins at %d, was %d; %+v, %v", info.FirstIndex, before.FirstIndex, info, err)
	}
	if got := n.trim(1, TrimTo{To: 8}); got != 8 {
		t.Fatalf("kept from %d on", got)
	}
	if info, _ := n.Info(1); info.FirstIndex <= before.FirstIndex+5 {
		t.Fatalf("the room of what is gone is not given back: %+v", info)
	}
	for range 2 {
		ms, err := n.Read(1, 8, 10, 1<<20)
		if err != nil || len(ms) != 2 || !bytes.Equal(ms[0].Record.Body, body(8)) {
			t.Fatalf("%d messages, %v", len(ms), err)
		}
		n.restart()
	}
}

// What the App would copy cannot be read: the log is cut up to there and no
// further, who asked is told, and nothing stops, now or after a restart. When the
// App wants it no longer, the rest goes.
func TestTrimOfDamageThatIsCopied(t *testing.T) {
	n := newNode(t, Config{NewApp: newKeeper})
	n.create(1)
	body := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "message %d.", i), 500) }
	for i := range 10 {
		n.publish(1, record.Append(nil, record.Meta{}, []record.Record{{Body: body(i)}}))
	}
	n.stop()
	if spoil(t, n.fs, "store/pebble", body(5)[:40]) == 0 {
		t.Fatal("the message is nowhere")
	}
	n.start()
	var bad *ErrUnreadable
	some := []Offset{1, 3, 4, 5, 6, 9}
	if ms, err := n.ReadRawAt(1, some, nil); len(ms) != 3 || ms[2].Offset != 4 || !errors.As(err, &bad) || bad.Offset != 5 || bad.Partition != 1 {
		t.Fatalf("%d messages are read before the damaged one, %v", len(ms), err)
	}
	if ms, err := n.ReadRawAt(1, some[4:], nil); len(ms) != 2 || err != nil {
		t.Fatalf("%d messages are read behind it, %v", len(ms), err)
	}
	for round := range 2 {
		for _, done := range []bool{false, true} {
			start, err := n.Trim(within(t), 1, TrimTo{To: 8, Why: ByAge, Done: done})
			var bad *ErrUnreadable
			if start != 5 || !errors.As(err, &bad) || bad.Offset != 5 || !errors.As(err, new(*ErrDamaged)) {
				t.Fatalf("round %d: kept from %d on, %v", round, start, err)
			}
		}
		n.publish(1, batch("next"))
		if ms, err := n.Read(1, 6, 3, 1<<20); err != nil || len(ms) != 3 || !bytes.Equal(ms[2].Record.Body, body(8)) {
			t.Fatalf("round %d: %d messages, %v", round, len(ms), err)
		}
		n.restart()
		if info, err := n.Info(1); err != nil || info.Fault != "" {
			t.Fatalf("round %d: %+v, %v", round, info, err)
		}
	}
	if _, err := n.Propose(within(t), 1, []byte("leave 5")); err != nil {
		t.Fatal(err)
	}
	if got := n.trim(1, TrimTo{To: 8}); got != 8 {
		t.Fatalf("kept from %d on", got)
	}
}

// A question whose answer cannot be found stops nothing.
func TestTrimThatCannotBeAnswered(t *testing.T) {
	why := errors.New("a row that does not read")
	n := newNode(t, Config{NewApp: func(id PartitionID, rows Rows) (App, error) {
		k, err := newKeeper(id, rows)
		return doubtful{k.(*keeper), why}, err
	}})
	n.create(1)
	n.publish(1, batch("a", "b"))
	if _, err := n.Trim(within(t), 1, TrimTo{To: 1}); !errors.Is(err, why) {
		t.Fatal(err)
	}
	n.publish(1, batch("c"))
	if info, err := n.Info(1); err != nil || info.Fault != "" {
		t.Fatalf("%+v, %v", info, err)
	}
}

type doubtful struct {
	*keeper
	why error
}

func (d doubtful) Keeps(Position, TrimTo, Kept) (Offset, error) { return 0, d.why }
