package loadtest

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/duplex"
	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	publishStream = "/strandmq.v1.PublishService/PublishStream"
	consumeStream = "/strandmq.v1.ConsumeService/Consume"
	problemType   = "strandmq.v1.Problem"
)

// explainStream turns the error of a stream into a Refusal.
func explainStream(err error, server string) error {
	if err == nil {
		return nil
	}
	var r *Refusal
	if errors.As(err, &r) {
		return err
	}
	r = &Refusal{Text: err.Error(), Passing: retry.Broke(err)}
	var de *duplex.Error
	var op *net.OpError
	switch {
	case errors.As(err, &de):
		r.Text = de.Message
		r.Passing = de.Code == "unavailable" || de.Code == "aborted" || de.Code == "canceled" || de.Code == "deadline_exceeded"
		for _, d := range de.Details {
			p := &strandmqv1.Problem{}
			if d.Type == problemType && proto.Unmarshal(d.Value, p) == nil {
				refuse(r, p)
			}
		}
		if r.Reason == "" && (de.Code == "unimplemented" || de.Code == "unknown") {
			r.Text = fmt.Sprintf("what answers at %s is no StrandMQ broker of this version: %s", server, de.Message)
		}
	case errors.As(err, &op) && op.Op == "dial":
		r.Text = fmt.Sprintf("no broker answers at %s (%v): start one with 'strandmq serve', or name another with --server", server, op.Err)
	case r.Passing:
		r.Text = fmt.Sprintf("the stream to the broker at %s broke: %v", server, err)
	default:
		return err
	}
	return r
}
