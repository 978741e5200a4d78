package partition

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// cluster is several hosts in one process, and what lies between them.
type cluster struct {
	t     testing.TB
	nodes []*member
	cfg   Config
	with  func(*member, *Config)

	onSnapshot func(to NodeID, r io.Reader) io.Reader // what becomes of a stream

	mu  sync.RWMutex
	cut map[[2]NodeID]bool // from, to: nothing comes through

	stuck atomic.Int64 // frames that told of a disk that hangs
}

// member is a host over a store in memory that is stopped, cut and started.
type member struct {
	c     *cluster
	id    NodeID
	fs    vfs.FS
	mem   *vfs.MemFS
	store *logstore.Store
	*Host
	in   chan parcel
	done chan struct{}

	stallAfter time.Duration // 0: no disk hangs
	dir        string        // of a store on disk; else it is in fs
}

// parcel is what goes over the wire.
type parcel struct {
	from NodeID
	b    []byte
}

func newCluster(t testing.TB, n int, cfg Config) *cluster {
	c := &cluster{t: t, cfg: cfg, cut: make(map[[2]NodeID]bool)}
	for i := range n {
		m := &member{c: c, id: NodeID(i + 1), mem: vfs.NewCrashableMem()}
		m.fs = m.mem
		c.nodes = append(c.nodes, m)
	}
	for _, m := range c.nodes {
		m.start()
	}
	for _, m := range c.nodes {
		c.isUp(m.id, true)
	}
	t.Cleanup(func() {
		for _, m := range c.nodes {
			m.stop()
		}
	})
	return c
}

// node returns a node by its id.
func (c *cluster) node(id NodeID) *member { return c.nodes[id-1] }

// isUp tells all others whether a node is there, and a node that is there of
// all others.
func (c *cluster) isUp(id NodeID, up bool) {
	for _, m := range c.nodes {
		if m.id == id || m.Host == nil {
			continue
		}
		if up {
			m.Up(id)
			c.node(id).Up(m.id)
		} else {
			m.Down(id)
		}
	}
}

func (m *member) start() {
	m.c.t.Helper()
	var err error
	sc := storeConfig(m.fs)
	if m.dir != "" {
		sc = benchStore(m.dir)
	}
	if m.stallAfter > 0 {
		sc.StallAfter = m.stallAfter
	}
	if m.store, err = logstore.Open(sc); err != nil {
		m.c.t.Fatal(err)
	}
	cfg := m.c.cfg
	cfg.Node, cfg.Store = m.id, m.store
	if cfg.Tick == 0 {
		cfg.Tick = 10 * time.Millisecond
	}
	if cfg.HangAfter == 0 {
		cfg.HangAfter = time.Hour // as in storeConfig
	}
	cfg.Send, cfg.SendSnapshot = m.send, m.sendSnapshot
	if m.c.with != nil {
		m.c.with(m, &cfg)
	}
	if m.Host, err = Open(cfg); err != nil {
		m.c.t.Fatal(err)
	}
	in, done := make(chan parcel, 1024), make(chan struct{})
	m.c.mu.Lock()
	m.in, m.done = in, done
	m.c.mu.Unlock()
	h := m.Host
	go func() {
		defer close(done)
		for p := range in {
			fs, err := ParseFrames(p.b)
			if err != nil {
				panic(err)
			}
			h.Receive(p.from, fs)
		}
	}()
}

func (m *member) send(to NodeID, frames []Frame) {
	c := m.c
	c.mu.RLock()
	defer c.mu.RUnlock()
	dest := c.node(to)
	if frames[0].kind == frameStuck {
		c.stuck.Add(1)
	}
	if dest.in == nil || c.cut[[2]NodeID{m.id, to}] {
		return
	}
	select {
	case dest.in <- parcel{m.id, AppendFrames(nil, frames)}:
	default: // full: lost
	}
}

// unplug ends what comes in.
func (m *member) unplug() {
	m.c.mu.Lock()
	in, done := m.in, m.done
	m.in = nil
	m.c.mu.Unlock()
	close(in)
	<-done
}

func (m *member) stop() {
	m.c.t.Helper()
	if m.Host == nil {
		return
	}
	m.unplug()
	if err := m.Host.Close(); err != nil {
		m.c.t.Fatal(err)
	}
	if err := m.store.Close(); err != nil {
		m.c.t.Fatal(err)
	}
	m.Host = nil
}

// kill takes the power from a node: what was synced is there when it starts again.
func (m *member) kill() {
	m.c.t.Helper()
	m.unplug()
	m.c.setCut(m.id, true)
	mem := m.mem.CrashClone(cleanCut)
	_ = m.Host.Close()
	_ = m.store.Close()
	m.Host, m.mem, m.fs = nil, mem, mem
	m.c.setCut(m.id, false)
	m.c.isUp(m.id, false)
}

// setCut cuts a node off, or connects it again.
func (c *cluster) setCut(id NodeID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.nodes {
		c.cut[[2]NodeID{id, m.id}], c.cut[[2]NodeID{m.id, id}] = cut, cut
	}
}

// create makes partitions with every node as a voter.
func (c *cluster) create(ids ...PartitionID) {
	c.t.Helper()
	var voters []ReplicaID
	for _, m := range c.nodes {
		voters = append(voters, m.id.Replica())
	}
	for _, id := range ids {
		for _, m := range c.nodes {
			if err := m.CreateReplicas(within(c.t), id, m.id.Replica(), voters); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// until waits for something to become true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); time.Sleep(time.Millisecond) { // looks again
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", soon, what)
		}
	}
}

