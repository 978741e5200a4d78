package consumer

import "github.com/strandmq/strandmq/partition"

// acks gathers acks that took effect, and tells Acked of neighbours that were published at
// once together. Whoever proposed an ack tells of it, by what the log says: nobody else
// does, and of one whose answer got lost nobody does.
type acks struct {
	s         *Shell
	gid       GroupID
	published partition.Millis
	n         int
}

func (a *acks) add(published partition.Millis) {
	if published != a.published {
		a.tell()
		a.published = published
	}
	a.n++
}

func (a *acks) tell() {
	if a.n > 0 && a.published != 0 && a.s.Acked != nil {
		a.s.Acked(a.gid, a.published, a.n)
	}
	a.n = 0
}

// took tells whether a settlement took effect, and now.
func (r *SettleResult) took() bool { return r.Err == nil && !r.Again }

// tellAcked tells Acked of settlements that say themselves when their messages were
// published. A stream knows it of its own: see Stream.results.
func (s *Shell) tellAcked(gid GroupID, list []Settlement, res []SettleResult) {
	run := acks{s: s, gid: gid}
	for i := range list {
		if list[i].Action == Ack && res[i].took() {
			run.add(list[i].Published)
		}
	}
	run.tell()
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
		if x.Action != Ack || x.Published != 0 || !res[i].took() {
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
