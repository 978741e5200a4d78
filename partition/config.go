package partition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/strandmq/strandmq/partition/logstore"
)

// Config tells a Host what to work with. Zero means the default.
type Config struct {
	// Node is this node's id; required.
	Node NodeID
	// Store holds the logs; required. The host uses it until Close and does
	// not close it.
	Store *logstore.Store
	// NewApp makes the state that a partition's log drives; it restores itself
	// from rows. Nil: partitions hold messages only, and take no commands.
	NewApp func(id PartitionID, rows Rows) (App, error)
	// Now tells the time. Default: the wall clock. It only stamps messages and
	// wakes apps; order never depends on it.
	Now func() Millis
	// Tick is the raft clock: heartbeats every 5 ticks, elections after 50.
	// Default 100 ms. Shorter finds a dead leader earlier and costs CPU per
	// partition. A partition with a single voter has nothing to tick for.
	Tick time.Duration
	// Send takes frames that go to another node, in order, several partitions'
	// together: at most about 4 MiB a call, or one frame that is larger. It must
	// not block; it may drop them, late ones rather than none. Two goroutines call
	// it: the second only tells that the disk hangs, or is full. The slice is the
	// host's again when it returns; a frame is never changed. Nil: there are no
	// other nodes.
	Send func(to NodeID, frames []Frame)
	// SendSnapshot sends a partition's snapshot to another node: what r gives goes to
	// ReceiveSnapshot there, and what that says comes back (see
	// AppendSnapshotAnswer). It is called from goroutines of the host, two at a
	// time, and should end when ctx does. Nil: replicas that are too far behind stay
	// so.
	SendSnapshot func(ctx context.Context, to NodeID, id PartitionID, r io.Reader) error
	// OnRole hears who leads a partition, as this node sees it, when that changes:
	// a node or 0, whether it is this one, with all applied that was committed
	// before, and the term. It is called from one goroutine, in order for each
	// partition, and delays answers while it runs. Nil: nobody asks.
	OnRole func(id PartitionID, leader NodeID, leading bool, term uint64)
	// OnStop hears that a replica here cannot be trusted any more and stopped, and why,
	// at a start too. It is called where partitions are driven, and must not block. Nil:
	// nobody asks.
	OnStop func(id PartitionID, why string)
	// OnUnfit hears which nodes, this one among them, should lead nothing that another
	// can, when that changes: their disks hang, or hung lately, or are full. It is
	// called by the host's loop, and must not block. The slice is the receiver's to
	// read. Nil: nobody asks.
	OnUnfit func([]NodeID)
	// HangAfter is how long the disk may not come back from a write of the log until
	// the other nodes are told to lead what this one leads. Default 1 s. Shorter moves
	// leaderships about when a disk is only slow; it takes no less than until the store
	// finds out, a tenth of a second.
	HangAfter time.Duration
	// Logger takes what operators should know. Default: nothing is logged.
	Logger *slog.Logger
	// Name is what the log calls a partition. It must not block. Default: its id.
	Name func(PartitionID) string

	// TailCacheBytes bounds what of all partitions is kept in memory for readers:
	// three quarters are for the newest batches, one for what groups that lag read
	// from disk, so that it is read once. Default 32 MiB; below 1 MiB readers go to
	// disk, below 8 MiB groups that lag read twice.
	TailCacheBytes int64
	// QueueBytes bounds what waits to be written on this node, batches and
	// commands together. Default 64 MiB. Beyond it callers get ErrFull.
	QueueBytes int64
	// PartitionQueueBytes is the same for one partition, so that one cannot
	// take it all. Default 8 MiB; at least one batch always fits.
	PartitionQueueBytes int64
	// ReceiveBytes bounds what came from other nodes and is not in the store yet.
	// Default 64 MiB. Beyond it entries are dropped, and come again later.
	ReceiveBytes int64
	// EntryBytes bounds how much is gathered into one log entry, beside the share
	// of a write that a partition gets. Default 1 MiB. Larger saves little and makes
	// reading one message dearer.
	EntryBytes int
	// SyncsInFlight is how many writes may wait for the disk while the next
	// gathers. Default 2: one being synced and one behind it. More shortens
	// the queue on disks with deep queues and makes batches smaller.
	SyncsInFlight int
	// CheckpointBytes is how much log may follow a partition's checkpoint,
	// which a restart reads again. Default 64 MiB.
	CheckpointBytes int64
	// NodeCheckpointBytes is the same for all partitions together. Default
	// 1 GiB.
	NodeCheckpointBytes int64
	// FollowerBytes is how much of a log, behind what retention keeps, a leader keeps
	// for followers that lag. Default 64 MiB. One that lags more gets a snapshot.
	FollowerBytes int64
	// SnapshotBytesPerSecond bounds what this node sends of snapshots, of all partitions
	// together; at least 1 MiB. Default 0: as fast as the disk and the other side take it.
	SnapshotBytesPerSecond int64
	// RowBytes bounds an App's rows that wait in memory for a checkpoint. Default
	// 8 MiB per partition. More writes less where the same rows change again and
	// again, and holds up the node for longer at each checkpoint.
	RowBytes int64
	// NodeRowBytes is the same for all partitions together. Default 64 MiB.
	NodeRowBytes int64
	// IDFilterBytes is the memory in which all partitions together remember
	// which message ids are new, beside the rows on disk that decide it.
	// Default 32 MiB, taken with the first id: enough for 26 million. Beyond
	// that new ids are looked up on disk more and more often, 10 µs each.
	IDFilterBytes int64
	// uncommittedBytes is set by tests, to fill a log with little.
	uncommittedBytes uint64
	// bucketOffsets is set by tests, so that a few messages make many buckets.
	bucketOffsets Offset
	// Seed makes proposal ids differ between runs. Default: random.
	Seed uint64

	// How long an export may take, how long nobody may read of it, how soon
	// after one that failed the next one begins, and how long half of one that comes
	// waits for the rest.
	snapshotLimit, snapshotIdle, snapshotPause, snapshotKept time.Duration

	// unpaced takes writes as fast as the log does: to measure what pacing does.
	unpaced bool
}

