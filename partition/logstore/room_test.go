package logstore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// sized is a file system of a size.
type sized struct {
	vfs.FS
	total uint64
}

func (s sized) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: s.total, TotalBytes: s.total}, nil
}

// On a small file system memory tables, and with them the log files that are
// allocated before they are written, are smaller; so a small one is enough.
func TestMemTableFitsTheDisk(t *testing.T) {
	for _, c := range []struct{ total, table uint64 }{
		{64 << 20, 4 << 20}, {256 << 20, 4 << 20}, {1 << 30, 16 << 20}, {4 << 30, 64 << 20}, {1 << 40, 64 << 20},
	} {
		cfg := Config{Dir: "store", FS: sized{newMem(), c.total}}
		if got := uint64(cfg.withDefaults().MemTableBytes); got != c.table || cfg.RoomNeeded() != 4*c.table || cfg.RoomNeeded() > c.total {
			t.Errorf("of %d bytes: tables of %d, %d needed", c.total, got, cfg.RoomNeeded())
		}
	}
	if got := (Config{Dir: "store", FS: newMem()}).withDefaults().MemTableBytes; got != largestMemTable {
		t.Errorf("of a file system that does not say: %d", got)
	}
	cfg := Config{Dir: "store", FS: sized{newMem(), 64 << 20}}
	s := mustOpen(t, cfg)
	for i := uint64(1); i <= 100; i++ {
		commit(t, s, func(b *Batch) { _ = b.Append(1, []Entry{entry(1, i, 200_000)}) })
	}
	// 20 MB went through tables of 4 MiB: at least four log files were filled,
	// and they are used again instead of growing in number.
	if m := s.Metrics(); m.LogBytes > 5*5<<20 {
		t.Errorf("%d bytes of log files", m.LogBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
