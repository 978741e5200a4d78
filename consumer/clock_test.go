package consumer

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/strandmq/strandmq/partition"
)

// clocked is a group with deadlines of 5 s and backoffs of 1 s, of whose messages
// a1 and b1 are out and c1 backs off.
type clocked struct {
	*testing.T
	w *world
	s *Shell
	p *memPart
	g *group
	d []Delivery
}

const anHour partition.Millis = 3_600_000

func newClocked(t *testing.T) *clocked {
	c := &clocked{T: t, w: newWorld(1)}
	c.s, c.p = c.w.shell(), c.w.parts[1]
	policy := Default()
	policy.AckDeadline, policy.Backoff, policy.BackoffMax = 5000, 1000, 1000
	if err := c.s.CreateGroup(context.Background(), 1, GroupSpec{ID: 1, Name: "G", Policy: policy}); err != nil {
		t.Fatal(err)
	}
	c.w.publish(1, "a", "b", "c")
	c.d = c.receive()
	c.settle(2, Nack)
	c.want("at first", 2, 1, 1)
	return c
}

func (c *clocked) receive() []Delivery {
	c.Helper()
	ds, _, err := c.s.Receive(context.Background(), ReceiveRequest{
		Group: 1, Member: "A", Session: 1, Max: 10, Shares: []Share{{Partition: 1, Shares: 1}},
	})
	if err != nil {
		c.Fatal(err)
	}
	return ds
}

func (c *clocked) settle(n int, a Action) SettleResult {
	c.Helper()
	r := c.s.Settle(context.Background(), 1, []Settlement{{Token: c.d[n].Token, Action: a}})[0]
	if r.Err != nil {
		c.Fatal(r.Err)
	}
	return r
}

// step sets the clock of the node forward or back.
func (c *clocked) step(d partition.Millis) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.now += d
	c.w.turn(c.p)
}

// changeLeader goes on with a leader whose clock differs.
func (c *clocked) changeLeader(d partition.Millis) {
	c.p.restart()
	c.step(d)
}

func (c *clocked) want(when string, out, backOff uint64, failed uint64) {
	c.Helper()
	c.g = c.p.app.groups[0]
	st, err := c.s.Stats(context.Background(), 1, 1)
	if err != nil {
		c.Fatal(err)
	}
	if st.Counts.InFlight != out || st.Counts.BackingOff != backOff || st.Counts.Retried != failed {
		c.Fatalf("%s: %d are out, %d back off, %d attempts failed; want %d, %d, %d\n%s",
			when, st.Counts.InFlight, st.Counts.BackingOff, st.Counts.Retried, out, backOff, failed, c.p.app.dump())
	}
	if diff := c.p.replayed(); diff != "" {
		c.Fatalf("%s: a restart gives another state:\n%s", when, diff)
	}
}

// A clock that goes back by an hour makes nothing last longer than a ninth.
func TestClockGoesBack(t *testing.T) {
	for name, back := range map[string]func(*clocked){
		"a step":     func(c *clocked) { c.step(-anHour) },
		"new leader": func(c *clocked) { c.changeLeader(-anHour) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClocked(t)
			back(c)
			c.want("after the step", 2, 1, 1)
			c.w.advance(990)
			c.want("before the backoff ended", 2, 1, 1)
			c.w.advance(1000*10/9 - 990 + 2)
			c.want("when the backoff ended", 2, 0, 1)
			c.w.advance(5000 - 1000*10/9 - 10)
			c.want("before the deadline", 2, 0, 1)
			c.w.advance(5000*10/9 - 5000 + 20)
			c.want("after the deadline", 0, 2, 3)
		})
	}
}

