package broker

import (
	"fmt"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// lostUnread notes what an at-most-once group was handed and nobody could read.
func (b *Broker) lostUnread(id consumer.GroupID, bad *partition.ErrUnreadable) {
	b.log.Warn("a message cannot be read and is lost to an at-most-once group, which does not get it again", "group", b.groupName(coordinator.GroupID(id)),
		"partition", b.partitionName(bad.Partition), "offset", uint64(bad.Offset), "why", bad.Why())
	b.events.note(happening{kind: coordinator.LostUnread, of: spot{bad.Partition, true}, group: id,
		text: fmt.Sprintf("the message at offset %d cannot be read, and an at-most-once group does not get it again: %s", bad.Offset, bad.Why())})
}

// standsBefore says before what a group stands that cannot be read, and how it
// goes on.
func (b *Broker) standsBefore(id consumer.GroupID, bad *partition.ErrUnreadable) string {
	what := fmt.Sprintf("%s of %s cannot be read (%s), and the group stands there: restore the data folder from a copy, or go on behind", bad.What(), b.partitionName(bad.Partition), bad.Why())
	m := b.coord.View()
	at, known := m.Place(bad.Partition)
	if g, ok := m.GroupByID(coordinator.GroupID(id)); ok && known {
		what += fmt.Sprintf(" with 'strandmq group reset %s %s --partition %d --to %d'", at.Topic.Name, g.Name, at.Number, bad.End())
	}
	return what + "; when retention has passed it, it goes on by itself; other groups and publishers are not concerned"
}
