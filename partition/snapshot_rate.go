package partition

import (
	"context"
	"io"

	"golang.org/x/time/rate"
)

// snapshotRead is the most that goes out of a snapshot at once.
const snapshotRead = 256 << 10

// snapshotRate is the limiter of all snapshots that a node sends, together; 0: none.
func snapshotRate(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), snapshotRead)
}

// paced reads a snapshot as fast as the node's rate lets it. With ctx it ends.
type paced struct {
	ctx   context.Context
	r     io.Reader
	limit *rate.Limiter
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.r.Read(b[:min(len(b), snapshotRead)])
	if n > 0 {
		// What was read goes out when its turn has come, and counts also when it does not.
		if werr := p.limit.WaitN(p.ctx, n); werr != nil {
			return 0, werr
		}
	}
	return n, err
}
