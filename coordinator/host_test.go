package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memRows is a table in memory. clone is what a crash right after a checkpoint
// would find.
type memRows map[string][]byte

func (r memRows) Get(key []byte) ([]byte, error) { return r[string(key)], nil }
func (r memRows) Put(key, value []byte)          { r[string(key)] = slices.Clone(value) }
func (r memRows) Delete(key []byte)              { delete(r, string(key)) }
func (r memRows) clone() memRows                 { return maps.Clone(r) }

func (r memRows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	for _, k := range slices.Sorted(maps.Keys(r)) {
		if strings.HasPrefix(k, string(prefix)) && bytes.Compare([]byte(k), from) >= 0 && !fn([]byte(k), r[k]) {
			break
		}
	}
	return nil
}

// memHost is a partition host with the metadata log only, in memory. Whoever
// calls is the host's goroutine while it holds mu.
type memHost struct {
	mu    sync.Mutex
	cfg   Config
	now   partition.Millis
	rows  memRows
	app   *App
	log   [][]byte // applied commands; index is place + 1
	saved int      // entries that rows hold
	wake  partition.Millis
	fail  error    // next Propose answers this, with the command applied all the same
	onWay [][]byte // what the leader proposed and is not applied: Propose applies it first
	posts int

	quarrel error // the first refusal of what the leader itself proposed
}

func newMemHost(t testing.TB, timeout partition.Millis) (*memHost, *Coordinator) {
	t.Helper()
	h := &memHost{now: 1_000_000, rows: memRows{}}
	h.cfg = Config{SessionTimeout: timeout, Now: h.clock, Rand: zeros{}}
	h.open(t)
	h.lead()
	return h, New(h, h.app)
}

// zeros is no randomness, so that scenarios print the same every time.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (h *memHost) clock() partition.Millis { return h.now }

// open makes the app from the rows and applies what they do not hold.
func (h *memHost) open(t testing.TB) {
	t.Helper()
	app, err := NewApp(h.rows, h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.app = app
	for i := h.saved; i < len(h.log); i++ {
		if _, err := app.Apply(partition.Position{Index: partition.Index(i + 1)}, h.log[i]); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *memHost) lead() { h.app.Lead(true); h.drive() }

func (h *memHost) checkpoint() error {
	h.saved = len(h.log)
	return h.app.Checkpoint()
}

func (h *memHost) apply(cmd []byte) (any, error) {
	h.log = append(h.log, cmd)
	return h.app.Apply(partition.Position{Index: partition.Index(len(h.log))}, cmd)
}

// drive gives the leader turns until it proposes nothing more.
func (h *memHost) drive() {
	for {
		cmds, wake := h.app.Drive(h.now, nil)
		h.wake = wake
		if len(cmds) == 0 {
			return
		}
		for _, c := range cmds {
			r, err := h.apply(c)
			if err != nil {
				panic(err)
			}
			if h.quarrel == nil && r.(*result).err != nil {
				h.quarrel = r.(*result).err
			}
		}
	}
}

// pass lets time go by, with the turns that the leader asked for.
func (h *memHost) pass(ms partition.Millis) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for end := h.now + ms; h.now < end; {
		h.now = end
		if h.wake != 0 && h.wake < end {
			h.now = h.wake
		}
		h.drive()
	}
}

func (h *memHost) Propose(ctx context.Context, id partition.PartitionID, cmd []byte) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if id != partition.Metadata {
		return nil, fmt.Errorf("no partition %v here", id)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.onWay {
		if _, err := h.apply(c); err != nil {
			return nil, err
		}
	}
	h.onWay = nil
	res, err := h.apply(cmd)
	if err != nil {
		return nil, err
	}
	h.drive()
	if err := h.fail; err != nil {
		h.fail = nil
		return nil, err
	}
	return res, nil
}

func (h *memHost) Post(_ partition.PartitionID, ev any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.posts++
	h.app.Event(ev)
	h.drive()
	return nil
}

// dump prints all of a map.
func dump(m *Map) string {
	var b strings.Builder
	fmt.Fprintf(&b, "map at %d, cluster %q, %d partitions, %d sessions\n", m.Revision, m.Cluster.ID, m.partitions, m.sessions)
	if a := m.Cluster.Authority; a.Certificate != nil {
		fmt.Fprintf(&b, "authority %s %s\n", a.Certificate, a.Key)
	}
	for n := range m.Nodes() {
		fmt.Fprintf(&b, "%v %v since %d: store %s, boot %d, peer %q, api %q, zone %q\n", n.ID, n.State, n.Joined, n.Store, n.Boot, n.Peer, n.API, n.Zone)
	}
	for t := range m.Tokens() {
		fmt.Fprintf(&b, "token %x until %d, used by %v\n", t.Hash[:2], t.Expires, t.Node)
	}
	if len(m.nodes) > 0 {
		fmt.Fprintf(&b, "placed at %d: %s\n", m.placed, partitionText(&m.metadata))
	}
	for t := range m.Topics() {
		fmt.Fprintf(&b, "%v %s %v at %d: retention %d ms, %d bytes; body %d; created %d; seed %d;", t.ID, t.Name, t.Phase, t.Revision, t.Config.Retention, t.Config.RetentionBytes, t.Config.MaxBody, t.Created, t.Seed)
		if t.Config.Replication != 0 {
			fmt.Fprintf(&b, " replication %d;", t.Config.Replication)
		}
		for _, p := range t.Partitions {
			fmt.Fprintf(&b, " %s", partitionText(&p))
		}
		b.WriteString("\n")
		for g := range t.Groups() {
			attempts := "default"
			if g.Policy.MaxAttempts != nil {
				attempts = fmt.Sprint(*g.Policy.MaxAttempts)
			}
			fmt.Fprintf(&b, "  %v %s %v: revision %d, logged %d, generation %d, attempts %s, paused %v, created %d\n", g.ID, g.Name, g.Phase, g.Revision, g.Logged, g.Generation, attempts, g.Paused, g.Created)
			for _, mb := range g.Members {
				kind := ""
				if mb.Stream {
					kind = " by stream"
				}
				if mb.Draining {
					kind += " draining"
				}
				if mb.Away {
					kind += " away"
				}
				fmt.Fprintf(&b, "    %s session %d%s since %d: %v\n", mb.Name, mb.Session, kind, mb.Joined, mb.Shares)
			}
		}
	}
	return b.String()
}

// partitionText prints a partition as p1=n1,n2, with what moves about it.
func partitionText(p *Partition) string {
	out := p.ID.String()
	for i, r := range p.Replicas {
		out += string("=,"[min(i, 1)]) + r.String()
	}
	for _, l := range p.Leaving {
		if out += "-" + l.ID.String(); l.Out {
			out += "(out)"
		}
	}
	if p.Moving() {
		out += "(moving)"
	}
	if p.Rebuild.ID != 0 {
		out += fmt.Sprintf("(rebuilds %v: %s)", p.Rebuild.ID, p.Rebuild.Why)
	}
	if len(p.Replicas) > 0 {
		out += fmt.Sprintf("@%d", p.Placement)
	}
	if p.nextIncarnation > 1 {
		out += fmt.Sprintf("+%d/%d", p.nextIncarnation, p.settledIncarnation)
	}
	return out
}
