package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/strandmq/strandmq/partition"
)

// whyIdle asks the partitions why there is nothing.
func (s *Shell) whyIdle(ctx context.Context, req ReceiveRequest) string {
	if len(req.Shares) == 0 {
		return "no partition is assigned to the member"
	}
	var whys []string
	now := s.Now()
	for _, sh := range req.Shares {
		why := ""
		err := s.view(ctx, sh.Partition, req.Group, func(g *group, at partition.Position) error {
			why = g.whyIdle(at, now, s.Explain)
			return nil
		})
		if err != nil {
			why = notAsked(err)
		}
		if why != "" && !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
		if len(whys) >= 3 || ctx.Err() != nil {
			break
		}
	}
	if len(whys) == 0 {
		return NothingLeft
	}
	return strings.Join(whys, "; ")
}

// notAsked says why a partition does not tell: what it is silent about is not nothing, and
// the others are asked all the same.
func notAsked(err error) string {
	var damaged *partition.ErrDamaged
	switch {
	case errors.As(err, &damaged):
		return "a partition of the topic stopped: " + damaged.Why
	case errors.As(err, new(*ErrUnknownGroup)):
		return "a partition of the topic does not have the group: it was deleted, or is still being created"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "a partition of the topic was not asked in time"
	}
	return "a partition of the topic was not asked: " + err.Error()
}
