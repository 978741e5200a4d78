package peer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// linked are two nodes that reach each other over links of their own.
func linked(t *testing.T, change ...func(*Config)) (a, b *node, ab, ba *link) {
	t.Helper()
	c := newCluster(t, "c1")
	a, b = c.start(1, change...), c.start(2, change...)
	ab, ba = newLink(t, b.Addr().String()), newLink(t, a.Addr().String())
	a.SetNodes(map[uint64]Member{2: {Address: ab.l.Addr().String()}})
	b.SetNodes(map[uint64]Member{1: {Address: ba.l.Addr().String()}})
	a.untilUp(2)
	b.untilUp(1)
	return a, b, ab, ba
}

// talks waits until messages pass in both directions.
func talks(t *testing.T, a, b *node) {
	t.Helper()
	a.untilUp(b.self.node)
	b.untilUp(a.self.node)
	for _, x := range []struct{ from, to *node }{{a, b}, {b, a}} {
		want := []byte(t.Name() + time.Now().String())
		// One that was sent as the connection broke is lost, so it is sent until it came.
		x.to.until("a message comes", func() bool {
			x.from.Send(x.to.self.node, slices.Clone(want))
			return slices.ContainsFunc(x.to.messages(x.from.self.node), func(b []byte) bool { return bytes.Equal(b, want) })
		})
	}
}

func TestCutAndHealed(t *testing.T) {
	t.Parallel() // it waits
	a, b, ab, ba := linked(t)
	for range 2 {
		for _, k := range []*link{ab, ba} {
			k.set(func() { k.cut = true; k.closeAll() })
		}
		a.untilDown(2)
		b.untilDown(1)
		for _, k := range []*link{ab, ba} {
			k.set(func() { k.cut = false })
		}
		talks(t, a, b)
	}
	takeTurns(t, "told of node 2", a.heard(2))
	takeTurns(t, "told of node 1", b.heard(1))
}

// A reset is no death: the connection is made again within the silence.
func TestAResetIsNoDeath(t *testing.T) {
	a, b, ab, _ := linked(t, func(c *Config) { c.Silence = patience })
	was := a.status(2).Connects
	ab.set(ab.closeAll)
	a.until("another connection", func() bool { return a.status(2).Connects > was })
	talks(t, a, b)
	if got := a.heard(2); len(got) != 1 {
		t.Errorf("told of node 2: %v", got)
	}
}

func TestHalfOpenIsReplaced(t *testing.T) {
	t.Parallel() // it waits
	a, b, ab, ba := linked(t)
	was := a.status(2).Connects
	ab.kill()
	ba.kill()
	a.until("another connection", func() bool { return a.status(2).Connects > was })
	talks(t, a, b)
}

// What a sends is lost, what b sends arrives: both say that the other is down.
func TestOneWayCutIsSeenByBoth(t *testing.T) {
	t.Parallel() // it waits
	a, b, ab, ba := linked(t)
	freeze := func(on bool) {
		ab.set(func() { ab.frozen[0] = on })
		ba.set(func() { ba.frozen[1] = on })
	}
	freeze(true)
	a.untilDown(2)
	b.untilDown(1)
	freeze(false)
	talks(t, a, b)
}

func TestCallsEndWhenTheNodeIsDown(t *testing.T) {
	t.Parallel() // it waits
	waits := make(chan struct{}, 1)
	a, b, ab, ba := linked(t, func(c *Config) {
		c.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			waits <- struct{}{}
			<-r.Context().Done()
		})
	})
	done := make(chan error, 1)
	go func() {
		_, err := tryCall(t.Context(), a, 2, "")
		done <- err
	}()
	<-waits
	for _, k := range []*link{ab, ba} {
		k.set(func() { k.frozen = [2]bool{true, true} })
	}
	a.untilDown(2)
	select {
	case err := <-done:
		if err == nil {
			t.Error("a call to a dead node succeeded")
		}
	case <-time.After(patience):
		t.Fatal("a call to a dead node goes on")
	}
	for _, k := range []*link{ab, ba} {
		k.set(func() { k.frozen = [2]bool{} })
	}
	talks(t, a, b)
}

// A process that was stopped, and not ended, takes connections and says nothing. A call
// to it ends when it is found to be down, and one that is made later at once, also where
// the connection for it is yet to be made.
func TestCallsToANodeThatIsDownEndAtOnce(t *testing.T) {
	t.Parallel() // it waits
	a, b, ab, ba := linked(t, func(c *Config) {
		c.Timeout = time.Hour // of a handshake that nobody answers
		c.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	})
	for _, k := range []*link{ab, ba} {
		k.set(func() { k.frozen = [2]bool{true, true} })
	}
	for _, when := range []string{"before it is down", "when it is down"} {
		if _, err := tryCall(t.Context(), a, 2, ""); !errors.As(err, new(*ErrUnreached)) {
			t.Errorf("a call %s: %v", when, err)
		}
		a.untilDown(2)
	}
	for _, k := range []*link{ab, ba} {
		k.set(func() { k.frozen = [2]bool{} })
	}
	talks(t, a, b)
	a.until("a call is answered again", func() bool { _, err := tryCall(t.Context(), a, 2, ""); return err == nil })
}

