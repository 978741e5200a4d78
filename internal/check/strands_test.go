package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestStrands runs the scripts in testdata/strands. Each step is a line:
//
//	m1 gets a1 [at=0/7] [try=2] [time=500] [asked=N]   a delivery; at: default the next offset
//	m1 acks a1 [try=2], m1 nacks a1, m1 last-nacks a1   what is about to be asked
//	yes a1 [try=2], failed a1, buried a1, stale a1, unknown a1   the answer
//	m1 gone, m1 ended, maybe a1, altered 0/7
//	finish stored=a3,b1 [dead=a1] [left]
//
// Messages are named by key and number; a1' is of the second producer. Deliveries
// lapse 1000 after their time.
func TestStrands(t *testing.T) {
	datadriven.Walk(t, "testdata/strands", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "group" {
				s = &script{places: map[Sent]Place{}, tries: map[Sent]uint32{}}
				c := StrandsConfig{Keys: 3, Producers: 2}
				d.MaybeScanArgs(t, "attempts", &s.attempts)
				d.MaybeScanArgs(t, "remember", &c.Remember)
				d.MaybeScanArgs(t, "passed", &c.Passed)
				c.MaxAttempts = uint32(s.attempts)
				s.j = NewStrands(c)
			}
			for line := range strings.Lines(d.Input) {
				s.step(t, strings.TrimSpace(line))
			}
			return s.result()
		})
	})
}

type script struct {
	j        *Strands
	attempts int
	places   map[Sent]Place
	tries    map[Sent]uint32
	offset   uint64
}

func named(t *testing.T, name string) Sent {
	m := Sent{Key: uint32(name[0] - 'a')}
	if rest, ok := strings.CutSuffix(name, "'"); ok {
		name, m.Producer = rest, 1
	}
	n, err := strconv.ParseUint(name[1:], 10, 64)
	if err != nil {
		t.Fatalf("%q is no message: %v", name, err)
	}
	m.Number = n
	return m
}

func (s *script) step(t *testing.T, line string) {
	words := strings.Fields(line)
	options := map[string]string{}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			options[name] = value
		}
	}
	number := func(name string, otherwise uint64) uint64 {
		if v, ok := options[name]; ok {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return otherwise
	}
	switch words[0] {
	case "finish":
		e := End{Drained: words[len(words)-1] != "left"}
		highest := map[Sent]uint64{}
		for _, name := range strings.FieldsFunc(options["stored"], func(r rune) bool { return r == ',' }) {
			m := named(t, name)
			highest[Sent{m.Key, m.Producer, 0}] = m.Number
		}
		for _, name := range strings.FieldsFunc(options["dead"], func(r rune) bool { return r == ',' }) {
			e.Dead = append(e.Dead, named(t, name))
		}
		e.Stored = func(key, producer uint32) uint64 { return highest[Sent{key, producer, 0}] }
		s.j.Finish(e)
		return
	case "altered":
		s.j.Alter(Place{}, "is not as it was sent")
		return
	case "maybe":
		s.j.Maybe(named(t, words[1]))
		return
	}
	switch words[1] {
	case "gone":
		s.j.Gone(uint64(words[0][1]))
		return
	case "ended":
		s.j.Ended(uint64(words[0][1]))
		return
	}
	verb := words[1]
	var m Sent
	if len(words) == 2 || strings.Contains(words[1], "=") || words[1][0] != 'g' && len(words[1]) <= 3 {
		verb, m = words[0], named(t, words[1]) // an answer
	} else {
		m = named(t, words[2])
	}
	try := uint32(number("try", uint64(max(s.tries[m], 1))))
	switch verb {
	case "gets":
		try = uint32(number("try", uint64(s.tries[m]+1)))
		place, known := s.places[m]
		if at, ok := options["at"]; ok {
			if _, err := fmt.Sscanf(at, "%d/%d", &place.Partition, &place.Offset); err != nil {
				t.Fatal(err)
			}
		} else if !known {
			place = Place{0, s.offset}
			s.offset++
		}
		s.places[m], s.tries[m] = place, max(s.tries[m], try)
		at := int64(number("time", 0))
		s.j.Arrived(Arrival{
			Sent: m, Place: place, Attempt: try, Session: uint64(words[0][1]),
			HandedOut: at, Deadline: at + 1000, Asked: number("asked", s.j.Now()),
		})
	case "acks", "last-nacks":
		s.j.Settling(m, try, true)
	case "nacks":
		s.j.Settling(m, try, false)
	default:
		how, ok := map[string]Outcome{"yes": Acked, "failed": Failed, "buried": Buried, "stale": Stale, "unknown": Unknown}[verb]
		if !ok {
			t.Fatalf("%q is no step", line)
		}
		s.j.Settled(m, try, how)
	}
}

