package broker

import (
	"errors"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// problemOf is the Problem of an error that came over the wire, nil without.
func problemOf(err error) *strandmqv1.Problem {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		if v, err := d.Value(); err == nil {
			if p, ok := v.(*strandmqv1.Problem); ok {
				return p
			}
		}
	}
	return nil
}

func translateWire(err error) string { return problemOf(err).GetReason() }
