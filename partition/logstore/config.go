package logstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config says where a store is and what it may use. Zero values are defaults.
type Config struct {
	// Dir is the store's folder. It is made if it does not exist.
	Dir string
	// FS is the file system; nil is the operating system's, where files are
	// made with mode 0600 and folders with 0700.
	FS vfs.FS
	// ClusterID is written into a new store and compared with that of an
	// existing one; empty compares nothing.
	ClusterID string
	// MustExist refuses to make a new store: for a node that is known to have
	// had one, an empty folder is a lost disk and not a fresh start.
	MustExist bool
	// ReadOnly opens without writing anything.
	ReadOnly bool

	// CacheBytes is the memory for blocks read from tables. Default 64 MiB;
	// at least 1 MiB. While flushes fall behind, more than two memory tables
	// take their room from it.
	CacheBytes int64
	// MemTableBytes is the memory of one table not yet on disk; up to four
	// exist at a time, and each has a log file of about its size that a
	// restart replays. Default 64 MiB, less on a file system below 4 GiB (a
	// 64th of it, at least 4 MiB); 256 KiB to 1 GiB. Larger ones were slower;
	// small ones rotate log files so often that fsync gets dearer.
	MemTableBytes int64
	// MinSyncInterval is the shortest time between two fsyncs of the log, at
	// most 1 s. Default none: batches gather behind the fsync that is under way
	// anyhow, and a timer below a millisecond rings a millisecond late on an
	// idle machine, which a single publisher would wait for.
	MinSyncInterval time.Duration
	// WitnessInterval is how soon after a synced batch the witness knows of
	// it. Damage to the newest log within that time cannot be told from a
	// power cut. Default 50 ms, at most 10 s.
	WitnessInterval time.Duration
	// DeleteDelay is how long deleted ranges may stay on disk at least before
	// their space is given back. Default 5 s, negative for never, at most 1 h.
	DeleteDelay time.Duration

	// StallAfter is how long a write or fsync may be under way until the store
	// counts as stuck (see Store.Stuck). Default 3 s; 1 ms to 1 h.
	StallAfter time.Duration
	// StallStop is how long until the store stops for good. Default 20 s; not
	// below StallAfter, at most 24 h.
	StallStop time.Duration

	// ScrubBytesPerSecond is how fast all that is stored is read again in the
	// background, to find what rots before it is needed. Default 8 MiB; below 0
	// never.
	ScrubBytesPerSecond int64
	// ScrubEvery is how soon after a complete pass the next one begins. Default
	// 24 h.
	ScrubEvery time.Duration

	// Simulated is for simulators, in which what a read meets must not depend on when
	// tables are written: each row has a block of its own, which costs a read for each,
	// and no table is cut because of what its statistics say.
	Simulated bool

	// Logger takes what is worth knowing; nil drops it.
	Logger *slog.Logger
	// OnFault is called from a goroutine of the store: at most once with
	// Stopped, and once for each damaged file found. It must not call Close.
	OnFault func(Fault)

	// unsynced makes commits return without any fsync. It exists to prove that
	// the tests of durability notice.
	unsynced bool
	// tableBytes is how large tables get; 0 leaves it to the engine.
	tableBytes int64
	// blockBytes is how large blocks get; 0 leaves it to the engine.
	blockBytes int
	// pause is how long compactions wait after one that met damage, at first.
	pause time.Duration
}

// Validate lists every fault of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("logstore: "+format, args...)) }
	if c.Dir == "" {
		bad("Dir is empty: name a folder")
	}
	if len(c.ClusterID) > 256 {
		bad("ClusterID has %d bytes, at most 256", len(c.ClusterID))
	}
	if c.CacheBytes != 0 && c.CacheBytes < 1<<20 {
		bad("CacheBytes is %d, at least %d", c.CacheBytes, 1<<20)
	}
	if c.MemTableBytes != 0 && (c.MemTableBytes < 256<<10 || c.MemTableBytes > 1<<30) {
		bad("MemTableBytes is %d, want %d to %d", c.MemTableBytes, 256<<10, 1<<30)
	}
	if c.MinSyncInterval > time.Second {
		bad("MinSyncInterval is %v, at most 1s", c.MinSyncInterval)
	}
	if c.WitnessInterval < 0 || c.WitnessInterval > 10*time.Second {
		bad("WitnessInterval is %v, want 0 to 10s", c.WitnessInterval)
	}
	if c.DeleteDelay > time.Hour {
		bad("DeleteDelay is %v, at most 1h", c.DeleteDelay)
	}
	if c.ScrubEvery < 0 {
		bad("ScrubEvery is %v, it cannot be negative", c.ScrubEvery)
	}
	if c.StallAfter != 0 && (c.StallAfter < time.Millisecond || c.StallAfter > time.Hour) {
		bad("StallAfter is %v, want 1ms to 1h", c.StallAfter)
	}
	if c.StallStop != 0 && (c.StallStop < c.StallAfter || c.StallStop > 24*time.Hour) {
		bad("StallStop is %v, want StallAfter to 24h", c.StallStop)
	}
	return errors.Join(errs...)
}

// Within is the configuration of a store of a process that is to keep to so many
// bytes: what is not set gets a share of it, a third at most, or its default.
func (c Config) Within(memory int64) Config {
	d := c.withDefaults()
	if c.CacheBytes == 0 {
		c.CacheBytes = min(d.CacheBytes, max(memory/8, 1<<20))
	}
	if c.MemTableBytes == 0 {
		// The C library gives what is larger than 32 MiB back to the system at once, and
		// keeps smaller pieces: with smaller tables it takes more memory.
		c.MemTableBytes = min(d.MemTableBytes, max(memory/16, 33<<20))
	}
	return c
}

// Memory is what the store takes beside the heap: tables not yet on disk, and blocks.
func (c Config) Memory() int64 {
	c = c.withDefaults()
	return max(c.CacheBytes+2*c.MemTableBytes, 4*c.MemTableBytes)
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 64 << 20
	}
	if c.MemTableBytes == 0 {
		c.MemTableBytes = c.fittingMemTable()
	}
	if c.WitnessInterval == 0 {
		c.WitnessInterval = 50 * time.Millisecond
	}
	if c.DeleteDelay == 0 {
		c.DeleteDelay = 5 * time.Second
	}
	if c.ScrubBytesPerSecond == 0 {
		c.ScrubBytesPerSecond = 8 << 20
	}
	if c.ScrubEvery == 0 {
		c.ScrubEvery = 24 * time.Hour
	}
	if c.StallAfter == 0 {
		c.StallAfter = 3 * time.Second
	}
	if c.StallStop == 0 {
		c.StallStop = max(20*time.Second, c.StallAfter)
	}
	if c.pause == 0 {
		c.pause = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
