package consumer

import (
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// Notice is what a group did by itself: nobody called for it, and somebody may want to
// know. It is told where the partition is led, as it is applied. So a leader that dies
// with what it was told tells nobody; what the group is then is in its state all the
// same.
type Notice struct {
	Partition partition.PartitionID
	Group     GroupID
	Kind      NoticeKind
	Count     uint64 // messages, keys, or times
	Text      string // in words
}

// NoticeKind is what a notice is about.
type NoticeKind byte

// The kinds of notices.
const (
	NoticeExpired  NoticeKind = iota // retention took messages that the group had not settled
	NoticeParked                     // keys wait behind a dead letter
	NoticeOpened                     // the circuit opened
	NoticeClosed                     // it closed
	NoticeDeferred                   // so many messages wait that the group looks no further
)

// marks is what of a group is compared before and after an entry.
type marks struct {
	open, full      bool
	opened, parkeds uint64
	expired         uint64
}

// mark takes the marks of a group; nobody asks for those of one that does not lead.
func (a *App) mark(g *group) (m marks) {
	if g == nil || !a.leading || a.Notice == nil {
		return m
	}
	return marks{open: g.breaker.open, full: !g.room(), opened: g.breaker.opened, parkeds: g.parkeds, expired: g.expired}
}

// tell tells of what an entry made of a group; why is that of messages that it lost.
func (a *App) tell(g *group, was marks, why lossCause) {
	if g == nil || !a.leading || a.Notice == nil {
		return
	}
	now := a.mark(g)
	if now == was {
		return
	}
	say := func(k NoticeKind, n uint64, format string, args ...any) {
		a.Notice(Notice{Partition: a.id, Group: g.id, Kind: k, Count: n, Text: fmt.Sprintf(format, args...)})
	}
	p := &g.policy
	if n := now.expired - was.expired; now.expired > was.expired {
		say(NoticeExpired, n, "retention took messages that it had not settled, by %v; %d in this partition so far", why, now.expired)
	}
	if n := now.parkeds - was.parkeds; n > 0 {
		say(NoticeParked, n, "a key waits behind its dead letter; keys of this partition that do: %d", g.parking)
	}
	if now.opened > was.opened {
		say(NoticeOpened, now.opened-was.opened, "at least %d %% of the deliveries of the last %d ms failed, over %d keys or more: one message at a time is tried", p.BreakerPercent, p.BreakerWindow, p.BreakerKeys)
	}
	if was.open && !now.open {
		say(NoticeClosed, 1, "a message was handled, or the group was changed: messages flow")
	}
	if now.full && !was.full {
		say(NoticeDeferred, 1, "%s", deferredLimit(g.waiting(), p.MaxDeferred))
	}
}
