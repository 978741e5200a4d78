package consumer

// Asking is the second half of a Receive, its waiting left to the caller: what the
// session holds already was looked at (see HeldAsync), and the rest is asked for.
type Asking struct {
	s      *Shell
	req    ReceiveRequest
	c      *call
	failed error // of a partition that did not take the demand
	ended  bool
}

// Ask puts a demand to the request's partitions. Wait says only whether it waits for
// a first hand-out (more than 0) or is over when all was tried.
func (s *Shell) Ask(req ReceiveRequest) (*Asking, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = DefaultMaxBytes
	}
	a := &Asking{s: s, req: req, c: newCall(req.Max, req.MaxBytes)}
	a.failed = s.put(a.c, req, requestTag(req.RequestID), s.calls.Add(1))
	return a, nil
}

// Poll gives what was handed out once the call is over, and tells whether it is.
// What was proposed by then is waited for, so that nothing is handed out to nobody.
func (a *Asking) Poll() (ds []Delivery, over bool, err error) {
	if !a.ended {
		over, err := a.c.over(a.req.Wait == 0)
		if err != nil {
			a.c.close()
			return nil, true, err
		}
		if !over {
			return nil, false, nil
		}
		a.End()
	}
	if !a.c.drained() {
		return nil, false, nil
	}
	got, posted := a.c.taken()
	if posted == 0 && len(got) == 0 && a.failed != nil {
		return nil, true, a.failed
	}
	ds, err = a.s.fill(a.req, got)
	return ds, true, err
}

// End says that the time is up. Poll tells the rest.
func (a *Asking) End() {
	a.ended = true
	a.c.close()
}

// taken is what was handed out, and how many partitions still have the demand.
func (c *call) taken() ([]handedOut, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got, c.posted
}
