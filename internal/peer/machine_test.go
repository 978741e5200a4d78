package peer

import (
	"fmt"
	"testing"
	"time"
)

// A node's pulse, line by line: what is known at that time, and what is told.
func TestPulse(t *testing.T) {
	const silence = 100
	told := tale{}
	steps := []struct {
		why   string
		now   time.Duration
		pulse pulse
		tell  string
	}{
		{"nothing yet", 50, pulse{heard: never, answered: never}, ""},
		{"one direction", 60, pulse{in: true, heard: 60, answered: never}, ""},
		{"both", 70, pulse{in: true, out: true, heard: 70, answered: 65}, "up"},
		{"a connection broke", 80, pulse{in: true, heard: 80, answered: 65}, ""},
		{"and is there again", 150, pulse{in: true, out: true, heard: 150, answered: 150}, ""},
		{"as old as may be", 250, pulse{in: true, out: true, heard: 150, answered: 150}, ""},
		{"too old", 251, pulse{in: true, out: true, heard: 150, answered: 251}, "down"},
		{"still", 300, pulse{in: true, out: true, heard: 150, answered: 300}, ""},
		{"heard again", 310, pulse{in: true, out: true, heard: 310, answered: 300}, "up"},
		{"not heard, since it is being taken", 500, pulse{in: true, out: true, heard: 310, answered: 500, busy: true}, ""},
		{"heard, and does not answer", 650, pulse{in: true, out: true, heard: 650, answered: 500}, "down"},
		{"answers", 660, pulse{in: true, out: true, heard: 650, answered: 660}, "up"},
		{"nobody listens", 670, pulse{in: true, heard: 665, answered: 665, refused: true}, "down"},
		{"up", 700, pulse{in: true, out: true, heard: 700, answered: 700}, "up"},
		{"another process", 710, pulse{in: true, heard: 705, answered: 705, reborn: true}, "down"},
		{"which is up", 715, pulse{in: true, out: true, heard: 705, answered: 715}, "up"},
	}
	for _, s := range steps {
		next, tell := told.next(s.pulse, s.now, silence)
		got := ""
		if tell {
			got = map[bool]string{true: "up", false: "down"}[next.up]
		}
		if got != s.tell {
			t.Errorf("at %d, %s: told %q, want %q", s.now, s.why, got, s.tell)
		}
		told = next
	}
	// Who never comes is down once.
	told = tale{since: 10}
	for _, s := range []struct {
		now  time.Duration
		tell bool
	}{{110, false}, {111, true}, {500, false}} {
		next, tell := told.next(pulse{heard: never, answered: never}, s.now, silence)
		if tell != s.tell || tell && next.up {
			t.Errorf("at %d: told %t", s.now, tell)
		}
		told = next
	}
}

// A folder is told from its copies by its starts.
func TestCopiesDoNotKnowTheLastStart(t *testing.T) {
	m := newMachine(hello{lowest: 1, highest: 1, cluster: "c", node: 1, store: storeOf(1), boot: 1, life: 1})
	m.setMembers(map[uint64]Member{2: {Store: storeOf(2), Boot: 5, Life: 55}})
	for _, x := range []struct {
		name       string
		boot, life uint64
		earlier    []Start
		want       Reason
	}{
		{"a copy that counts on", 9, 99, []Start{{3, 33}, {4, 44}, {5, 50}, {8, 88}}, OlderBoot},
		{"a copy at the same count", 5, 50, []Start{{3, 33}, {4, 44}}, OlderBoot},
		{"one that knows of nothing", 6, 66, nil, OlderBoot},
		{"an earlier process", 4, 44, []Start{{3, 33}}, OlderBoot},
		{"the start that is known", 5, 55, []Start{{3, 33}, {4, 44}}, 0},
		{"the next but one", 7, 77, []Start{{4, 44}, {5, 55}, {6, 66}}, 0},
		{"much later", 70, 700, []Start{{68, 680}, {69, 690}}, 0},
	} {
		refused := (*ErrRefused)(nil)
		if _, refused = m.meet(hello{lowest: 1, highest: 1, cluster: "c", node: 2, to: 1, store: storeOf(2), boot: x.boot, life: x.life, earlier: x.earlier}, 2); refused == nil {
			refused = &ErrRefused{}
		}
		if refused.Reason != x.want {
			t.Errorf("%s: %v, want %v", x.name, refused, x.want)
		}
	}
}

// Two processes of every kind, met in both orders.
func TestMeetInBothOrders(t *testing.T) {
	self := hello{lowest: 1, highest: 1, cluster: "c", node: 1, store: storeOf(1), boot: 1, life: 1}
	at := func(node uint64, store byte, boot, life uint64) hello {
		return hello{lowest: 1, highest: 1, cluster: "c", node: node, to: 1, store: StoreID{store}, boot: boot, life: life}
	}
	for _, x := range []struct {
		name          string
		first, second hello
		again         [3]Reason // second, first once more, second once more
		ended         string    // by the second
	}{
		{"the same", at(2, 2, 1, 5), at(2, 2, 1, 5), [3]Reason{}, "[]"},
		{"started again", at(2, 2, 1, 5), at(2, 2, 2, 6), [3]Reason{0, OlderBoot, 0}, "[2]"},
		{"an earlier one", at(2, 2, 2, 6), at(2, 2, 1, 5), [3]Reason{OlderBoot, 0, OlderBoot}, "[]"},
		{"a copy", at(2, 2, 1, 5), at(2, 2, 1, 6), [3]Reason{StoreTwice, StoreTwice, StoreTwice}, "[2]"},
		{"a copy as another node", at(2, 2, 1, 5), at(3, 2, 1, 6), [3]Reason{StoreTwice, StoreTwice, StoreTwice}, "[2 3]"},
		{"another folder", at(2, 2, 1, 5), at(2, 4, 1, 5), [3]Reason{WrongStore, 0, WrongStore}, "[]"},
		{"another node", at(2, 2, 1, 5), at(3, 3, 1, 5), [3]Reason{}, "[]"},
	} {
		m := newMachine(self)
		m.setMembers(map[uint64]Member{2: {}, 3: {}})
		meet := func(h hello) (Reason, string) {
			ended, refused := m.meet(h, h.node)
			if refused == nil {
				return 0, fmt.Sprint(ended)
			}
			return refused.Reason, fmt.Sprint(ended)
		}
		if r, _ := meet(x.first); r != 0 {
			t.Fatalf("%s: the first is refused: %v", x.name, r)
		}
		for i, h := range []hello{x.second, x.first, x.second} {
			r, ended := meet(h)
			if r != x.again[i] || i == 0 && ended != x.ended {
				t.Errorf("%s: meeting %d gives %v and ends %s, want %v and %s", x.name, i+2, r, ended, x.again[i], x.ended)
			}
		}
		// Who was taken away and let in again begins anew.
		m.setMembers(nil)
		m.setMembers(map[uint64]Member{2: {}, 3: {}})
		if r, _ := meet(x.second); r != 0 {
			t.Errorf("%s: what was forgotten is remembered: %v", x.name, r)
		}
	}
}
