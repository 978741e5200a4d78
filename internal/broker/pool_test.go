package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Random streams of a pool: what it counts is the sum of what they hold, nobody is
// given more than there is but the least, and who waits is told.
func TestPool(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := &pool{max: 4 << 20}
	var open []*holding
	check := func() {
		var sum int64
		for _, h := range open {
			sum += max(h.held, leastHeld)
		}
		if sum != p.held {
			t.Fatalf("the pool counts %d, the streams %d", p.held, sum)
		}
		if most := p.max + int64(len(open))*leastTaken; p.held > most {
			t.Fatalf("%d streams hold %d, which is more than %d", len(open), p.held, most)
		}
	}
	refused := 0
	for range 100_000 {
		switch x := r.IntN(10); {
		case x == 0:
			if h, err := p.open(); err == nil {
				open = append(open, h)
			} else if reasonOf(err) != "TOO_MANY_STREAMS" || p.held+leastHeld <= p.max {
				t.Fatalf("with %d of %d: %v", p.held, p.max, err)
			}
		case len(open) == 0:
		case x == 1 && r.IntN(3) == 0:
			i := r.IntN(len(open))
			open[i].close()
			open[i].add(1000) // comes too late, and counts for nothing
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		case x < 6:
			h := open[r.IntN(len(open))]
			if n := h.room(); n > 0 && r.IntN(2) == 0 {
				if ok, _ := h.take(n, false); !ok {
					t.Fatalf("%d bytes are within the stream's bound and are not given", n)
				}
			} else if ok, freed := h.take(1<<20, r.IntN(2) == 0); !ok {
				refused++
				open[0].give(0)
				select {
				case <-freed:
				default:
					t.Fatal("room was given back, and who waits was not told")
				}
			}
		case x == 6:
			if h := open[r.IntN(len(open))]; h.held < leastTaken {
				if ok, _ := h.take(leastTaken-h.held, false); !ok {
					t.Fatal("a stream was not given its least")
				}
			}
		default:
			h := open[r.IntN(len(open))]
			h.give(r.Int64N(h.held + 1))
		}
		check()
	}
	for _, h := range open {
		h.close()
	}
	if p.held != 0 || refused == 0 {
		t.Errorf("in the end %d are held; %d were refused", p.held, refused)
	}
}

// However many streams take all that they can get, who comes later finds room.
func TestPoolLeavesRoom(t *testing.T) {
	p := &pool{max: DefaultStreamMemory}
	for i := range 200 {
		h, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		n := h.room()
		if ok, _ := h.take(n, false); !ok {
			t.Fatalf("%d bytes are within the bound of stream %d and are not given", n, i)
		}
		if i < 15 && n < 1<<20 {
			t.Errorf("stream %d may hold %d bytes", i, n)
		}
	}
	if free := p.max - p.held; free < 100*leastHeld {
		t.Errorf("%d bytes are left", free)
	}
	h, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := h.take(1<<20, true); !ok {
		t.Error("a large message waits for streams that do not move")
	}
	if ok, _ := h.take(8<<20, false); ok {
		t.Error("a frame of a publisher is given what is kept for others")
	}
}

