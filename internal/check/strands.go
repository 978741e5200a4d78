package check

import (
	"fmt"
	"slices"
)

// Sent names one message of a load by what its body carries: its key, who sent
// it, and its number among what that producer sent of the key, from 1.
type Sent struct {
	Key, Producer uint32
	Number        uint64
}

// String prints a message as key 3, number 17 of producer 0.
func (s Sent) String() string {
	return fmt.Sprintf("key %d, number %d of producer %d", s.Key, s.Number, s.Producer)
}

// StrandsConfig says what a group is expected to see.
type StrandsConfig struct {
	Group       string
	Keys        uint32 // keys are numbered from 0
	Producers   uint32 // so are producers
	MaxAttempts uint32 // 0: without limit
	// How many messages that ended are remembered one by one, ~100 bytes each.
	// It only matters for answers that stay in flight while so many others end.
	// 0: 65,536.
	Remember int
	// How many messages that were passed over are remembered until the dead
	// letters are known. Beyond, each counts as lost at once. 0: 1,048,576.
	Passed int
}

// StrandsMemory is what a Strands of so many keys and producers keeps for as
// long as it lives, in bytes, beside what is in the members' hands.
func StrandsMemory(keys, producers uint32) uint64 {
	return uint64(keys)*uint64(producers)*8 + uint64(keys)*32
}

// Strands judges one group of a load by the numbers in the bodies, while it runs
// and without keeping messages. It keeps:
//
//	per key and producer   the number that has to come next           8 bytes
//	per key                the latest message: where and when         32 bytes
//	per message            while it is in somebody's hands, or may be ~200 bytes
//	the latest to end      when, where, by which attempt: bounded     ~100 bytes
//	passed over            until the dead letters are known: bounded  ~64 bytes
//
// Every call of a member is told in two halves: what is about to be asked
// (Now, Settling) before it is sent, and what came back (Arrived, Settled)
// after. Between the two, either may have happened, and both are accepted; so a
// violation is a proof. A message can also die without anyone being told, when
// its last delivery lapses; what was passed over in such a group is judged by
// Finish. Not safe for concurrent use.
type Strands struct {
	c       StrandsConfig
	clock   uint64 // counts what was told
	next    []uint64
	last    []latest
	open    map[Sent]*held
	head    map[uint32]*held // by key: the latest that arrived, while it is open
	ended   map[Sent]ending
	endings []Sent // the same in the order of their ends, as a ring
	oldest  int
	horizon uint64 // everything that ended and is forgotten ended before or then
	passed  map[Sent]passedOver
	maybe   map[Sent]struct{}
	early   []early
	told    uint64 // deaths that an answer told
	v       Verdict
}

// latest is the message of a key that has come from the highest offset.
type latest struct {
	place Place // the offset is one more than it was; 0: none came yet
	overtaking
}

// overtaking is the arrival of a message, for those that are before it in its key.
type overtaking struct {
	at        uint64 // when it was told; 0: it was not
	handedOut int64  // by the broker's clock
}

// proves tells whether a hand-out was made after the message had been handed out that
// this is of. Arriving after it is not enough: an answer can be long on its way, and what
// it brings have lapsed for good meanwhile.
func (o overtaking) proves(a Arrival) bool {
	return o.at > 0 && (a.Asked >= o.at || a.HandedOut > o.handedOut)
}

// passedOver is the arrival of a message, for those that the same producer had sent
// before it and that had not come.
type passedOver struct {
	overtaking
	place Place
}

// held is a message that arrived and has not ended.
type held struct {
	sent     Sent
	place    Place
	outs     []hold
	later    overtaking // the first later one of its key that came
	overtook uint64     // when one came although it was not done; 0: never
	by       string     // which
}

// hold is one hand-out of a message to one session.
type hold struct {
	attempt   uint32
	session   uint64
	handedOut int64
	deadline  int64
	asked     uint64 // when its settlement was last told of; 0: never
	state     holdState
	gone      bool // its session ended
}

type holdState uint8

const (
	inHands  holdState = iota
	settling           // asked for an end: it may have ended
	given              // given back: nacked, refused, or its session ended
)

// ending is how a message ended.
type ending struct {
	at      uint64
	place   Place
	attempt uint32
	dead    bool
}