func (s *script) result() string {
	v := s.j.So()
	var out []string
	add := func(n uint64, what string) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(v.Lost, "lost")
	add(v.Left, "left")
	add(v.Duplicated, "duplicated")
	add(v.Disordered, "out of order")
	add(v.Overlapping, "overlapping")
	add(v.Altered, "altered")
	add(v.Other, "other")
	add(v.Unjudged, "unjudged")
	if len(out) == 0 {
		return "kept\n"
	}
	text := strings.Join(out, ", ") + "\n"
	for _, x := range v.Examples {
		text += "  " + x.String() + "\n"
	}
	return text
}

// TestStrandsOfACorrectGroup plays random runs of a small correct group, with
// failures, lapses, crashes, lost answers and deliveries that lie in a member's queue
// until they have lapsed: the judge has to stay silent. Then the same with one fault
// planted: it has to speak.
func TestStrandsOfACorrectGroup(t *testing.T) {
	for seed := range uint64(300) {
		if v := playGroup(seed, ""); v.Broken() > 0 || v.Left > 0 {
			t.Fatalf("seed %d: %+v", seed, v)
		}
	}
	for fault, count := range map[string]func(Verdict) uint64{
		"lose":    func(v Verdict) uint64 { return v.Lost },
		"repeat":  func(v Verdict) uint64 { return v.Duplicated },
		"swap":    func(v Verdict) uint64 { return v.Disordered },
		"overlap": func(v Verdict) uint64 { return v.Overlapping },
		"hurry":   func(v Verdict) uint64 { return v.Overlapping },
	} {
		for seed := range uint64(40) {
			if v := playGroup(seed, fault); count(v) == 0 {
				t.Fatalf("seed %d: %s was not found: %+v", seed, fault, v)
			}
		}
	}
}

