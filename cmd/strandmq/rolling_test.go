//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/loadtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// TestRollingRestarts restarts the nodes of a cluster of three real brokers one after the
// other, and meanwhile the members of a group, each of which is a process of its own: some
// leave in good order, some are killed. The load test publishes and judges: nothing lost,
// nothing twice, every key in order and one at a time. How long it takes until
// everything is settled after the last restart is told, and not held against anybody.
func TestRollingRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("seven processes, and race mode is ten times slower; internal/broker.TestRollingRestart has the nodes in one process")
	}
	t.Parallel()
	f := startSquadron(t, loopback(t, 3))
	c := loadtest.Config{
		Name: "rolling", Partitions: 4, Producers: 2, Groups: 1, Members: 4, Keys: 40, Rate: 300, Batch: 10, Take: 20,
		Nack: 2, Backoff: 20 * time.Millisecond,
		Leave: 900 * time.Millisecond, Crash: 2300 * time.Millisecond, Away: 300 * time.Millisecond,
		// It is cut short when the nodes were restarted.
		Duration: time.Hour, RetryFor: squadronPatience, DrainFor: squadronPatience,
	}
	door := f.door(f.nodes...)
	way, done := loadtest.Streams(door, c)
	defer done()
	b := &membersApart{Broker: way, t: t, f: f, door: door, take: c.Take}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var rep *loadtest.Report
	var failed error
	var loading sync.WaitGroup
	over := make(chan struct{}) // closed when it ended, and nobody had it end
	loading.Go(func() {
		defer close(over)
		rep, failed = loadtest.Run(ctx, c, b)
	})
	defer loading.Wait()
	defer stop()
	var last time.Time
	for i := range 2 * len(f.nodes) {
		s := f.nodes[i%len(f.nodes)]
		if !b.flows(150, over) {
			break
		}
		if err := s.stop(); err != nil {
			t.Errorf("node %d: %v", s.number+1, err)
		}
		f.start(s, "")
		last = time.Now()
		f.serves(s)
		f.whole()
	}
	b.flows(150, over)
	ended := time.Now()
	stop()
	loading.Wait()
	if failed != nil {
		t.Error(failed)
	}
	if rep == nil {
		return
	}
	g := rep.Groups[0]
	t.Logf("%d messages, %d hand-outs again, %d members left and %d were killed, in %d processes; the load ended %.1f s after the last restart, and all was settled %.1f s later",
		rep.Publish.Messages, g.Redelivered, g.Leaves, g.Crashes, b.started.n(), ended.Sub(last).Seconds(), rep.Drain/1000)
	if v := rep.Verdict; v.Outcome != loadtest.Kept {
		t.Errorf("the verdict is %+v", v)
		f.showLogs()
	}
	if g.Leaves < 1 || g.Crashes < 1 || rep.Publish.Messages < 400 {
		t.Errorf("too little happened for the run to prove anything: %+v", g)
	}
}

// tally counts from several goroutines.
type tally struct {
	mu    sync.Mutex
	count int
}

func (c *tally) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += n
}

func (c *tally) n() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// membersApart is the load test's way to a cluster, with each session of a member in a process of
// its own. It ends as sessions do: told to leave, or killed.
type membersApart struct {
	loadtest.Broker
	t       *testing.T
	f       *squadron
	door    string
	take    int
	started tally // processes
	settled tally // acks that were confirmed
}

// flows waits until so many more acks were confirmed. False: the load ended.
func (b *membersApart) flows(more int, over <-chan struct{}) bool {
	b.t.Helper()
	least := b.settled.n() + more
	ended := false
	until(b.t, "the load flows", func() bool {
		select {
		case <-over:
			ended = true
		default:
		}
		return ended || b.settled.n() >= least
	})
	return !ended
}

// CreateTopic implements loadtest.Admin. All nodes have heard of it then.
func (b *membersApart) CreateTopic(ctx context.Context, topic string, partitions uint32) (uint32, error) {
	had, err := b.Broker.CreateTopic(ctx, topic, partitions)
	if err == nil {
		for _, s := range b.f.nodes {
			err = errors.Join(err, heard(ctx, s.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic}))
		}
	}
	return had, err
}

// CreateGroup implements loadtest.Admin, the same.
func (b *membersApart) CreateGroup(ctx context.Context, topic, group string, p loadtest.Policy) error {
	err := b.Broker.CreateGroup(ctx, topic, group, p)
	if err == nil {
		for _, s := range b.f.nodes {
			err = errors.Join(err, heard(ctx, s.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group}))
		}
	}
	return err
}