// A stream that would not get its least is refused, and opens when there is room.
func TestTooManyStreams(t *testing.T) {
	b := start(t, t.TempDir(), func(c *Config) { c.StreamMemory = 16 << 20 })
	a := streamAPI(t, b)
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	var others []*holding
	for {
		h, err := b.memory.open()
		if err != nil {
			break
		}
		others = append(others, h)
	}
	if len(others) != 16<<20/leastHeld {
		t.Fatalf("%d streams were open", len(others))
	}
	s := a.publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	_, _, err := rest(s)
	wantReason(t, err, "TOO_MANY_STREAMS")
	sub, err := a.consume.Subscribe(ctx(t), &strandmqv1.SubscribeRequest{Topic: "t", Group: "g", Member: "m"})
	if err == nil {
		for sub.Receive() {
			t.Error("a frame of a stream that was refused")
		}
		err = sub.Err()
	}
	wantReason(t, err, "TOO_MANY_STREAMS")
	inTime(t, "both refusals as events", func() bool {
		n := uint64(0)
		for _, e := range newAPI(t, b.URL()).eventsOf(t, &strandmqv1.ListEventsRequest{Kind: string(coordinator.MemoryLimit), Node: 1}).GetEvents() {
			if n += e.GetCount(); !strings.Contains(e.GetText(), "TOO_MANY_STREAMS") || e.GetAdvice() != "strandmq doctor" {
				t.Errorf("%v", e)
			}
		}
		return n == 2
	})
	others[0].close()
	s = a.publishStream(t, ctx(t))
	sends(t, s, &strandmqv1.PublishBatch{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
	_ = s.CloseRequest()
	if res, _, err := rest(s); err != nil || res[1].GetProblem() != nil {
		t.Fatal(res, err)
	}
	for _, h := range others {
		h.close() // twice does nothing
	}
	eventually(t, "nothing is held", func() bool { return b.memory.inUse() == 0 })
}

// Members that read nothing, and publishers that take no answers: together they hold
// what is configured, and one more of each works beside them.
func TestCrowdOfStreams(t *testing.T) {
	const most = 16 << 20
	b := start(t, t.TempDir(), func(c *Config) { c.StreamMemory = most })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	a.topic(t, "other", 1)
	body := strings.Repeat("x", 16<<10)
	for i := range 8 {
		ms := make([]*strandmqv1.Message, 200)
		for j := range ms {
			ms[j] = msg(fmt.Sprint(i, "-", j), body)
		}
		a.store(t, "t", ms...)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	narrow := &http.Transport{Protocols: &p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 16, MaxReceiveBufferPerConnection: 1 << 17}}
	defer narrow.CloseIdleConnections()
	crowd := apiOver(&http.Client{Transport: narrow}, b.URL())
	c, leave := context.WithCancel(ctx(t))
	defer leave()
	var publishers sync.WaitGroup
	var ends []func() error // the Connect client does not see that the context ends
	const streams = 60
	for i := range 40 {
		group := fmt.Sprint("g", i)
		a.group(t, "t", group, patient())
		s := crowd.consumeStream(t, c)
		what := opened("t", group, "m")
		what.RecordBatches = i%2 == 0
		if err := s.Send(&strandmqv1.ConsumeRequest{Open: what, Credits: 1_000_000}); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.(interface{ CloseResponse() error }).CloseResponse)
	}
	for i := range 20 {
		s := crowd.publishStream(t, c)
		ends = append(ends, s.(interface{ CloseResponse() error }).CloseResponse)
		publishers.Go(func() {
			batches := make([]*strandmqv1.PublishBatch, 100)
			for j := range batches {
				batches[j] = &strandmqv1.PublishBatch{Topic: "other", Messages: []*strandmqv1.Message{msg(fmt.Sprint(i), "x"), msg(fmt.Sprint(i), body[:4000])}}
			}
			for s.Send(&strandmqv1.PublishStreamRequest{Batches: batches}) == nil && c.Err() == nil {
			}
		})
	}
	peak := int64(0)
	eventually(t, "the crowd holds half of it", func() bool {
		peak = max(peak, b.memory.inUse())
		return peak > most/2
	})
	a.topic(t, "mine", 1)
	a.group(t, "mine", "g", patient())
	s := streamAPI(t, b).publishStream(t, ctx(t))
	m := joins(t, opener(t, b), opened("mine", "g", "m"), 100)
	for i := range 20 {
		sends(t, s, &strandmqv1.PublishBatch{Topic: "mine", Messages: []*strandmqv1.Message{msg(fmt.Sprint(i), body)}})
		m.take(1)
		peak = max(peak, b.memory.inUse())
	}
	if peak > most+(streams+2)*leastTaken {
		t.Errorf("the streams held %d KiB, where %d are to be held", peak>>10, most>>10)
	}
	leave()
	for _, end := range ends {
		_ = end()
	}
	_ = s.CloseRequest()
	if _, _, err := rest(s); err != nil {
		t.Fatal(err)
	}
	m.cut()
	publishers.Wait()
}

// newTestFlow is a stream's connection to nobody.
func newTestFlow(t *testing.T, b *Broker) *flow {
	t.Helper()
	f := newFlow(&guard{flight: b.flight, bodyTime: time.Minute}, httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil), 1<<20)
	var err error
	if f.mem, err = b.memory.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.mem.close(); f.end() })
	return f
}