func (c Config) withDefaults() Config {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Now == nil {
		c.Now = func() Millis { return Millis(time.Now().UnixMilli()) }
	}
	if c.Tick == 0 {
		c.Tick = 100 * time.Millisecond
	}
	if c.HangAfter == 0 {
		c.HangAfter = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Name == nil {
		c.Name = PartitionID.String
	}
	def(&c.TailCacheBytes, 32<<20)
	def(&c.QueueBytes, 64<<20)
	def(&c.PartitionQueueBytes, 8<<20)
	def(&c.ReceiveBytes, 64<<20)
	def(&c.CheckpointBytes, 64<<20)
	def(&c.NodeCheckpointBytes, 1<<30)
	def(&c.RowBytes, 8<<20)
	def(&c.NodeRowBytes, 64<<20)
	def(&c.FollowerBytes, 64<<20)
	if c.snapshotLimit == 0 {
		c.snapshotLimit, c.snapshotIdle, c.snapshotPause = 2*time.Hour, 30*time.Second, time.Second
	}
	if c.snapshotKept == 0 {
		c.snapshotKept = 10 * time.Minute
	}
	def(&c.IDFilterBytes, 32<<20)
	if c.bucketOffsets == 0 {
		c.bucketOffsets = bucketOffsets
	}
	if c.uncommittedBytes == 0 {
		c.uncommittedBytes = maxUncommittedBytes
	}
	if c.EntryBytes == 0 {
		c.EntryBytes = 1 << 20
	}
	if c.SyncsInFlight == 0 {
		c.SyncsInFlight = 2
	}
	if c.NewApp == nil {
		c.NewApp = func(PartitionID, Rows) (App, error) { return noApp{}, nil }
	}
	return c
}

// Validate lists every fault of the configuration at once.
func (c Config) Validate() error {
	var faults []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("partition.Config: "+format, args...))
		}
	}
	bad(c.Node == 0, "Node is missing: give this node's id")
	bad(c.Node > MaxNode, "Node is %d; use at most %d", c.Node, uint64(MaxNode))
	bad(c.Store == nil, "Store is missing: open one with logstore.Open")
	bad(c.Tick < 0 || c.Tick > time.Minute, "Tick is %v; use 1ms to 1m", c.Tick)
	bad(c.HangAfter < 0, "HangAfter is %v; it cannot be negative", c.HangAfter)
	bad(c.EntryBytes < 0 || c.EntryBytes > maxEntryBytes, "EntryBytes is %d; use at most %d", c.EntryBytes, maxEntryBytes)
	bad(c.SyncsInFlight < 0 || c.SyncsInFlight > 64, "SyncsInFlight is %d; use 1 to 64", c.SyncsInFlight)
	bad(c.SnapshotBytesPerSecond > 0 && c.SnapshotBytesPerSecond < 1<<20, "SnapshotBytesPerSecond is %d; use at least 1 MiB, or 0 for no bound", c.SnapshotBytesPerSecond)
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"TailCacheBytes", c.TailCacheBytes}, {"QueueBytes", c.QueueBytes}, {"PartitionQueueBytes", c.PartitionQueueBytes},
		{"ReceiveBytes", c.ReceiveBytes}, {"FollowerBytes", c.FollowerBytes},
		{"CheckpointBytes", c.CheckpointBytes}, {"NodeCheckpointBytes", c.NodeCheckpointBytes}, {"RowBytes", c.RowBytes}, {"NodeRowBytes", c.NodeRowBytes},
		{"IDFilterBytes", c.IDFilterBytes},
		{"SnapshotBytesPerSecond", c.SnapshotBytesPerSecond},
	} {
		bad(f.v < 0, "%s is %d; it cannot be negative", f.name, f.v)
	}
	return errors.Join(faults...)
}

// noApp is the state of a partition that has none.
type noApp struct{}

func (noApp) Apply(Position, []byte) (any, error) {
	return nil, errors.New("a command for a partition without an app")
}
func (noApp) Checkpoint() error                    { return nil }
func (noApp) Lead(bool)                            {}
func (noApp) Event(any)                            {}
func (noApp) Drive(Millis, Log) ([][]byte, Millis) { return nil, 0 }