// heard waits until a node knows of what was made by way of another.
func heard[Req, Res any](ctx context.Context, call func(context.Context, *Req) (*Res, error), req *Req) error {
	for end := time.Now().Add(patience); ; {
		_, err := look(ctx, call, req)
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}

// A sessionCall is what a session's process is told: one of the three.
type sessionCall struct {
	Call    int
	Receive *sessionReceive       `json:",omitempty"`
	Settle  []loadtest.Settlement `json:",omitempty"`
	Leave   bool                  `json:",omitempty"`
}

type sessionReceive struct {
	Most int
	Wait time.Duration
}

// A sessionAnswer is what it tells of a call; of call 0, that it joined.
type sessionAnswer struct {
	Call       int
	Deliveries []loadtest.Delivery `json:",omitempty"`
	Outcomes   []check.Outcome     `json:",omitempty"`
	Refusal    *loadtest.Refusal   `json:",omitempty"`
	Error      string              `json:",omitempty"` // that is no refusal
}

func (a *sessionAnswer) fails(err error) {
	if err != nil && !errors.As(err, &a.Refusal) {
		a.Error = err.Error()
	}
}

func (a *sessionAnswer) err() error {
	switch {
	case a.Refusal != nil:
		return a.Refusal
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// sessionOfALoad is the program of such a process: one session at SERVER, of TOPIC, GROUP,
// MEMBER, with room for TAKE.
func sessionOfALoad() {
	take, err := strconv.Atoi(os.Args[5])
	if err != nil {
		panic(err)
	}
	b, _ := loadtest.Streams(os.Args[1], loadtest.Config{Take: take, RetryFor: squadronPatience})
	out := &teller{out: json.NewEncoder(os.Stdout)}
	ctx := context.Background()
	s, err := b.Join(ctx, os.Args[2], os.Args[3], os.Args[4])
	joined := &sessionAnswer{}
	joined.fails(err)
	out.tell(joined)
	if err != nil {
		return
	}
	err = listen(func(q sessionCall) {
		go func() { // receiving and settling go on beside each other
			a := &sessionAnswer{Call: q.Call}
			var err error
			switch {
			case q.Leave:
				err = s.Leave(ctx)
			case q.Receive != nil:
				a.Deliveries, err = s.Receive(ctx, q.Receive.Most, q.Receive.Wait)
			default:
				a.Outcomes, err = s.Settle(ctx, q.Settle)
			}
			a.fails(err)
			out.tell(a)
		}()
	})
	if err != nil {
		panic(err)
	}
}

// sessionApart is a session in a process.
type sessionApart struct {
	b  *membersApart
	p  *program
	is chan struct{} // closed when nothing comes from the process any more

	mu    sync.Mutex
	calls int
	wait  map[int]chan *sessionAnswer // guarded by mu; nil: nothing comes any more
}

// Join implements loadtest.Broker.
func (b *membersApart) Join(ctx context.Context, topic, group, member string) (loadtest.Session, error) {
	p, err := startProgram(b.t, "session-of-a-load", b.door, topic, group, member, strconv.Itoa(b.take))
	if err != nil {
		return nil, err
	}
	b.started.add(1)
	s := &sessionApart{b: b, p: p, is: make(chan struct{}), wait: map[int]chan *sessionAnswer{}}
	joined := s.expect(0)
	go s.read()
	a, err := s.answer(ctx, joined)
	if err == nil {
		err = a.err()
	}
	if err != nil {
		s.Drop()
		return nil, err
	}
	return s, nil
}

// read passes answers on until the process ends.
func (s *sessionApart) read() {
	defer close(s.is)
	for {
		a := &sessionAnswer{}
		err := s.p.hear(a)
		s.mu.Lock()
		if err != nil {
			for _, c := range s.wait {
				close(c)
			}
			s.wait = nil
			s.mu.Unlock()
			return
		}
		if c := s.wait[a.Call]; c != nil {
			c <- a
			delete(s.wait, a.Call)
		}
		s.mu.Unlock()
	}
}

// expect makes room for the answer to a call.
func (s *sessionApart) expect(call int) chan *sessionAnswer {
	c := make(chan *sessionAnswer, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wait == nil {
		close(c)
	} else {
		s.wait[call] = c
	}
	return c
}

// answer waits for one.
func (s *sessionApart) answer(ctx context.Context, c chan *sessionAnswer) (*sessionAnswer, error) {
	select {
	case a := <-c:
		if a == nil {
			<-s.p.ended
			return nil, s.p.fault(io.ErrUnexpectedEOF)
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *sessionApart) call(ctx context.Context, q sessionCall) (*sessionAnswer, error) {
	s.mu.Lock()
	s.calls++
	q.Call = s.calls
	s.mu.Unlock()
	c := s.expect(q.Call)
	if err := s.p.tell(q); err != nil {
		return nil, err
	}
	return s.answer(ctx, c)
}

// Receive implements loadtest.Session. What came when nobody waits any more is the
// session's until it ends.
func (s *sessionApart) Receive(ctx context.Context, most int, wait time.Duration) ([]loadtest.Delivery, error) {
	a, err := s.call(ctx, sessionCall{Receive: &sessionReceive{most, wait}})
	if err != nil {
		return nil, err
	}
	return a.Deliveries, a.err()
}

// Settle implements loadtest.Session.
func (s *sessionApart) Settle(ctx context.Context, list []loadtest.Settlement) ([]check.Outcome, error) {
	a, err := s.call(ctx, sessionCall{Settle: list})
	if err != nil {
		return nil, err
	}
	for _, o := range a.Outcomes {
		if o == check.Acked {
			s.b.settled.add(1)
		}
	}
	return a.Outcomes, a.err()
}

// Drop implements loadtest.Session: the process is killed.
func (s *sessionApart) Drop() {
	s.p.kill()
	<-s.is
}

// Leave implements loadtest.Session: the process leaves, and ends.
func (s *sessionApart) Leave(ctx context.Context) error {
	defer s.Drop()
	a, err := s.call(ctx, sessionCall{Leave: true})
	if err != nil {
		return err
	}
	return a.err()
}
