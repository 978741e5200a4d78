package partition

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// rig steps passive cores by hand: nothing happens between two lines of a
// script.
type rig struct {
	t     *testing.T
	nodes map[NodeID]*rigNode
	now   Millis
	buf   strings.Builder
	ticks uint64            // of run
	saw   map[string]string // what news was told last of each node and partition
	keep  int64
	snaps []neededSnapshot // that were shown and not sent
}

type rigNode struct {
	id     NodeID
	fs     *vfs.MemFS
	store  *logstore.Store
	core   *core
	writes []*write
	off    bool
	with   func(*Config) // settings of its own
}

// TestCore runs the scripts in testdata/core. The commands:
//
//	nodes N [keep=B]             N nodes with empty stores; with snapshots, if a leader keeps only B bytes of log for others
//	create p=P [voters=(n1,n2)]  a partition on all nodes, with these as voters or all
//	join n=N p=P as=R            a replica that has nothing
//	drop n=N p=P                 the replica is deleted
//	off n=N                      a node stands still, and nothing reaches it
//	on n=N                       and goes on
//	down n=N, up n=N             the others hear that a node is down, or there
//	stuck n=N, unfit n=N         the others hear that its disk hangs, or is full
//	hangs n=N, well n=N          its disk does, or does not any more
//	full n=N, room n=N           it has no room, or has again
//	run ticks=C                  the clock of all nodes, each tick settled; who came to lead or fell asleep
//	change n=N p=P kind=add replica=R    or promote, demote, remove
//	transfer n=N p=P to=R
//	members p=P                  as each node sees them
//	campaign n=N p=P             a replica tries to lead
//	publish n=N p=P [producer=X seq=S]   one batch; a line per record: [id=I] [key=K] body
//	propose n=N p=P              a line per command
//	trim n=N p=P to=O            keep the log from O on
//	pump n=N                     one turn of a node
//	durable n=N                  the oldest write of a node is on disk
//	settle                       pump, sync and deliver until nothing is left to do
//	needed, lose, stage, failed, switch, again, exchange    snapshots: see runSnapshot
//	cut n=N                      the messages on their way from N are lost
//	crash n=N                    the node starts again from its disk, which has its writes, heard of or not
//	tick n=N count=C             the raft clock
//	advance ms=M                 the clock
//	state p=P                    what each node has applied
//	log n=N p=P                  the log as applied on a node
//	led p=P                      who led in which terms, as each node's disk has it
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		cryptotest.SetGlobalRandom(t, 1) // raft draws its election jitter from it
		r := &rig{t: t, now: 1000}
		defer r.close()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			r.buf.Reset()
			r.run(d)
			if r.buf.Len() == 0 {
				return "ok"
			}
			return r.buf.String()
		})
	})
}

// begin makes nodes with empty stores.
func (r *rig) begin(count int) {
	r.nodes = make(map[NodeID]*rigNode)
	for i := range count {
		n := &rigNode{id: NodeID(i + 1), fs: vfs.NewCrashableMem()}
		r.nodes[n.id] = n
		r.open(n)
	}
}

func (r *rig) close() {
	for _, n := range r.nodes {
		n.store.Close()
	}
}

