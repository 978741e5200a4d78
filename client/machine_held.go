package client

// held finds the deliveries of a session by their number and by their message. Its
// chains are in the tasks, so that a delivery costs it no memory of its own: there are
// many, and each stays for a moment.
type held struct {
	numbers, places []*task // the first of each chain; as many as a power of two
	n               int
}

func newHeld() held { return held{numbers: make([]*task, 64), places: make([]*task, 64)} }

func (s *held) number(n uint64) *task {
	t := s.numbers[n&uint64(len(s.numbers)-1)]
	for t != nil && t.number != n {
		t = t.nextNumber
	}
	return t
}

// place finds the latest delivery of a message.
func (s *held) place(p place) *task {
	t := s.places[p.slot(len(s.places))]
	for t != nil && t.place() != p {
		t = t.nextPlace
	}
	return t
}

// slot spreads partitions, whose offsets run side by side.
func (p place) slot(n int) uint64 {
	return (p.offset + uint64(p.partition)*0x9E3779B97F4A7C15>>32) & uint64(n-1)
}

// put takes a delivery whose number no other has. No delivery of its message is there.
func (s *held) put(t *task) {
	if s.n == len(s.numbers) {
		all := s.all()
		s.numbers, s.places, s.n = make([]*task, 2*len(s.numbers)), make([]*task, 2*len(s.places)), 0
		for _, x := range all {
			s.put(x)
		}
	}
	number, place := &s.numbers[t.number&uint64(len(s.numbers)-1)], &s.places[t.place().slot(len(s.places))]
	t.nextNumber, *number = *number, t
	t.nextPlace, *place = *place, t
	s.n++
}

// drop lets go of a delivery that is there.
func (s *held) drop(t *task) {
	at := &s.numbers[t.number&uint64(len(s.numbers)-1)]
	for *at != t {
		at = &(*at).nextNumber
	}
	*at, t.nextNumber = t.nextNumber, nil
	at = &s.places[t.place().slot(len(s.places))]
	for *at != t {
		at = &(*at).nextPlace
	}
	*at, t.nextPlace = t.nextPlace, nil
	s.n--
}

// all gives what is there, in no order.
func (s *held) all() []*task {
	out := make([]*task, 0, s.n)
	for _, t := range s.numbers {
		for ; t != nil; t = t.nextNumber {
			out = append(out, t)
		}
	}
	return out
}
