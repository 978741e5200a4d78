package consumer

import (
	"errors"
	"fmt"

	"github.com/strandmq/strandmq/partition"
)

// A group comes to messages that cannot be read: their block rotted on the disk.
// Their keys are not known, so nothing behind them can be handed out without
// breaking an order, and the group stands before them. Nothing else does. It goes
// on when a reset or retention moves it beyond, or when they read again.

// unreadPatience is how long after it failed the log is read again there.
const unreadPatience partition.Millis = 60_000

// cannotRead notes what a look at the log met.
func (h *hand) cannotRead(err error) {
	var bad *partition.ErrUnreadable
	if errors.As(err, &bad) {
		h.unread, h.unreadAt = bad, h.pace.turn
	}
}

// unreadable is what the group stands before; nil: it does not.
func (g *group) unreadable() *partition.ErrUnreadable {
	if h := g.hand; h != nil && h.unread != nil && h.unread.Offset == max(h.next, g.scanned) {
		return h.unread
	}
	return nil
}

// stands tells whether the log was read a moment ago where it cannot be.
func (h *hand) stands(now partition.Millis) bool {
	return h.g.unreadable() != nil && now >= h.unreadAt && now-h.unreadAt < unreadPatience
}

// wakeToRead is when the hand wants its next turn if somebody waits for what
// cannot be read.
func (h *hand) wakeToRead(now, wake partition.Millis) partition.Millis {
	if len(h.waiters) == 0 || !h.stands(now) {
		return wake
	}
	if at := h.unreadAt + unreadPatience; wake == 0 || at < wake {
		return at
	}
	return wake
}

// unreadStall says that the group stands before what cannot be read.
func (g *group) unreadStall(at partition.Position) (Stall, bool) {
	bad := g.unreadable()
	if bad == nil {
		return Stall{}, false
	}
	return Stall{
		Reason: "PARTITION_DAMAGED", Offset: bad.Offset, Waiting: g.unseen(at), Unreadable: bad,
	}, true
}

// unreadText is the text of who knows no names.
func unreadText(_ GroupID, bad *partition.ErrUnreadable) string {
	return fmt.Sprintf("%s of partition %v cannot be read (%s): reset the group to offset %d there", bad.What(), bad.Partition, bad.Why(), bad.End())
}