func (r *rig) open(n *rigNode) {
	var err error
	cfg := storeConfig(n.fs)
	if n.store, err = logstore.Open(cfg); err != nil {
		r.t.Fatal(err)
	}
	cc := Config{Node: n.id, Store: n.store, Seed: uint64(n.id), NewApp: newCounter(nil)}
	if r.keep > 0 {
		cc.FollowerBytes, cc.SendSnapshot = r.keep, noSnapshots
	}
	if n.with != nil {
		n.with(&cc)
	}
	n.core = newCore(cc.withDefaults())
	n.writes = nil
	ids, err := n.store.Partitions()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		if err := n.core.open(PartitionID(id)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// reopen starts a node again with other settings.
func (r *rig) reopen(n *rigNode, with func(*Config)) {
	n.with = with
	fs := n.fs.CrashClone(vfs.CrashCloneCfg{})
	n.store.Close()
	n.fs = fs
	r.open(n)
}

func (r *rig) run(d *datadriven.TestData) {
	arg := func(name string) (v uint64) {
		if d.HasArg(name) {
			d.ScanArgs(r.t, name, &v)
		}
		return v
	}
	n := r.nodes[NodeID(arg("n"))]
	p := PartitionID(arg("p"))
	switch d.Cmd {
	case "nodes":
		r.keep = int64(arg("keep"))
		var count int
		fmt.Sscan(d.CmdArgs[0].Key, &count)
		r.begin(count)
	case "create":
		var all []ReplicaID
		for _, n := range r.sorted() {
			all = append(all, n.id.Replica())
		}
		for _, a := range d.CmdArgs {
			if a.Key == "voters" {
				all = nil
				for _, v := range a.Vals {
					all = append(all, r.replica(v))
				}
			}
		}
		for _, n := range r.sorted() {
			r.complain(n.core.create(p, n.id.Replica(), all...))
		}
	case "join":
		r.complain(n.core.join(p, r.named(d, "as")))
		w, err := n.store.Commit(n.store.NewBatch()) // as Host.Join does
		r.complain(err)
		r.complain(w.Wait())
	case "drop":
		_, err := n.core.drop(p)
		r.complain(err)
	case "off":
		n.off = true
	case "on":
		n.off = false
	case "hangs", "well":
		n.core.hangs = d.Cmd == "hangs"
	case "full", "room":
		n.core.full = d.Cmd == "full"
	case "down", "up", "stuck", "unfit":
		for _, m := range r.sorted() {
			if m == n {
				continue
			}
			switch d.Cmd {
			case "down":
				m.core.down(n.id)
			case "up":
				m.core.up(n.id)
			case "stuck":
				m.core.receive(ourFrame(Metadata, frameStuck, n.id.Replica(), m.id.Replica(), 0, 0))
			case "unfit":
				m.core.receive(ourFrame(Metadata, frameUnfit, n.id.Replica(), m.id.Replica(), 0, 0))
			}
		}
	case "run":
		for range arg("ticks") {
			r.ticks++
			for _, n := range r.sorted() {
				if !n.off {
					n.core.tick()
				}
			}
			r.settle()
			r.news()
		}
	case "change":
		var kind string
		d.ScanArgs(r.t, "kind", &kind)
		ch := Change{Replica: r.named(d, "replica")}
		for k := AddLearner; k <= Remove; k++ {
			if k.String() == kind {
				ch.Kind = k
			}
		}
		n.core.change(p, ch, r.tell(n, ch.String()))
	case "transfer":
		to := r.named(d, "to")
		n.core.transferTo(p, to, r.tell(n, fmt.Sprintf("transfer to %v", to)))
	case "members":
		for _, n := range r.sorted() {
			rep, err := n.core.replica(p)
			if err != nil {
				r.complain(err)
				continue
			}
			info := rep.shelf.info
			fmt.Fprintf(&r.buf, "%v is %v: voters %v, learners %v\n", n.id, rep.self, info.Voters, info.Learners)
			for _, f := range info.Followers {
				fmt.Fprintf(&r.buf, "  %v matches to %d of %d, active %v\n", f.Replica, f.Match, info.LastIndex, f.Active)
			}
		}
	case "campaign":
		r.complain(n.core.campaign(p))
	case "publish":
		m := record.Meta{FirstSequence: arg("seq"), PublishTime: int64(r.now)}
		if d.HasArg("producer") {
			d.ScanArgs(r.t, "producer", &m.ProducerID)
		}
		var recs []record.Record
		for line := range strings.Lines(d.Input) {
			rec := record.Record{}
			for _, f := range strings.Fields(line) {
				if v, ok := strings.CutPrefix(f, "id="); ok {
					rec.ID = v
				} else if v, ok := strings.CutPrefix(f, "key="); ok {
					rec.HasKey, rec.Key = true, []byte(v)
				} else {
					rec.Body = []byte(f)
				}
			}
			recs = append(recs, rec)
		}
		r.publishData(n, p, record.Append(nil, m, recs))
	case "propose":
		for line := range strings.Lines(d.Input) {
			n.core.enqueue(p, &shelf{id: p}, &proposal{kind: Command, data: []byte(strings.TrimSpace(line)), result: func(any, error) {}})
		}
	case "trim":
		t := TrimTo{To: Offset(arg("to")), Why: ByAge}
		n.core.enqueue(p, &shelf{id: p}, &proposal{kind: Trim, data: t.encode(), result: func(any, error) {}})
	case "post":
		n.core.post(p, strings.TrimSpace(d.Input))
	case "pump":
		r.pump(n)
	case "durable":
		if len(n.writes) == 0 {
			fmt.Fprintln(&r.buf, "nothing waits for the disk")
			return
		}
		r.durable(n)
	case "settle":
		r.settle()
	case "cut":
		for _, f := range n.core.takeFrames() {
			fmt.Fprintf(&r.buf, "lost: %v\n", f)
		}
	case "tick":
		for range arg("count") {
			n.core.tick()
		}
	case "crash":
		for _, w := range n.writes {
			if w.pending != nil {
				r.complain(w.pending.Wait())
			}
		}
		fs := n.fs.CrashClone(vfs.CrashCloneCfg{})
		n.store.Close()
		n.fs = fs
		r.open(n)
	case "advance":
		r.now += Millis(arg("ms"))
		for _, n := range r.sorted() {
			n.core.due(r.now)
		}
	case "state":
		for _, n := range r.sorted() {
			if n.off {
				continue
			}
			r.complain(n.core.view(p, func(a App, at Position) {
				role := "follows"
				if n.core.replicas[p].leading {
					led := a.(*counter).ledAt
					role = fmt.Sprintf("leads since command %d", led[len(led)-1])
				}
				fmt.Fprintf(&r.buf, "%v %s at %v, %d commands, checkpoint %d\n", n.id, role, at, a.(*counter).n, n.core.replicas[p].checkpoint.Index)
			}))
		}
	case "led":
		r.led(PartitionID(arg("p")))
	case "log":
		rep := n.core.replicas[p]
		along := course{r: rep.log.read, pos: rep.log.Position(), next: rep.log.state.start}
		err := n.store.Scan(uint64(p), rep.rlog.first, uint64(rep.log.state.index)+1, func(e logstore.Entry, _ uint32) bool {
			if e.Type != 0 {
				fmt.Fprintf(&r.buf, "%d term %d: replicas change\n", e.Index, e.Term)
				return true
			}
			if len(e.Data) == 0 {
				fmt.Fprintf(&r.buf, "%d term %d: begins\n", e.Index, e.Term)
			}
			_, err := along.show(e, func(le LogEntry) bool {
				if le.Kind == Trim {
					fmt.Fprintf(&r.buf, "%d term %d: trim\n", e.Index, e.Term)
					return true
				}
				if le.Kind == Command {
					fmt.Fprintf(&r.buf, "%d term %d: command %s\n", e.Index, e.Term, le.Data)
					return true
				}
				b, _, _ := record.Parse(le.Data)
				fmt.Fprintf(&r.buf, "%d term %d: %d of %d records at %d:", e.Index, e.Term, le.Count, b.Len(), le.First)
				b.Each(func(_ int, x record.Raw) bool { fmt.Fprintf(&r.buf, " %s", x.Body()); return true })
				fmt.Fprintln(&r.buf)
				return true
			})
			r.complain(err)
			return true
		})
		r.complain(err)
	case "needed", "lose", "stage", "failed", "switch", "again", "exchange":
		r.runSnapshot(d.Cmd, n, p, r.nodes[NodeID(arg("to"))])
	default:
		d.Fatalf(r.t, "unknown command %s", d.Cmd)
	}
}

func (r *rig) sorted() []*rigNode {
	var out []*rigNode
	for _, n := range r.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *rigNode) int { return int(a.id) - int(b.id) })
	return out
}

