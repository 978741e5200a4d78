package consumer

import (
	"context"
	"sync"

	"github.com/strandmq/strandmq/partition"
)

// sharedClock lets any goroutine tell a group's time where the group is led: the
// hand sets it at every turn, and the Shell stamps its commands by it.
type sharedClock struct {
	mu    sync.Mutex
	led   bool
	ahead partition.Millis // of the group's time before the leader's own
	most  partition.Millis // no turn of the hand was later than this allows
}

func (c *sharedClock) set(ahead, most partition.Millis) {
	c.mu.Lock()
	c.led, c.ahead, c.most = true, ahead, most
	c.mu.Unlock()
}

func (c *sharedClock) unset() {
	c.mu.Lock()
	c.led = false
	c.mu.Unlock()
}

// at is the group's time where the leader's own clock says now.
func (c *sharedClock) at(now partition.Millis) (partition.Millis, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(now+c.ahead, c.most), c.led
}

type groupIn struct {
	part  partition.PartitionID
	group GroupID
}

// stamp is the time that a command to a group carries: the group's. It is 0,
// which moves no clock, where the group is not led here: then the command is
// refused, or the new leader's own commands will move the clock.
func (s *Shell) stamp(ctx context.Context, pid partition.PartitionID, gid GroupID) partition.Millis {
	key := groupIn{pid, gid}
	if c, ok := s.clocks.Load(key); ok {
		if t, led := c.(*sharedClock).at(s.Now()); led {
			return t
		}
	}
	// Not met before, or not led when last met: a group that was restored has
	// another clock.
	var c *sharedClock
	err := s.view(ctx, pid, gid, func(g *group, _ partition.Position) error {
		c = g.shared
		return nil
	})
	if err != nil {
		s.clocks.Delete(key)
		return 0
	}
	s.clocks.Store(key, c)
	if t, led := c.at(s.Now()); led {
		return t
	}
	return 0
}
