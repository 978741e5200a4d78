package partition

// timers is a heap of when to look at which group: the earliest first, and of
// two at the same time the one with the lower id.
type timers []timer

type timer struct {
	at Millis
	g  *group
}

func (t timer) before(u timer) bool { return t.at < u.at || t.at == u.at && t.g.id < u.g.id }

func (ts timers) next() Millis {
	if len(ts) == 0 {
		return never
	}
	return ts[0].at
}

// due takes one whose time has come; nil when there is none.
func (ts *timers) due(now Millis) *group {
	if len(*ts) == 0 || ts.next() > now {
		return nil
	}
	h := *ts
	g := h[0].g
	n := len(h) - 1
	h[0] = h[n]
	h[n] = timer{}
	h = h[:n]
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < n && h[child].before(h[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*ts = h
	return g
}

func (ts *timers) push(t timer) {
	h := append(*ts, t)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	*ts = h
}
