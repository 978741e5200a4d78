package consumer

// Ready is told when Poll may have something: for who waits for other things
// too. It takes the place of Next; one goroutine uses either.
func (st *Stream) Ready() <-chan struct{} { return st.wake }

// First is the size of the delivery that comes next, its key, headers and body, and
// whether it came from elsewhere; 0 when none is there. Poll gives it whatever its
// limit.
func (st *Stream) First() (size int, elsewhere bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.givenNext() {
		return st.given[0].Deliveries[0].Message.Record.Size(), true
	}
	if len(st.got) == 0 || len(st.got[0].hs) == 0 {
		return 0, false
	}
	return int(st.got[0].hs[0].Size), false
}

// givenNext tells whether what came from elsewhere is next: it takes turns with what
// is handed out here. Until the next Poll it is the same. mu is held.
func (st *Stream) givenNext() bool {
	switch {
	case len(st.given) == 0:
		st.givenTurn = false
	case len(st.got) == 0:
		st.givenTurn = true
	}
	return st.givenTurn
}

// Poll is Next without the wait, and with at most so many bytes: nothing and no error
// when nothing was handed out. There may be more, as long as it gives something.
func (st *Stream) Poll(maxBytes int) ([]Handed, error) {
	for {
		st.mu.Lock()
		elsewhere := st.givenNext()
		if st.givenTurn = !elsewhere; elsewhere {
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
