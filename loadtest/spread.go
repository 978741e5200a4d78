package loadtest

import (
	"context"
	"sync/atomic"
)

// Spread uses several ways to one broker: producers and sessions go to the next one
// each, as clients of a cluster do, and the rest to the first.
func Spread(ways []Broker) Broker {
	if len(ways) == 1 {
		return ways[0]
	}
	return &spread{Broker: ways[0], ways: ways}
}

type spread struct {
	Broker
	ways []Broker
	n    atomic.Uint64
}

func (s *spread) next() Broker { return s.ways[s.n.Add(1)%uint64(len(s.ways))] }

func (s *spread) Publisher(topic string) Publisher { return s.next().Publisher(topic) }

func (s *spread) Join(ctx context.Context, topic, group, member string) (Session, error) {
	return s.next().Join(ctx, topic, group, member)
}
