package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a real host over a store in memory.
type node struct {
	t     testing.TB
	fs    *vfs.MemFS
	disk  string // a folder, in place of fs
	store *logstore.Store
	host  *partition.Host
	shell *Shell
	parts []partition.PartitionID
}

func newNode(t testing.TB, parts int) *node {
	n := &node{t: t, fs: vfs.NewCrashableMem()}
	n.start()
	for i := 1; i <= parts; i++ {
		id := partition.PartitionID(i)
		if err := n.host.Create(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		n.parts = append(n.parts, id)
	}
	t.Cleanup(n.stop)
	return n
}

func (n *node) start() {
	n.t.Helper()
	var err error
	n.store, err = logstore.Open(n.onDisk())
	if err != nil {
		n.t.Fatal(err)
	}
	n.host, err = partition.Open(partition.Config{
		Node: 1, Store: n.store, HangAfter: time.Hour, // as in onDisk
		NewApp: func(id partition.PartitionID, rows partition.Rows) (partition.App, error) { return NewApp(id, rows) },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.shell = NewShell(n.host, 99)
}

func (n *node) stop() {
	n.t.Helper()
	if n.host == nil {
		return
	}
	if err := n.host.Close(); err != nil {
		n.t.Error(err)
	}
	if err := n.store.Close(); err != nil {
		n.t.Error(err)
	}
	n.host = nil
}

func (n *node) publish(p partition.PartitionID, keys ...string) {
	n.t.Helper()
	var rs []record.Record
	for _, k := range keys {
		rs = append(rs, record.Record{HasKey: true, Key: []byte(k), KeyHash: keyspace.Hash(7, []byte(k)), Body: []byte("body of " + k)})
	}
	if _, err := n.host.Publish(context.Background(), p, record.Append(nil, record.Meta{}, rs)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) group(id GroupID, p Policy) {
	n.t.Helper()
	for _, part := range n.parts {
		if err := n.shell.CreateGroup(context.Background(), part, GroupSpec{ID: id, Name: "G", Policy: p}); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *node) shares() (s []Share) {
	for _, p := range n.parts {
		s = append(s, Share{Partition: p})
	}
	return s
}

func (n *node) receive(req ReceiveRequest) []Delivery {
	n.t.Helper()
	if req.Shares == nil {
		req.Shares = n.shares()
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ds, _, err := n.shell.Receive(ctx, req)
	if err != nil {
		n.t.Fatal(err)
	}
	return ds
}

// within is how long anything may take on a machine that does other things too.
const within = 3 * time.Minute

func TestReceiveWaits(t *testing.T) {
	n := newNode(t, 3)
	n.group(1, Default())
	got := make(chan []Delivery, 1)
	// A wait that does not end with what it waits for outlasts the call, which fails.
	go func() { got <- n.receive(ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 10, Wait: time.Hour}) }()
	n.publish(2, "a", "b")
	ds := <-got
	if len(ds) != 2 {
		t.Fatalf("%d deliveries", len(ds))
	}
	if string(ds[0].Message.Record.Body) != "body of a" || ds[0].Partition != 2 || ds[0].Attempt != 1 {
		t.Fatalf("delivered %+v", ds[0])
	}
	// A wait for a backoff ends with it.
	r := n.shell.Settle(context.Background(), 1, []Settlement{{Token: ds[0].Token, Action: Nack, Delay: 30}, {Token: ds[1].Token, Action: Ack}})
	if r[0].Err != nil || r[1].Err != nil {
		t.Fatal(r)
	}
	ds = n.receive(ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 10, Wait: time.Hour})
	if len(ds) != 1 || ds[0].Attempt != 2 {
		t.Fatalf("after the backoff: %+v", ds)
	}
	// Nothing there: an answer at once, or when the wait is over, with a reason.
	for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
		ds, why, err := n.shell.Receive(context.Background(), ReceiveRequest{
			Group: 1, Member: "B", Session: 2, Max: 10, Wait: wait, Shares: n.shares(),
		})
		if len(ds) != 0 || err != nil || why == "" {
			t.Fatalf("with nothing there: %v %q %v", ds, why, err)
		}
	}
	// A new session of the member ends a call that waits.
	failed := make(chan error, 1)
	go func() {
		_, _, err := n.shell.Receive(context.Background(), ReceiveRequest{Group: 1, Member: "B", Session: 2, Max: 1, Wait: within, Shares: n.shares()})
		failed <- err
	}()
	var ended *ErrSessionEnded
	for done := false; !done; {
		if err := n.shell.EndSession(context.Background(), 1, 1, "B", 3); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-failed:
			if !errors.As(err, &ended) {
				t.Fatalf("the old session's call: %v", err)
			}
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	// So does its caller.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _, err := n.shell.Receive(ctx, ReceiveRequest{Group: 1, Member: "B", Session: 4, Max: 1, Wait: within, Shares: n.shares()})
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

// TestNeverMoreThanAsked lets calls share their credit over partitions.
func TestNeverMoreThanAsked(t *testing.T) {
	n := newNode(t, 8)
	n.group(1, Default())
	for _, p := range n.parts {
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprintf("%v-%d", p, i)
		}
		n.publish(p, keys...)
	}
	seen := make(map[Token]bool)
	var mu sync.Mutex
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			for j := range 8 {
				ds := n.receive(ReceiveRequest{Group: 1, Member: "A", Session: 1, Max: 10, Wait: within, RequestID: fmt.Sprint(i, "/", j)})
				mu.Lock()
				if len(ds) > 10 {
					t.Errorf("%d deliveries for a call that asked for 10", len(ds))
				}
				for _, d := range ds {
					if seen[d.Token] {
						t.Errorf("delivery %v went to two calls", d.Token)
					}
					seen[d.Token] = true
				}
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	out := uint64(0)
	for _, p := range n.parts {
		st, err := n.shell.Stats(context.Background(), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		out += st.Counts.InFlight
	}
	if int(out) != len(seen) {
		t.Fatalf("%d deliveries are out and %d were received: some went to nobody", out, len(seen))
	}
}

// TestCrowd runs members that fail, sleep over their deadline, come back with
// new sessions and share partitions, with restarts of the broker between, and
// holds every key to its order (P3) and every ack to its word (P6).
func TestCrowd(t *testing.T) {
	n := newNode(t, 3)
	policy := Default()
	policy.AckDeadline, policy.Backoff, policy.MaxAttempts = 150, 1, 0
	n.group(1, policy)
	perKey, keys := 40, 12
	if testing.Short() {
		perKey = 15
	}
	type at struct {
		p   partition.PartitionID
		key string
	}
	var mu sync.Mutex
	acked := make(map[at]partition.Offset)  // last one
	holder := make(map[at]partition.Offset) // being handled, and no ack was sent
	left := atomic.Int64{}
	for _, p := range n.parts {
		for range perKey {
			for k := range keys {
				n.publish(p, fmt.Sprint("k", k))
				left.Add(1)
			}
		}
	}
	session := atomic.Uint64{}
	least, idle := left.Load(), 0
	for round := 0; left.Load() > 0; round++ {
		if now := left.Load(); now < least {
			least, idle = now, 0
		} else if idle++; idle > 200 {
			t.Fatalf("%d messages are left, and none was handled in 200 rounds", now)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		var members sync.WaitGroup
		for m := range 4 {
			members.Go(func() {
				name, mine := fmt.Sprint("m", m), session.Add(1)
				for _, p := range n.parts {
					if err := n.shell.EndSession(ctx, p, 1, name, mine); err != nil {
						return
					}
				}
				shares := n.shares()
				for i := range shares {
					shares[i].Share, shares[i].Shares = uint32(m%2), 2
				}
				for turn := 0; ctx.Err() == nil && left.Load() > 0; turn++ {
					ds, _, err := n.shell.Receive(ctx, ReceiveRequest{
						Group: 1, Member: name, Session: mine, Max: 7, Wait: 50 * time.Millisecond, Shares: shares, RequestID: fmt.Sprint(turn),
					})
					if err != nil {
						return
					}
					for i, d := range ds {
						k := at{d.Partition, string(d.Message.Record.Key)}
						mu.Lock()
						// Under the lock: until it is let go, nobody else tells what became of it.
						if n.shell.Now() >= d.Deadline {
							mu.Unlock()
							continue // it lapsed while those before it were settled: another has it
						}
						if last, ok := acked[k]; ok && d.Message.Offset <= last {
							t.Errorf("%v offset %d was delivered after %d of its key was acked", k, d.Message.Offset, last)
						}
						if now, ok := holder[k]; ok && d.Message.Offset > now {
							t.Errorf("%v offset %d was delivered while %d was unsettled", k, d.Message.Offset, now)
						}
						holder[k] = d.Message.Offset
						mu.Unlock()
						action := Ack
						switch (turn + i + m) % 7 {
						case 0:
							action = Nack
						case 1:
							action = Release
						case 2:
							if turn%5 == 0 {
								continue // no answer
							}
						}
						if action == Ack {
							mu.Lock()
							delete(holder, k) // from here on the next one may come
							mu.Unlock()
						}
						r := n.shell.Settle(ctx, 1, []Settlement{{Token: d.Token, Action: action}})
						var unknown *partition.ErrOutcomeUnknown
						if errors.As(r[0].Err, &unknown) || errors.Is(r[0].Err, context.DeadlineExceeded) || errors.Is(r[0].Err, context.Canceled) {
							// Whether it counts shows when it is asked again.
							r = n.shell.Settle(context.Background(), 1, []Settlement{{Token: d.Token, Action: action}})
						}
						if r[0].Err == nil && action == Ack {
							mu.Lock()
							acked[k] = max(acked[k], d.Message.Offset)
							mu.Unlock()
							left.Add(-1)
						}
					}
				}
			})
		}
		members.Wait()
		cancel()
		if round%3 == 2 {
			n.stop()
			n.start()
		}
	}
	for _, p := range n.parts {
		st, err := n.shell.Stats(context.Background(), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(perKey * keys); st.Counts.Acked != want || st.Counts.Lag() != 0 {
			t.Errorf("partition %v: %+v, want %d acked", p, st.Counts, want)
		}
	}
}