// early is a hand-out that came before an earlier one of its message was due to
// lapse. That is wrong unless the session of the earlier one had ended. A broker that stops
// in good order ends sessions, too, and charges nothing: then it is the same attempt.
type early struct {
	session uint64
	promise string
	text    string
}

// Arrival is one message of an answer to a receive.
type Arrival struct {
	Sent      Sent
	Place     Place
	Attempt   uint32
	Session   uint64 // of the member; no two sessions of a run share one
	HandedOut int64  // by the broker's clock, in milliseconds
	Deadline  int64  // by the same
	Asked     uint64 // Now, before the call that brought it
}

// Outcome is what an answer says of a settlement.
type Outcome uint8

// The outcomes.
const (
	Acked   Outcome = iota + 1 // settled for good
	Failed                     // another attempt will come
	Buried                     // it is a dead letter now
	Stale                      // refused: the delivery is not current
	Unknown                    // the answer is lost for good
)

// Verdict counts what was proven.
type Verdict struct {
	Lost        uint64 // stored by its receipt, and neither delivered nor dead when nothing was left
	Left        uint64 // the same, when the group still had work: nothing is proven
	Duplicated  uint64 // delivered after its confirmed end, or stored twice
	Disordered  uint64 // delivered before an earlier one of its key, or stored so
	Overlapping uint64 // delivered while a message of its key was in other hands
	Altered     uint64 // with other bytes than were sent, or never sent
	Other       uint64 // attempts beyond the limit, dead letters that do not add up
	Unjudged    uint64 // arrivals that came too late to be told from a repeat

	Examples []Violation // the first of them in words
}

// Broken counts the proven violations.
func (v Verdict) Broken() uint64 {
	return v.Lost + v.Duplicated + v.Disordered + v.Overlapping + v.Altered + v.Other
}

// NewStrands expects a load.
func NewStrands(c StrandsConfig) *Strands {
	if c.Remember <= 0 {
		c.Remember = 1 << 16
	}
	if c.Passed <= 0 {
		c.Passed = 1 << 20
	}
	s := &Strands{
		c: c, next: make([]uint64, int(c.Keys)*int(c.Producers)), last: make([]latest, c.Keys),
		open: map[Sent]*held{}, head: map[uint32]*held{}, ended: map[Sent]ending{},
		passed: map[Sent]passedOver{}, maybe: map[Sent]struct{}{},
	}
	for i := range s.next {
		s.next[i] = 1
	}
	return s
}

// Now marks a moment between what is told.
func (s *Strands) Now() uint64 { return s.clock }

// So tells what is proven so far.
func (s *Strands) So() Verdict { return s.v }

// Alter counts a message that is not as it was sent: its bytes cannot be read.
func (s *Strands) Alter(at Place, why string) {
	s.say(&s.v.Altered, "P1", "the message at %v %s", at, why)
}

// Maybe says that nobody knows whether a message was stored.
func (s *Strands) Maybe(m Sent) {
	if !s.known(m) {
		return
	}
	if _, ok := s.passed[m]; ok {
		delete(s.passed, m)
	} else if m.Number < s.next[s.strand(m)] {
		return // it came already
	}
	s.maybe[m] = struct{}{}
}

// Arrived judges one delivery. It tells whether the message came for the first
// time.
func (s *Strands) Arrived(a Arrival) (first bool) {
	s.clock++
	m := a.Sent
	if !s.known(m) {
		s.Alter(a.Place, "was never sent: "+m.String())
		return false
	}
	if s.c.MaxAttempts > 0 && a.Attempt > s.c.MaxAttempts {
		s.say(&s.v.Other, "P7", "%v came with attempt %d of %d", m, a.Attempt, s.c.MaxAttempts)
	}
	if e, ok := s.ended[m]; ok {
		switch {
		case a.Place != e.place:
			s.say(&s.v.Duplicated, "P9", "%v is stored at %v and at %v", m, e.place, a.Place)
		case a.Asked >= e.at:
			s.say(&s.v.Duplicated, "P6", "%v was delivered at %v after it had ended", m, a.Place)
		case a.Attempt > e.attempt:
			// The ended delivery was current when it ended, so nothing was
			// handed out behind it.
			s.say(&s.v.Duplicated, "P6", "%v ended with attempt %d, and attempt %d was handed out", m, e.attempt, a.Attempt)
		}
		return false
	}
	if h := s.open[m]; h != nil {
		s.again(h, a)
		return false
	}
	return s.fresh(a)
}

