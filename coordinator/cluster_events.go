package coordinator

import (
	"context"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Events are the present events, and a channel that is closed when there are newer.
func (c *Coordinator) Events() (e *Events, changed <-chan struct{}) {
	now := c.app.happened.now.Load()
	return &now.events, now.changed
}

// A Batch is what one node has to tell at once.
type Batch struct {
	Node   partition.NodeID
	Boot   uint64 // how often its store was started
	Number uint64 // since that start, from 1
	Events []Happening
}

// AddEvents writes down what happened at a node. The same batch again changes nothing,
// and neither does one from before the last of that node. Errors: *ErrInvalid,
// *ErrNotFound, *ErrNodeGone.
func (c *Coordinator) AddEvents(ctx context.Context, b Batch) error {
	add := &storagev1.AddEvents{Node: uint64(b.Node), Boot: b.Boot, Batch: b.Number}
	for _, h := range b.Events {
		add.Events = append(add.Events, &storagev1.Happening{
			Kind: string(h.Kind), Topic: h.Topic, Partition: h.Partition, Group: h.Group,
			Node: uint64(h.Node), Text: clip(h.Text, maxEventText), Count: h.Count,
		})
	}
	_, err := c.propose(ctx, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddEvents{AddEvents: add}})
	return err
}

// MaxBatch is the most events of a batch.
const MaxBatch = maxHappenings