// A clock that is fast by an hour ends nothing early by more than maxTurn, and
// no attempt is lost to it, however often leaders change.
func TestClockFarAhead(t *testing.T) {
	for name, ahead := range map[string]func(*clocked){
		"a step":     func(c *clocked) { c.step(anHour) },
		"new leader": func(c *clocked) { c.changeLeader(anHour) },
		"there and back": func(c *clocked) {
			c.changeLeader(anHour)
			c.changeLeader(-anHour)
			c.changeLeader(anHour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClocked(t)
			c.w.advance(100)
			ahead(c)
			c.w.advance(2800)
			if c.want("long before the deadline", 2, 0, 1); c.g.clock < c.w.now-anHour {
				t.Fatalf("the group's clock is %d, and it is %d", c.g.clock, c.w.now)
			}
			if name == "a step" {
				c.w.advance(5000 - 100 - maxTurn - 2800) // the step counted as maxTurn
			} else {
				c.w.advance(5000 - 2800) // the time since the last command, 100 ms, came again
			}
			c.want("after the deadline", 0, 2, 3)
			// What is handed out from now on is timed by the present clock.
			c.w.advance(1000)
			ds := c.receive()
			if len(ds) != 3 {
				t.Fatalf("%d deliveries after the backoff", len(ds))
			}
			for _, d := range ds {
				if left := d.Deadline - c.w.now; left < 4900 || left > 5000 {
					t.Fatalf("a delivery is shown to have %d ms", left)
				}
			}
		})
	}
}

// The commands of the shell carry the group's time, not its node's.
func TestSettleByTheGroupsClock(t *testing.T) {
	c := newClocked(t)
	c.step(-anHour)
	c.w.advance(4000)
	if left := c.settle(0, Extend).Deadline - c.w.now; left < 4000 || left > 5000 {
		t.Fatalf("an extend for 5000 ms is shown to last %d", left)
	}
	c.settle(1, Nack)
	c.want("settled", 1, 1, 2)
	c.w.advance(900)
	c.want("before the backoff ended", 1, 1, 2)
	c.w.advance(3000)
	c.want("before the deadline that was extended", 1, 0, 2)
	c.w.advance(2000)
	c.want("after it", 0, 1, 3)

	// Between two turns of the leader its clock may have made a step, too.
	c.w.advance(5000)
	c.d = c.receive()
	c.w.mu.Lock()
	c.w.now += anHour
	c.w.mu.Unlock()
	before := c.g.clock
	c.settle(0, Ack)
	if c.g.clock > before+maxTurn {
		t.Fatalf("a settlement moved the group's clock by %d ms", c.g.clock-before)
	}
}

// The shell's commands move the clock between the turns of the leader. What they
// moved it by must not be counted again: it would add up.
func TestStampsDoNotDriveTheClock(t *testing.T) {
	c := newClocked(t)
	c.s.Now = func() partition.Millis {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		return c.w.now + 20
	}
	for range 200 {
		c.settle(0, Extend)
		c.settle(1, Extend)
		c.w.advance(10)
		if ahead := c.g.clock - c.w.now; ahead > 20 {
			t.Fatalf("the group's clock is %d ms ahead of the shell's", ahead-20)
		}
	}
	c.want("after 2 s of extends", 2, 0, 1)
}

// A leap is void when it was made before, and traced as it is applied.
func TestLeap(t *testing.T) {
	c := newClocked(t)
	tr := newTracer(c.d[0].Message.Offset, Window{Last: 100})
	c.w.advance(100)
	c.changeLeader(anHour)
	again := encodeLeap(c.g.clock, 1, c.p.app.groups[0].clock)
	before := c.p.app.dump()
	c.p.apply(again)
	if diff := cmp.Diff(before, c.p.app.dump()); diff != "" {
		t.Fatalf("a second leap to the same time changed something:\n%s", diff)
	}
	c.w.advance(6000)
	leaps := 0
	for i, x := range c.p.cmds {
		if command(x.cmd[1]) == cmdLeap {
			leaps++
		}
		if err := tr.command(partition.Index(i), x.cmd); err != nil {
			t.Fatal(err)
		}
	}
	es, _ := tr.events.Told()
	if leaps != 2 || len(es) != 2 || es[1].What != "lapsed" || es[1].Detail[:22] != "no answer within 5000 " {
		t.Fatalf("%d leaps, traced: %+v", leaps, es)
	}
}
