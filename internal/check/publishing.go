package check

import "math"

// publishing judges P1, P2 and P9 on the publishers' side.
func (j *judge) publishing() {
	type ident struct{ key, id string }
	var (
		sent      = map[Message]bool{}
		tried     = map[ident]int{}     // calls that began, by key and id
		maybe     = map[ident]bool{}    // one of them was stored or is unknown
		receipts  = map[ident]Place{}   // the first receipt
		fresh     = map[ident]int{}     // receipts that are no duplicates
		highest   = map[string]uint64{} // by key: 1 + largest offset with a receipt
		floor     = map[*call]map[string]uint64{}
		partition = map[string]uint32{} // by key
	)
	for i := range j.h.Events {
		e := &j.h.Events[i]
		c := j.calls[e.Call]
		switch e.Kind {
		case PublishCall:
			low := map[string]uint64{}
			for _, m := range e.Messages {
				sent[m] = true
				low[m.Key] = highest[m.Key]
				if m.ID != "" {
					tried[ident{m.Key, m.ID}]++
					if c.last == nil {
						maybe[ident{m.Key, m.ID}] = true
					}
				}
			}
			floor[c] = low
		case PublishReturn:
			if c == nil || c.last == nil {
				continue
			}
			if len(e.Receipts) != len(c.first.Messages) {
				j.say("P1", "call %d sent %d messages and got %d results", e.Call, len(c.first.Messages), len(e.Receipts))
				continue
			}
			within := map[string]uint64{}
			for n, r := range e.Receipts {
				if r.Refused {
					continue
				}
				m := c.first.Messages[n]
				who := ident{m.Key, m.ID}
				if got, ok := j.log[r.Place]; !ok {
					j.say("P1", "%v was stored at %v by its receipt, and is not there", m, r.Place)
				} else if got != m {
					j.say("P1", "%v was stored at %v by its receipt, and %v is there", m, r.Place, got)
				}
				if m.ID != "" {
					maybe[who] = true
					if first, ok := receipts[who]; ok && first != r.Place {
						j.say("P9", "key %q id %q has receipts for %v and %v", m.Key, m.ID, first, r.Place)
					}
					receipts[who] = r.Place
					if !r.Duplicate {
						fresh[who]++
						if fresh[who] == 2 {
							j.say("P9", "key %q id %q was accepted twice as new", m.Key, m.ID)
						}
					} else if tried[who] < 2 && !j.h.Routed {
						j.say("P9", "key %q id %q is called a duplicate, and was sent once", m.Key, m.ID)
					}
				}
				if m.Key == "" || r.Duplicate {
					continue
				}
				if p, ok := partition[m.Key]; ok && p != r.Place.Partition {
					j.say("P2", "key %q is in partitions %d and %d", m.Key, p, r.Place.Partition)
				}
				partition[m.Key] = r.Place.Partition
				if low := floor[c][m.Key]; r.Place.Offset < low {
					j.say("P2", "%v got offset %d after offset %d of its key had its receipt", m, r.Place.Offset, low-1)
				}
				if r.Place.Offset < within[m.Key] {
					j.say("P2", "%v got offset %d, below an earlier message of its call and key", m, r.Place.Offset)
				}
				within[m.Key] = r.Place.Offset + 1
			}
			for key, high := range within {
				highest[key] = max(highest[key], high)
			}
		}
	}
	seen := map[ident]Place{}
	for _, s := range j.h.Log {
		m := s.Message
		if !sent[m] {
			j.say("P1", "%v at %v was never sent", m, s.Place)
		}
		if m.ID == "" {
			continue
		}
		who := ident{m.Key, m.ID}
		if first, ok := seen[who]; ok {
			j.say("P9", "key %q id %q is in the log at %v and %v", m.Key, m.ID, first, s.Place)
		}
		seen[who] = s.Place
		if tried[who] > 0 && !maybe[who] {
			j.say("P1", "key %q id %q was refused each time, and is in the log at %v", m.Key, m.ID, s.Place)
		}
	}
}

// never is an event index behind all others.
const never = math.MaxInt
