package partition

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a host over a store in memory that a test stops, cuts and starts.
type node struct {
	t     testing.TB
	fs    *vfs.MemFS
	cfg   Config
	store *logstore.Store
	*Host
}

func newNode(t testing.TB, cfg Config) *node {
	n := &node{t: t, fs: vfs.NewCrashableMem(), cfg: cfg}
	n.start()
	t.Cleanup(func() {
		if n.Host != nil {
			n.stop()
		}
	})
	return n
}

func storeConfig(fs vfs.FS) logstore.Config {
	return logstore.Config{
		FS: fs, Dir: "store", MemTableBytes: 4 << 20, CacheBytes: 8 << 20, MinSyncInterval: -1,
		StallAfter: time.Hour, StallStop: time.Hour, // a busy machine is no disk that hangs
	}
}

func (n *node) start() {
	n.t.Helper()
	var err error
	if n.store, err = logstore.Open(storeConfig(n.fs)); err != nil {
		n.t.Fatal(err)
	}
	cfg := n.cfg
	cfg.Node, cfg.Store = 1, n.store
	if n.Host, err = Open(cfg); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) stop() {
	n.t.Helper()
	if err := n.Host.Close(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.store.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.Host = nil
}

func (n *node) restart() { n.t.Helper(); n.stop(); n.start() }

func (n *node) create(ids ...PartitionID) {
	n.t.Helper()
	for _, id := range ids {
		if err := n.Create(within(n.t), id); err != nil {
			n.t.Fatal(err)
		}
	}
}

// cleanCut keeps exactly what was synced.
var cleanCut = vfs.CrashCloneCfg{}

// soon bounds the waits for what comes within moments on a machine that does
// nothing else.
const soon = 3 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	return ctx
}

// batch encodes bodies as one batch; keys are the bodies' first byte.
func batch(bodies ...string) []byte {
	recs := make([]record.Record, len(bodies))
	for i, b := range bodies {
		recs[i] = record.Record{KeyHash: uint64(b[0]), HasKey: true, Key: []byte(b[:1]), Body: []byte(b)}
	}
	return record.Append(nil, record.Meta{}, recs)
}

func (n *node) publish(id PartitionID, b []byte) []Stored {
	n.t.Helper()
	s, err := n.Publish(within(n.t), id, b)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func bodies(ms []Message) []string {
	var out []string
	for _, m := range ms {
		out = append(out, string(m.Record.Body))
	}
	return out
}

// counter is an App that remembers what it saw: enough to tell any difference
// of a state that was restored from one that never stopped.
type counter struct {
	id    PartitionID
	rows  Rows
	n     uint64
	ledAt []uint64 // how many commands were applied whenever it began to lead

	events []string
	drive  func(*counter, Millis, Log) ([][]byte, Millis)
}

func newCounter(drive func(*counter, Millis, Log) ([][]byte, Millis)) func(PartitionID, Rows) (App, error) {
	return func(id PartitionID, rows Rows) (App, error) {
		c := &counter{id: id, rows: rows, drive: drive}
		v, err := rows.Get([]byte("n"))
		if err != nil {
			return nil, err
		}
		if v != nil {
			c.n = binary.LittleEndian.Uint64(v)
		}
		return c, nil
	}
}

func (c *counter) Apply(at Position, cmd []byte) (any, error) {
	if string(cmd) == "poison" {
		return nil, errors.New("a command that does not decode")
	}
	c.n++
	c.rows.Put(fmt.Appendf(nil, "cmd/%08d", c.n), fmt.Appendf(nil, "%v %s", at, cmd))
	if bytes.HasPrefix(cmd, []byte("del ")) {
		c.rows.Delete(fmt.Appendf(nil, "cmd/%s", cmd[4:]))
	}
	return fmt.Sprintf("%d:%s", c.n, cmd), nil
}

func (c *counter) Checkpoint() error {
	c.rows.Put([]byte("n"), binary.LittleEndian.AppendUint64(nil, c.n))
	return nil
}
func (c *counter) Lead(leading bool) {
	if leading {
		c.ledAt = append(c.ledAt, c.n)
	}
}
func (c *counter) Event(ev any) { c.events = append(c.events, fmt.Sprint(ev)) }
func (c *counter) Drive(now Millis, log Log) ([][]byte, Millis) {
	if c.drive == nil {
		return nil, 0
	}
	return c.drive(c, now, log)
}

// state prints all of a counter.
func (c *counter) state() []string {
	out := []string{fmt.Sprint("n=", c.n)}
	err := c.rows.Scan([]byte("cmd/"), nil, func(k, v []byte) bool {
		out = append(out, fmt.Sprintf("%s=%s", k, v))
		return true
	})
	if err != nil {
		out = append(out, err.Error())
	}
	return out
}

func (n *node) state(id PartitionID) (out []string) {
	n.t.Helper()
	err := n.View(within(n.t), id, func(a App, p Position) {
		out = append(a.(*counter).state(), fmt.Sprintf("end=%d", p.End))
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

func TestOneLifeOverRestarts(t *testing.T) {
	n := newNode(t, Config{NewApp: newCounter(nil)})
	n.create(1, 2)
	n.create(1) // again

	got := n.publish(1, batch("a1", "b1", "a2"))
	if want := []Stored{{Offset: 0}, {Offset: 1}, {Offset: 2}}; !slices.Equal(got, want) {
		t.Fatalf("stored %v, want %v", got, want)
	}
	if r, err := n.Propose(within(t), 1, []byte("hello")); err != nil || r != "1:hello" {
		t.Fatalf("proposal gave %v, %v", r, err)
	}
	n.publish(2, batch("x1"))
	for round := range 3 {
		ms, err := n.Read(1, 0, 100, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := bodies(ms), []string{"a1", "b1", "a2", "c1", "c1", "c1"}[:3+round]; !slices.Equal(got, want) {
			t.Fatalf("round %d: read %q, want %q", round, got, want)
		}
		before := n.state(1)
		if round%2 == 0 {
			n.restart()
		}
		if after := n.state(1); !slices.Equal(before, after) {
			t.Fatalf("round %d: state\n%q\nafter the restart\n%q", round, before, after)
		}
		if s := n.publish(1, batch("c1")); s[0].Offset != Offset(3+round) {
			t.Fatalf("round %d: stored at %v", round, s)
		}
		if r, err := n.Propose(within(t), 1, []byte("again")); err != nil || r != fmt.Sprintf("%d:again", 2+round) {
			t.Fatalf("round %d: proposal gave %v, %v", round, r, err)
		}
	}
	if ids := n.Partitions(); !slices.Equal(ids, []PartitionID{1, 2}) {
		t.Fatalf("partitions %v", ids)
	}
	if err := n.Drop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	var unknown *ErrUnknownPartition
	if _, err := n.Read(1, 0, 1, 1); !errors.As(err, &unknown) {
		t.Fatalf("reading a dropped partition gives %v", err)
	}
	n.restart()
	if _, err := n.Publish(within(t), 1, batch("a")); !errors.As(err, &unknown) {
		t.Fatalf("publishing to a dropped partition gives %v", err)
	}
	if ms, err := n.Read(2, 0, 9, 1<<20); err != nil || len(ms) != 1 {
		t.Fatalf("the other partition has %v, %v", ms, err)
	}
}
