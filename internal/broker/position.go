package broker

import (
	"math"

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

// resolve finds the offset that a position names in one partition. What lies
// outside of what is kept is the nearest end.
func (b *Broker) resolve(id partition.PartitionID, p *strandmqv1.StartPosition) (partition.Offset, error) {
	at, err := b.host.Position(id)
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
		if o, err = b.host.OffsetAt(id, partition.Millis(p.Time.AsTime().UnixMilli())); err != nil {
			return 0, err
		}
	}
	return min(max(o, at.Start), at.End), nil
}
