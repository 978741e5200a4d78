package peer

import (
	"errors"
	"maps"
	"time"
)

// reloadEach is how often the identity's files are looked at.
const reloadEach = 10 * time.Second

var errSilent = errors.New("it does not answer")

// keep looks at every node's pulse, at each beat and when something happened, and
// tells of what changed. It alone calls Alive.
func (t *Transport) keep() {
	beat := time.NewTicker(t.cfg.Beat)
	defer beat.Stop()
	told := map[uint64]*peer{}
	last, reloaded := t.now(), t.now()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-beat.C:
		case <-t.nudge:
		}
		now := t.now()
		// Where this process did not run, it could not hear either.
		slept := now-last > t.cfg.Silence/2
		last = now
		t.look(told, now, slept)
		if now-reloaded >= reloadEach {
			reloaded = now
			t.reload()
		}
	}
}

// look judges all nodes once. told are those that were looked at last.
func (t *Transport) look(told map[uint64]*peer, now time.Duration, slept bool) {
	type news struct {
		node uint64
		up   bool
	}
	var tell []news
	t.mu.Lock()
	peers := *t.peers.Load()
	for n, p := range peers {
		if slept && p.told.up {
			p.heard.Store(int64(now))
			p.answered.Store(int64(now))
		}
		pulse := p.pulse()
		p.closeSilent(pulse, now)
		next, changed := p.told.next(pulse, now, t.cfg.Silence)
		p.told = next
		if changed {
			if !next.up {
				p.cutCalls()
			}
			tell = append(tell, news{n, next.up})
		}
	}
	for n, was := range told {
		// One that was taken away and is back is another peer, which begins anew.
		if peers[n] != was && was.told.up {
			tell = append([]news{{n, false}}, tell...)
		}
	}
	clear(told)
	maps.Copy(told, peers)
	t.mu.Unlock()
	for _, n := range tell {
		t.cfg.Logger.Info("node is "+map[bool]string{true: "up", false: "down"}[n.up], "node", n.node)
		t.cfg.Alive(n.node, n.up)
	}
	// Who was told to be down for being another process may be up at once.
	for _, n := range tell {
		if !n.up {
			notify(t.nudge)
		}
	}
}

// pulse reads a node's. Its owner holds mu.
func (p *peer) pulse() pulse {
	return pulse{
		in: p.in != nil, out: p.out != nil, heard: time.Duration(p.heard.Load()), answered: time.Duration(p.answered.Load()),
		busy: p.busy.Load(), refused: p.refused.Load(), reborn: p.reborn.Swap(false),
	}
}

// closeSilent ends connections over which nothing comes any more: the other end may
// be gone without a word, and a new one may get through. Its owner holds mu.
func (p *peer) closeSilent(s pulse, now time.Duration) {
	if p.out != nil && now-max(s.answered, p.out.since) > p.t.cfg.Silence {
		p.out.fail(errSilent)
	}
	if p.in != nil && !s.busy && now-max(s.heard, p.in.since) > p.t.cfg.Silence {
		p.in.close()
	}
}

// reload takes new files of the identity into use.
func (t *Transport) reload() {
	changed, err := t.cfg.Identity.Reload()
	switch {
	case err != nil:
		t.tells.warn("the identity's files cannot be read again; the earlier ones stay in use", "error", err)
	case changed:
		t.cfg.Logger.Info("the identity was read again", "certificate_until", t.cfg.Identity.Expires())
	}
	if left := t.cfg.Identity.Expires().Sub(t.cfg.Now()); left < certificateLife/12 {
		t.tells.warn("this node's certificate ends soon; without a new one the others will refuse it", "until", t.cfg.Identity.Expires(), "left", left.Round(time.Minute))
	}
}
