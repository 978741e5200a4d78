package client

import "slices"

// turns has the messages of a key that the hand-out settled come one after the other:
// the broker, for which they are over, gives out the next one at once.
type turns struct {
	behind map[string][]*task // of keys of which one waits or runs: the others, in order
	n      int                // how many
}

func newTurns() turns { return turns{behind: map[string][]*task{}} }

// first takes a delivery that came, and tells whether it may go before others of its key
// are done.
func (s *turns) first(t *task) bool {
	if t.Key == "" {
		return true
	}
	behind, taken := s.behind[t.Key]
	if !taken {
		s.behind[t.Key] = nil
		return true
	}
	s.behind[t.Key] = append(behind, t)
	s.n++
	return false
}

// next gives the delivery whose turn comes when one is done; nil: there is none.
func (s *turns) next(done *task) *task {
	behind := s.behind[done.Key]
	if len(behind) == 0 {
		delete(s.behind, done.Key)
		return nil
	}
	t := behind[0]
	behind[0] = nil
	s.behind[done.Key] = behind[1:]
	s.n--
	return t
}

// busy tells for how many deliveries handlers run or will.
func (h *hand) busy() int { return len(h.running) + len(h.waiting) + h.turns.n }

// opens gives the credits that a session begins with. What the hand-out settled in an
// earlier one gives its own when it is done.
func (h *hand) opens() int {
	left := len(h.waiting) + h.turns.n
	for _, t := range h.running {
		if t.settled {
			left++
		}
	}
	return max(0, h.prefetch-left)
}

// giveUp lets go of what no handler will have in time, and tells how many messages nobody
// gets for that.
func (h *hand) giveUp() (lost int) {
	before := h.busy()
	h.waiting = slices.DeleteFunc(h.waiting, func(t *task) bool { return t.settled })
	h.turns = newTurns()
	return before - h.busy()
}
