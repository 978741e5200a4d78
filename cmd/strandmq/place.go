package main

import (
	"time"

	"github.com/strandmq/strandmq/internal/offsets"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// messageGrammar is the grammar of positions where one message is wanted.
const messageGrammar = "N, -N (-1 is the last message), earliest, @RFC3339 or @-15m (the first one since)"

// place is the place of the one message that a partition and a typed position
// name. The broker finds what is no number.
func place(partition uint32, f *positionFlag) (*strandmqv1.MessagePlace, error) {
	switch f.p.Kind {
	case offsets.Offset:
		return &strandmqv1.MessagePlace{Partition: partition, Offset: f.p.N}, nil
	case offsets.Latest:
		return nil, usagef("--offset latest is the place of the next message, and one that is there is wanted: use %s", messageGrammar)
	}
	return &strandmqv1.MessagePlace{Partition: partition, Position: f.wire(time.Now())}, nil
}