// What is urgent goes before what waits, and finds room where that has none.
func TestUrgentGoesFirst(t *testing.T) {
	t.Parallel() // it waits
	a, b, ab, _ := linked(t, func(c *Config) { c.QueueBytes, c.MaxMessage, c.Silence = 1<<20, 64<<10, time.Hour })
	const urgent = 7
	// The writer may have got rid of all that waited just before: so more than once.
	a.until("an urgent message overtakes others", func() bool {
		ab.set(func() { ab.frozen[0] = true })
		sent := len(b.messages(1))
		for a.Send(2, make([]byte, 1000)) {
			sent++
		}
		if !a.SendUrgent(2, make([]byte, urgent)) {
			t.Fatal("a queue that is full keeps out what is urgent")
		}
		ab.set(func() { ab.frozen[0] = false })
		b.until("all comes", func() bool { return len(b.messages(1)) == sent+1 })
		return len(b.messages(1)[sent]) != urgent
	})
}

// Who does not take messages is down for who sends them, and not the other way
// round; what waits is bounded.
func TestSlowReaderAndFlood(t *testing.T) {
	t.Parallel() // it waits
	gate := make(chan struct{})
	c := newCluster(t, "c1")
	small := func(cfg *Config) {
		cfg.QueueBytes, cfg.MaxMessage, cfg.Timeout = 1<<20, 64<<10, 2*time.Second
	}
	a := c.start(1, small)
	var b *node
	b = c.start(2, small, func(cfg *Config) { cfg.Deliver = func(from uint64, m []byte) { <-gate; b.deliver(from, m) } })
	t.Cleanup(func() {
		select {
		case <-gate:
		default:
			close(gate)
		}
	})
	connect(a, b)
	a.untilUp(2)
	b.untilUp(1)
	taken, refused := 0, 0
	a.until("a full queue and a node that is down", func() bool {
		for range 1000 {
			if a.Send(2, make([]byte, 1000)) {
				taken++
			} else {
				refused++
			}
			if w := a.status(2).Waiting; w > 1<<20 {
				t.Fatalf("%d bytes wait, at most 1 MiB", w)
			}
		}
		return refused > 0 && !a.status(2).Up
	})
	if got := b.heard(1); !slices.Equal(got, []bool{true}) {
		t.Errorf("the slow one was told of node 1: %v", got)
	}
	if a.Send(2, make([]byte, 64<<10+1)) {
		t.Error("a message larger than MaxMessage was taken")
	}
	close(gate)
	talks(t, a, b)
	if s := a.status(2); s.Dropped < uint64(refused) {
		t.Errorf("%d were refused, %d counted", refused, s.Dropped)
	}
	if n := len(b.messages(1)); n > taken {
		t.Errorf("%d arrived, %d were taken", n, taken)
	}
}

// A length that somebody made up claims no memory.
func TestLongMessagesTakeMemoryAsTheyCome(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readBody(strings.NewReader("short"), 1<<30); err == nil {
		t.Error("a gigabyte was read from five bytes")
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("%d bytes were taken for it", took)
	}
	want := make([]byte, 5<<20+3)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	got, err := readBody(bytes.NewReader(want), len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("a long message came as %d bytes, %v", len(got), err)
	}
}

// A message that takes longer than the silence to arrive is a sign of life.
func TestSlowNetworkIsNoDeath(t *testing.T) {
	t.Parallel() // it waits
	const size = 1000
	c := newCluster(t, "c1")
	a, b := c.start(1), c.start(2)
	b.SetNodes(map[uint64]Member{1: {Address: a.Addr().String()}})
	a.SetNodes(map[uint64]Member{2: {Address: b.Addr().String()}})
	a.untilUp(2)
	b.untilUp(1)
	a.SetNodes(nil)
	b.untilDown(1)
	// From here on the test is node 1. Where it stood still itself, for as long as may be
	// taken for death, it was no slow network, and it says it all once more.
	for limit := time.Now().Add(2 * time.Minute); ; {
		paused, err := trickle(t, a, b, size)
		if err == nil {
			return
		}
		if paused < silence/4 || time.Now().After(limit) {
			t.Fatalf("%v; the longest pause was %v", err, paused)
		}
	}
}

