package consumer

import "github.com/strandmq/strandmq/partition"

// tellAcked tells Acked of what took effect, neighbours that were published at once
// together. Whoever proposed an ack tells of it, by what the log says: nobody else does,
// and of one whose answer got lost nobody does.
func (s *Shell) tellAcked(gid GroupID, list []Settlement, res []SettleResult) {
	if s.Acked == nil {
		return
	}
	var last partition.Millis
	n := 0
	for i := range list {
		if x := &list[i]; x.Action == Ack && x.Published != 0 && res[i].Err == nil && !res[i].Again {
			if n > 0 && x.Published != last {
				s.Acked(gid, last, n)
				n = 0
			}
			last = x.Published
			n++
		}
	}
	if n > 0 {
		s.Acked(gid, last, n)
	}
}

// findPublished finds when the messages of a partition were published that were acked now
// and of which nobody told: those that came by tokens. Of a record batch it asks once.
func (s *Shell) findPublished(pid partition.PartitionID, list []Settlement, res []SettleResult) {
	if s.Acked == nil || s.Published == nil {
		return
	}
	var at partition.Millis
	var from, end partition.Offset
	for i := range list {
		x := &list[i]
		if x.Action != Ack || x.Published != 0 || res[i].Err != nil || res[i].Again {
			continue
		}
		if o := x.Token.Offset; o < from || o >= end {
			t, next, err := s.Published(pid, o)
			if err != nil {
				continue // retention was faster
			}
			at, from, end = t, o, next
		}
		x.Published = at
	}
}
