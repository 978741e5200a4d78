package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/partition"
)

// sessions remembers in which partitions each session may hold deliveries: all
// where it had a share in some Receive, and those where it held some when this
// node started. A delivery stays with its holder when its partition goes to
// another member; so the holder, polling again, must be asked there too, and
// when a session ends these are the partitions to be told.
type sessions struct {
	// ending is held while the partitions are told of an end, so that who finds
	// nobody left to tell knows that it is done.
	ending sync.Mutex

	mu  sync.Mutex                 // after ending
	had map[uint64]map[uint32]bool // guarded by mu: session → numbers of partitions
}

func newSessions() *sessions { return &sessions{had: map[uint64]map[uint32]bool{}} }

// note remembers that a session may hold deliveries in a partition.
func (s *sessions) note(session uint64, numbers ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.had[session]
	if had == nil {
		had = map[uint32]bool{}
		s.had[session] = had
	}
	for _, n := range numbers {
		had[n] = true
	}
}

// take forgets a session and gives the partitions to be told of its end.
func (s *sessions) take(session uint64) map[uint32]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.had[session]
	delete(s.had, session)
	return had
}

// sharesOf are shares of a topic's partitions as the groups know them.
func sharesOf(t *topic, shares []coordinator.Share) []consumer.Share {
	out := make([]consumer.Share, len(shares))
	for i, sh := range shares {
		out[i] = consumer.Share{Partition: t.Partitions[sh.Partition].ID, Share: sh.Share, Shares: sh.Shares}
	}
	return out
}

