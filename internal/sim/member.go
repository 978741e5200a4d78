package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
)

// member is one member of a group: it takes deliveries from streams, works on them
// for a while, and settles them in every way there is. With one node it has a stream
// over all partitions, otherwise one to each partition's leader.
type member struct {
	s     *Sim
	r     *rand.Rand
	name  string
	group consumer.GroupID
	slow  bool // takes longer than its deadlines
	links []*link
	down  time.Duration // crashed until then
	good  bool          // settles everything in time
	asks  bool          // has no streams: it asks, settles, and asks again
}

// link is a session of a member.
type link struct {
	m       *member
	parts   []partition.PartitionID
	session uint64
	node    *node
	boot    int
	st      *consumer.Stream
	told    time.Duration    // when it last told its shares
	ask     *consumer.Asking // of a member that asks again and again
	until   time.Duration    // when it gives up
}

func (m *member) heal()          { m.good, m.slow, m.down = true, false, 0 }
func (m *member) undone() string { return "" }

func (m *member) loop() {
	if m.s.now >= m.down {
		for _, l := range m.links {
			l.turn()
		}
	}
	m.s.after(m.s.between(m.r, time.Millisecond, 60*time.Millisecond), m.name, m.loop)
}

// crash has the member vanish, without a word, for a while.
func (m *member) crash(d time.Duration) {
	m.s.say("%s of %v crashes for %v", m.name, m.group, d)
	m.down = m.s.now + d
	for _, l := range m.links {
		l.drop()
	}
}

// drop is a connection that broke: what serves it notices.
func (l *link) drop() {
	if l.st != nil && l.alive() {
		l.st.SetShares(nil)
	}
	if l.ask != nil {
		l.ask.End()
	}
	l.st, l.ask = nil, nil
}

func (l *link) alive() bool { return l.node != nil && l.node.up && l.node.boot == l.boot }

func (l *link) turn() {
	if l.st != nil && !l.alive() {
		l.st, l.ask = nil, nil // nothing comes any more of a call that was under way there
	}
	if l.st == nil {
		l.open()
		return
	}
	if l.s().now-l.told > time.Second {
		l.told = l.s().now
		if n := l.s().leader(l.parts[0]); n != nil && n != l.node {
			l.drop()
			return
		}
		if !l.m.asks {
			l.st.SetShares(l.shares())
		}
	}
	if l.m.r.IntN(40) == 0 || l.m.asks && l.m.r.IntN(4) == 0 {
		l.askAgain()
	}
	if l.m.asks {
		l.receive()
		return
	}
	for {
		hs, err := l.st.Poll(consumer.DefaultMaxBytes)
		if err != nil {
			var ended *consumer.ErrSessionEnded
			var gone *consumer.ErrUnknownGroup
			if !errors.As(err, &ended) && !errors.As(err, &gone) {
				l.s().fault("%s: its stream ends: %v", l.m.name, err)
			}
			l.st = nil
			return
		}
		if len(hs) == 0 {
			break
		}
		for i := range hs {
			l.take(&hs[i])
		}
	}
}

// receive is what a member does that has no stream: a call is under way, or the next
// one begins.
func (l *link) receive() {
	if l.ask == nil {
		req := consumer.ReceiveRequest{
			Group: l.m.group, Member: l.m.name, Session: l.session, Shares: l.shares(), Max: 1 + l.m.r.IntN(6), MaxBytes: 10 << l.m.r.IntN(8),
			Wait: time.Duration(l.m.r.IntN(2)) * time.Second,
		}
		a, err := l.node.shell.Ask(req)
		if err != nil {
			l.s().fault("%s: %v", l.m.name, err)
			return
		}
		l.ask, l.until = a, l.s().now+l.s().between(l.m.r, 10*time.Millisecond, 3*time.Second)
	}
	if l.s().now > l.until {
		l.ask.End()
	}
	ds, over, err := l.ask.Poll()
	if !over {
		return
	}
	l.ask = nil
	var ended *consumer.ErrSessionEnded
	var gone *consumer.ErrUnknownGroup
	if err != nil {
		if !errors.As(err, &ended) && !errors.As(err, &gone) && !retriable(err) {
			l.s().fault("%s: its call ends: %v", l.m.name, err)
		}
		l.drop()
		return
	}
	if l.s().now < l.until && l.m.r.IntN(10) == 0 {
		return // the answer is lost: it is found by asking what is held
	}
	for _, d := range ds {
		l.given(d)
	}
}