// fresh judges a message that nobody holds.
func (s *Strands) fresh(a Arrival) bool {
	m, strand, last := a.Sent, s.strand(a.Sent), &s.last[a.Sent.Key]
	h := &held{sent: m, place: a.Place, outs: []hold{a.hold()}}
	_, unsure := s.maybe[m]
	later, late := s.passed[m]
	// Without a limit a message ends by a settlement alone, so it came before it ended.
	proven := func(o overtaking) bool { return s.c.MaxAttempts == 0 || o.proves(a) }
	switch {
	case unsure:
		// Whatever was sent after it was not sent because of it.
		delete(s.maybe, m)
		s.next[strand] = max(s.next[strand], m.Number+1)
	case late:
		delete(s.passed, m)
		switch {
		case later.place.Partition == a.Place.Partition && later.place.Offset < a.Place.Offset:
			// Whoever published, or stored, is at fault: the group follows the log.
			s.say(&s.v.Disordered, "P2", "%v is stored at %v, behind a later one of its producer at offset %d", m, a.Place, later.place.Offset)
		case proven(later.overtaking):
			s.say(&s.v.Disordered, "P3", "%v at %v arrived after a later one of its key at offset %d", m, a.Place, later.place.Offset)
		default:
			h.overtaken(later.overtaking, "a later one of its key")
		}
	case m.Number < s.next[strand] && a.Place.Offset >= last.place.Offset:
		s.say(&s.v.Duplicated, "P9", "%v is stored at %v, and was stored before", m, a.Place)
		return false
	case m.Number < s.next[strand] && a.Asked < s.horizon:
		s.v.Unjudged++
		return false
	case m.Number < s.next[strand]:
		s.say(&s.v.Duplicated, "P6", "%v was delivered at %v after it had ended", m, a.Place)
		return false
	default:
		s.pass(a, s.next[strand])
		s.next[strand] = m.Number + 1
	}
	s.open[m] = h
	if late {
		return true
	}
	switch {
	case last.place.Offset > 0 && last.place.Partition != a.Place.Partition:
		s.say(&s.v.Disordered, "P2", "key %d is in partitions %d and %d", m.Key, last.place.Partition, a.Place.Partition)
	case a.Place.Offset >= last.place.Offset:
	case proven(last.overtaking):
		s.say(&s.v.Disordered, "P3", "%v at %v arrived after offset %d of its key", m, a.Place, last.place.Offset-1)
	default:
		h.overtaken(last.overtaking, fmt.Sprintf("offset %d of its key", last.place.Offset-1))
		return true
	}
	now := overtaking{s.clock, a.HandedOut}
	if a.Place.Offset >= last.place.Offset {
		*last = latest{Place{a.Place.Partition, a.Place.Offset + 1}, now}
	}
	// A group with a limit of attempts may have buried what came before without
	// a word. If it is handed out again, can still be settled, or is no dead letter
	// in the end, then it was alive.
	if before := s.head[m.Key]; before != nil {
		before.later = now
		switch {
		case before.done():
		case s.c.MaxAttempts == 0:
			s.say(&s.v.Overlapping, "P3", "%v arrived while %v was not done", m, before.sent)
		default:
			before.overtaken(now, m.String())
		}
	}
	s.head[m.Key] = h
	return true
}

// overtaken notes that a later message of its key came although it may not be done.
func (h *held) overtaken(o overtaking, by string) {
	h.later = o
	if h.overtook == 0 {
		h.overtook, h.by = o.at, by
	}
}

