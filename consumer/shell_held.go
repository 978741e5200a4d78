package consumer

import "github.com/strandmq/strandmq/partition"

// HeldAsync asks what a session, or one request of it, holds in a partition (P8),
// without a wait. done is called once from where the partition's App has its turn and
// must not block: read, called later, makes deliveries of what is held, as Receive
// does. When an error is returned, done is not called.
func (s *Shell) HeldAsync(pid partition.PartitionID, req ReceiveRequest, done func(read func() ([]Delivery, error), err error)) error {
	if err := req.check(); err != nil {
		return err
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = DefaultMaxBytes
	}
	return s.host.Post(pid, query{
		Group: req.Group, Member: req.Member, Session: req.Session, Request: requestTag(req.RequestID), Max: req.Max,
		Done: func(p partition.PartitionID, h holding) {
			if h.Err != nil {
				done(nil, h.Err)
				return
			}
			held := make([]handedOut, len(h.Held))
			for i, x := range h.Held {
				held[i] = handedOut{p, x}
			}
			done(func() ([]Delivery, error) { return s.fill(req, held) }, nil)
		},
	})
}