// given takes one delivery of a call.
func (l *link) given(d consumer.Delivery) {
	g := l.s().judge.group(d.Partition, l.m.group)
	_, before := g.outs[d.Fence]
	if o := g.delivered(l.m.name, l.session, d); o != nil && !before {
		l.work(g, o, l.st, 0, true)
	}
}

func (l *link) s() *Sim { return l.m.s }

func (l *link) shares() (out []consumer.Share) {
	for _, p := range l.parts {
		out = append(out, consumer.Share{Partition: p})
	}
	return out
}

// open begins a new session, and ends the ones before.
func (l *link) open() {
	n := l.s().leader(l.parts[0])
	if n == nil {
		return
	}
	l.session++
	st, err := n.shell.Open(consumer.StreamRequest{Group: l.m.group, Member: l.m.name, Session: l.session})
	if err != nil {
		l.s().fault("%s: %v", l.m.name, err)
		return
	}
	l.node, l.boot, l.st, l.told = n, n.boot, st, l.s().now
	if !l.m.asks {
		st.SetShares(l.shares())
		st.AddCredit(1 + l.m.r.IntN(8))
	}
	for _, p := range l.parts {
		l.endBefore(p, l.session)
	}
}

// endBefore tells a partition, until it has heard, that sessions ended.
func (l *link) endBefore(p partition.PartitionID, session uint64) {
	g := l.s().judge.group(p, l.m.group)
	g.lost[l.m.name] = max(g.lost[l.m.name], session)
	l.s().call(p, func(n *node) error { return n.shell.EndSession(context.Background(), p, l.m.group, l.m.name, session) }, func(err error) {
		if retriable(err) && session == l.session {
			l.s().after(100*time.Millisecond, "end session", func() { l.endBefore(p, session) })
		}
	})
}

// take takes deliveries of one partition.
func (l *link) take(h *consumer.Handed) {
	g := l.s().judge.group(h.Partition, l.m.group)
	for i := range h.Deliveries {
		x := &h.Deliveries[i]
		d := consumer.Delivery{
			Partition: h.Partition, Attempt: x.Attempt, Token: l.st.Token(h, i), Deadline: x.Deadline, FirstSeen: x.FirstSeen,
			Fence: x.Fence, Replayed: x.Replayed,
			Message: partition.Message{Offset: x.Message.Offset, PublishTime: x.Message.PublishTime, Record: x.Message.Record.Record()},
		}
		if l.s().planted.is("changed-body", 0.02) {
			d.Message.Record.Body = append([]byte("x"), d.Message.Record.Body...)
		}
		if d.Attempt > 1 && l.s().planted.is("lost-attempt", 0.2) {
			d.Attempt--
		}
		o := g.delivered(l.m.name, l.session, d)
		if o == nil {
			return
		}
		if l.s().planted.is("handed-twice", 0.02) {
			d.Fence++
			d.Token.HandOut++
			d.Token.Ordinal++
			g.delivered("m9", 1, d)
		}
		if l.s().planted.is("early-lapse", 0.05) {
			d.Fence, d.Token.HandOut, d.Token.Ordinal, d.Attempt = d.Fence+1000, d.Token.HandOut+1000, d.Token.Ordinal+1, d.Attempt+1
			g.delivered("m9", 1, d)
		}
		l.work(g, o, l.st, h.First+uint64(i), true)
	}
}

