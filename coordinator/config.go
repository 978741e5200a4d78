package coordinator

import (
	"crypto/rand"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

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
	if c.SessionTimeout < 0 || c.SessionTimeout > 24*60*60*1000 {
		return &ErrInvalid{Faults: []Fault{{"session_timeout", "use up to 24 hours; 0 stands for 30 seconds"}}}
	}
	return nil
}

// limits are how much the metadata log holds. They are rules of apply, the same
// on every replica, and so no setting: changing one changes the rules' version.
type limits struct {
	topics, partitions, topicPartitions, groups, members int
}

var theLimits = limits{
	topics:          10_000, // in the cluster
	partitions:      20_000, // in the cluster, those being deleted included
	topicPartitions: 1_024,  // of a topic
	groups:          1_000,  // of a topic
	members:         1_000,  // of a group
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
				bad.Faults = append(bad.Faults, Fault{"config.max_body_bytes", "use 1 to 1,048,576"})
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
	}
}
