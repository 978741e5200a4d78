package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/partition/logstore"
)

// collectStore gives what the store measures itself.
func (b *Broker) collectStore(to sampler) {
	m := b.store.Metrics()
	gauge, counter := to.gauge, to.counter
	// Buckets of the store count each fsync once; Prometheus wants those at or
	// below each bound.
	buckets := map[float64]uint64{}
	total := uint64(0)
	for i, bound := range logstore.FsyncBuckets() {
		if i < len(m.FsyncCounts) {
			total += uint64(m.FsyncCounts[i])
			buckets[bound.Seconds()] = total
		}
	}
	to.ch <- prometheus.MustNewConstHistogram(to.get("fsync_duration_seconds", "Fsyncs of the store's log; one serves many partitions.", nil), uint64(m.Fsyncs), m.FsyncTotal.Seconds(), buckets)
	to.ch <- shown(to.get("commit_duration_seconds", "From an entry of messages or commands being given to Raft until a majority had it on disk and it was applied here, for partitions that this node led; what waits in the queues before is not in it.", nil), b.host.Commits(), 1e6)
	counter("store_batches_total", "Batches that were committed over the store's life.", nil, float64(m.Batches))
	counter("store_write_stalls_total", "Times that writes waited for flushes.", nil, float64(m.WriteStalls))
	counter("store_write_stall_seconds_total", "How long writes waited for flushes.", nil, m.WriteStallFor.Seconds())
	counter("store_slow_writes_total", "Writes and fsyncs that took a second or more.", nil, float64(m.SlowWrites))
	gauge("store_stuck_seconds", "How long the disk has not come back from a write; 0 below 3 s.", nil, m.StuckFor.Seconds())
	scrub := b.store.Scrub()
	last := 0.0
	if !scrub.Last.IsZero() {
		last = float64(scrub.Last.UnixMilli()) / 1000
	}
	counter("store_scrub_passes_total", "Times that everything stored was read again, over the store's life.", nil, float64(scrub.Passes))
	gauge("store_scrub_last_timestamp_seconds", "When the last pass was complete; 0 if none was.", nil, last)
	gauge("store_scrub_bytes", "What the pass under way has read, or the last one.", nil, float64(scrub.Bytes))
	gauge("store_damaged_places", "Places of stored data that were found damaged and are still there.", nil, float64(len(b.store.Damage())))
	gauge("store_log_bytes", "Log files that a restart would replay.", nil, float64(m.LogBytes))
	gauge("store_disk_bytes", "Everything of the store on disk.", nil, float64(m.DiskBytes))
	gauge("store_compaction_debt_bytes", "Bytes that compactions still have to move.", nil, float64(m.CompactionDebt))
	gauge("store_level0_sublevels", "Levels of tables not yet compacted, each of which a read may have to look into.", nil, float64(m.L0Sublevels))
	gauge("store_memtable_bytes", "Memory of tables that are not on disk yet.", nil, float64(m.MemTableBytes))
	gauge("store_cache_bytes", "Memory of blocks of tables.", nil, float64(m.CacheBytes))
	counter("store_cache_hits_total", "Blocks of tables that were found in memory.", nil, float64(m.CacheHits))
	counter("store_cache_misses_total", "Blocks of tables that were read from disk.", nil, float64(m.CacheMisses))
}
