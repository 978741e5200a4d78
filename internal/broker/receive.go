package broker

import (
	"context"
	"time"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
)

// receive waits for deliveries until some come, the time is over, or the session
// ends. When the member's assignment changes meanwhile it looks in the new
// partitions; when the node stops, or the member drains, it answers.
func (b *Broker) receive(ctx context.Context, t *topic, gid coordinator.GroupID, req consumer.ReceiveRequest) ([]consumer.Delivery, string, error) {
	end := time.Now().Add(req.Wait)
	for {
		m, changed := b.coord.Watch()
		g, ok := m.GroupByID(gid)
		if !ok {
			return nil, "", errGroupGone()
		}
		member, err := g.Session(req.Member, req.Session)
		if err != nil {
			return nil, "", err
		}
		if member.Away { // it was missed, by another node or by time, and asks all the same
			if _, err := b.members.Heartbeat(ctx, gid, req.Member, req.Session); err != nil {
				return nil, "", err
			}
			if back, err := b.stillOpen(gid, req); err == nil && !back.Away {
				continue
			}
		}
		if member.Draining {
			end = time.Now() // nothing more will come, and it may be waited for
		}
		req.Shares = b.sessions.shares(t, member)
		if b.coord.View() != m {
			// The session may have ended between the look at it and the note of
			// it, which would then stay, and its partitions would not be told.
			if _, err := b.stillOpen(gid, req); err != nil {
				b.sessions.take(req.Session)
				return nil, "", err
			}
		}
		req.Wait = max(0, time.Until(end))
		if req.Wait == 0 {
			deliveries, idle, err := b.take(ctx, req)
			return deliveries, whyIdle(member, idle), err
		}
		wait, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { // ends with the call below
			defer close(done)
			b.attend(wait, cancel, g, req, changed)
		}()
		deliveries, idle, err := b.take(wait, req)
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
		return deliveries, whyIdle(member, idle), err
	}
}

// drains is why a member that drains gets nothing.
const drains = "the member drains: its partitions went to others, and nothing more is handed out to it"

func whyIdle(m *coordinator.Member, idle string) string {
	if m.Draining && idle != "" {
		return drains
	}
	return idle
}

// stillOpen looks whether a session is in the newest map.
func (b *Broker) stillOpen(gid coordinator.GroupID, req consumer.ReceiveRequest) (*coordinator.Member, error) {
	g, ok := b.coord.View().GroupByID(gid)
	if !ok {
		return nil, errGroupGone()
	}
	return g.Session(req.Member, req.Session)
}

// ended gives the cause of what ended a session: sessions end with their group, and
// groups with their topic. A partition may know of that before the map here does.
func (b *Broker) ended(t *topic, gid coordinator.GroupID, err error) error {
	seen := b.revision()
	if gone := b.groupGone(t, gid); gone != nil {
		return gone
	}
	if r := reasonOf(err); r == "SESSION_ENDED" || r == "UNKNOWN_SESSION" || r == "UNKNOWN_GROUP" || r == "UNKNOWN_TOPIC" {
		ctx, cancel := context.WithTimeout(b.serving, leaderPatience)
		defer cancel()
		if b.caughtUp(ctx, seen) {
			if gone := b.groupGone(t, gid); gone != nil {
				return gone
			}
		}
	}
	return err
}

// groupGone tells that a topic or its group was deleted, as far as the map here goes.
func (b *Broker) groupGone(t *topic, gid coordinator.GroupID) error {
	m := b.coord.View()
	if now, ok := m.FindTopic(t.Name); !ok || now.ID != t.ID || now.Phase == coordinator.Deleting {
		return refuse("UNKNOWN_TOPIC", "topic", "the topic was deleted")
	}
	if g, ok := m.GroupByID(gid); !ok || g.Phase == coordinator.Deleting {
		return errGroupGone()
	}
	return nil
}

func errGroupGone() error { return refuse("UNKNOWN_GROUP", "group", "the group was deleted") }

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
			if _, err := b.members.Heartbeat(ctx, g.ID, req.Member, req.Session); err != nil {
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