func (r *rig) complain(err error) {
	if err != nil {
		fmt.Fprintln(&r.buf, "error:", err)
	}
}

func (r *rig) pump(n *rigNode) {
	w, answers, err := n.core.pump(r.now)
	r.complain(err)
	n.core.reply()
	for _, a := range answers {
		switch {
		case a.err != nil:
			fmt.Fprintf(&r.buf, "%v answers: %v\n", n.id, a.err)
		case a.p.kind != Batches:
			fmt.Fprintf(&r.buf, "%v answers: %v\n", n.id, a.result)
		default:
			fmt.Fprintf(&r.buf, "%v answers:", n.id)
			for _, s := range a.out.stored(a.shelf.id, a.p.batch) {
				switch {
				case s.Err != nil:
					fmt.Fprintf(&r.buf, " (%v)", s.Err)
				case s.Duplicate:
					fmt.Fprintf(&r.buf, " %d again", s.Offset)
				default:
					fmt.Fprintf(&r.buf, " %d", s.Offset)
				}
			}
			fmt.Fprintln(&r.buf)
		}
	}
	if w != nil {
		n.writes = append(n.writes, w)
		if w.pending != nil {
			fmt.Fprintf(&r.buf, "%v writes\n", n.id)
		}
	}
}

func (r *rig) durable(n *rigNode) {
	w := n.writes[0]
	n.writes = n.writes[1:]
	if w.pending != nil {
		r.complain(w.pending.Wait())
	}
	n.core.durable(w)
}