// work settles a delivery after a while; the number is its stream's.
func (l *link) work(g *groupBook, o *out, st *consumer.Stream, number uint64, first bool) {
	m := l.m
	most := l.s().plan.work
	if m.slow && m.r.IntN(2) == 0 {
		most = 40 * time.Second
	}
	if m.good {
		most = 2 * time.Millisecond
	}
	session := o.session
	l.s().after(l.s().between(m.r, time.Millisecond, most), "work", func() {
		a := consumer.Ack
		switch k := m.r.IntN(100); {
		case m.good:
		case l.s().deadly(o.key) && k < 90:
			a = []consumer.Action{consumer.Nack, consumer.Nack, consumer.Reject}[k%3]
		case k < 80:
		case k < 88:
			a = consumer.Nack
		case k < 90:
			a = consumer.Reject
		case k < 93 && first:
			a = consumer.Extend
		case k < 96:
			a = consumer.Release
		default:
			// Forgotten: its time runs out.
			l.s().after(time.Second, "credit", func() { l.credit(st) })
			return
		}
		if m.s.now < m.down || session != l.session && m.r.IntN(2) == 0 {
			return // it is gone; or it is not, and comes too late
		}
		l.settle(g, o, st, number, a, m.asks || m.r.IntN(2) == 0)
		if a == consumer.Extend {
			l.work(g, o, st, number, false)
		}
	})
}

func (l *link) credit(st *consumer.Stream) {
	if st == l.st && st != nil && l.alive() {
		st.AddCredit(1)
	}
}

// settle sends a settlement, by its number on the stream or by its token.
func (l *link) settle(g *groupBook, o *out, st *consumer.Stream, number uint64, a consumer.Action, byToken bool) {
	asked := l.s().now
	g.settling(o, a)
	delay := partition.Millis(0)
	if a == consumer.Nack && l.m.r.IntN(4) == 0 {
		delay = partition.Millis(l.m.r.IntN(3000))
	}
	over := func(res consumer.SettleResult) {
		if errors.As(res.Err, new(*consumer.ErrStale)) && l.s().planted.is("stale-token", 1) {
			res.Err = nil
		}
		g.settled(o, a, asked, res)
		if a != consumer.Extend {
			l.credit(st)
		}
		var led *partition.ErrNotLeader
		if res.Err != nil && (retriable(res.Err) || errors.As(res.Err, &led)) && !l.m.good && l.m.r.IntN(3) == 0 {
			return // it gives up
		}
		if retriable(res.Err) {
			l.s().after(50*time.Millisecond, "settle again", func() { l.settle(g, o, st, number, a, true) })
		}
		if res.Err == nil && a == consumer.Ack && l.m.r.IntN(20) == 0 {
			// Sent again, as if the answer had been lost: success again (P6).
			l.s().after(l.s().between(l.m.r, time.Millisecond, 5*time.Second), "ack again", func() { l.ackAgain(g, o) })
		}
	}
	if !byToken && st == l.st && st != nil && l.alive() {
		st.Settle(context.Background(), []consumer.SettleRun{{First: number, Action: a, Delay: delay}}, func(rs []consumer.SettleRunResult) {
			over(rs[0].SettleResult)
		})
		return
	}
	x := []consumer.Settlement{{Token: o.d.Token, Action: a, Delay: delay, Member: o.member}}
	var res consumer.SettleResult
	l.s().call(g.part, func(n *node) error {
		res = n.shell.Settle(context.Background(), g.id, x)[0]
		return res.Err
	}, func(err error) {
		if res.Err == nil && err != nil {
			res.Err = err
		}
		over(res)
	})
}

func (l *link) ackAgain(g *groupBook, o *out) {
	x := []consumer.Settlement{{Token: o.d.Token, Action: consumer.Ack}}
	l.s().call(g.part, func(n *node) error { return n.shell.Settle(context.Background(), g.id, x)[0].Err }, func(err error) {
		var stale *consumer.ErrStale
		// Of what retention took since, a group with losses may not know any more.
		kept := o.d.Message.Offset >= l.s().judge.logs[g.part].start
		if errors.As(err, &stale) && g.resets == 0 && kept {
			g.fault("P6: the ack of %d by hand-out %d was confirmed, and is refused when it is sent again: %v", o.d.Message.Offset, o.d.Fence, err)
		}
	})
}

// askAgain asks what the session holds: the same deliveries as before (P8).
func (l *link) askAgain() {
	for _, p := range l.parts {
		g, st, session := l.s().judge.group(p, l.m.group), l.st, l.session
		req := consumer.ReceiveRequest{Group: l.m.group, Member: l.m.name, Session: session, Max: 1000}
		_ = l.node.shell.HeldAsync(p, req, func(read func() ([]consumer.Delivery, error), err error) {
			if err != nil {
				return
			}
			l.s().after(0, "held", func() {
				if l.st != st || !l.alive() {
					return
				}
				ds, err := read()
				if err != nil && !retriable(err) {
					g.fault("P8: what %s holds does not read: %v", l.m.name, err)
				}
				for _, d := range ds {
					if l.m.asks {
						l.given(d)
					} else if was := g.outs[d.Fence]; was != nil {
						g.delivered(l.m.name, session, d)
					}
				}
			})
		})
	}
}

