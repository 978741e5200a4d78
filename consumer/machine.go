package consumer

import "github.com/strandmq/strandmq/partition"

// App is the groups of one partition: their replicated state and, where the
// partition is led, the hand that acts for it. It is a partition.App.
type App struct {
	id   partition.PartitionID
	rows partition.Rows
}

// NewApp restores the groups of a partition from its rows.
func NewApp(id partition.PartitionID, rows partition.Rows) (*App, error) {
	return &App{id: id, rows: rows}, nil
}

// Apply runs one committed command.
func (a *App) Apply(at partition.Position, cmd []byte) (any, error) { return nil, nil }

// Checkpoint writes what changed to the rows.
func (a *App) Checkpoint() error { return nil }

// Lead tells that this replica began or ceased to lead.
func (a *App) Lead(leading bool) {}

// Event takes what the shell posted.
func (a *App) Event(ev any) {}

// Drive is the leader's turn.
func (a *App) Drive(now partition.Millis, log partition.Log) ([][]byte, partition.Millis) {
	return nil, 0
}
