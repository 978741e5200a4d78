package coordinator

import (
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// App is the state of the metadata log: what partition.Host drives for
// partition.Metadata. All but the board belongs to the host's goroutine.
type App struct {
	cfg   Config
	rows  partition.Rows
	mach  *machine
	vigil *vigil // nil: not leading
	board board  // readers take maps from here, on any goroutine
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
	a := &App{cfg: cfg.withDefaults(), rows: rows, mach: mach}
	a.board.publish(mach.m)
	return a, nil
}

// Apply runs a command.
func (a *App) Apply(at partition.Position, cmd []byte) (any, error) {
	before := a.mach.m
	r, err := a.mach.apply(at.Index, cmd)
	if err != nil {
		return nil, err
	}
	// The map comes before the answer, so that who was answered can see it.
	if a.mach.m != before {
		a.board.publish(a.mach.m)
	}
	if a.vigil != nil && r.member != nil {
		a.vigil.hear(r.member.Session)
	}
	return r, nil
}

// Checkpoint writes the rows that changed.
func (a *App) Checkpoint() error { return a.mach.checkpoint(a.rows) }

// Lead begins or ends the listening for signs of life.
func (a *App) Lead(leading bool) {
	a.vigil = nil
	if leading {
		// Signs of life come thinned out, so the last one heard here may be
		// that much older than the last one given.
		a.vigil = newVigil(a.cfg.SessionTimeout + a.cfg.SessionTimeout/thinning)
	}
}

// heard is the event that a session gave a sign of life.
type heard struct{ session uint64 }

// Event takes a sign of life.
func (a *App) Event(ev any) {
	if h, ok := ev.(heard); ok && a.vigil != nil {
		a.vigil.hear(h.session)
	}
}

// Drive proposes the end of the sessions that were silent for too long.
func (a *App) Drive(now partition.Millis, _ partition.Log) (cmds [][]byte, wake partition.Millis) {
	if a.vigil == nil {
		return nil, 0
	}
	silent, wake := a.vigil.turn(now, a.mach.m)
	if len(silent) == 0 {
		return nil, wake
	}
	b, err := encode(&storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_Expire{Expire: &storagev1.Expire{Sessions: silent}}}, now)
	if err != nil {
		// Names in the map are valid UTF-8, which is all that can fail here;
		// the sessions stay, and stay visible, until the next turn.
		return nil, wake
	}
	return [][]byte{b}, wake
}

// encode frames a command for the log.
func encode(cmd *storagev1.MetadataCommand, now partition.Millis) ([]byte, error) {
	cmd.Rules = rules
	cmd.NowMs = int64(now)
	return proto.Marshal(cmd)
}

// board is where the newest map hangs.
type board struct{ v atomic.Pointer[posted] }

// posted is a map and the channel that is closed when a newer one hangs.
type posted struct {
	m       *Map
	changed chan struct{}
}

func (b *board) view() *posted { return b.v.Load() }

// publish hangs up a newer map. Only the host's goroutine calls it.
func (b *board) publish(m *Map) {
	old := b.v.Swap(&posted{m: m, changed: make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}
