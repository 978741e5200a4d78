package peer

import "time"

// never is when something happened that has not.
const never time.Duration = -1 << 62

// pulse is what is known of a node's life. Times count from when the Transport
// was made.
type pulse struct {
	in, out  bool          // a connection from it, and one to it
	heard    time.Duration // when something came from it last
	answered time.Duration // when it answered last
	busy     bool          // what came from it is being taken right now, so it cannot be heard
	refused  bool          // its address says that nobody listens there
	reborn   bool          // another process of it was met since it was judged last
}

// alive tells whether both directions work. A connection that breaks and is made
// again within the silence is no death.
func (p pulse) alive(up bool, now, silence time.Duration) bool {
	return (up || p.in && p.out) && !p.refused && (p.busy || now-p.heard <= silence) && now-p.answered <= silence
}

// tale is what was told of a node.
type tale struct {
	known bool          // whether anything was told
	up    bool          // what
	since time.Duration // since when it is so; at first, since when the node is known
}

// next judges a node. tell: that it is up or down has to be told. Who comes back as
// another process is told to be down in between, however fast it was: what the
// earlier one knew and led is gone.
func (t tale) next(p pulse, now, silence time.Duration) (next tale, tell bool) {
	up := p.alive(t.up, now, silence) && !(t.up && p.reborn)
	switch {
	case t.known && t.up == up:
		return t, false
	case !t.known && !up && !p.refused && now-t.since <= silence:
		return t, false // it has not had the time to be up
	}
	return tale{known: true, up: up, since: now}, true
}
