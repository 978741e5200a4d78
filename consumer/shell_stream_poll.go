package consumer

// Ready is told when Poll may have something: for who waits for other things
// too. It takes the place of Next; one goroutine uses either.
func (st *Stream) Ready() <-chan struct{} { return st.wake }

// First is the size of the delivery that comes next, its key, headers and body; 0 when
// none is there. Poll gives it whatever its limit.
func (st *Stream) First() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.given) > 0 {
		return st.given[0].Deliveries[0].Message.Record.Size()
	}
	if len(st.got) == 0 || len(st.got[0].hs) == 0 {
		return 0
	}
	return int(st.got[0].hs[0].Size)
}

// Poll is Next without the wait, and with at most so many bytes: nothing and no error
// when nothing was handed out. There may be more, as long as it gives something.
func (st *Stream) Poll(maxBytes int) ([]Handed, error) {
	for {
		st.mu.Lock()
		if len(st.given) > 0 {
			given := st.takeGiven(min(maxBytes, st.req.MaxBytes))
			st.mu.Unlock()
			return given, nil
		}
		got, err := st.take(min(maxBytes, st.req.MaxBytes)), st.err
		if st.closed && err == nil {
			err = &ErrSessionEnded{Member: st.req.Member, Session: st.req.Session}
		}
		st.mu.Unlock()
		if len(got) == 0 {
			return nil, err
		}
		out, back := st.read(got)
		if back > 0 {
			st.AddCredit(back)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}

// Forget lets go of what was given out so far: it is settled by its tokens only.
func (st *Stream) Forget() {
	st.mu.Lock()
	st.kept, st.empty = nil, 0
	st.mu.Unlock()
}