// shares are where a member's Receive looks: its shares for new deliveries, and
// wherever else it may hold some.
func (s *sessions) shares(t *topic, m *coordinator.Member) []consumer.Share {
	numbers := make([]uint32, len(m.Shares))
	out := sharesOf(t, m.Shares)
	for i, sh := range m.Shares {
		numbers[i] = sh.Partition
	}
	s.note(m.Session, numbers...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.had[m.Session] {
		// A partition that is shared by key appears in a member's shares once.
		if !slices.Contains(numbers, n) {
			out = append(out, consumer.Share{Partition: t.Partitions[n].ID, HeldOnly: true})
		}
	}
	return out
}

// watchSessions makes the deliveries of sessions that ended lapse, in every
// partition where the member may hold some: a member that is gone, by time or
// by a newer session, does not keep its messages until their deadlines.
func (b *Broker) watchSessions(m *coordinator.Map) {
	for {
		now, changed := b.coord.Watch()
		for _, e := range coordinator.EndedSessions(m, now) {
			t, ok := now.TopicByID(e.Topic)
			g, there := now.GroupByID(e.Group)
			if ok && there && t.Phase == coordinator.Ready && g.Phase == coordinator.Ready {
				b.noteHolds(t, e)
				b.sessionEnded(b.serving, t, consumer.GroupID(e.Group), e.Member, e.Number)
			} else {
				b.sessions.take(e.Number) // what it held goes with its group
			}
		}
		m = now
		select {
		case <-changed:
		case <-b.serving.Done():
			return
		}
	}
}

// noteHolds notes the partitions led here where a member whose session ended holds
// something: its calls may have come in at a node that is no more.
func (b *Broker) noteHolds(t *coordinator.Topic, e coordinator.Session) {
	if b.far == nil {
		return // what came in here was noted
	}
	for i, p := range t.Partitions {
		if !b.far.here(p.ID) {
			continue
		}
		s, err := b.groups.Stats(b.serving, p.ID, consumer.GroupID(e.Group))
		if err == nil && slices.ContainsFunc(s.Members, func(m consumer.MemberHold) bool { return m.Member == e.Member && m.InFlight > 0 }) {
			b.sessions.note(e.Number, uint32(i))
		}
	}
}

// sessionEnded makes what a session holds lapse, wherever it may hold something.
func (b *Broker) sessionEnded(ctx context.Context, t *coordinator.Topic, g consumer.GroupID, member string, session uint64) {
	b.sessions.ending.Lock()
	defer b.sessions.ending.Unlock()
	b.endSession(ctx, t, g, member, session+1, b.sessions.take(session))
}

// endSession ends a member's sessions before one in some partitions.
func (b *Broker) endSession(ctx context.Context, t *coordinator.Topic, g consumer.GroupID, member string, before uint64, in map[uint32]bool) {
	err := each(ctx, t, func(ctx context.Context, i int, id partition.PartitionID) error {
		if !in[uint32(i)] {
			return nil
		}
		err := b.parts.EndSession(ctx, id, g, member, before, true)
		if errors.As(err, new(*consumer.ErrUnknownGroup)) || errors.As(err, new(*partition.ErrUnknownPartition)) {
			return nil // deleted meanwhile, with all that it held
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		// The deliveries lapse at their deadlines instead.
		b.log.WarnContext(ctx, "cannot end a session", "topic", t.Name, "group", g, "member", member, "err", err)
	}
}

// findHolders looks, at start, who holds deliveries where. What a member with a
// session holds is remembered. What is held for a session that ended while
// nobody could tell the partitions is made to lapse.
func (b *Broker) findHolders(ctx context.Context) {
	for t := range b.coord.View().Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		for g := range t.Groups() {
			if g.Phase != coordinator.Ready {
				continue
			}
			if err := b.findGroupHolders(ctx, t, g, everywhere); err != nil {
				b.log.Warn("cannot look for ended sessions", "topic", t.Name, "group", g.Name, "err", err)
			}
		}
	}
}

// findGroupHolders is findHolders for one group, in some partitions.
func (b *Broker) findGroupHolders(ctx context.Context, t *coordinator.Topic, g *coordinator.Group, where func(coordinator.Partition) bool) error {
	states, _, err := b.statesWhere(ctx, t, g, where)
	if err != nil {
		return err
	}
	in := map[string]map[uint32]bool{}
	for i, s := range states {
		for _, hold := range s.Members {
			if hold.InFlight == 0 {
				continue
			}
			if in[hold.Member] == nil {
				in[hold.Member] = map[uint32]bool{}
			}
			in[hold.Member][uint32(i)] = true
		}
	}
	for name, held := range in {
		if m, ok := g.Member(name); ok {
			b.sessions.note(m.Session, slices.Collect(maps.Keys(held))...)
			b.endSession(ctx, t, consumer.GroupID(g.ID), name, m.Session, held)
			continue
		}
		// Which session it was nobody knows any more. A new one is later than
		// all of them, and is not used for anything else.
		j, err := b.members.Join(ctx, t.Name, g.Name, name)
		if err != nil {
			return err
		}
		b.endSession(ctx, t, consumer.GroupID(g.ID), name, j.Member.Session, held)
		if err := b.members.Leave(ctx, g.ID, name, j.Member.Session); err != nil {
			return err
		}
	}
	return nil
}

// sessionText and parseSession are a session's one printed form: its number, and
// a hash of whose it is. The number of a session that is over names nobody any
// more; the hash tells that it was not the caller's. It keeps mistakes apart, and
// is no secret.
func sessionText(g coordinator.GroupID, member string, s uint64) string {
	return fmt.Sprintf("%d-%08x", s, uint32(keyspace.HashString(uint64(g), member)))
}

func parseSession(g coordinator.GroupID, member, text string) (uint64, error) {
	if text == "" {
		return 0, refuse("BAD_VALUE", "session", "a session is missing: send the one that Join or Receive gave")
	}
	number, holder, _ := strings.Cut(text, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	h, bad := strconv.ParseUint(holder, 16, 32)
	if err != nil || bad != nil || n == 0 || fmt.Sprintf("%d-%08x", n, h) != text {
		return 0, refuse("BAD_VALUE", "session", "%s is not a session: send it as Join or Receive gave it", plain.Quote(text))
	}
	if sessionText(g, member, n) != text {
		return 0, &coordinator.ErrNoSession{Member: member, Session: n}
	}
	return n, nil
}