// retriable errors say that it was the node's turn that failed.
func retriable(err error) bool {
	var unknown *partition.ErrOutcomeUnknown
	var stopped *partition.ErrStopped
	var led *partition.ErrNotLeader
	var full *partition.ErrFull
	var away *partition.ErrUnknownPartition // its replica was removed
	return damaged(err) || errors.As(err, &away) || errors.As(err, &unknown) || errors.As(err, &stopped) || errors.As(err, &led) || errors.As(err, &full)
}

// call makes a call to a partition's leader, after the network's time, in a fiber.
func (s *Sim) call(p partition.PartitionID, do func(*node) error, done func(error)) {
	s.after(s.between(s.rand.net, 50*time.Microsecond, 5*time.Millisecond), "call", func() {
		n := s.leader(p)
		if n == nil || s.rand.net.Float64() < s.plan.lossy {
			s.after(200*time.Millisecond, "no answer", func() { done(&partition.ErrNotLeader{Partition: p}) })
			return
		}
		s.spawn(func() {
			err := do(n)
			s.after(s.between(s.rand.net, 50*time.Microsecond, 5*time.Millisecond), "answer", func() { done(err) })
		})
	})
}

// deadly keys are never handled.
func (s *Sim) deadly(key string) bool {
	for i := range s.plan.deadly {
		for _, p := range s.parts() {
			if key == keyName(p, i) {
				return true
			}
		}
	}
	return false
}

// clientele makes the groups, and who uses them.
func (s *Sim) clientele() {
	for _, p := range s.parts() {
		for i := range s.plan.groups {
			id, pol := consumer.GroupID(i+1), s.plan.policies[i]
			s.judge.addGroup(p, id, pol)
			s.create(p, consumer.GroupSpec{ID: id, Name: fmt.Sprintf("g%d", id), Policy: pol})
		}
	}
	for i := range s.plan.publishers {
		r := source(s.plan.seed, fmt.Sprintf("publisher %d", i))
		p := &publisher{s: s, r: r, name: fmt.Sprintf("p%d", i), part: s.parts()[i%s.plan.parts], how: []string{"ids", "sequence", "neither"}[r.IntN(3)]}
		s.clients = append(s.clients, p)
		s.after(time.Second, p.name, p.loop)
	}
	for i := range s.plan.groups {
		for k := range s.plan.members {
			r := source(s.plan.seed, fmt.Sprintf("member %d of %d", k, i))
			m := &member{s: s, r: r, name: fmt.Sprintf("m%d", k), group: consumer.GroupID(i + 1), slow: r.IntN(4) == 0, asks: r.IntN(3) == 0}
			if s.plan.nodes == 1 {
				m.links = []*link{{m: m, parts: s.parts()}}
			} else {
				for _, p := range s.parts() {
					m.links = append(m.links, &link{m: m, parts: []partition.PartitionID{p}})
				}
			}
			s.clients = append(s.clients, m)
			s.after(time.Second, m.name, m.loop)
		}
		for _, p := range s.parts() {
			o := &operator{s: s, r: source(s.plan.seed, fmt.Sprintf("operator %d of %d", i, p)), g: s.judge.group(p, consumer.GroupID(i+1))}
			s.clients = append(s.clients, o)
			s.after(2*time.Second, "operator", o.loop)
		}
	}
}

// create makes a group, until it is there.
func (s *Sim) create(p partition.PartitionID, spec consumer.GroupSpec) {
	s.call(p, func(n *node) error { return n.shell.CreateGroup(context.Background(), p, spec) }, func(err error) {
		if err != nil {
			if !retriable(err) {
				s.fault("creating a group: %v", err)
			}
			s.after(100*time.Millisecond, "create", func() { s.create(p, spec) })
		}
	})
}
