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
