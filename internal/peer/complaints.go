package peer

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// complaints are warnings that anybody out there can cause, so each is said once a
// minute at most.
type complaints struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]time.Time // guarded by mu
}

func newComplaints(l *slog.Logger) *complaints {
	return &complaints{logger: l, said: map[string]time.Time{}}
}

// warn logs what it has not said within a minute, by text and first argument; of
// many different ones within a minute, no more.
func (c *complaints) warn(msg string, args ...any) {
	key := msg + fmt.Sprint(args[:min(2, len(args))]...)
	now := time.Now()
	c.mu.Lock()
	for k, at := range c.said {
		if now.Sub(at) > time.Minute {
			delete(c.said, k)
		}
	}
	_, said := c.said[key]
	said = said || len(c.said) >= 64
	if !said {
		c.said[key] = now
	}
	c.mu.Unlock()
	if !said {
		c.logger.Warn(msg, args...)
	}
}
