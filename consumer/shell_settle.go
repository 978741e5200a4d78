package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/partition"
)

// How many settlements one command carries, and how much of their reasons: it
// keeps a partition's turn short.
const (
	maxSettleCommand = 4096
	maxSettleReasons = 256 << 10 // bytes
)

// Settle settles deliveries of a group, each with a result of its own. What is
// confirmed is in the log. Each partition's settlements are one command, applied
// in the order given.
func (s *Shell) Settle(ctx context.Context, gid GroupID, settlements []Settlement) []SettleResult {
	res := make([]SettleResult, len(settlements))
	order := make([]int, 0, len(settlements))
	for i := range settlements {
		if res[i].Err = s.checkSettlement(gid, &settlements[i]); res[i].Err == nil {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(settlements[a].Token.Partition, settlements[b].Token.Partition)
	})
	var calls sync.WaitGroup
	for len(order) > 0 {
		pid := settlements[order[0]].Token.Partition
		n, reasons := 0, 0
		for n < len(order) && n < maxSettleCommand && reasons < maxSettleReasons && settlements[order[n]].Token.Partition == pid {
			reasons += len(settlements[order[n]].Reason)
			n++
		}
		part := order[:n:n]
		order = order[n:]
		if len(order) == 0 {
			s.settlePart(ctx, pid, gid, settlements, part, res) // the last, or only one: no goroutine
			break
		}
		if settlements[order[0]].Token.Partition == pid {
			// The same partition goes on: its order is the order given.
			s.settlePart(ctx, pid, gid, settlements, part, res)
			continue
		}
		calls.Go(func() { s.settlePart(ctx, pid, gid, settlements, part, res) })
	}
	calls.Wait()
	return res
}

// settlePart settles those at the given places, all of one partition.
func (s *Shell) settlePart(ctx context.Context, pid partition.PartitionID, gid GroupID, all []Settlement, part []int, res []SettleResult) {
	some := make([]Settlement, len(part))
	for i, at := range part {
		some[i] = all[at]
	}
	got, err := s.propose(ctx, pid, encodeSettle(s.stamp(ctx, pid, gid), gid, some))
	results := settled(pid, len(part), got, err)
	s.findPublished(pid, some, results)
	s.tellAcked(gid, some, results)
	for i, r := range results {
		res[part[i]] = r
	}
}

// settled is what became of the n settlements of one command, given its answer.
func settled(pid partition.PartitionID, n int, got any, err error) []SettleResult {
	if refused, ok := got.(error); ok && err == nil {
		err = refused
	}
	results, _ := got.([]SettleResult)
	var gone *partition.ErrUnknownPartition
	switch {
	case errors.As(err, &gone):
		err = &ErrStale{Why: fmt.Sprintf("partition %v is no more", pid)}
	case err == nil && len(results) != n:
		err = &partition.ErrOutcomeUnknown{Partition: pid, Why: "no results came back"}
	}
	if err == nil {
		return results
	}
	results = make([]SettleResult, n)
	for i := range results {
		results[i].Err = err
	}
	return results
}

func (s *Shell) checkSettlement(gid GroupID, x *Settlement) error {
	switch {
	case x.Token.Group != gid:
		return &ErrToken{Why: "of another group"}
	case !s.seal.made(x.Token):
		return &ErrToken{Why: "not made by this cluster"}
	case x.Member != "" && x.Token.Holder != holderOf(x.Member):
		return &ErrNotHolder{Member: x.Member}
	}
	return checkAction(x.Action, x.Delay, x.Reason)
}

func checkAction(a Action, delay partition.Millis, reason string) error {
	switch {
	case a < Ack || a > Release:
		return &ErrBadSettlement{"action", "must be ack, nack, reject, extend or release"}
	case delay < 0 || delay > MaxDelay:
		return &ErrBadSettlement{"delay_ms", fmt.Sprintf("is %d and must be from 0 to %d", delay, MaxDelay)}
	case delay != 0 && a != Nack && a != Extend:
		return &ErrBadSettlement{"delay_ms", "is given, and only a nack or an extend takes one"}
	case len(reason) > MaxReason:
		return &ErrBadSettlement{"reason", fmt.Sprintf("is %d bytes long and may be at most %d", len(reason), MaxReason)}
	}
	return nil
}
