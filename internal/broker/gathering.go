package broker

import "sync"

// shared has hundreds who scrape at once share what is gathered: one gathers at a
// time, and whoever comes meanwhile gets what is gathered next, so nobody gets what is
// older than the question.
//
//	first  ──gathers──────────┐
//	second      waits ────────┴──gathers──┐
//	third            waits ───────────────┴── has the second's
type shared[T any] struct {
	from func() ([]T, error)

	turn sync.Mutex // held while somebody gathers; before mu
	mu   sync.Mutex
	next *gathering[T] // guarded by mu: not begun yet; nil: nobody waits for one
}

// gathering is one look at all metrics. Who shares it only reads.
type gathering[T any] struct {
	waiting int           // guarded by shared.mu
	done    chan struct{} // closed when the others are set
	got     []T
	err     error
}

// Gather gives what is gathered from now on.
func (s *shared[T]) Gather() ([]T, error) {
	s.mu.Lock()
	g := s.next
	first := g == nil
	if first {
		g = &gathering[T]{done: make(chan struct{})}
		s.next = g
	}
	g.waiting++
	s.mu.Unlock()
	if first {
		s.gather(g)
	}
	<-g.done
	return g.got, g.err
}

func (s *shared[T]) gather(g *gathering[T]) {
	s.turn.Lock()
	defer s.turn.Unlock()
	defer close(g.done)
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	g.got, g.err = s.from()
}

func share[T any](from func() ([]T, error)) *shared[T] { return &shared[T]{from: from} }
