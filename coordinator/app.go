package coordinator

import (
	"maps"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// App is the state of the metadata log: what partition.Host drives for
// partition.Metadata. All but shown belongs to the host's goroutine.
type App struct {
	cfg    Config
	rows   partition.Rows
	mach   *machine
	expiry *expiry // nil: not leading
	// balancer is nil where expiry is.
	balancer *balancer
	*Board
}

// Board is what readers on any goroutine see of the metadata log's state. A
// snapshot that comes from another node makes the state anew, so a node has one
// board for all of them.
type Board struct {
	shown newest
	// silent is since when the leader has not heard of which nodes; nil: not
	// leading.
	silent atomic.Pointer[map[partition.NodeID]partition.Millis]
	// ending are the sessions whose end, or whose members' being away, the leader has
	// proposed and not seen applied; nil: none.
	ending atomic.Pointer[map[uint64]*storagev1.SessionRef]
	// clock is the log's, which only goes forward.
	clock atomic.Int64
	// happened is what the log remembers of what happened.
	happened newestEvents
}

var _ partition.App = (*App)(nil)

// NewApp restores the state from rows; none means a new log. The error is an
// *ErrInvalid for the config or an *ErrFormat for the rows.
func NewApp(rows partition.Rows, cfg Config) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	mach, err := restore(rows)
	if err != nil {
		return nil, err
	}
	a := &App{cfg: cfg.withDefaults(), rows: rows, mach: mach, Board: cfg.Board}
	mach.newest = a.cfg.Rules
	if a.Board == nil {
		a.Board = &Board{}
	}
	a.clock.Store(int64(mach.clock))
	a.shown.publish(mach.m)
	a.happened.publish(mach.events)
	return a, nil
}

// Apply runs a command.
func (a *App) Apply(at partition.Position, cmd []byte) (any, error) {
	before, change := a.mach.m, a.mach.events.change
	r, err := a.mach.apply(at.Index, cmd)
	if err != nil {
		return nil, err
	}
	a.clock.Store(int64(a.mach.clock))
	// The map comes before the answer, so that who was answered can see it.
	if a.mach.m != before {
		a.shown.publish(a.mach.m)
	}
	if a.mach.events.change != change {
		a.happened.publish(a.mach.events)
	}
	if a.expiry != nil && r.member != nil {
		a.expiry.hear(r.member.Session)
	}
	a.ended(r.member)
	return r, nil
}

// ends notes the sessions that an Expire on its way names.
func (a *App) ends(silent []*storagev1.SessionRef) {
	next := map[uint64]*storagev1.SessionRef{}
	if old := a.ending.Load(); old != nil {
		maps.Copy(next, *old)
	}
	for _, s := range silent {
		next[s.Session] = s
	}
	a.ending.Store(&next)
}

// ended forgets those of them that the map tells of by now, and that of a member that
// came back.
func (a *App) ended(back *Member) {
	old := a.ending.Load()
	if old == nil {
		return
	}
	next := maps.Clone(*old)
	maps.DeleteFunc(next, func(n uint64, s *storagev1.SessionRef) bool {
		m, err := a.mach.m.SessionOf(GroupID(s.GroupId), s.Member, n)
		return err != nil || m.Away != s.Away || back != nil && back.Session == n
	})
	if len(next) == 0 {
		a.ending.Store(nil)
	} else if len(next) < len(*old) {
		a.ending.Store(&next)
	}
}

// Checkpoint writes the rows that changed.
func (a *App) Checkpoint() error { return a.mach.checkpoint(a.rows) }

// Lead begins or ends the listening for signs of life.
func (a *App) Lead(leading bool) {
	a.expiry, a.balancer = nil, nil
	a.silent.Store(nil)
	a.ending.Store(nil)
	if leading {
		a.balancer = newBalancer(a.cfg.Node, a.cfg.Balance)
		// Signs of life come thinned out, so the last one heard here may be
		// that much older than the last one given.
		a.expiry = newExpiry(a.cfg.SessionTimeout + a.cfg.SessionTimeout/thinning)
	}
}

// heard is the event that a session gave a sign of life.
type heard struct{ session uint64 }

// missed is the event that a session was silent for long enough.
type missed struct{ session uint64 }

// reached is the event that a node came or went.
type reached struct {
	node partition.NodeID
	up   bool
}

// Event takes a sign of life, of a session or a node.
func (a *App) Event(ev any) {
	if a.expiry == nil {
		return
	}
	switch ev := ev.(type) {
	case heard:
		a.expiry.hear(ev.session)
	case missed:
		a.expiry.miss(ev.session)
	case reached:
		a.balancer.heard(ev.node, ev.up)
	}
}

// Drive proposes the end of the sessions that were silent for too long, and where
// replicas should be.
func (a *App) Drive(now partition.Millis, _ partition.Log) (cmds [][]byte, wake partition.Millis) {
	if a.expiry == nil {
		return nil, 0
	}
	propose := func(cmd *storagev1.MetadataCommand) {
		// Names in the map are valid UTF-8, which is all that can fail here; what
		// was to be proposed stays to be done, and is found in a later turn.
		if b, err := a.encode(cmd, now); err == nil {
			cmds = append(cmds, b)
		}
	}
	silent, wake := a.expiry.turn(now, a.mach.m)
	if len(silent) > 0 {
		a.ends(silent)
		propose(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: silent}}})
	}
	place, again := a.balancer.turn(now, a.mach.m)
	for _, cmd := range place {
		propose(cmd)
	}
	if old := a.silent.Load(); old == nil || !maps.Equal(*old, a.balancer.since) {
		now := a.balancer.silences()
		a.silent.Store(&now)
	}
	note, soon := a.balancer.notes(now, a.mach.m, func(n partition.NodeID) Presence { return a.mach.sources[n].presence })
	if note != nil {
		propose(note)
	}
	for _, at := range []partition.Millis{again, soon} {
		if wake == 0 || at != 0 && at < wake {
			wake = at
		}
	}
	return cmds, wake
}

// encode frames a command for the log, by the newest rules that every node applies.
// Any goroutine.
func (a *App) encode(cmd *storagev1.MetadataCommand, now partition.Millis) ([]byte, error) {
	return encode(cmd, min(a.shown.get().m.Rules(), a.cfg.Rules), now)
}

func encode(cmd *storagev1.MetadataCommand, rules uint32, now partition.Millis) ([]byte, error) {
	cmd.Rules = rules
	cmd.NowMs = int64(now)
	return proto.Marshal(cmd)
}

// newest holds the newest map for readers on any goroutine.
type newest struct{ now atomic.Pointer[published] }

// published is a map, and the channel that is closed when there is a newer one.
type published struct {
	m       *Map
	changed chan struct{}
}

func (n *newest) get() *published { return n.now.Load() }

// publish makes a map the newest. Only the host's goroutine calls it.
func (n *newest) publish(m *Map) {
	old := n.now.Swap(&published{m: m, changed: make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}

// newestEvents holds the newest events for readers on any goroutine.
type newestEvents struct {
	now atomic.Pointer[publishedEvents]
}

type publishedEvents struct {
	events  Events
	changed chan struct{}
}

// publish makes events the newest. Only the host's goroutine calls it.
func (n *newestEvents) publish(e Events) {
	old := n.now.Swap(&publishedEvents{events: e, changed: make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}
