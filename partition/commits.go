package partition

import "github.com/strandmq/strandmq/internal/histogram"

// newCommits counts microseconds: from a tenth of a millisecond, below which no disk
// syncs, to what takes an election.
func newCommits() *histogram.Histogram {
	return histogram.New(100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000)
}

// committed counts how long an entry took, as the first of its proposals is applied. Only
// who proposed it has the proposal, and gives it up when it ceases to lead: so an entry is
// counted once in a cluster, or not at all.
func (c *core) committed(p *proposal) {
	if p.given > 0 {
		c.commits.Add((c.clock - p.given).Microseconds(), 1)
	}
}

// Commits is how long log entries took that this node led, in microseconds: from being
// given to Raft until a majority had them on disk and they were applied here. What waits in
// the queues before that is not in it. Both ends are turns of the loop.
func (h *Host) Commits() histogram.Reading { return h.core.commits.Read() }
