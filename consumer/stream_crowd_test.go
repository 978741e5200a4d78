package consumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// TestStreamCrowd runs members over streams that fail, are lost and come back,
// while messages are published, and holds every key to its order (P3).
func TestStreamCrowd(t *testing.T) {
	n := newNode(t, 3)
	policy := Default()
	policy.Backoff, policy.MaxAttempts = 1, 0
	n.group(1, policy)
	const perKey, keys, members = 30, 10, 4
	type at struct {
		p   partition.PartitionID
		key string
	}
	var mu sync.Mutex
	acked := make(map[at]int)               // so many of a key
	holder := make(map[at]partition.Offset) // out, and no ack was sent
	var left, session atomic.Int64
	left.Store(perKey * keys * 3)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var crowd sync.WaitGroup
	for m := range members {
		crowd.Go(func() {
			for turn := 0; left.Load() > 0 && ctx.Err() == nil; turn++ {
				st, err := n.shell.Open(StreamRequest{Group: 1, Member: fmt.Sprint("m", m), Session: uint64(session.Add(1))})
				if err != nil {
					t.Error(err)
					return
				}
				shares := n.shares()
				for i := range shares {
					shares[i].Share, shares[i].Shares = uint32(m%2), 2
				}
				st.SetShares(shares)
				for batch := 0; batch < 6 && left.Load() > 0; batch++ {
					st.AddCredit(7)
					call, stop := context.WithTimeout(ctx, 500*time.Millisecond)
					hs, err := st.Next(call)
					stop()
					if err != nil {
						break
					}
					for _, h := range hs {
						for i, d := range h.Deliveries {
							k := at{h.Partition, string(d.Message.Record.Key())}
							mu.Lock()
							if now, out := holder[k]; out && now != d.Message.Offset {
								t.Errorf("%v: %d was given out while %d was unsettled", k, d.Message.Offset, now)
							}
							holder[k] = d.Message.Offset
							action := []Action{Ack, Ack, Nack, Release}[(turn+batch+i)%4]
							if action == Ack {
								delete(holder, k) // from here on the next may come
							}
							mu.Unlock()
							rs := settleRuns(st, SettleRun{First: h.First + uint64(i), Action: action})
							if len(rs) != 1 || rs[0].Err != nil {
								t.Errorf("%v of %v: %v", action, k, rs)
							} else if action == Ack {
								mu.Lock()
								acked[k]++
								mu.Unlock()
								left.Add(-1)
							}
						}
					}
				}
				if err := st.Close(context.Background(), turn%2 == 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range perKey {
		for _, p := range n.parts {
			for k := range keys {
				n.publish(p, fmt.Sprint("k", k))
			}
		}
	}
	crowd.Wait()
	if left.Load() != 0 {
		t.Errorf("%d messages are left", left.Load())
	}
	for k, got := range acked {
		if got != perKey {
			t.Errorf("%v: %d acked, want %d", k, got, perKey)
		}
	}
}
