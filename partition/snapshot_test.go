package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition/logstore"
)

// sendSnapshot is the wire for snapshots: bytes there, an answer back.
func (m *member) sendSnapshot(ctx context.Context, to NodeID, id PartitionID, r io.Reader) error {
	c := m.c
	c.mu.RLock()
	dest, cut := c.node(to), c.cut[[2]NodeID{m.id, to}]
	in := dest.in
	var h *Host
	if in != nil {
		h = dest.Host
	}
	c.mu.RUnlock()
	if cut || h == nil {
		return errors.New("nobody is there")
	}
	if c.onSnapshot != nil {
		r = c.onSnapshot(to, r)
	}
	answer := AppendSnapshotAnswer(nil, h.ReceiveSnapshot(ctx, m.id, id, r))
	return ParseSnapshotAnswer(id, answer)
}

// fill publishes n messages of about size bytes.
func (c *cluster) fill(id PartitionID, from, n, size int) (bodies []string) {
	c.t.Helper()
	pad := strings.Repeat("x", size)
	for i := from; i < from+n; i++ {
		body := fmt.Sprintf("%d-%s", i, pad)
		if o := c.publishAs(id, fmt.Sprint(i), body); o != Offset(i) {
			c.t.Fatalf("message %d stands at %d", i, o)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// same waits until a node has what the leader has: position, messages, commands.
func (c *cluster) same(m *member, id PartitionID, from Offset, want []string) {
	c.t.Helper()
	var got []string
	var err error
	until(c.t, fmt.Sprintf("%v reads what is kept of %v", m.id, id), func() bool {
		var ms []Message
		ms, err = m.Read(id, from, len(want)+10, 1<<30)
		got = bodies(ms)
		return err == nil && slices.Equal(got, want)
	})
	lead := c.leader(id)
	count := func(m *member) (n uint64, at Position) {
		err := m.View(within(c.t), id, func(a App, p Position) { n, at = a.(*counter).n, p })
		if err != nil {
			c.t.Fatal(err)
		}
		return n, at
	}
	until(c.t, fmt.Sprintf("%v has applied what %v has", m.id, lead.id), func() bool {
		n, at := count(m)
		wantN, wantAt := count(lead)
		return n == wantN && at == wantAt
	})
}

// lag leaves a node behind a log that was cut, and returns what is kept of it.
func (c *cluster) lag(id PartitionID, away *member) (Offset, []string) {
	c.t.Helper()
	c.create(id)
	until(c.t, "another node leads", func() bool {
		lead := c.leader(id)
		if lead != away {
			return true
		}
		_ = lead.Transfer(within(c.t), id, c.nodes[int(lead.id)%len(c.nodes)].id.Replica())
		return false
	})
	first := c.fill(id, 0, 5, 100)
	c.same(away, id, 0, first)
	away.kill()
	c.fill(id, 5, 20, 1000)
	kept := c.fill(id, 25, 60, 50_000)
	c.byLeader(id, "a command is applied", func(lead *member) error {
		_, err := lead.Propose(within(c.t), id, []byte("hello"))
		return err
	})
	c.byLeader(id, "it is trimmed", func(lead *member) error {
		start, err := lead.Trim(within(c.t), id, TrimTo{To: 25, Why: ByAge})
		if err == nil && start != 25 {
			c.t.Fatalf("trimmed to %d", start)
		}
		return err
	})
	until(c.t, "the log is cut", func() bool {
		info, err := c.leader(id).Info(id)
		return err == nil && info.FirstIndex > 25
	})
	return 25, kept
}

func (c *cluster) back(m *member) {
	m.start()
	c.isUp(m.id, true)
}

// TestSnapshotForWhoWasAway kills a node, cuts the log beyond what it lacks, and
// starts it again: it reads the same, finds the same duplicates, and can lead.
func TestSnapshotForWhoWasAway(t *testing.T) {
	c := newCluster(t, 3, Config{NewApp: newCounter(nil), FollowerBytes: 4096})
	away := c.node(3)
	start, kept := c.lag(1, away)
	c.back(away)
	c.same(away, 1, start, kept)
	more := c.fill(1, 85, 5, 100)
	c.same(away, 1, start, slices.Concat(kept, more))

	var s []Stored
	c.asLeader(1, away, "it answers a repeat", func() (err error) {
		s, err = away.Publish(within(t), 1, withID("25", kept[0]))
		return err
	})
	if !s[0].Duplicate || s[0].Offset != start {
		t.Fatalf("a repeat of what came with the snapshot: %+v", s)
	}
	// Its own trims come on top, and after another restart all is the same.
	c.asLeader(1, away, "it trims", func() error {
		_, err := away.Trim(within(t), 1, TrimTo{To: 80, Why: ByAge})
		return err
	})
	away.kill()
	c.back(away)
	c.same(away, 1, 80, slices.Concat(kept, more)[80-start:])
}

// cutReader ends a stream early, as a connection does.
type cutReader struct {
	r    io.Reader
	left int
	sent *atomic.Int64
}

func (c *cutReader) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("the connection broke")
	}
	n, err := c.r.Read(b[:min(len(b), c.left)])
	c.left -= n
	c.sent.Add(int64(n))
	return n, err
}

// TestSnapshotGoesOnAfterABreak has every stream break off: each goes on where the
// one before ended.
func TestSnapshotGoesOnAfterABreak(t *testing.T) {
	c := newCluster(t, 3, Config{NewApp: newCounter(nil), FollowerBytes: 4096, snapshotLimit: time.Minute, snapshotIdle: time.Minute, snapshotPause: time.Millisecond})
	away := c.node(3)
	start, kept := c.lag(1, away)
	var sent, streams atomic.Int64
	c.onSnapshot = func(_ NodeID, r io.Reader) io.Reader {
		streams.Add(1)
		return &cutReader{r, 1_500_000, &sent}
	}
	c.back(away)
	c.same(away, 1, start, kept)
	if n := sent.Load(); n > 6_000_000 || streams.Load() < 3 {
		t.Fatalf("%d streams of %d bytes together: they began anew each time", streams.Load(), n)
	}
}

// halt is where a power cut falls: behind so many bytes of a snapshot, where the stream
// stands still until the power goes, or behind its end.
type halt struct {
	at    int
	once  sync.Once
	there chan struct{} // closed when the stream is there
	power chan struct{} // closed when it goes
}

// haltReader is a stream with a halt.
type haltReader struct {
	r    io.Reader
	h    *halt
	left int
}

func (h *haltReader) Read(b []byte) (int, error) {
	there := func() { h.h.once.Do(func() { close(h.h.there) }) }
	if h.left == 0 {
		there()
		<-h.h.power
		h.left = -1
	}
	if h.left > 0 {
		b = b[:min(len(b), h.left)]
	}
	n, err := h.r.Read(b)
	if h.left > 0 {
		h.left -= n
	}
	if err != nil {
		there()
	}
	return n, err
}

// TestSnapshotAndPowerCuts takes the power from who gets a snapshot, at random.
func TestSnapshotAndPowerCuts(t *testing.T) {
	c := newCluster(t, 3, Config{NewApp: newCounter(nil), FollowerBytes: 4096, snapshotLimit: time.Minute, snapshotIdle: time.Minute, snapshotPause: time.Millisecond})
	away := c.node(3)
	start, kept := c.lag(1, away)
	rng := rand.New(rand.NewPCG(3, 3))
	var next atomic.Pointer[halt]
	c.onSnapshot = func(_ NodeID, r io.Reader) io.Reader {
		h := next.Load()
		return &haltReader{r, h, h.at}
	}
	for i := range 12 {
		// The first are in the middle of it, later ones may be behind its end.
		h := &halt{at: 1 + rng.IntN((i+1)*400_000), there: make(chan struct{}), power: make(chan struct{})}
		next.Store(h)
		c.back(away)
		taken := func() bool {
			info, err := away.Info(1)
			if err != nil {
				t.Fatal(err)
			}
			return info.Position.Start >= start
		}
		until(t, "a snapshot is sent, or was taken by the last cut", func() bool {
			select {
			case <-h.there:
				return true
			default:
				return taken()
			}
		})
		if i > 6 {
			time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond) // so that cuts come at any moment behind the end
		}
		done := taken()
		close(h.power)
		away.kill()
		if done {
			if i == 0 {
				t.Fatal("no cut fell into a snapshot")
			}
			break
		}
	}
	next.Store(&halt{at: -1, there: make(chan struct{})})
	c.back(away)
	c.same(away, 1, start, kept)
}

