package sim

import (
	"container/heap"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"sort"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/strandmq/strandmq/partition"
)

// Options say what to run. Only Seed is needed.
type Options struct {
	Seed uint64
	// Nodes is how many nodes there are, 1 or 3; 0: the seed says.
	Nodes int
	// Cluster has replicas be where the cluster's metadata wants them; otherwise the
	// seed says whether they are.
	Cluster bool
	// Live heals everything after a while, and demands that all is delivered and
	// settled then. Otherwise faults go on to the end.
	Live bool
	// Without names kinds of faults, and of what operators do, that do not happen.
	Without []string
	// Events ends the run after so many; 0: when its time is up.
	Events int
	// Plant puts a fault of its own into the run, to see that it is found.
	Plant string
	// Log takes every line of the trace. Nil: only the last ones are kept.
	Log io.Writer
}

// Result is what became of a run.
type Result struct {
	Options Options
	Err     error         // what was found
	Events  int           // that happened
	Time    time.Duration // simulated
	Trace   uint64        // hash of all that happened
	Tail    []string      // the last lines of the trace
	Plan    string
	Count   Count
}

// Count is what a run did.
type Count struct {
	Nodes, writes, stored, receipts, deliveries, settled, compared, lost, twice, snapshots int
	outage                                                                                 time.Duration // the longest that a partition had no leader, after all was healed
	faults, placed                                                                         map[string]int
}

// String prints the counts in one line.
func (c Count) String() string {
	list := func(m map[string]int) string {
		kinds := make([]string, 0, len(m))
		for k, n := range m {
			kinds = append(kinds, fmt.Sprintf("%s %d", k, n))
		}
		sort.Strings(kinds)
		return strings.Join(kinds, ", ")
	}
	return fmt.Sprintf("%d writes, %d messages, %d receipts, %d deliveries, %d settled, %d states compared, %d frames lost, %d commands twice, %d snapshots; %s; replicas: %s; longest without a leader %v",
		c.writes, c.stored, c.receipts, c.deliveries, c.settled, c.compared, c.lost, c.twice, c.snapshots, list(c.faults), list(c.placed), c.outage)
}

// add sums up.
func (c *Count) add(d Count) {
	for _, p := range []struct{ to, from *int }{
		{&c.writes, &d.writes}, {&c.stored, &d.stored}, {&c.receipts, &d.receipts}, {&c.deliveries, &d.deliveries},
		{&c.settled, &d.settled}, {&c.compared, &d.compared}, {&c.lost, &d.lost}, {&c.twice, &d.twice}, {&c.snapshots, &d.snapshots},
	} {
		*p.to += *p.from
	}
	c.outage = max(c.outage, d.outage)
	if c.faults == nil {
		c.faults, c.placed = make(map[string]int), make(map[string]int)
	}
	for k, n := range d.faults {
		c.faults[k] += n
	}
	for k, n := range d.placed {
		c.placed[k] += n
	}
}

// Sim is one run.
type Sim struct {
	options Options
	plan    plan
	rand    sources
	now     time.Duration
	seq     uint64
	heap    events
	fiber   *fiber
	fibers  map[*fiber]func()

	nodes    []*node
	net      *net
	judge    *judge
	clients  []client
	seen     map[seenKey]seen
	sent     map[string]*message
	planted  plant
	had      map[partition.PartitionID]bool // a leader, since all was healed
	healed   bool
	healedAt time.Duration
	hangs    *node // its disk does, for good
	unsure   bool  // a node is no good, and the others cannot all know
	cluster  *cluster

	count  Count
	events int
	err    error
	hash   *xxhash.Digest
	tail   []string
}

type seenKey struct {
	node partition.NodeID
	part partition.PartitionID
}

// sources are the random numbers: each actor has its own, so that what one does less
// changes little for the others.
type sources struct {
	plan, node, disk, net, fault *mrand.Rand
}

func source(seed uint64, name string) *mrand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return mrand.New(mrand.NewPCG(seed, h.Sum64()))
}

// between draws a time; short ones more often.
func (s *Sim) between(r *mrand.Rand, lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	f := r.Float64()
	return lo + time.Duration(f*f*float64(hi-lo))
}

// seeded is the source of random bytes of those who ask for the system's: raft draws
// its election jitter from it.
type seeded struct{ r *mrand.Rand }

func (s seeded) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(s.r.Uint32())
	}
	return len(p), nil
}

// Run runs one seed. It takes the place of the process's source of random bytes
// meanwhile, so only one may run at a time.
func Run(o Options) Result {
	was := rand.Reader
	rand.Reader = seeded{source(o.Seed, "system")}
	defer func() { rand.Reader = was }()
	s := &Sim{
		options: o, plan: draw(o), fibers: make(map[*fiber]func()), seen: make(map[seenKey]seen),
		sent: make(map[string]*message), had: make(map[partition.PartitionID]bool), hash: xxhash.New(),
		rand: sources{
			source(o.Seed, "plan"), source(o.Seed, "node"), source(o.Seed, "disk"), source(o.Seed, "net"), source(o.Seed, "fault"),
		},
	}
	s.count.faults, s.count.placed = make(map[string]int), make(map[string]int)
	s.planted = plant{s: s, kind: o.Plant, r: source(o.Seed, "plant")}
	s.run()
	return Result{
		Options: o, Err: s.err, Events: s.events, Time: s.now, Trace: s.hash.Sum64(), Tail: s.tail, Plan: s.plan.String(), Count: s.count,
	}
}