// playGroup is a group of one partition, three keys and two producers, told to a
// judge as members would tell it.
func playGroup(seed uint64, fault string) Verdict {
	const (
		total, lapse = 60, 50
		maxAttempts  = 4
	)
	r := rand.New(rand.NewPCG(seed, 7))
	limit := uint32(0)
	if fault == "" && seed%2 == 0 {
		limit = maxAttempts
	}
	j := NewStrands(StrandsConfig{Keys: 3, Producers: 2, MaxAttempts: limit, Remember: 16})
	type message struct {
		sent     Sent
		offset   uint64
		attempt  uint32
		out      bool
		unseen   bool // the answer was lost, so it can only lapse
		session  uint64
		deadline int64
		done     bool
	}
	queues := map[uint32][]*message{}
	stored := map[Sent]uint64{}
	var all []*message
	for i := range total {
		s := Sent{Key: r.Uint32N(3), Producer: r.Uint32N(2)}
		stored[s]++
		s.Number = stored[s]
		stored[Sent{s.Key, s.Producer, 0}] = s.Number
		m := &message{sent: s, offset: uint64(i)}
		if fault == "lose" && i == total/2 {
			continue
		}
		all = append(all, m)
		queues[s.Key] = append(queues[s.Key], m)
	}
	if fault == "swap" {
		q := queues[all[0].sent.Key]
		q[1], q[2] = q[2], q[1]
	}
	var dead []Sent
	var late []Arrival // in a member's queue
	sessions := []uint64{1, 2, 3}
	next := uint64(4)
	planted := false
	var now int64
	end := func(m *message) {
		m.done, m.out = true, false
		queues[m.sent.Key] = queues[m.sent.Key][1:]
	}
	fail := func(m *message) (buried bool) { // an attempt ended badly
		m.out = false
		if limit > 0 && m.attempt >= limit {
			dead = append(dead, m.sent)
			end(m)
			return true
		}
		return false
	}
	deliver := func(m *message, session uint64) {
		j.Arrived(Arrival{
			Sent: m.sent, Place: Place{0, m.offset}, Attempt: m.attempt, Session: session,
			HandedOut: now, Deadline: m.deadline, Asked: j.Now(),
		})
	}
	for left := len(all); left > 0; {
		now += int64(r.IntN(5))
		if n := len(late); n > 0 && r.IntN(20) == 0 {
			x := late[n-1]
			late = late[:n-1]
			j.Arrived(x)
			if r.IntN(2) == 0 {
				j.Settling(x.Sent, x.Attempt, true)
				j.Settled(x.Sent, x.Attempt, Stale) // it lapses before it is settled
			}
		}
		key := r.Uint32N(3)
		if len(queues[key]) == 0 {
			left = len(queues[0]) + len(queues[1]) + len(queues[2])
			continue
		}
		m := queues[key][0]
		session := sessions[r.IntN(len(sessions))]
		if m.out && now >= m.deadline {
			fail(m) // it lapses; nobody is told
			continue
		}
		if !m.out {
			m.attempt++
			m.out, m.session, m.deadline = true, session, now+lapse
			m.unseen = r.IntN(15) == 0 && fault == ""
			switch {
			case !m.unseen:
				deliver(m, session)
			case r.IntN(2) == 0:
				late = append(late, Arrival{
					Sent: m.sent, Place: Place{0, m.offset}, Attempt: m.attempt, Session: session, HandedOut: now, Deadline: m.deadline,
				})
			}
			continue
		}
		if m.unseen {
			continue
		}
		switch {
		case fault == "overlap" && !planted && len(queues[key]) > 1:
			planted = true
			other := *queues[key][1]
			other.attempt, other.deadline = 1, now+lapse
			deliver(&other, session)
			queues[key] = append(queues[key][:1], queues[key][2:]...)
			j.Settling(other.sent, 1, true)
			j.Settled(other.sent, 1, Acked)
		case fault == "hurry" && !planted && m.session != session:
			planted = true
			m.attempt++
			m.session = session
			deliver(m, session) // long before the first one lapses
		case r.IntN(10) == 0 && fault == "": // its member crashes
			j.Gone(m.session)
			for i, s := range sessions {
				if s == m.session {
					sessions[i] = next
					next++
				}
			}
			was := m.session
			late = slices.DeleteFunc(late, func(x Arrival) bool { return x.Session == was })
			for _, x := range all {
				if x.out && x.session == was {
					fail(x)
				}
			}
		case r.IntN(6) == 0:
			last := limit > 0 && m.attempt >= limit
			j.Settling(m.sent, m.attempt, last)
			how := Failed
			attempt := m.attempt
			if fail(m) {
				how = Buried
			}
			if r.IntN(5) > 0 || how == Buried {
				j.Settled(m.sent, attempt, how)
			}
		default:
			j.Settling(m.sent, m.attempt, true)
			end(m)
			if r.IntN(20) == 0 && fault == "" {
				j.Settled(m.sent, m.attempt, Unknown)
				continue
			}
			j.Settled(m.sent, m.attempt, Acked)
			if fault == "repeat" && !planted {
				planted = true
				m.attempt++
				deliver(m, session)
			}
		}
	}
	return j.Finish(End{
		Stored:  func(key, producer uint32) uint64 { return stored[Sent{key, producer, 0}] },
		Dead:    dead,
		Drained: true,
	})
}
