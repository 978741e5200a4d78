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
}

type rigNode struct {
	id     NodeID
	fs     *vfs.MemFS
	store  *logstore.Store
	core   *core
	writes []*write
}

// TestCore runs the scripts in testdata/core. The commands:
//
//	nodes N                      N nodes with empty stores
//	create p=P                   a partition with all nodes as voters
//	campaign n=N p=P             a replica tries to lead
//	publish n=N p=P [producer=X seq=S]   one batch; a line per record: [id=I] [key=K] body
//	propose n=N p=P              a line per command
//	trim n=N p=P to=O            keep the log from O on
//	pump n=N                     one turn of a node
//	durable n=N                  the oldest write of a node is on disk
//	settle                       pump, sync and deliver until nothing is left to do
//	cut n=N                      the messages on their way from N are lost
//	crash n=N                    the node starts again from its disk, which has its writes, heard of or not
//	tick n=N count=C             the raft clock
//	advance ms=M                 the clock
//	state p=P                    what each node has applied
//	log n=N p=P                  the log as applied on a node
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
	n.core = newCore(Config{Node: n.id, Store: n.store, Seed: uint64(n.id), NewApp: newCounter(nil)}.withDefaults())
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
		r.nodes = make(map[NodeID]*rigNode)
		var count int
		fmt.Sscan(d.CmdArgs[0].Key, &count)
		for i := range count {
			n := &rigNode{id: NodeID(i + 1), fs: vfs.NewCrashableMem()}
			r.nodes[n.id] = n
			r.open(n)
		}
	case "create":
		var all []ReplicaID
		for _, n := range r.sorted() {
			all = append(all, n.id.Replica())
		}
		for _, n := range r.sorted() {
			r.complain(n.core.create(p, n.id.Replica(), all...))
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
		data := record.Append(nil, m, recs)
		b, _, err := record.Parse(data)
		r.complain(err)
		n.core.enqueue(p, &shelf{id: p}, &proposal{kind: Batches, data: data, batch: b, stored: func([]Stored, error) {}})
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
			r.complain(n.core.view(p, func(a App, at Position) {
				role := "follows"
				if n.core.replicas[p].leading {
					led := a.(*counter).ledAt
					role = fmt.Sprintf("leads since command %d", led[len(led)-1])
				}
				fmt.Fprintf(&r.buf, "%v %s at %v, %d commands, checkpoint %d\n", n.id, role, at, a.(*counter).n, n.core.replicas[p].checkpoint.Index)
			}))
		}
	case "log":
		rep := n.core.replicas[p]
		rd := rep.log.read
		next := rep.log.state.start
		err := n.store.Scan(uint64(p), rep.rlog.first, uint64(rep.log.state.index)+1, func(e logstore.Entry, _ uint32) bool {
			if len(e.Data) == 0 {
				fmt.Fprintf(&r.buf, "%d term %d: begins\n", e.Index, e.Term)
			}
			_, err := rd.show(e, rep.log.Position(), &next, func(le LogEntry) bool {
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
			for _, f := range r.carried(n.core.takeFrames()) {
				busy = true
				if to := r.nodes[f.To.Node()]; to != nil {
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
