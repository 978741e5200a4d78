package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// find finds an event by its number.
func (e *Events) find(id uint64) (*Event, bool) {
	for i := len(e.list) - 1; i >= 0; i-- {
		if e.list[i].ID == id {
			return e.list[i], true
		}
	}
	return nil, false
}

func eventRow(e *Event) *storagev1.EventRow {
	return &storagev1.EventRow{
		Id: e.ID, Change: e.Change, Kind: string(e.Kind), Topic: e.Topic, Partition: e.Partition, Group: e.Group,
		Node: uint64(e.Node), Text: e.Text, Count: e.Count, FirstMs: int64(e.First), LastMs: int64(e.Last),
	}
}

func (e *Events) totalRows() (out []*storagev1.EventTotalRow) {
	for _, t := range e.totals {
		out = append(out, &storagev1.EventTotalRow{Kind: string(t.Kind), Count: t.Count})
	}
	return out
}

// takeEvents takes what the cluster's row says of the events.
func (mc *machine) takeEvents(row *storagev1.ClusterRow) {
	mc.events.change, mc.events.gone = row.EventChange, row.EventGone
	for _, t := range row.EventTotals {
		mc.events.totals = append(mc.events.totals, EventTotal{EventKind(t.GetKind()), t.GetCount()})
	}
}

// takeEvent takes an event. The rows are in the order of their numbers, and the events
// in that of their changes: sortEvents comes after the last.
func (mc *machine) takeEvent(value []byte) error {
	var row storagev1.EventRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	if row.Id == 0 || row.Change < row.Id || row.Change > mc.events.change || row.Node > 1<<32-1 {
		return fmt.Errorf("event %d, changed at %d of %d, of node %d", row.Id, row.Change, mc.events.change, row.Node)
	}
	mc.events.list = append(mc.events.list, &Event{
		ID: row.Id, Change: row.Change, First: partition.Millis(row.FirstMs), Last: partition.Millis(row.LastMs),
		Happening: Happening{
			Kind: EventKind(row.Kind), Topic: row.Topic, Partition: row.Partition, Group: row.Group,
			Node: partition.NodeID(row.Node), Text: row.Text, Count: row.Count,
		},
	})
	return nil
}

func (mc *machine) sortEvents() {
	slices.SortFunc(mc.events.list, func(a, b *Event) int { return cmp.Compare(a.Change, b.Change) })
}

func (mc *machine) takeSource(value []byte) error {
	var row storagev1.EventSourceRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	if row.Node == 0 || row.Node > 1<<32-1 || Presence(row.Presence) > GivenUp {
		return fmt.Errorf("node %d in presence %d", row.Node, row.Presence)
	}
	mc.sources[partition.NodeID(row.Node)] = source{boot: row.Boot, batch: row.Batch, presence: Presence(row.Presence)}
	return nil
}
