package consumer

import (
	"context"

	"github.com/strandmq/strandmq/partition"
)

// Trace tells what happened to a message in every group, read back from its
// partition's log, in order. It stops at max events and says so.
func (s *Shell) Trace(ctx context.Context, pid partition.PartitionID, o partition.Offset, max int) (events []TraceEvent, truncated bool, err error) {
	return nil, false, nil
}
