package loadtest

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/strandmq/strandmq/internal/retry"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var errFrame = errors.New("the broker sent a frame that makes no sense: it is of another version")

// explainStream turns the error of a stream into a Refusal.
func explainStream(err error, server string) error {
	var r *Refusal
	if err == nil || errors.As(err, &r) {
		return err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &Refusal{
			Text:    fmt.Sprintf("no broker answers at %s (%v): start one with 'strandmq serve', or name another with --server", server, op.Err),
			Passing: true,
		}
	}
	broke := func(why any) *Refusal {
		return &Refusal{Text: fmt.Sprintf("the stream to the broker at %s broke: %v", server, why), Passing: true}
	}
	var grpcError interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &grpcError) {
		if retry.Broke(err) {
			return broke(err)
		}
		return err
	}
	st := grpcError.GRPCStatus()
	r = &Refusal{Text: st.Message()}
	for _, d := range st.Details() {
		if p, ok := d.(*strandmqv1.Problem); ok {
			refuse(r, p)
		}
	}
	switch st.Code() {
	case codes.Unavailable, codes.Aborted, codes.Canceled, codes.DeadlineExceeded:
		if r.Reason == "" {
			return broke(st.Message())
		}
		r.Passing = true
	case codes.Unimplemented, codes.Unknown:
		if r.Reason == "" {
			r.Text = fmt.Sprintf("what answers at %s is no StrandMQ broker of this version: %s", server, st.Message())
		}
	}
	return r
}
