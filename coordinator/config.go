package coordinator

import (
	"crypto/rand"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Config is how the coordinator works on this node. Nothing in it changes what
// an entry of the metadata log does.
type Config struct {
	// SessionTimeout is how long a member may be silent before its session
	// ends, in milliseconds; it ends at most a tenth later. Default 30,000.
	// Short: a crashed member's partitions move sooner, and a slow network ends
	// sessions for nothing; below 1,000 only for tests.
	SessionTimeout partition.Millis
	// Node is this node's id. Default 1.
	Node partition.NodeID
	// Balance is how eagerly replicas are placed anew.
	Balance placement.Options
	// Rules are the newest that this node applies. Default: Rules. Others are for
	// tests.
	Rules uint32
	// Board is where the map is shown: the same one for all states that follow each
	// other on a node. Default: one for this state.
	Board *Board
	// Now is the wall clock. Default: the system's.
	Now func() partition.Millis
	// Rand gives the cluster's id and secret and the topics' hash seeds.
	// Default: crypto/rand.
	Rand io.Reader
}

const defaultSessionTimeout partition.Millis = 30_000

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	if c.SessionTimeout == 0 {
		c.SessionTimeout = defaultSessionTimeout
	}
	if c.Node == 0 {
		c.Node = 1
	}
	if c.Rules == 0 {
		c.Rules = Rules
	}
	c.Balance = c.Balance.WithDefaults()
	if c.Now == nil {
		c.Now = func() partition.Millis { return partition.Millis(time.Now().UnixMilli()) }
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	return c
}

// Validate lists what is wrong.
func (c Config) Validate() error {
	var bad ErrInvalid
	if c.SessionTimeout < 0 || c.SessionTimeout > 24*60*60*1000 {
		bad.Faults = append(bad.Faults, Fault{"session_timeout", "use up to 24 hours; 0 stands for 30 seconds"})
	}
	if c.Node > math.MaxUint32 {
		bad.Faults = append(bad.Faults, Fault{"node", "use 1 to 4,294,967,295"})
	}
	if c.Balance.DeadAfter < 0 || c.Balance.Moves < 0 || c.Balance.Leads < 0 {
		bad.Faults = append(bad.Faults, Fault{"balance", "nothing in it is negative"})
	}
	if len(bad.Faults) > 0 {
		return &bad
	}
	return nil
}

// limits are how much the metadata log holds. They are rules of apply, the same
// on every replica, and so no setting: changing one changes the rules' version.
type limits struct {
	topics, partitions, topicPartitions, groups, members, nodes, tokens int
}

var theLimits = limits{
	topics:          10_000, // in the cluster
	partitions:      20_000, // in the cluster, those being deleted included
	topicPartitions: 1_024,  // of a topic
	groups:          1_000,  // of a topic
	members:         1_000,  // of a group
	nodes:           100,    // that belong to the cluster
	tokens:          100,    // to join with, that nobody used yet
}

// DefaultPartitions is how many partitions a topic gets that asks for none.
const DefaultPartitions = 8

// TopicConfig is a topic's settings, all filled in.
type TopicConfig struct {
	Retention      partition.Millis // messages are kept at least so long; 0: without limit
	RetentionBytes int64            // bytes of messages that each partition keeps; older ones go; 0: without limit
	MaxBody        int64            // the largest body in bytes
	WorkQueue      bool             // what all groups settled is removed, too
	RefuseAtHold   bool             // at a group's hold limit publishes are refused, and nothing is lost
	Replication    int              // replicas of each partition; 0: three with three nodes or more, else one
}

const (
	maxRetention      = 36_500 * 24 * 60 * 60 * 1000 // a century
	maxRetentionBytes = 1 << 50
)

// DefaultTopicConfig is what a topic gets that asks for nothing.
func DefaultTopicConfig() TopicConfig {
	return TopicConfig{Retention: 7 * 24 * 60 * 60 * 1000, MaxBody: record.MaxBody}
}

// With is the settings with those of change that are set. The error is an
// *ErrInvalid with all faults.
func (c TopicConfig) With(change *strandmqv1.TopicConfig) (TopicConfig, error) {
	var bad ErrInvalid
	if change != nil {
		if v := change.RetentionMs; v != nil {
			c.Retention = partition.Millis(*v)
			if *v < 0 || *v > maxRetention {
				bad.Faults = append(bad.Faults, Fault{"config.retention_ms", "use 1 ms to 100 years; 0 means without limit"})
			}
		}
		if v := change.RetentionBytes; v != nil {
			c.RetentionBytes = *v
			if *v < 0 || *v > maxRetentionBytes {
				bad.Faults = append(bad.Faults, Fault{"config.retention_bytes", "use 1 byte to 1 PiB; 0 means without limit"})
			}
		}
		if v := change.MaxBodyBytes; v != nil {
			c.MaxBody = *v
			if *v < 1 || *v > record.MaxBody {
				bad.Faults = append(bad.Faults, Fault{"config.max_body_bytes", "use 1 byte to 1 MiB"})
			}
		}
		switch change.GetKind() {
		case strandmqv1.TopicKind_TOPIC_KIND_UNSPECIFIED:
		case strandmqv1.TopicKind_TOPIC_KIND_LOG:
			c.WorkQueue = false
		case strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE:
			c.WorkQueue = true
		default:
			bad.Faults = append(bad.Faults, Fault{"config.kind", "use log or work queue"})
		}
		if v := change.RefusePublishesAtHoldLimit; v != nil {
			c.RefuseAtHold = *v
		}
		if v := change.Replication; v != nil {
			c.Replication = int(*v)
			switch *v {
			case 0, 1, 3, 5:
			default:
				// An even number survives no more than the odd one below it, and two
				// survive less than one does.
				bad.Faults = append(bad.Faults, Fault{"config.replication", "use 1, 3 or 5; 0 stands for 3 with three nodes or more, else 1"})
			}
		}
	}
	if len(bad.Faults) > 0 {
		return c, &bad
	}
	return c, nil
}

// Proto is the settings as the API and the log write them.
func (c TopicConfig) Proto() *strandmqv1.TopicConfig {
	kind := strandmqv1.TopicKind_TOPIC_KIND_LOG
	if c.WorkQueue {
		kind = strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE
	}
	return &strandmqv1.TopicConfig{
		RetentionMs:                proto.Int64(int64(c.Retention)),
		RetentionBytes:             proto.Int64(c.RetentionBytes),
		MaxBodyBytes:               proto.Int64(c.MaxBody),
		Kind:                       kind,
		RefusePublishesAtHoldLimit: proto.Bool(c.RefuseAtHold),
		Replication:                proto.Uint32(uint32(c.Replication)),
	}
}
