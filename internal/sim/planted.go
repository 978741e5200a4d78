package sim

import (
	"math/rand/v2"
	"slices"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// plant is a fault of the simulator's own: something that the broker could get
// wrong, done here around it, to see that the judge finds it.
type plant struct {
	s    *Sim
	kind string
	r    *rand.Rand
	used int

	empty bool // the checkpoint that is made
}

// Plants are the faults that Options.Plant can name, each with what it does and a
// seed that finds it.
var Plants = []struct {
	Name, Text string
	Seed       uint64
	Nodes      int  // 0: the seed says
	Live       bool // it is found when all is healed
	Cluster    bool // it is found where the metadata says where replicas are
}{
	{"unsynced", "writes are called durable before they are on disk", 10, 0, false, false},
	{"unlogged-settle", "some settlements are confirmed and are not in the log", 1, 0, false, false},
	{"lost-row", "some rows of a checkpoint are not written", 10, 0, false, false},
	{"short-replay", "a restart leaves out some commands", 10, 0, false, false},
	{"lost-id", "rows that find duplicates vanish", 6, 0, false, false},
	{"two-hashes", "one key has two hashes, so it has two queues", 10, 0, false, false},
	{"handed-twice", "a delivery is given to two members", 1, 0, false, false},
	{"changed-body", "a message is delivered with another body", 1, 0, false, false},
	{"early-lapse", "what is out is handed out again at once", 1, 0, false, false},
	{"skipped-command", "one node does not apply some settlements", 1, 3, false, false},
	{"unlogged-publish", "some messages are acknowledged and are not in the log", 1, 0, false, false},
	{"wrong-offset", "some messages are acknowledged at the offset behind theirs", 1, 0, false, false},
	{"lost-attempt", "an attempt is not counted", 5, 0, false, false},
	{"stale-token", "a token that is stale is taken", 1, 0, false, false},
	{"reused-id", "a node that lost its disk goes on under its old replica's id", 5, 3, false, false},
	{"removed-again", "a replica that was removed is added again", 5, 3, false, false},
	{"forgotten-vote", "a restart forgets whom a replica voted for", 13, 3, false, false},
	{"learner-counts", "what a learner has counts as if a voter had it", 1, 3, false, false},
	{"stale-leader", "a leader that hears nobody confirms settlements by itself", 16, 3, false, false},
	{"empty-checkpoint", "a checkpoint says how far it goes and has no rows of it", 10, 0, false, false},
	{"snapshot-without-ids", "a snapshot leaves out the rows that find duplicates", 302, 3, false, false},
	{"early-erase", "a node erases a replica that leaves and may have its vote yet", 1, 3, false, true},
	{"unheard-members", "signs of life of members are confirmed and do not count", 55, 3, false, true},
	{"full-leads", "nobody is told that a node's disk is full", 80, 3, true, true},
	{"unreported-damage", "what a read finds damaged is not told", 3, 3, true, true},
	{"never-down", "nobody is told that a node is down, or that its disk hangs", 10, 3, true, false},
}

func (t *plant) is(kind string, chance float64) bool {
	if t.kind != kind || t.r.Float64() >= chance {
		return false
	}
	t.used++
	return true
}

// settle makes a write durable.
func (t *plant) settle(n *node, m mark) error {
	if t.is("unsynced", 1) {
		return nil
	}
	return n.disk.settle(m)
}

// lies answers a command without proposing it.
func (t *plant) lies(n *node, p partition.PartitionID, cmd []byte, done func(any, error)) bool {
	if !repeatable(cmd) {
		return false
	}
	stale := t.kind == "stale-leader" && n.alone(p) && t.is("stale-leader", 1)
	if !stale && !t.is("unlogged-settle", 0.2) {
		return false
	}
	n.later(0, "lie", func() { done([]consumer.SettleResult{{}}, nil) })
	return true
}

// alone tells whether a node leads a partition and hears none of the others.
func (n *node) alone(p partition.PartitionID) bool {
	_, leads := n.core.Leads(p)
	for _, there := range n.there {
		leads = leads && !there
	}
	return leads
}

// rows are what an App writes to.
func (t *plant) rows(_ *node, r partition.Rows) partition.Rows {
	if t.kind != "lost-row" && t.kind != "empty-checkpoint" {
		return r
	}
	return lossyRows{r, t}
}

type lossyRows struct {
	partition.Rows
	t *plant
}

func (r lossyRows) Put(key, value []byte) {
	if !r.t.empty && !r.t.is("lost-row", 0.05) {
		r.Rows.Put(key, value)
	}
}

func (r lossyRows) Delete(key []byte) {
	if !r.t.empty {
		r.Rows.Delete(key)
	}
}

// Checkpoint implements partition.App.
func (a *app) Checkpoint() error {
	t := &a.n.s.planted
	t.empty = t.is("empty-checkpoint", 0.1)
	defer func() { t.empty = false }()
	return a.App.Checkpoint()
}

// forgetVotes has a node forget whom it voted for, before it starts.
func (t *plant) forgetVotes(n *node) {
	if t.kind != "forgotten-vote" {
		return
	}
	ids, _ := n.store.Partitions()
	b := n.store.NewBatch()
	for _, id := range ids {
		if h, err := n.store.HardState(id); err == nil && h.Vote != 0 {
			t.used++
			h.Vote = 0
			_ = b.SetHardState(id, h)
		}
	}
	_ = n.store.CommitNoSync(b)
}

// vouch has a learner's word that it has the log taken for that of a voter.
func (t *plant) vouch(f partition.Frame) {
	if _, _, acks := f.Ack(); t.kind != "learner-counts" || !acks {
		return
	}
	info, err := t.s.node(f.To.Node()).core.Info(f.Partition)
	if err != nil || !slices.Contains(info.Learners, f.From) {
		return
	}
	for _, v := range info.Voters {
		if v == info.Replica {
			continue
		}
		t.used++
		f.From = v
		t.s.net.carry(t.s.node(v.Node()), f.To.Node(), partition.AppendFrames(nil, []partition.Frame{f}))
	}
}

// skips tells that a command is not applied.
func (t *plant) skips(a *app, cmd []byte) bool {
	if a.n.id == 2 && !a.restoring && repeatable(cmd) && t.is("skipped-command", 0.2) {
		return true
	}
	return a.restoring && len(cmd) > 1 && cmd[1] != 1 && t.is("short-replay", 0.2)
}

// hash is a key's hash.
func (t *plant) hash(h uint64) uint64 {
	if t.is("two-hashes", 0.5) {
		return h + 1
	}
	return h
}

// forgetIDs removes rows that find duplicates.
func (t *plant) forgetIDs(kind string, n *node, p partition.PartitionID) {
	if t.kind != kind {
		return
	}
	var keys [][]byte
	_ = n.store.Iterate(logstore.IDs, uint64(p), nil, nil, func(k, _ []byte) bool {
		keys = append(keys, append([]byte(nil), k...))
		return true
	})
	b := n.store.NewBatch()
	for _, k := range keys {
		t.used++
		_ = b.Delete(logstore.IDs, uint64(p), k)
	}
	_ = n.store.CommitNoSync(b)
}
