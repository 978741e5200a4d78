package retry

import (
	"sync/atomic"
	"time"
)

// awake is a clock that goes only while the process runs. A process that is stopped
// (SIGSTOP, a laptop that sleeps) gets one tick for all that it missed.
type awake struct {
	every time.Duration
	ticks atomic.Int64
	stop  func()
	done  chan struct{}
	ended chan struct{}
}

// newAwake starts a clock that is fine enough for a limit.
func newAwake(limit time.Duration) *awake {
	every := max(limit/100, time.Millisecond)
	t := time.NewTicker(every)
	return startAwake(every, t.C, t.Stop)
}

func startAwake(every time.Duration, tick <-chan time.Time, stop func()) *awake {
	a := &awake{every: every, stop: stop, done: make(chan struct{}), ended: make(chan struct{})}
	go func() { // ends with end
		defer close(a.ended)
		for {
			select {
			case <-tick:
				a.ticks.Add(1)
			case <-a.done:
				return
			}
		}
	}()
	return a
}

// time is how long the process ran since the start.
func (a *awake) time() time.Duration { return time.Duration(a.ticks.Load()) * a.every }

// end ends the clock.
func (a *awake) end() {
	a.stop()
	close(a.done)
	<-a.ended
}