// again judges one more hand-out of a message.
func (s *Strands) again(h *held, a Arrival) {
	if a.Place != h.place {
		s.say(&s.v.Duplicated, "P9", "%v is stored at %v and at %v", h.sent, h.place, a.Place)
		return
	}
	for i := range h.outs {
		o := &h.outs[i]
		if o.attempt != a.Attempt {
			continue
		}
		if o.session != a.Session && o.state != given && !o.gone {
			first := o.session
			if a.HandedOut < o.handedOut {
				first = a.Session // its answer was long on its way
			}
			s.suspect(early{first, "P5", fmt.Sprintf("attempt %d of %v was handed out twice", a.Attempt, h.sent)})
			if first == a.Session {
				return
			}
		}
		*o = a.hold()
		return
	}
	if h.later.proves(a) {
		s.say(&s.v.Disordered, "P3", "%v was handed out again after offset %d of its key", h.sent, s.last[h.sent.Key].place.Offset-1)
	} else if h.later.at > 0 {
		h.overtaken(h.later, "a later one of its key")
	}
	for _, o := range h.outs {
		before, after := o, a.hold()
		if before.attempt > after.attempt {
			before, after = after, before // an answer that was long on its way
		}
		if before.state != given && !before.gone && after.handedOut < before.deadline {
			s.suspect(early{before.session, "P3", fmt.Sprintf("attempt %d of %v was handed out %d ms before attempt %d was due to lapse",
				after.attempt, h.sent, before.deadline-after.handedOut, before.attempt)})
		}
	}
	h.outs = append(h.outs, a.hold())
}

func (a Arrival) hold() hold {
	return hold{attempt: a.Attempt, session: a.Session, handedOut: a.HandedOut, deadline: a.Deadline}
}

// done tells whether a message may have ended.
func (h *held) done() bool {
	return slices.ContainsFunc(h.outs, func(o hold) bool { return o.state == settling })
}

func (h *held) out(attempt uint32) *hold {
	for i := range h.outs {
		if h.outs[i].attempt == attempt {
			return &h.outs[i]
		}
	}
	return nil
}

// Settling says that a delivery is about to be settled. ends: the message ends
// if the broker accepts it, and the next one of its key may be anywhere;
// otherwise the message itself may be.
func (s *Strands) Settling(m Sent, attempt uint32, ends bool) {
	s.clock++
	h := s.open[m]
	if h == nil {
		return
	}
	if o := h.out(attempt); o != nil {
		o.asked = s.clock
		if o.state == inHands {
			o.state = given
			if ends {
				o.state = settling
			}
		}
	}
}

// Settled says what the answer was.
func (s *Strands) Settled(m Sent, attempt uint32, how Outcome) {
	s.clock++
	h := s.open[m]
	if h == nil {
		if e, ok := s.ended[m]; ok && how == Acked && (e.attempt != attempt || e.dead) {
			s.say(&s.v.Duplicated, "P6", "%v was settled for good with attempts %d and %d", m, e.attempt, attempt)
		}
		return
	}
	if o := h.out(attempt); o != nil && h.overtook > 0 && o.asked > h.overtook && how != Stale && how != Unknown {
		s.say(&s.v.Overlapping, "P3", "%v arrived while %v was not done", h.by, h.sent)
		h.overtook = 0
	}
	switch how {
	case Acked, Buried:
		for _, o := range h.outs {
			if o.attempt > attempt {
				s.say(&s.v.Duplicated, "P6", "%v ended with attempt %d, and attempt %d was handed out", m, attempt, o.attempt)
			}
		}
		if how == Buried {
			s.told++
		}
		s.close(h, ending{s.clock, h.place, attempt, how == Buried})
	case Stale, Failed:
		if o := h.out(attempt); o != nil {
			o.state = given
		}
	}
}

// Gone says that a session is about to be given up: from now on, what it held
// may be anywhere.
func (s *Strands) Gone(session uint64) {
	s.clock++
	for _, h := range s.open {
		for i := range h.outs {
			if o := &h.outs[i]; o.session == session {
				o.gone = true
				if o.state == inHands {
					o.state = given
				}
			}
		}
	}
}

// Ended says that the broker ended a session, and nobody knows since when: what
// it held may have been anywhere.
func (s *Strands) Ended(session uint64) {
	s.Gone(session)
	s.early = slices.DeleteFunc(s.early, func(e early) bool { return e.session == session })
}

// close forgets an ended message but for the ring.
func (s *Strands) close(h *held, e ending) {
	delete(s.open, h.sent)
	if s.head[h.sent.Key] == h {
		delete(s.head, h.sent.Key)
	}
	if len(s.endings) < s.c.Remember {
		s.endings = append(s.endings, h.sent)
	} else {
		old := s.endings[s.oldest]
		s.horizon = s.ended[old].at
		delete(s.ended, old)
		s.endings[s.oldest] = h.sent
		s.oldest = (s.oldest + 1) % len(s.endings)
	}
	s.ended[h.sent] = e
}