// leader waits for a node that leads.
func (c *cluster) leader(id PartitionID) (lead *member) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%v has a leader", id), func() bool {
		for _, m := range c.nodes {
			if m.Host == nil {
				continue
			}
			if info, err := m.Info(id); err == nil && info.Leading {
				lead = m
				return true
			}
		}
		return false
	})
	return lead
}

// took tells whether a leader did what it was asked. If not, then because the lead is on
// the move, as it is whenever a machine is too busy for heartbeats; whatever else ends
// the test.
func (c *cluster) took(err error) bool {
	c.t.Helper()
	if err == nil {
		return true
	}
	if !errors.As(err, new(*ErrNotLeader)) && !errors.As(err, new(*ErrOutcomeUnknown)) && !errors.As(err, new(*ErrStopped)) && !errors.As(err, new(*ErrTransfer)) {
		c.t.Fatal(err)
	}
	return false
}

// byLeader has whoever leads do something that may be done twice, until it is done.
func (c *cluster) byLeader(id PartitionID, what string, do func(lead *member) error) (lead *member) {
	c.t.Helper()
	until(c.t, what, func() bool {
		lead = c.leader(id)
		return c.took(do(lead))
	})
	return lead
}

// leadBy makes a node lead.
func (c *cluster) leadBy(id PartitionID, m *member) {
	c.t.Helper()
	c.asLeader(id, m, fmt.Sprintf("%v leads", m.id), func() error { return nil })
}

// asLeader has a node lead and do something that may be done twice, until it is done.
func (c *cluster) asLeader(id PartitionID, m *member, what string, do func() error) {
	c.t.Helper()
	until(c.t, what, func() bool {
		if lead := c.leader(id); lead != m {
			c.took(lead.Transfer(within(c.t), id, m.id.Replica()))
			return false
		}
		return c.took(do())
	})
}

// publish stores a message through whoever leads, as often as it takes. It is
// stored once, since it has an id.
func (c *cluster) publish(id PartitionID, body string) Offset {
	c.t.Helper()
	return c.publishAs(id, body, body)
}

// publishAs is publish under an id that is not the body.
func (c *cluster) publishAs(id PartitionID, name, body string) Offset {
	c.t.Helper()
	var s []Stored
	c.byLeader(id, name+" is stored", func(lead *member) (err error) {
		s, err = lead.Publish(within(c.t), id, withID(name, body))
		return err
	})
	return s[0].Offset
}

// agree waits until every node that is up reads the same messages.
func (c *cluster) agree(id PartitionID, want []string) {
	c.t.Helper()
	for _, m := range c.nodes {
		if m.Host == nil {
			continue
		}
		var got []string
		until(c.t, fmt.Sprintf("%v reads %d messages of %v; it reads %d", m.id, len(want), id, len(got)), func() bool {
			ms, err := m.Read(id, 0, 10*len(want)+10, 1<<30)
			if err != nil {
				c.t.Fatal(err)
			}
			got = bodies(ms)
			return len(got) >= len(want)
		})
		if !slices.Equal(got, want) {
			c.t.Fatalf("%v reads %q of %v, want %q", m.id, got, id, want)
		}
	}
}

// Three hosts store what is published; a leader dies, the others go on, it comes
// back, the next one dies: nothing that was answered is lost or there twice.
func TestThreeHosts(t *testing.T) {
	c := newCluster(t, 3, Config{NewApp: newCounter(nil)})
	c.create(1, 2)
	want := map[PartitionID][]string{}
	publish := func(round, n int) {
		for i := range n {
			for id := PartitionID(1); id <= 2; id++ {
				body := fmt.Sprintf("%d-%d", round, i)
				if o := c.publish(id, body); o != Offset(len(want[id])) {
					t.Fatalf("%s of %v stands at %d, after %d", body, id, o, len(want[id]))
				}
				want[id] = append(want[id], body)
			}
		}
	}
	for round := range 4 {
		publish(2*round, 10)
		dead := c.leader(1)
		dead.kill()
		publish(2*round+1, 10)
		c.agree(1, want[1])
		dead.start()
		c.isUp(dead.id, true)
		c.agree(1, want[1])
		c.agree(2, want[2])
	}
	var r any
	least, most := uint64(1), uint64(0)
	c.byLeader(1, "a command is applied", func(lead *member) (err error) {
		most++ // more than once, if the lead went away with the answer
		r, err = lead.Propose(within(t), 1, []byte("hello"))
		return err
	})
	if _, err := fmt.Sscanf(fmt.Sprint(r), "%d:hello", &least); err != nil || least == 0 || least > most {
		t.Fatalf("a command gives %v", r)
	}
	for _, m := range c.nodes {
		until(t, fmt.Sprintf("%v has applied the command", m.id), func() bool {
			n := uint64(0)
			if err := m.View(within(t), 1, func(a App, _ Position) { n = a.(*counter).n }); err != nil {
				t.Fatal(err)
			}
			return least <= n && n <= most
		})
		until(t, fmt.Sprintf("%v says who leads, or leads", m.id), func() bool {
			lead := c.leader(1)
			if m == lead {
				return true
			}
			var elsewhere *ErrNotLeader
			_, err := m.Publish(within(t), 1, batch("a"))
			return errors.As(err, &elsewhere) && elsewhere.Leader == lead.id
		})
	}
}

// withIDs encodes bodies as one batch, each with an id of its own.
func withIDs(bodies ...string) []byte {
	recs := make([]record.Record, len(bodies))
	for i, b := range bodies {
		recs[i] = record.Record{ID: b, Body: []byte(b)}
	}
	return record.Append(nil, record.Meta{}, recs)
}

// withID encodes one message.
func withID(id, body string) []byte {
	return record.Append(nil, record.Meta{}, []record.Record{{ID: id, Body: []byte(body)}})
}
