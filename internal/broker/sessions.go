package broker

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// sessions remembers which partitions each session had shares of since this
// node started. A delivery stays with its holder when its partition goes to
// another member; so the holder, polling again, must be asked there too. A
// session that this node has not seen yet is asked everywhere, once.
type sessions struct {
	mu  sync.Mutex
	had map[uint64]map[uint32]bool // guarded by mu: session → numbers of partitions
}

func newSessions() *sessions { return &sessions{had: map[uint64]map[uint32]bool{}} }

func (s *sessions) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.had, session)
}

// shares are where a member's Receive looks: its shares for new deliveries, and
// wherever else it may hold some.
func (s *sessions) shares(t *topic, m *coordinator.Member) []consumer.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	had, seen := s.had[m.Session]
	if !seen {
		had = make(map[uint32]bool, len(m.Shares))
		for i := range t.Partitions {
			had[uint32(i)] = true
		}
	}
	out := make([]consumer.Share, 0, len(m.Shares))
	now := make(map[uint32]bool, len(m.Shares))
	for _, sh := range m.Shares {
		now[sh.Partition] = true
		out = append(out, consumer.Share{Partition: t.Partitions[sh.Partition].ID, Share: sh.Share, Shares: sh.Shares})
	}
	for n := range had {
		if !now[n] {
			out = append(out, consumer.Share{Partition: t.Partitions[n].ID, HeldOnly: true})
		}
	}
	if !seen {
		s.had[m.Session] = now
		return out
	}
	for n := range now {
		had[n] = true
	}
	return out
}

// watchSessions makes the deliveries of sessions that ended lapse, in every
// partition where the member holds some: a member that is gone, by time or by a
// newer session, does not keep its messages until their deadlines.
func (b *Broker) watchSessions() {
	m, changed := b.coord.Watch()
	b.endStrangers(m)
	for {
		select {
		case <-changed:
		case <-b.serving.Done():
			return
		}
		var now *coordinator.Map
		now, changed = b.coord.Watch()
		for _, e := range coordinator.EndedSessions(m, now) {
			b.sessions.forget(e.Number)
			if t, ok := now.TopicByID(e.Topic); ok && t.Phase == coordinator.Ready {
				b.endSession(b.serving, t, consumer.GroupID(e.Group), e.Member, e.Number+1)
			}
		}
		m = now
	}
}

// endSession ends a member's sessions before one in all partitions.
func (b *Broker) endSession(ctx context.Context, t *coordinator.Topic, g consumer.GroupID, member string, before uint64) {
	err := each(ctx, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
		return b.groups.EndSession(ctx, id, g, member, before)
	})
	if err != nil && ctx.Err() == nil && !overdue(err) {
		// The deliveries lapse at their deadlines instead.
		b.log.Warn("cannot end a session", "topic", t.Name, "group", g, "member", member, "err", err)
	}
}

// endStrangers ends, at start, what is held for members without a session:
// their sessions ended while nobody could tell the partitions.
func (b *Broker) endStrangers(m *coordinator.Map) {
	for t := range m.Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		for g := range t.Groups() {
			if g.Phase != coordinator.Ready {
				continue
			}
			gid := consumer.GroupID(g.ID)
			err := each(b.serving, t, func(ctx context.Context, _ int, id partition.PartitionID) error {
				state, err := b.groups.Stats(ctx, id, gid)
				if err != nil {
					return err
				}
				for _, hold := range state.Members {
					before := uint64(math.MaxUint64)
					if mem, ok := g.Member(hold.Member); ok {
						before = mem.Session
					}
					if err := b.groups.EndSession(ctx, id, gid, hold.Member, before); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil && b.serving.Err() == nil {
				b.log.Warn("cannot look for ended sessions", "topic", t.Name, "group", g.Name, "err", err)
			}
		}
	}
}

// sessionText and parseSession are a session's one printed form.
func sessionText(s uint64) string { return strconv.FormatUint(s, 10) }

func parseSession(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || sessionText(n) != text {
		return 0, refuse("BAD_VALUE", "session", "%s is not a session: send it as Join or Receive gave it, or leave it empty", quote(text))
	}
	return n, nil
}

// receive waits for deliveries until some come, the time is over, or the session
// ends. When the member's assignment changes meanwhile it looks in the new
// partitions; when the node stops it answers.
func (b *Broker) receive(ctx context.Context, t *topic, gid coordinator.GroupID, req consumer.ReceiveRequest) ([]consumer.Delivery, string, error) {
	end := time.Now().Add(req.Wait)
	for {
		m, changed := b.coord.Watch()
		g, ok := m.GroupByID(gid)
		if !ok {
			return nil, "", refuse("UNKNOWN_GROUP", "group", "the group was deleted")
		}
		member, err := g.Session(req.Member, req.Session)
		if err != nil {
			return nil, "", err
		}
		req.Shares = b.sessions.shares(t, member)
		req.Wait = max(0, time.Until(end))
		if req.Wait == 0 {
			return b.groups.Receive(ctx, req)
		}
		wait, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { // ends with the call below
			defer close(done)
			b.attend(wait, cancel, g, req, changed)
		}()
		deliveries, idle, err := b.groups.Receive(wait, req)
		interrupted := wait.Err() != nil
		cancel()
		<-done
		switch {
		case len(deliveries) > 0:
			return deliveries, "", nil
		case ctx.Err() != nil:
			return nil, "", ctx.Err()
		case b.serving.Err() != nil:
			return nil, "", b.stopping()
		case interrupted:
			continue // somewhere else now, or to hear that the session ended
		}
		return deliveries, idle, err
	}
}

// attend keeps a waiting session alive, and interrupts the wait when its group
// changed or the node stops.
func (b *Broker) attend(ctx context.Context, interrupt context.CancelFunc, g *coordinator.Group, req consumer.ReceiveRequest, changed <-chan struct{}) {
	beat := time.NewTicker(b.cfg.SessionTimeout / 4)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.serving.Done():
			interrupt()
			return
		case <-beat.C:
			if _, err := b.coord.Heartbeat(g.ID, req.Member, req.Session); err != nil {
				interrupt()
				return
			}
		case <-changed:
			var m *coordinator.Map
			m, changed = b.coord.Watch()
			if now, ok := m.GroupByID(g.ID); !ok || now.Generation != g.Generation || now.Phase != g.Phase {
				interrupt()
				return
			}
		}
	}
}