// pass remembers the messages from a number up to what arrived, which did not come.
func (s *Strands) pass(a Arrival, from uint64) {
	m := a.Sent
	for n := from; n < m.Number; n++ {
		over := Sent{m.Key, m.Producer, n}
		if _, ok := s.maybe[over]; ok {
			continue
		}
		if len(s.passed) >= s.c.Passed {
			s.say(&s.v.Lost, "P1", "%v and more were passed over", over)
			s.v.Lost += m.Number - n - 1
			return
		}
		s.passed[over] = passedOver{overtaking{s.clock, a.HandedOut}, a.Place}
	}
}

// suspect keeps a hand-out that is wrong unless a session turns out to have ended.
func (s *Strands) suspect(e early) {
	if len(s.early) < s.c.Remember {
		s.early = append(s.early, e)
	} else {
		s.say(&s.v.Overlapping, e.promise, "%s", e.text)
	}
}

// Left counts messages that arrived and have not ended, and those that were
// passed over.
func (s *Strands) Left() int { return len(s.open) + len(s.passed) }

// End is what is known when a run is over.
type End struct {
	// The highest number of a key and producer that has a receipt; 0: none.
	Stored func(key, producer uint32) uint64
	// The group's dead letters.
	Dead []Sent
	// The broker says that nothing is left to do.
	Drained bool
}

// Finish judges what was passed over and what never came, and gives the whole
// verdict.
func (s *Strands) Finish(e End) Verdict {
	dead := map[Sent]struct{}{}
	told := uint64(0)
	for _, d := range e.Dead {
		if _, twice := dead[d]; twice || !s.known(d) {
			s.say(&s.v.Other, "P7", "%v is dead twice, or was never sent", d)
			continue
		}
		dead[d] = struct{}{}
		_, passed := s.passed[d]
		was, ended := s.ended[d]
		switch {
		case s.open[d] != nil || passed:
		case d.Number >= s.next[s.strand(d)]:
		case ended && !was.dead:
			s.say(&s.v.Other, "P7", "%v is a dead letter, and was acked", d)
		default:
			told++
		}
	}
	if told != s.told {
		s.say(&s.v.Other, "P7", "answers told of %d dead letters, and %d of those are there", s.told, told)
	}
	missing := func(m Sent, why string) {
		if _, ok := dead[m]; ok {
			return
		}
		if !e.Drained {
			s.v.Left++
			return
		}
		s.say(&s.v.Lost, "P1", "%v %s", m, why)
	}
	for _, m := range sorted(s.passed) {
		missing(m, "was passed over, and is no dead letter")
	}
	for _, m := range sorted(s.open) {
		if !s.open[m].done() {
			missing(m, "was handed out, and never again after that failed")
		}
	}
	for key := range s.c.Keys {
		for producer := range s.c.Producers {
			m := Sent{Key: key, Producer: producer}
			for m.Number = s.next[s.strand(m)]; m.Number <= e.Stored(key, producer); m.Number++ {
				if _, unsure := s.maybe[m]; !unsure {
					missing(m, "was stored, and never delivered")
				}
			}
		}
	}
	for _, x := range s.early {
		s.say(&s.v.Overlapping, x.promise, "%s", x.text)
	}
	s.early = nil
	return s.v
}

// sorted gives the keys of a map, in order.
func sorted[V any](m map[Sent]V) []Sent {
	out := make([]Sent, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Sent) int {
		switch {
		case a.Key != b.Key:
			return int(int64(a.Key) - int64(b.Key))
		case a.Producer != b.Producer:
			return int(int64(a.Producer) - int64(b.Producer))
		case a.Number < b.Number:
			return -1
		case a.Number > b.Number:
			return 1
		}
		return 0
	})
	return out
}

func (s *Strands) known(m Sent) bool {
	return m.Key < s.c.Keys && m.Producer < s.c.Producers && m.Number > 0
}

func (s *Strands) strand(m Sent) int { return int(m.Key)*int(s.c.Producers) + int(m.Producer) }

func (s *Strands) say(count *uint64, promise, format string, args ...any) {
	*count++
	if len(s.v.Examples) < keepViolations {
		text := fmt.Sprintf(format, args...)
		if s.c.Group != "" {
			text = "group " + s.c.Group + ": " + text
		}
		s.v.Examples = append(s.v.Examples, Violation{promise, text})
	}
}
