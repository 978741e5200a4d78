package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// shrinking is a log that keeps less each time it is read.
type shrinking struct {
	start partition.Offset
	read  func(from partition.Offset)
}

func (s *shrinking) Position(partition.PartitionID) (partition.Position, error) {
	return partition.Position{Start: s.start}, nil
}

func (s *shrinking) Read(id partition.PartitionID, from partition.Offset, _, _ int) ([]partition.Message, error) {
	s.read(from)
	s.start++
	return nil, &partition.ErrExpired{Partition: id, Start: s.start}
}

// Who reads a log that shrinks before each look stops with the caller.
func TestReadEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	log := &shrinking{read: func(from partition.Offset) {
		if looks++; from != partition.Offset(looks-1) {
			t.Errorf("look %d is from %d", looks, from)
		}
		switch looks {
		case 3:
			cancel()
		case 10:
			panic("it goes on without its caller")
		}
	}}
	if _, err := readKept(ctx, log, 1, 0, 1, 1); !errors.Is(err, context.Canceled) || looks != 3 {
		t.Fatalf("%d looks: %v", looks, err)
	}
}