func (s *Sim) run() {
	defer s.end()
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(found); !ok {
				panic(v)
			}
		}
	}()
	s.count.Nodes = s.plan.nodes
	s.say("seed %d: %v", s.plan.seed, s.plan)
	s.net = &net{s: s, cuts: make(map[[2]partition.NodeID]bool), slow: 2 * time.Millisecond}
	if s.plan.placed {
		s.cluster = &cluster{s: s, r: source(s.plan.seed, "cluster")}
		s.judge = s.newJudge()
		s.found(s.begin)
	} else {
		s.judge = s.newJudge()
		s.scatter()
		s.begin()
	}
	for len(s.heap) > 0 && (s.options.Events == 0 || s.events < s.options.Events) {
		e := heap.Pop(&s.heap).(*event)
		s.now = e.at
		s.events++
		_, _ = s.hash.WriteString(e.what)
		s.note(uint64(e.at))
		e.do()
	}
}

// scatter has partitions begin on the first nodes, at once.
func (s *Sim) scatter() {
	for i := range s.plan.nodes + s.plan.spares {
		n := &node{s: s, id: partition.NodeID(i + 1), disk: newEmptyDisk(), held: make(map[partition.PartitionID]*place), rot: make(map[partition.PartitionID]bool), flipped: make(map[partition.PartitionID]bool)}
		s.nodes = append(s.nodes, n)
		for _, p := range s.parts() {
			if i < s.plan.nodes {
				n.held[p] = &place{id: n.id.Replica(), added: true, addedAt: 1}
			}
		}
	}
	for _, n := range s.nodes {
		if err := n.start(); err != nil {
			s.fault("%v", err)
		}
	}
}

// begin has everybody begin who uses the broker, or breaks it.
func (s *Sim) begin() {
	s.clientele()
	if s.cluster != nil {
		s.cluster.attend()
		s.cluster.steward = &steward{s: s, r: source(s.plan.seed, "steward")}
		s.clients = append(s.clients, s.cluster.steward)
		s.after(2*time.Second, "steward", s.cluster.steward.loop)
	} else {
		s.placers()
	}
	s.faults()
	s.after(s.plan.length, "end of faults", func() {
		if s.options.Live {
			s.heal()
		} else {
			s.over("the time is up")
		}
	})
}

// found ends a run.
type found struct{}

// fault ends the run: something is wrong.
func (s *Sim) fault(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
		s.say("WRONG: %v", s.err)
	}
	if s.fiber == nil {
		panic(found{})
	}
	s.heap = nil // a fiber cannot be left from inside; nothing more happens
}

// over ends the run without a fault.
func (s *Sim) over(why string) {
	s.say("over: %s", why)
	s.heap = nil
}

func (s *Sim) end() {
	s.heap = nil
	for len(s.fibers) > 0 {
		for f, stop := range s.fibers {
			delete(s.fibers, f)
			was := s.fiber
			s.fiber = f
			stop()
			s.fiber = was
		}
	}
	for _, n := range s.nodes {
		if n.up {
			n.up = false
			n.disk.mu.Lock()
			n.disk.dead = true
			n.disk.mu.Unlock()
			_ = n.store.Close()
		}
	}
}

// say writes a line of the trace.
func (s *Sim) say(format string, args ...any) {
	line := fmt.Sprintf("%12.6f  ", s.now.Seconds()) + fmt.Sprintf(format, args...)
	_, _ = s.hash.WriteString(line)
	if s.options.Log != nil {
		fmt.Fprintln(s.options.Log, line)
	}
	if len(s.tail) >= 60 {
		s.tail = append(s.tail[:0], s.tail[20:]...)
	}
	s.tail = append(s.tail, line)
}

// logger takes what nodes complain of.
func (s *Sim) logger() *slog.Logger {
	if s.options.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(s.options.Log, &slog.HandlerOptions{Level: slog.LevelError}))
}

// note puts numbers into the hash of the trace.
func (s *Sim) note(vs ...uint64) {
	var b [8]byte
	for _, v := range vs {
		for i := range b {
			b[i] = byte(v >> (8 * i))
		}
		_, _ = s.hash.Write(b[:])
	}
}

func (s *Sim) node(id partition.NodeID) *node {
	if int(id) < 1 || int(id) > len(s.nodes) {
		return nil
	}
	return s.nodes[id-1]
}

// voters are the nodes that every partition begins on.
func (s *Sim) voters() (ids []partition.NodeID) {
	for i := range s.plan.nodes {
		ids = append(ids, partition.NodeID(i+1))
	}
	return ids
}

func (s *Sim) parts() (ps []partition.PartitionID) {
	for i := range s.plan.parts {
		ps = append(ps, partition.PartitionID(i+1))
	}
	return ps
}

// leader is a node that leads a partition, as far as clients can know: in the end
// they ask around.
func (s *Sim) leader(p partition.PartitionID) *node {
	var best *node
	var most uint64
	for _, n := range s.nodes {
		if !n.up || n.broken && n != s.hangs { // one whose disk hangs still answers, in a way
			continue
		}
		if term, leads := n.core.Leads(p); leads && term >= most {
			best, most = n, term
		}
	}
	return best
}