// trickle sends b a message as node a, byte by byte over twice the silence, and gives the
// longest pause between two bytes.
func trickle(t *testing.T, a, b *node, size int) (paused time.Duration, _ error) {
	h := a.self
	h.to = 2
	conn, err := dialRaw(t, b.Addr().String(), a.cfg.Identity, protocolFrames)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := greetRaw(conn, h.encode()); err != nil {
		return 0, err
	}
	began := time.Now()
	last := began
	if _, err := conn.Write(appendHeader(nil, kindMessage, size)); err != nil {
		return 0, err
	}
	answer, cut := make(chan error, 1), make(chan error, 1)
	go func() { // ends with the connection
		k, body, err := readFrame(conn, answerSize)
		if err == nil && (k != kindAnswer || binary.LittleEndian.Uint64(body) != 0) {
			err = errors.New("the first frame back is no answer without a stamp")
		}
		answer <- err
		_, err = io.Copy(io.Discard, conn)
		cut <- fmt.Errorf("it was cut: %w", cmp.Or(err, io.EOF))
	}()
	for range size {
		_, err := conn.Write([]byte{'x'})
		paused, last = max(paused, time.Since(last)), time.Now()
		if err != nil {
			return paused, fmt.Errorf("after %v: %w", time.Since(began), err)
		}
		time.Sleep(2 * silence / time.Duration(size)) // the slowness of the network is what is tested
	}
	for limit := time.After(patience); len(b.messages(1)) == 0; {
		select {
		case err := <-cut:
			return max(paused, time.Since(last)), err
		case <-limit:
			t.Fatal("the message did not come")
		case <-time.After(10 * time.Millisecond): // between two looks
		}
	}
	select {
	case err := <-answer:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("no answer came in the middle of the message")
	}
	return paused, nil
}

func TestStrangersOnThePort(t *testing.T) {
	c := newCluster(t, "c1")
	quick := func(cfg *Config) { cfg.Timeout = time.Second }
	a, b := c.start(1, quick), c.start(2)
	for _, say := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", string(make([]byte, 3000))} {
		conn, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(say)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		answer := make([]byte, 4096)
		for n := 0; ; {
			m, err := conn.Read(answer)
			if n += m; err != nil {
				if netErr := net.Error(nil); errors.As(err, &netErr) && netErr.Timeout() {
					t.Errorf("who says %q is left connected", say)
				}
				if n > 7 { // an alert of TLS
					t.Errorf("who says %q is answered with %d bytes", say, n)
				}
				break
			}
		}
	}
	connect(a, b)
	talks(t, a, b)
}

func TestGate(t *testing.T) {
	g := newGate(3, 2)
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	leave, ok := g.enter(at("10.0.0.1"))
	_, ok2 := g.enter(at("::ffff:10.0.0.1"))
	_, ok3 := g.enter(at("10.0.0.1"))
	_, ok4 := g.enter(at("10.0.0.2"))
	_, ok5 := g.enter(at("10.0.0.3"))
	if !ok || !ok2 || ok3 || !ok4 || ok5 {
		t.Errorf("taken: %v %v %v %v %v", ok, ok2, ok3, ok4, ok5)
	}
	leave()
	if _, ok := g.enter(at("10.0.0.3")); !ok || len(g.from) != 3 {
		t.Errorf("the place of who left is not free: %v", g.from)
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(3 * (overhead + 10))
	if q.put(make([]byte, 10), false) {
		t.Error("a queue without a connection takes a message")
	}
	q.start()
	for i := range 4 {
		if q.put(make([]byte, 10), false) != (i < 3) {
			t.Errorf("message %d", i)
		}
	}
	items := q.take(nil)
	if len(items) != 3 || q.put(nil, false) {
		t.Error("what is being written still waits")
	}
	q.free(overhead+10, false)
	if !q.put(make([]byte, 10), false) || q.put(nil, false) {
		t.Error("the room of one is that of one")
	}
	if q.stop() != 1 || q.waiting() != 0 || q.put(nil, false) {
		t.Error("a stopped queue is empty and takes nothing")
	}
	q.start()
	if !q.put(make([]byte, 1000), false) || q.put(nil, false) {
		t.Error("an empty queue takes any message, and then none")
	}
	if !q.put(make([]byte, 10), true) || q.put(make([]byte, 10), true) {
		t.Error("what is urgent has a little room of its own")
	}
	if items := q.takeUrgent(); len(items) != 1 || q.waiting() != 1000+overhead+10+overhead {
		t.Errorf("%d urgent ones, and %d bytes wait", len(items), q.waiting())
	}
	if q.free(10+overhead, true); q.takeUrgent() != nil || !q.put(make([]byte, 10), true) {
		t.Error("the room of an urgent one is not given back")
	}
	if q.stop() != 2 || q.waiting() != 0 {
		t.Error("a stopped queue has something that is urgent")
	}
}
