package retry

import (
	"testing"
	"testing/synctest"
	"time"
)

// A call in which the process slept, for longer than the limit, is made again.
func TestSleepInTheFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		got, err := Do(t.Context(), Config{Limit: time.Minute}, func() (int, error) {
			if calls++; calls == 1 {
				time.Sleep(10 * time.Minute) // the bubble's clock
				return 0, passing{0, true}
			}
			return 7, nil
		})
		if got != 7 || err != nil || calls != 2 {
			t.Errorf("%d, %v after %d calls", got, err, calls)
		}
	})
}

// Calls that take long because nobody answers count against the limit.
func TestSlowCallsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		began := time.Now()
		_, err := Do(t.Context(), Config{Limit: time.Minute}, func() (int, error) {
			calls++
			time.Sleep(30 * time.Second) // the bubble's clock
			return 0, passing{0, true}
		})
		if err == nil || calls != 3 {
			t.Errorf("%v after %d calls in %v", err, calls, time.Since(began))
		}
	})
}

// What was missed counts as one tick.
func TestAwake(t *testing.T) {
	tick := make(chan time.Time)
	a := startAwake(time.Second, tick, func() {})
	for at := time.Unix(0, 0); at.Before(time.Unix(0, 0).Add(3 * time.Hour)); at = at.Add(time.Hour) {
		tick <- at
	}
	a.end()
	if got := a.time(); got != 3*time.Second {
		t.Errorf("three ticks are %v", got)
	}
}
