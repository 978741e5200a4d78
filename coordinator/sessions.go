package coordinator

import (
	"context"
	"sync"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Joined is what became of a join.
type Joined struct {
	Topic  *Topic
	Group  *Group
	Member *Member // with session and shares
	// Replaced is the member's earlier session, which ended by this; 0: there
	// was none.
	Replaced uint64
}

// Join opens a session for a member. An earlier session of the same name ends;
// its number is in the answer, and its deliveries should be made to lapse.
// Errors: *names.Error, *ErrNotFound, *ErrBusy, *ErrLimit.
func (c *Coordinator) Join(ctx context.Context, topic, group, member string) (Joined, error) {
	return c.join(ctx, topic, group, member, &storagev1.Join{})
}

// JoinStream is Join for a session that lives by a stream: once it falls silent
// it ends, with all that it holds.
func (c *Coordinator) JoinStream(ctx context.Context, topic, group, member string) (Joined, error) {
	return c.join(ctx, topic, group, member, &storagev1.Join{Stream: true})
}

// Open is Join for callers that do not care for sessions: it answers the
// member's open session where there is one, and brings the member back if it was
// away, or drains without a stream.
func (c *Coordinator) Open(ctx context.Context, topic, group, member string) (Joined, error) {
	if t, g, err := c.View().Group(topic, group); err == nil {
		if m, ok := g.Member(member); ok && m.Takes() {
			c.hear(m.Session)
			return Joined{Topic: t, Group: g, Member: m}, nil
		}
	}
	return c.join(ctx, topic, group, member, &storagev1.Join{Keep: true})
}

func (c *Coordinator) join(ctx context.Context, topic, group, member string, cmd *storagev1.Join) (Joined, error) {
	if err := names.Member(member); err != nil {
		return Joined{}, err
	}
	_, g, err := c.View().Group(topic, group)
	if err != nil {
		return Joined{}, err
	}
	cmd.GroupId, cmd.Member = uint64(g.ID), member
	r, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Join{Join: cmd}})
	if err != nil {
		return Joined{}, err
	}
	c.hear(r.member.Session)
	return Joined{Topic: r.topic, Group: r.group, Member: r.member, Replaced: r.replaced}, nil
}

// Heartbeat keeps a session alive and returns its member as it is now. It costs
// next to nothing: of many calls only a few reach the log's leader. A member that
// was away, or is about to be, comes back by it, which is an entry of the log. Errors: *ErrNotFound,
// *ErrSessionEnded, *ErrNoSession, *ErrBusy.
func (c *Coordinator) Heartbeat(ctx context.Context, group GroupID, member string, session uint64) (*Member, error) {
	m, err := c.View().SessionOf(group, member, session)
	if err != nil {
		return nil, err
	}
	c.hear(session)
	if m.Away || c.ending(session) {
		r, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Join{Join: &storagev1.Join{
			GroupId: uint64(group), Member: member, Keep: true, Session: session,
		}}})
		if err != nil {
			return nil, err
		}
		m = r.member
	}
	return m, nil
}

// ending tells whether a command is on its way by which a session ends, or its member is
// away: a sign of life that comes now has to come behind it in the log.
func (c *Coordinator) ending(session uint64) bool {
	e := c.app.ending.Load()
	return e != nil && (*e)[session] != nil
}

// Drain has a member take nothing more: its shares go to others, and its session
// stays, for what it holds, until Leave, or until it falls silent. A sign of life
// does not give it shares again, a Join does. Errors as of Leave.
func (c *Coordinator) Drain(ctx context.Context, group GroupID, member string, session uint64) error {
	return c.leave(ctx, &storagev1.Leave{GroupId: uint64(group), Member: member, Session: session, Drain: true})
}

// Leave closes a session; its shares go to others. A session that has ended is
// an *ErrSessionEnded, one that never was an *ErrNoSession. To have its deliveries released, not charged, tell the
// partitions first: whoever watches the map takes sessions that ended for lost.
func (c *Coordinator) Leave(ctx context.Context, group GroupID, member string, session uint64) error {
	return c.leave(ctx, &storagev1.Leave{GroupId: uint64(group), Member: member, Session: session})
}

func (c *Coordinator) leave(ctx context.Context, cmd *storagev1.Leave) error {
	if _, err := c.View().SessionOf(GroupID(cmd.GroupId), cmd.Member, cmd.Session); err != nil {
		return err
	}
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Leave{Leave: cmd}})
	return err
}

// Miss says that a call of a session broke off, and that its caller heard nothing of the
// session for so long since. If nobody told this node of a sign of life meanwhile, its
// member is away before the timeout. That is for sessions without a stream that are not
// away; of others it does nothing. Errors: *ErrNotFound, *ErrSessionEnded, *ErrNoSession,
// those of Host.Post.
func (c *Coordinator) Miss(group GroupID, member string, session uint64, silent partition.Millis) error {
	m, err := c.View().SessionOf(group, member, session)
	if err != nil || m.Stream || m.Away {
		return err
	}
	if at, now := c.heartbeats.last(session), c.app.cfg.Now(); at != 0 && now >= at && now-at < silent {
		return nil
	}
	return c.host.Post(partition.Metadata, missed{session})
}

// LastHeard is when a session was last heard of on this node, 0 if never.
func (c *Coordinator) LastHeard(session uint64) partition.Millis {
	return c.heartbeats.last(session)
}

// hear notes a sign of life and, now and then, passes it on.
func (c *Coordinator) hear(session uint64) {
	if c.heartbeats.hear(session, c.app.cfg.Now(), c.View) {
		// A refusal means that the log is not led or not open here; the session
		// is then safe until somebody leads, who grants it a full timeout.
		_ = c.host.Post(partition.Metadata, heard{session})
	}
}

// thinning is how many signs of life of a session are passed on per timeout. A
// session that falls silent ends between one timeout later and a thinning-th of
// it more.
const thinning = 10

// heartbeats thins out signs of life: every Receive and Settle is one, and the
// log's leader need not see them all. Every node has it.
type heartbeats struct {
	every partition.Millis

	mu    sync.Mutex
	heard map[uint64]*[2]partition.Millis // guarded by mu: session → last heard, last passed on
}

func newHeartbeats(timeout partition.Millis) *heartbeats {
	return &heartbeats{every: timeout / thinning, heard: make(map[uint64]*[2]partition.Millis)}
}

// hear tells whether this sign of life is to be passed on.
func (h *heartbeats) hear(session uint64, now partition.Millis, view func() *Map) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.heard[session]
	if !ok {
		if m := view(); len(h.heard) > 2*m.sessions+100 {
			h.forget(m)
		}
		at = &[2]partition.Millis{}
		h.heard[session] = at
	}
	at[0] = now
	// A clock that stepped back must not silence a session.
	if ok && now >= at[1] && now-at[1] < h.every {
		return false
	}
	at[1] = now
	return true
}

// forget drops the sessions that the map does not have, so that the table
// follows the map's size. mu is held.
func (h *heartbeats) forget(m *Map) {
	live := make(map[uint64]*[2]partition.Millis, m.sessions)
	for s := range m.Sessions() {
		if at, ok := h.heard[s.Number]; ok {
			live[s.Number] = at
		}
	}
	h.heard = live
}

func (h *heartbeats) last(session uint64) partition.Millis {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at, ok := h.heard[session]; ok {
		return at[0]
	}
	return 0
}
