package partition

import "time"

// hangs tells whether the disk does not come back from a write of the log, for so long
// that others should lead, and have been told so. Without other nodes there is nobody to.
func (h *Host) hangs() bool { return h.hanging.Load() }

// SetFull tells that the disk has no room, or has again. While it has none this node
// says so to the others, and leads nothing that another can lead: see
// Config.OnUnfit, whose receiver hands over what it leads.
func (h *Host) SetFull(full bool) { h.full.Store(full) }

// leaves refuses what would wait for a disk that hangs, if others can lead the
// partition meanwhile: they do, or will in a moment.
func (h *Host) leaves(id PartitionID, sh *shelf) error {
	if !h.hangs() {
		return nil
	}
	sh.mu.RLock()
	voters, leader := len(sh.info.Voters), sh.info.Leader
	sh.mu.RUnlock()
	switch {
	case voters < 2:
		return nil
	case leader != h.cfg.Node:
		return &ErrNotLeader{Partition: id, Leader: leader}
	case h.cfg.Store.Stuck() > 0:
		return nil // nobody has taken over by now
	}
	return &ErrNotLeader{Partition: id}
}

// watch tells the other nodes that this one's disk hangs, or is full: what it leads
// stands still, and its loop may, too, while the transport goes on telling that the
// node is there.
func (h *Host) watch() {
	defer close(h.watchEnd)
	ticker := time.NewTicker(max(min(h.cfg.HangAfter/10, h.cfg.Tick*stuckTicks/3), time.Millisecond))
	defer ticker.Stop()
	var last frameKind
	var told time.Time
	for {
		now := time.Now()
		select {
		case <-h.loopDone:
			return
		case now = <-ticker.C:
		}
		kind := frameKind(0)
		hangs := h.cfg.Store.Stuck() > 0 || h.cfg.Store.Waiting() >= h.cfg.HangAfter
		h.hanging.Store(hangs)
		switch {
		case hangs:
			kind = frameStuck
		case h.full.Load():
			kind = frameUnfit
		}
		// At once, and then often enough that they do not take it for over.
		if kind == 0 || kind == last && now.Sub(told) < h.cfg.Tick*stuckTicks/3 {
			last = kind
			continue
		}
		last, told = kind, now
		for _, n := range h.neighbours() {
			h.cfg.Send(n, []Frame{ourFrame(Metadata, kind, h.cfg.Node.Replica(), n.Replica(), 0, 0)})
		}
	}
}
