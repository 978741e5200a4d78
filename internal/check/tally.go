package check

import (
	"fmt"
	"slices"
)

// TallyMemory is what a Tally of so many keys keeps, in bytes.
func TallyMemory(keys uint32) uint64 { return uint64(keys) * 32 }

// Tally judges a group of a load in which nothing is made to fail and one
// producer numbers the messages of each key from 1. It is as exact as Strands
// about loss, repetition, order and overlap, for a few nanoseconds a message,
// since it need not allow for what failures may do: every message has to come
// once, as its first attempt, next after the one before it of its key.
//
//	per key   the number that comes next, the one in hand,  32 bytes
//	          the highest that is settled for good, the highest stored
//
// A delivery that comes again as a later attempt is counted, not judged, as
// long as no settlement of its message was confirmed: a member that is slow may
// let one lapse. Not safe for concurrent use.
type Tally struct {
	group string
	keys  []tallied
	again uint64
	over  uint64 // passed over, and not come since
	late  uint64 // passed over, and come since
	v     Verdict
	skips Verdict // the arrivals that passed over others
	holes bool    // see Refused
}

type tallied struct{ next, held, settled, stored uint64 }

// NewTally expects a load. group is for its words.
func NewTally(group string, keys uint32) *Tally {
	t := &Tally{group: group, keys: make([]tallied, keys)}
	for i := range t.keys {
		t.keys[i].next = 1
	}
	return t
}

// Again counts deliveries that came again as a later attempt.
func (t *Tally) Again() uint64 { return t.again }

// So tells what is proven so far.
func (t *Tally) So() Verdict {
	v := t.v
	if t.holes {
		v.Disordered = t.late
		if t.late == 0 {
			return v
		}
	} else {
		v.Disordered = t.skips.Disordered
	}
	v.Examples = append(slices.Clip(v.Examples), t.skips.Examples...)
	v.Examples = v.Examples[:min(len(v.Examples), keepViolations)]
	return v
}

// Refused says that some messages were not stored, or have no answer. Those
// behind them were on their way and may be stored: that a message was passed over
// proves nothing any more, unless it comes after all.
func (t *Tally) Refused() { t.holes = true }

// Alter counts a message that is not as it was sent.
func (t *Tally) Alter(at Place, why string) {
	t.say(&t.v, &t.v.Altered, "P1", "the message at %v %s", at, why)
}

// Arrived judges a delivery. It tells whether its message came for the first
// time.
func (t *Tally) Arrived(key uint32, number uint64, attempt uint32, at Place) (first bool) {
	if int(key) >= len(t.keys) || number == 0 {
		t.Alter(at, fmt.Sprintf("was never sent: number %d of key %d", number, key))
		return false
	}
	k := &t.keys[key]
	if number == k.next && k.held == 0 { // as it should be
		k.next++
		k.held = number
		return true
	}
	if k.held != 0 && k.held != number {
		t.say(&t.v, &t.v.Overlapping, "P3", "number %d of key %d at %v arrived while number %d was in a member's hands", number, key, at, k.held)
	}
	k.held = number
	switch {
	case number == k.next:
		k.next++
		return true
	case number > k.next:
		t.say(&t.skips, &t.skips.Disordered, "P3", "number %d of key %d at %v arrived before number %d", number, key, at, k.next)
		t.over += number - k.next
		k.next = number + 1
		return true
	case number <= k.settled:
		t.say(&t.v, &t.v.Duplicated, "P6", "number %d of key %d at %v arrived after it or a later one was settled for good", number, key, at)
	case attempt > 1:
		t.again++
	case t.over > 0:
		t.over-- // one of those passed over, for which an arrival was called disordered
		t.late++
		return true
	default:
		t.say(&t.v, &t.v.Duplicated, "P5", "number %d of key %d at %v arrived twice as attempt 1", number, key, at)
	}
	return false
}

// Settling says that a delivery is about to be settled: the next of its key may
// come.
func (t *Tally) Settling(key uint32) {
	if int(key) < len(t.keys) {
		t.keys[key].held = 0
	}
}

// Settled says that a settlement was confirmed.
func (t *Tally) Settled(key uint32, number uint64) {
	if int(key) < len(t.keys) {
		t.keys[key].settled = max(t.keys[key].settled, number)
	}
}

// Stored says up to which number of a key there are receipts.
func (t *Tally) Stored(key uint32, number uint64) { t.keys[key].stored = number }

// Finish gives the whole verdict. drained: the broker says that nothing is left.
func (t *Tally) Finish(drained bool) Verdict {
	missing, example := t.over, -1
	if t.holes {
		missing = 0 // they may be those that were not stored
	}
	for i := range t.keys {
		if k := &t.keys[i]; k.stored >= k.next {
			missing += k.stored - k.next + 1
			if example < 0 {
				example = i
			}
		}
	}
	switch {
	case missing == 0:
	case !drained:
		t.v.Left = missing
	case example >= 0:
		k := t.keys[example]
		t.say(&t.v, &t.v.Lost, "P1", "number %d of key %d was stored, and never delivered", k.next, example)
		t.v.Lost = missing
	default:
		t.say(&t.v, &t.v.Lost, "P1", "messages were passed over, and never delivered")
		t.v.Lost = missing
	}
	return t.So()
}

func (t *Tally) say(v *Verdict, count *uint64, promise, format string, args ...any) {
	*count++
	if len(v.Examples) < keepViolations {
		v.Examples = append(v.Examples, Violation{promise, "group " + t.group + ": " + fmt.Sprintf(format, args...)})
	}
}
