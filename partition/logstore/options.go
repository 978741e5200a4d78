package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// pebbleOptions are the settings of the engine. The figures come from
// measurements; docs/format/store.md says what each one is for.
func (s *Store) pebbleOptions(readOnly bool) *pebble.Options {
	o := &pebble.Options{
		FS:       s.fs,
		ReadOnly: readOnly,
		Logger:   pebbleLogger{s},
		// The zero value would mean the oldest format, and value separation
		// would then be off without a word.
		FormatMajorVersion: pebble.FormatValueSeparation,
		// Pebble takes the memory tables out of the cache's size: of a cache as
		// small as them nothing is left. One is in use, one is kept for the next.
		CacheSize:                   s.cfg.CacheBytes + 2*s.cfg.MemTableBytes,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		L0StopWritesThreshold:       1000,
		FlushDelayDeleteRange:       max(s.cfg.DeleteDelay, 0),
		WALMinSyncInterval:          func() time.Duration { return max(s.cfg.MinSyncInterval, 0) },
	}
	if s.cfg.tableBytes > 0 {
		for i := range o.TargetFileSizes {
			o.TargetFileSizes[i] = s.cfg.tableBytes
		}
	}
	for i := range o.Levels {
		// Batches are compressed by who makes them or not at all.
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		o.Levels[i].BlockSize = s.cfg.blockBytes
		if s.cfg.Simulated {
			o.Levels[i].BlockSize, o.Levels[i].IndexBlockSize = 1, 4<<10
		}
		// Most lookups are of message ids that are not there.
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	// Pebble would look at a table that does not read again and again, at once.
	o.DisableTableStats = s.unsure || s.cfg.Simulated
	// What takes a snapshot in has flushed before; every record of the log is a batch.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	// No table is cut when it may be where it is damaged (see cutting).
	o.Experimental.EnableDeleteOnlyCompactionExcises = func() bool { return !s.fs.rot.Load() }
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           256,
			MaxBlobReferenceDepth: 100,
			RewriteMinimumAge:     5 * time.Minute,
			TargetGarbageRatio:    0.5,
		}
	}
	o.Experimental.SpanPolicyFunc = spanPolicy
	if !readOnly && s.merges != nil {
		o.Experimental.CompactionScheduler = s.merges
	}
	o.EventListener = s.listener()
	return o
}

// spanPolicy keeps the values of everything but entries in the tables: those
// rows are small, read one by one, and rewritten often.
func spanPolicy(start []byte) (pebble.SpanPolicy, []byte, error) {
	first, end := []byte{keyFormat, byte(nsEntry)}, []byte{keyFormat, byte(nsEntry) + 1}
	small := pebble.SpanPolicy{ValueStoragePolicy: pebble.ValueStorageLowReadLatency}
	switch {
	case bytes.Compare(start, first) < 0:
		return small, first, nil
	case bytes.Compare(start, end) < 0:
		// The index at the end of a key is not a version of it.
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, end, nil
	}
	return small, nil, nil
}

func (s *Store) listener() *pebble.EventListener {
	return &pebble.EventListener{
		// Both are called under locks of Pebble's: nothing is read from here.
		BackgroundError: func(err error) {
			var rot *rotError
			switch {
			case errors.As(err, &rot):
				s.merges.failed()
				s.rotInBackground(rot)
			case pebble.IsCorruptionError(err):
				// A compaction that cannot read its input changes nothing.
				s.merges.failed()
				s.reportDamage(s.damageOf(err))
			case s.fs.failed.Load() || errors.Is(err, errStopped):
			default:
				s.fail("background", "work", err)
			}
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			d := s.damageOf(i.Details)
			d.File = s.cfg.FS.PathBase(i.Path)
			d.Ranges, d.bound = rangesBetween(i.Bounds.Start, i.Bounds.End.Key), true
			s.reportDamage(d)
		},
		WALCreated: func(pebble.WALCreateInfo) { s.pace.rotated() },
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				s.pace.flushed(i.Input, i.InputBytes, i.Duration)
			}
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			s.stalls.Add(1)
			s.stallSince.Store(time.Now().UnixNano())
			s.cfg.Logger.Warn("writes wait for the disk", "reason", i.Reason)
		},
		WriteStallEnd: func() {
			if t := s.stallSince.Swap(0); t != 0 {
				s.stallTime.Add(time.Now().UnixNano() - t)
			}
		},
	}
}

func (s *Store) damageOf(err error) *ErrDamaged {
	return &ErrDamaged{Dir: s.cfg.Dir, What: "stored data does not read", Err: err}
}

// rangesBetween says which parts of logs the keys of a damaged file may belong
// to, as well as its first and last key can tell.
func rangesBetween(first, last []byte) []Range {
	a, okA := decodeBound(first, false)
	b, okB := decodeBound(last, true)
	switch {
	case !okA && !okB:
		return nil
	case !okA:
		a = decodedKey{ns: b.ns, partition: b.partition}
	case !okB:
		b = decodedKey{ns: a.ns, partition: a.partition}
	}
	if a.partition == b.partition && a.ns == nsEntry && b.ns == nsEntry {
		return []Range{{Partition: a.partition, Low: max(a.index, 1), High: b.index}}
	}
	// Rows of more than one partition or namespace. What lies between the ends
	// is not known from here, so all of it may be affected.
	var rs []Range
	add := func(r Range) {
		if n := len(rs); n == 0 || rs[n-1].Partition != r.Partition {
			rs = append(rs, r)
		}
	}
	switch {
	case a.ns == nsStore && b.ns == nsStore:
		return nil
	case a.ns != b.ns: // the first kind of rows from a on, the last up to b
		a.partition, b.partition = min(a.partition, b.partition), max(a.partition, b.partition)
		a.index = 0
	}
	add(Range{Partition: a.partition, Low: max(a.index, 1)})
	if b.partition-a.partition <= maxNamed {
		for p := a.partition + 1; p < b.partition; p++ {
			add(Range{Partition: p, Low: 1})
		}
	}
	r := Range{Partition: b.partition, Low: 1}
	if a.ns == nsEntry && b.ns == nsEntry {
		r.High = b.index
	}
	add(r)
	return rs
}

// maxNamed is how many partitions between two are named one by one.
const maxNamed = 1000

// decodeBound takes a table's first or last key apart. Where a range was deleted
// that is no row's key but a bare prefix, and as the last one it is that of the
// partition behind.
func decodeBound(k []byte, last bool) (decodedKey, bool) {
	d, ok := decodeKey(k)
	if ok || len(k) != prefixLen || k[0] != keyFormat {
		return d, ok
	}
	d = decodedKey{ns: Namespace(k[1]), partition: binary.BigEndian.Uint64(k[2:])}
	if last && d.partition > 0 {
		d.partition--
	}
	return d, true
}

// pebbleLogger passes Pebble's talk on. Its Fatalf does not end the process:
// the store has failed, and says so to whoever asks.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.s.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		l.s.cfg.Logger.Debug("pebble", "say", fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.cfg.Logger.Error("pebble", "say", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.fail("pebble", "stopped", fmt.Errorf(format, args...))
}
