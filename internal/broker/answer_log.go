package broker

import (
	"context"
	"log/slog"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// logAnswer tells, to who looks for it, of a call that was answered. Items of it may be
// refused all the same: a call is not refused for them, so no other line says it.
func logAnswer(ctx context.Context, log *slog.Logger, method string, answer any, took time.Duration) {
	if !log.Enabled(ctx, slog.LevelDebug) {
		return // nothing is looked at, item by item, for nobody
	}
	said := []any{"method", method, "code", "ok", "took", took}
	n, first := refusedItems(answer)
	if n == 0 {
		log.DebugContext(ctx, "a call was answered", said...)
		return
	}
	log.DebugContext(ctx, "a call was answered, and items of it were refused", append(said, "refused", n, "reason", first.GetReason())...)
}

// refusedItems counts what was refused of an answer that has one result for each item,
// and is the first refusal.
func refusedItems(answer any) (n int, first *strandmqv1.Problem) {
	count := func(p *strandmqv1.Problem) {
		if p == nil {
			return
		}
		if n == 0 {
			first = p
		}
		n++
	}
	switch a := answer.(type) {
	case *strandmqv1.PublishResponse:
		for _, r := range a.GetResults() {
			count(r.GetProblem())
		}
	case *strandmqv1.SettleResponse:
		for _, r := range a.GetResults() {
			count(r.GetProblem())
		}
	}
	return n, first
}
