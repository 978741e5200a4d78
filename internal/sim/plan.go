package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// plan is what a seed makes of a run.
type plan struct {
	seed       uint64
	nodes      int // that partitions begin on
	spares     int // that begin empty
	parts      int
	groups     int
	members    int // of each group
	publishers int
	keys       int // of each partition
	deadly     int // so many of them are never handled
	length     time.Duration
	pause      time.Duration // between what one publisher sends
	most       int           // messages of one, before it goes slow
	work       time.Duration // that a member takes at most, mostly
	memTable   int64
	checkpoint int64
	buckets    partition.Offset
	follower   int64 // bytes of log that are kept for followers
	tailCache  int64
	sample     int     // every so many looks the groups' rows are compared
	twice      float64 // of what is sent comes twice
	lossy      float64 // of what clients send, or are told, is lost
	resets     bool
	policies   []consumer.Policy
	kinds      []string // of faults that happen
	placed     bool     // replicas are where the metadata wants them
	zones      []string
	deadAfter  time.Duration // a node that is away so long is given up for what it holds
	every      time.Duration
}

// The kinds of faults, and of what operators do.
var (
	faultKinds    = []string{"power", "stall", "fsync", "jump", "drift", "cut", "loss", "member", "checkpoint"}
	diskKinds     = []string{"full", "flip"}
	operatorKinds = []string{"pause", "policy", "reset", "replay", "discard", "trim", "leave"}
	placeKinds    = []string{"lose", "change", "transfer"} // with several nodes only
)

// Kinds lists what Options.Without can name.
func Kinds() []string {
	return slices.Concat(faultKinds, diskKinds, operatorKinds, placeKinds, clusterKinds, []string{"cluster"})
}

func draw(o Options) plan {
	r := source(o.Seed, "plan")
	p := plan{
		seed: o.Seed, nodes: 1, parts: 1 + r.IntN(2), groups: 1 + r.IntN(2), members: 1 + r.IntN(3), publishers: 1 + r.IntN(3),
		keys: 2 + r.IntN(6), length: time.Duration(20+r.IntN(60)) * time.Second,
		pause: time.Duration(10<<r.IntN(6)) * time.Millisecond, work: time.Duration(20<<r.IntN(7)) * time.Millisecond,
		memTable: 256 << 10 << r.IntN(4), checkpoint: 2 << 10 << r.IntN(6), tailCache: 1 << 10 << r.IntN(10), sample: 50 + r.IntN(300),
		resets: r.IntN(2) == 0, every: time.Duration(500<<r.IntN(4)) * time.Millisecond,
	}
	if r.IntN(3) == 0 {
		p.nodes = 3
	}
	if o.Nodes != 0 {
		p.nodes = o.Nodes
	}
	if r.IntN(2) == 0 {
		p.twice = 0.05
	}
	if r.IntN(2) == 0 {
		p.lossy = 0.05
	}
	p.deadly = r.IntN(2)
	p.follower, p.buckets = 1<<(o.Seed%14), 16<<(o.Seed%11)
	for range p.groups {
		x := consumer.Default()
		x.Mode = []consumer.Mode{consumer.ByKey, consumer.ByKey, consumer.ByKey, consumer.ByPartition, consumer.NoOrder}[r.IntN(5)]
		x.AckDeadline = []partition.Millis{500, 2_000, 8_000, 30_000}[r.IntN(4)]
		x.MaxHold = 4 * x.AckDeadline
		x.Backoff = []partition.Millis{0, 50, 1_000}[r.IntN(3)]
		x.BackoffMax = max(x.Backoff, []partition.Millis{200, 5_000}[r.IntN(2)])
		x.MaxAttempts = []uint32{0, 1, 3, 5}[r.IntN(4)]
		x.OnExhaustion = []consumer.Exhaustion{consumer.Skip, consumer.Park}[r.IntN(2)]
		x.MaxInFlightMember = []uint32{1, 3, 1000}[r.IntN(3)]
		x.MaxInFlightPartition = []uint32{2, 10_000}[r.IntN(2)]
		if r.IntN(4) == 0 {
			x.MaxDeferred, x.MaxDeferredKey = 20, 5
		}
		if r.IntN(3) == 0 {
			x.Retention = consumer.Hold
		}
		if r.IntN(4) == 0 {
			x.BreakerPercent, x.BreakerKeys, x.BreakerWindow = 50, 2, 2_000
		}
		p.policies = append(p.policies, x)
	}
	for _, k := range slices.Concat(faultKinds, operatorKinds, placeKinds) {
		on := r.IntN(3) > 0
		if on && !slices.Contains(o.Without, k) {
			p.kinds = append(p.kinds, k)
		}
	}
	if !p.resets {
		p.kinds = slices.DeleteFunc(p.kinds, func(k string) bool { return k == "reset" })
	}
	if p.most = 2000; o.Live {
		p.most = 300
	}
	if p.nodes == 1 {
		p.kinds = slices.DeleteFunc(p.kinds, func(k string) bool { return k == "cut" || k == "loss" || slices.Contains(placeKinds, k) })
	} else if p.has("change") || p.has("lose") {
		p.spares = r.IntN(3)
	}
	d := source(o.Seed, "disks")
	for _, k := range diskKinds {
		if d.IntN(2) > 0 && !slices.Contains(o.Without, k) {
			p.kinds = append(p.kinds, k)
		}
	}
	c := source(o.Seed, "placed")
	if p.placed = p.nodes > 1 && (o.Cluster || c.IntN(2) == 0) && !slices.Contains(o.Without, "cluster"); p.placed {
		p.spares = 0
		p.zones = [][]string{{""}, {""}, {"a", "b", "c"}, {"a", "b"}}[c.IntN(4)]
		p.deadAfter = time.Duration(5<<c.IntN(4)) * time.Second
		p.kinds = slices.DeleteFunc(p.kinds, func(k string) bool { return k == "change" || k == "transfer" })
		for _, k := range clusterKinds {
			if c.IntN(3) > 0 && !slices.Contains(o.Without, k) {
				p.kinds = append(p.kinds, k)
			}
		}
	} else {
		p.kinds = slices.DeleteFunc(p.kinds, func(k string) bool { return k == "flip" }) // nobody would make anew what is damaged
	}
	return p
}

func (p *plan) has(kind string) bool { return slices.Contains(p.kinds, kind) }

// String tells what there is, in one line.
func (p plan) String() string {
	how := ""
	if p.placed {
		how = fmt.Sprintf("a cluster, zones %q, nodes dead after %v; ", p.zones, p.deadAfter)
	}
	return how + fmt.Sprintf("%d nodes and %d, %d partitions, %d groups of %d members, %d publishers, %d keys, %v; %v",
		p.nodes, p.spares, p.parts, p.groups, p.members, p.publishers, p.keys, p.length, p.kinds)
}