// TestReceiveSnapshotRefuses gives a host what is no snapshot for it.
func TestReceiveSnapshotRefuses(t *testing.T) {
	c := newCluster(t, 2, Config{NewApp: newCounter(nil)})
	c.create(1, 2)
	c.fill(1, 0, 3, 10)
	lead := c.leader(1)
	other := c.nodes[0]
	if other == lead {
		other = c.nodes[1]
	}
	c.same(other, 1, 0, bodies(must(lead.Read(1, 0, 10, 1<<20))))
	n := neededSnapshot{1, lead.id.Replica(), other.id.Replica(), 1}
	make := func(n neededSnapshot) []byte {
		e, err := n.export(&lead.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		return must(io.ReadAll(must(e.From(0))))
	}
	good := make(n)
	for _, x := range []struct {
		what string
		from NodeID
		id   PartitionID
		b    []byte
	}{
		{"of another partition", lead.id, 2, good},
		{"from another node than it says", other.id, 1, good},
		{"for another replica", lead.id, 1, make(neededSnapshot{1, n.from, NewReplicaID(other.id, 7), 1})},
		{"changed", lead.id, 1, append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1)},
	} {
		err := other.ReceiveSnapshot(within(t), x.from, x.id, bytes.NewReader(x.b))
		var refused *ErrSnapshotRefused
		var wrong *ErrOtherReplica
		if !errors.As(err, &refused) && !errors.As(err, &wrong) {
			t.Fatalf("%s: %v", x.what, err)
		}
	}
	var unknown *ErrUnknownPartition
	if err := other.ReceiveSnapshot(within(t), lead.id, 9, bytes.NewReader(good)); !errors.As(err, &unknown) {
		t.Fatal(err)
	}
	// One that is not needed is as good as taken.
	if err := other.ReceiveSnapshot(within(t), lead.id, 1, bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	c.same(other, 1, 0, bodies(must(lead.Read(1, 0, 10, 1<<20))))
	if ls, _ := other.mem.List("store/incoming"); len(ls) > 0 {
		t.Fatalf("left over: %v", ls)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestSnapshotAnswers carries every answer over and back.
func TestSnapshotAnswers(t *testing.T) {
	for _, err := range []error{nil, &ErrSnapshotGap{Partition: 1, Stream: 7, Next: 9}, &ErrSnapshotRefused{1, "so"}} {
		b := AppendSnapshotAnswer(nil, err)
		got := ParseSnapshotAnswer(1, b)
		var refused *ErrSnapshotRefused
		switch {
		case err == nil && got == nil, err != nil && got != nil && got.Error() == err.Error():
		case errors.As(err, &refused) && strings.Contains(got.Error(), refused.Why):
		default:
			t.Fatalf("%v came back as %v", err, got)
		}
	}
	if ParseSnapshotAnswer(1, nil) == nil || ParseSnapshotAnswer(1, []byte{1, 2}) == nil || ParseSnapshotAnswer(1, []byte{9}) == nil {
		t.Fatal("what is no answer was taken for one")
	}
}

// TestDeadFollowerDoesNotFillTheDisk: what a leader keeps for one that is away is
// bounded in bytes, whatever it lacks.
func TestDeadFollowerDoesNotFillTheDisk(t *testing.T) {
	const keep = 200_000
	c := newCluster(t, 3, Config{NewApp: newCounter(nil), FollowerBytes: keep})
	c.create(1)
	dead := c.node(3)
	if c.leader(1) == dead {
		dead = c.node(1)
	}
	// Nothing is kept for a follower of which a leader has never heard.
	until(t, "the leader has heard of everybody", func() bool {
		info := must(c.leader(1).Info(1))
		return len(info.Followers) == 2 && !slices.ContainsFunc(info.Followers, func(f Follower) bool { return f.Match != info.LastIndex })
	})
	term := must(c.leader(1).Info(1)).Term
	dead.kill()
	stored, worst := 0, 0
	for i := 0; i < 60; i++ {
		c.fill(1, i, 1, 50_000)
		stored += 50_000
		c.byLeader(1, "it is trimmed", func(lead *member) error {
			_, err := lead.Trim(within(t), 1, TrimTo{To: Offset(i), Why: ByAge})
			return err
		})
		var bytes int
		until(t, fmt.Sprintf("little more than %d bytes of log are kept for others, of %d stored", keep, stored), func() bool {
			lead := c.leader(1) // the log is cut behind the trim's answer
			info := must(lead.Info(1))
			bytes = 0
			err := lead.store.Scan(1, uint64(info.FirstIndex), uint64(info.LastIndex)+1, func(e logstore.Entry, _ uint32) bool {
				bytes += len(e.Data)
				return true
			})
			return err == nil && bytes <= keep+200_000 // it may be cut while it is read
		})
		worst = max(worst, bytes)
	}
	if now := must(c.leader(1).Info(1)).Term; now == term && worst < keep/2 {
		t.Fatalf("%d bytes of log were kept for others, of %d stored; %d are allowed", worst, stored, keep)
	}
}

// TestNoMajorityDoesNotGrowTheLog: without a majority a leader takes what fits its
// bound, and no more, until it gives up leading.
func TestNoMajorityDoesNotGrowTheLog(t *testing.T) {
	// So slow a clock that it goes on leading.
	c := newCluster(t, 3, Config{NewApp: newCounter(nil), Tick: time.Second, QueueBytes: 1 << 30, PartitionQueueBytes: 1 << 30})
	c.create(1)
	lead := c.leader(1)
	for _, m := range c.nodes {
		if m != lead {
			m.kill()
		}
	}
	before := must(lead.Info(1)).LastIndex
	body := strings.Repeat("x", 1<<20)
	gaveUp := false // it leads no more: the machine is so busy that this took most of a minute
	for i := range 100 {
		if err := lead.PublishAsync(1, withID(fmt.Sprint(i), body), func([]Stored, error) {}); errors.As(err, new(*ErrNotLeader)) {
			gaveUp = true
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	size := 0
	measure := func() {
		// A call that comes behind them: the loop has seen them all.
		if err := lead.View(within(t), 1, func(App, Position) {}); err != nil {
			t.Fatal(err)
		}
		size = 0
		if err := lead.store.Scan(1, uint64(before)+1, uint64(must(lead.Info(1)).LastIndex)+1, func(e logstore.Entry, _ uint32) bool {
			size += len(e.Data)
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	// It is written little by little, and at times nothing is on its way.
	until(t, "the log has most of what it may", func() bool {
		measure()
		return size >= maxUncommittedBytes/2 || gaveUp
	})
	until(t, "it grows no more", func() bool {
		was := size
		measure()
		return size == was
	})
	if size > maxUncommittedBytes+4<<20 {
		t.Fatalf("%d bytes of log without a majority, at most %d", size, maxUncommittedBytes)
	}
}

func TestLogSizes(t *testing.T) {
	s := logSizes{step: 1000}
	if got := s.from(1000); got != 1<<63-1 {
		t.Fatalf("of nothing everything may go, not from %d on", got)
	}
	for i := uint64(10); i < 1000; i++ {
		s.add(i, 100-entryOverhead)
	}
	for _, x := range []struct {
		bytes int64
		want  uint64
	}{{1 << 40, 10}, {99_000, 10}, {50_000, 500}, {10_000, 900}, {2000, 980}} {
		if got := s.from(x.bytes); got < x.want || got > x.want+20 {
			t.Fatalf("the last %d bytes begin at entry %d, want %d", x.bytes, got, x.want)
		}
	}
	was := s.bytes
	s.add(900, 100-entryOverhead) // a log that is replaced from there on
	if s.bytes >= was || s.from(2000) < 880 || s.from(2000) > 900 {
		t.Fatalf("%d bytes, the last thousand from %d on", s.bytes, s.from(2000))
	}
	for i := uint64(901); i < 100_000; i++ {
		s.add(i, 1000)
	}
	if len(s.marks) > 4*sizeMarks {
		t.Fatalf("%d marks", len(s.marks))
	}
}

// FuzzParseSnapshotAnswer gives it any bytes. What it takes for an answer is written
// as it came.
func FuzzParseSnapshotAnswer(f *testing.F) {
	for _, err := range []error{nil, &ErrSnapshotGap{Partition: 1, Stream: 7, Next: 9}, &ErrSnapshotRefused{1, "so"}} {
		f.Add(AppendSnapshotAnswer(nil, err))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := ParseSnapshotAnswer(1, b)
		var gap *ErrSnapshotGap
		if err == nil || errors.As(err, &gap) {
			if again := AppendSnapshotAnswer(nil, err); !bytes.Equal(again, b) {
				t.Fatalf("%x was read as %v, which is written as %x", b, err, again)
			}
		}
	})
}
