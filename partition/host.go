package partition

import (
	"context"
	"errors"
)

// Host runs the partitions of one node.
type Host struct {
	cfg Config
}

var errNotBuilt = errors.New("not built")

const maxEntryBytes = 8 << 20

// Open starts a host over cfg.Store and restores every partition found in it.
func Open(cfg Config) (*Host, error) { return nil, errNotBuilt }

// Create makes a partition with this node as its only voter and returns when it
// leads. Creating one that exists is success.
func (h *Host) Create(ctx context.Context, id PartitionID) error { return errNotBuilt }

// Drop deletes a partition and all it holds. Dropping one that does not exist
// is success.
func (h *Host) Drop(ctx context.Context, id PartitionID) error { return errNotBuilt }

// Partitions lists the partitions on this node, in order.
func (h *Host) Partitions() []PartitionID { return nil }

// Publish stores one record batch and returns what became of each record when
// all are on disk. It stamps the batch, in place, and keeps it until it returns.
func (h *Host) Publish(ctx context.Context, id PartitionID, batch []byte) ([]Stored, error) {
	return nil, errNotBuilt
}

// PublishAsync is Publish without the wait: done is called once, from a
// goroutine of the host, and must neither block nor call the host's blocking
// methods. When an error is returned, done is not called. The batch must not be
// touched until then. Batches of one partition given in one order by one caller
// are stored in that order.
func (h *Host) PublishAsync(id PartitionID, batch []byte, done func([]Stored, error)) error {
	return errNotBuilt
}

// Propose puts a command into a partition's log and returns what App.Apply made
// of it.
func (h *Host) Propose(ctx context.Context, id PartitionID, cmd []byte) (any, error) {
	return nil, errNotBuilt
}

// Post gives an event to a partition's App.
func (h *Host) Post(id PartitionID, ev any) error { return errNotBuilt }

// View calls fn with a partition's App after everything applied so far.
func (h *Host) View(ctx context.Context, id PartitionID, fn func(App, Position)) error {
	return errNotBuilt
}

// Read returns stored messages from an offset on, in order: at most max, and at
// most about maxBytes (but at least one). At the end it returns none.
func (h *Host) Read(id PartitionID, from Offset, max, maxBytes int) ([]Message, error) {
	return nil, errNotBuilt
}

// ReadAt returns the messages at the given offsets, which must be sorted.
func (h *Host) ReadAt(id PartitionID, offsets []Offset) ([]Message, error) { return nil, errNotBuilt }

// FindID returns where the message with this id and key is stored.
func (h *Host) FindID(id PartitionID, key []byte, hasKey bool, messageID string) (Offset, bool, error) {
	return 0, false, errNotBuilt
}

// FindByMessageID returns where messages with this id are stored, whatever
// their key.
func (h *Host) FindByMessageID(ctx context.Context, id PartitionID, messageID string) ([]Offset, error) {
	return nil, errNotBuilt
}

// OffsetAt returns the first message published at t or later; the end of the
// log when there is none.
func (h *Host) OffsetAt(id PartitionID, t Millis) (Offset, error) { return 0, errNotBuilt }

// Position returns the place up to which a partition is applied.
func (h *Host) Position(id PartitionID) (Position, error) { return Position{}, errNotBuilt }

// Info returns a partition's state.
func (h *Host) Info(id PartitionID) (Info, error) { return Info{}, errNotBuilt }

// Scan calls fn with what stands in a partition's log from an index on, as far
// as it is applied, until fn returns false.
func (h *Host) Scan(ctx context.Context, id PartitionID, from Index, fn func(LogEntry) bool) error {
	return errNotBuilt
}

// IndexOf returns the entry that holds a message.
func (h *Host) IndexOf(id PartitionID, o Offset) (Index, error) { return 0, errNotBuilt }

// Failed yields the error that stopped the whole host, once.
func (h *Host) Failed() <-chan error { return nil }

// Close stops the host, after a checkpoint of every partition. Calls that wait
// get *ErrUnknown or *ErrStopped.
func (h *Host) Close() error { return errNotBuilt }