func (r *rig) settle() {
	for busy := true; busy; {
		busy = false
		for _, n := range r.sorted() {
			if n.off {
				continue
			}
			for _, f := range r.carried(n.core.takeFrames()) {
				busy = true
				if to := r.nodes[f.To.Node()]; to != nil && !to.off {
					to.core.receive(f)
				}
			}
			if n.core.ready() {
				busy = true
				at := r.buf.Len()
				r.pump(n)
				out := strings.ReplaceAll(r.buf.String()[at:], fmt.Sprintf("%v writes\n", n.id), "")
				rest := r.buf.String()[:at]
				r.buf.Reset()
				r.buf.WriteString(rest + out)
			}
			for len(n.writes) > 0 {
				busy = true
				r.durable(n)
			}
			busy = r.settleSnapshots(n) || busy
		}
	}
}

// carried is what comes out of frames that went over a wire.
func (r *rig) carried(fs []Frame) []Frame {
	if len(fs) == 0 {
		return nil
	}
	out, err := ParseFrames(AppendFrames(nil, fs))
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) publishData(n *rigNode, p PartitionID, data []byte) {
	b, _, err := record.Parse(data)
	r.complain(err)
	n.core.enqueue(p, &shelf{id: p}, &proposal{kind: Batches, data: data, batch: b, stored: func([]Stored, error) {}})
}

// replica reads n3 or n3.2.
func (r *rig) replica(s string) ReplicaID {
	var n, incarnation uint32
	if _, err := fmt.Sscanf(s, "n%d.%d", &n, &incarnation); err != nil {
		if _, err := fmt.Sscanf(s, "n%d", &n); err != nil {
			r.t.Fatalf("%q is no replica", s)
		}
	}
	return NewReplicaID(NodeID(n), incarnation)
}

func (r *rig) named(d *datadriven.TestData, arg string) ReplicaID {
	var s string
	d.ScanArgs(r.t, arg, &s)
	return r.replica(s)
}

// tell prints the answer of a call that waits.
func (r *rig) tell(n *rigNode, what string) func(error) {
	return func(err error) {
		if err != nil {
			fmt.Fprintf(&r.buf, "%v: %s: %v\n", n.id, what, err)
		} else {
			fmt.Fprintf(&r.buf, "%v: %s: done\n", n.id, what)
		}
	}
}

// news prints what each node knows otherwise than before.
func (r *rig) news() {
	if r.saw == nil {
		r.saw = make(map[string]string)
	}
	for _, n := range r.sorted() {
		if n.off {
			continue
		}
		for _, rep := range n.core.order {
			now := "knows no leader"
			switch {
			case rep.fault != nil:
				now = "stopped"
			case rep.leading:
				now = fmt.Sprintf("leads in term %d", rep.term)
			case rep.isLead:
				now = fmt.Sprintf("is about to lead in term %d", rep.term)
			case rep.leader != 0:
				now = fmt.Sprintf("follows %v", rep.leader)
			}
			if rep.asleep {
				now += ", asleep"
			}
			at := fmt.Sprintf("%v %v", n.id, rep.id)
			if r.saw[at] != now {
				r.saw[at] = now
				fmt.Fprintf(&r.buf, "tick %d: %s %s\n", r.ticks, at, now)
			}
		}
	}
}
