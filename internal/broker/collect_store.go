package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/partition/logstore"
)

// collectStore gives what the store measures itself.
func (b *Broker) collectStore(ch chan<- prometheus.Metric) {
	m := b.store.Metrics()
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("strandmq_"+name, help, nil, nil)
	}
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
	ch <- prometheus.MustNewConstHistogram(desc("fsync_duration_seconds", "Fsyncs of the store's log; one serves many partitions."), uint64(m.Fsyncs), m.FsyncTotal.Seconds(), buckets)
	ch <- prometheus.MustNewConstMetric(desc("store_batches_total", "Batches that were committed over the store's life."), prometheus.CounterValue, float64(m.Batches))
	ch <- prometheus.MustNewConstMetric(desc("store_write_stalls_total", "Times that writes waited for flushes."), prometheus.CounterValue, float64(m.WriteStalls))
	ch <- prometheus.MustNewConstMetric(desc("store_write_stall_seconds_total", "How long writes waited for flushes."), prometheus.CounterValue, m.WriteStallFor.Seconds())
	ch <- prometheus.MustNewConstMetric(desc("store_slow_writes_total", "Writes and fsyncs that took a second or more."), prometheus.CounterValue, float64(m.SlowWrites))
	ch <- prometheus.MustNewConstMetric(desc("store_stuck_seconds", "How long the disk has not come back from a write; 0 below 3 s."), prometheus.GaugeValue, m.StuckFor.Seconds())
	scrub := b.store.Scrub()
	last := 0.0
	if !scrub.Last.IsZero() {
		last = float64(scrub.Last.UnixMilli()) / 1000
	}
	ch <- prometheus.MustNewConstMetric(desc("store_scrub_passes_total", "Times that everything stored was read again, over the store's life."), prometheus.CounterValue, float64(scrub.Passes))
	ch <- prometheus.MustNewConstMetric(desc("store_scrub_last_timestamp_seconds", "When the last pass was complete; 0 if none was."), prometheus.GaugeValue, last)
	ch <- prometheus.MustNewConstMetric(desc("store_scrub_bytes", "What the pass under way has read, or the last one."), prometheus.GaugeValue, float64(scrub.Bytes))
	ch <- prometheus.MustNewConstMetric(desc("store_damaged_places", "Places of stored data that were found damaged and are still there."), prometheus.GaugeValue, float64(len(b.store.Damage())))
	ch <- prometheus.MustNewConstMetric(desc("store_log_bytes", "Log files that a restart would replay."), prometheus.GaugeValue, float64(m.LogBytes))
	ch <- prometheus.MustNewConstMetric(desc("store_disk_bytes", "Everything of the store on disk."), prometheus.GaugeValue, float64(m.DiskBytes))
	ch <- prometheus.MustNewConstMetric(desc("store_compaction_debt_bytes", "Bytes that compactions still have to move."), prometheus.GaugeValue, float64(m.CompactionDebt))
	ch <- prometheus.MustNewConstMetric(desc("store_level0_sublevels", "Levels of tables not yet compacted, each of which a read may have to look into."), prometheus.GaugeValue, float64(m.L0Sublevels))
	ch <- prometheus.MustNewConstMetric(desc("store_memtable_bytes", "Memory of tables that are not on disk yet."), prometheus.GaugeValue, float64(m.MemTableBytes))
	ch <- prometheus.MustNewConstMetric(desc("store_cache_bytes", "Memory of blocks of tables."), prometheus.GaugeValue, float64(m.CacheBytes))
	ch <- prometheus.MustNewConstMetric(desc("store_cache_hits_total", "Blocks of tables that were found in memory."), prometheus.CounterValue, float64(m.CacheHits))
	ch <- prometheus.MustNewConstMetric(desc("store_cache_misses_total", "Blocks of tables that were read from disk."), prometheus.CounterValue, float64(m.CacheMisses))
}
