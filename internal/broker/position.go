package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// checkPosition refuses a position that cannot be meant.
func checkPosition(p *strandmqv1.StartPosition, field string) error {
	switch at := p.GetAt().(type) {
	case *strandmqv1.StartPosition_Earliest:
		if !at.Earliest {
			return refuse("BAD_VALUE", field+".earliest", "false says nothing: leave it out, or give another position")
		}
	case *strandmqv1.StartPosition_Latest:
		if !at.Latest {
			return refuse("BAD_VALUE", field+".latest", "false says nothing: leave it out, or give another position")
		}
	case *strandmqv1.StartPosition_Offset:
		if at.Offset > math.MaxInt64 {
			return refuse("BAD_VALUE", field+".offset", "offsets are below 2^63")
		}
	case *strandmqv1.StartPosition_FromEnd:
		if at.FromEnd > math.MaxInt64 {
			return refuse("BAD_VALUE", field+".from_end", "use a number below 2^63")
		}
	case *strandmqv1.StartPosition_Time:
		if err := at.Time.CheckValid(); err != nil {
			return refuse("BAD_VALUE", field+".time", "not a time: %s", valid(err.Error()))
		}
	}
	return nil
}

// reachable refuses an offset beyond the end of a partition: whoever gives a
// number means a message, and a group that waited at the end instead would pass
// over it. only is the one partition that matters; nil: all.
func (b *Broker) reachable(ctx context.Context, t *topic, only *uint32, p *strandmqv1.StartPosition, field string) error {
	at, ok := p.GetAt().(*strandmqv1.StartPosition_Offset)
	if !ok {
		return nil
	}
	for i, part := range t.Partitions {
		if only != nil && *only != uint32(i) {
			continue
		}
		pos, err := b.parts.Position(ctx, part.ID)
		if only == nil && errors.As(err, new(*partition.ErrDamaged)) {
			continue // it is left out
		}
		if err != nil {
			return err
		}
		if at.Offset > uint64(pos.End) {
			return refuse("OFFSET_BEYOND_END", field+".offset",
				"partition %d of topic %s ends at offset %d, and %d is beyond: use latest for the end, whatever it is, or a number up to it", i, t.Name, pos.End, at.Offset)
		}
	}
	return nil
}

// message finds the offset of the one message that a place names.
func (b *Broker) message(ctx context.Context, t *topic, p *strandmqv1.MessagePlace, field string) (place, error) {
	id, err := t.number(p.GetPartition())
	if err != nil {
		return place{}, err
	}
	out := place{number: int(p.GetPartition()), id: id, offset: partition.Offset(p.GetOffset())}
	if p.GetPosition() == nil {
		return out, nil
	}
	field += ".position"
	if p.GetOffset() != 0 {
		return place{}, refuse("BAD_VALUE", field, "give an offset or a position, not both")
	}
	if p.GetPosition().GetAt() == nil {
		return place{}, refuse("BAD_VALUE", field, "say where: earliest, offset, from_end or time")
	}
	if err := checkPosition(p.GetPosition(), field); err != nil {
		return place{}, err
	}
	pos, err := b.parts.Position(ctx, id)
	if err != nil {
		return place{}, err
	}
	var what string
	switch at := p.GetPosition().GetAt().(type) {
	case *strandmqv1.StartPosition_Latest:
		return place{}, refuse("BAD_VALUE", field+".latest", "latest is the place of the next message: use from_end 1 for the last one")
	case *strandmqv1.StartPosition_Offset:
		out.offset = partition.Offset(at.Offset)
		return out, nil // whether it is kept is seen by who looks for it
	case *strandmqv1.StartPosition_FromEnd:
		if at.FromEnd == 0 {
			return place{}, refuse("BAD_VALUE", field+".from_end", "0 messages before the end is the place of the next message: 1 is the last one")
		}
		what = fmt.Sprintf("%d before the end", at.FromEnd)
		// Here nothing stands for what is not there.
		if n := partition.Offset(at.FromEnd); n <= pos.End && pos.End-n >= pos.Start {
			out.offset = pos.End - n
			return out, nil
		}
	case *strandmqv1.StartPosition_Time:
		what = "published at " + at.Time.AsTime().Format(time.RFC3339Nano) + " or later"
		if out.offset, err = b.resolve(ctx, id, p.GetPosition()); err != nil || out.offset < pos.End {
			return out, err
		}
	default:
		what = "at the beginning"
		if out.offset = pos.Start; out.offset < pos.End {
			return out, nil
		}
	}
	if pos.Start == pos.End {
		return place{}, refuse("UNKNOWN_MESSAGE", field, "partition %d of topic %s keeps no message", out.number, t.Name)
	}
	return place{}, refuse("UNKNOWN_MESSAGE", field, "partition %d of topic %s keeps offsets %d to %d: there is no message %s", out.number, t.Name, pos.Start, pos.End-1, what)
}

// resolve finds the offset that a position names in one partition. What lies
// outside of what is kept is the nearest end.
func (b *Broker) resolve(ctx context.Context, id partition.PartitionID, p *strandmqv1.StartPosition) (partition.Offset, error) {
	at, err := b.parts.Position(ctx, id)
	if err != nil {
		return 0, err
	}
	o := at.Start
	switch p := p.GetAt().(type) {
	case *strandmqv1.StartPosition_Latest:
		o = at.End
	case *strandmqv1.StartPosition_Offset:
		o = partition.Offset(p.Offset)
	case *strandmqv1.StartPosition_FromEnd:
		if n := partition.Offset(p.FromEnd); n < at.End {
			o = at.End - n
		}
	case *strandmqv1.StartPosition_Time:
		if o, err = b.parts.OffsetAt(ctx, id, partition.Millis(p.Time.AsTime().UnixMilli())); err != nil {
			return 0, err
		}
	}
	return min(max(o, at.Start), at.End), nil
}
