package loadtest

import (
	"sync"
	"time"
)

// handlers stand between a member's deliveries and their settlements, for as long
// as the load says that handling takes. What they give is settled together as it
// comes. They end when what comes in is closed; when dropped is, nothing takes time
// any more.
func (m *member) handlers(in <-chan []held, dropped <-chan struct{}) <-chan []held {
	c := &m.g.r.c
	if c.Work == 0 {
		return in
	}
	desk, done, out := make(chan held), make(chan held), make(chan []held)
	go func() {
		defer close(desk)
		for list := range in {
			for _, h := range list {
				desk <- h
			}
		}
	}()
	var working sync.WaitGroup
	for range c.Workers {
		working.Go(func() {
			for h := range desk {
				timer := time.NewTimer(c.Work)
				select {
				case <-timer.C:
				case <-dropped:
					timer.Stop()
				}
				done <- h
			}
		})
	}
	go func() { working.Wait(); close(done) }()
	go gather(done, out)
	return out
}

// gather gives what has come together, as soon as somebody takes it.
func gather(in <-chan held, out chan<- []held) {
	defer close(out)
	var list []held
	for in != nil || len(list) > 0 {
		to := out
		if len(list) == 0 {
			to = nil
		}
		select {
		case h, more := <-in:
			if !more {
				in = nil
				continue
			}
			list = append(list, h)
		case to <- list:
			list = nil
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
