package check

import (
	"fmt"
	"strings"
	"testing"
)

// good is a small run without faults: keys a and b, a duplicate, a lost answer
// to a publish, a nack, a lost receive, a death.
//
//	log 0: a1 a2 a3    log 1: b1 b2
func good() *History {
	var h History
	add := func(e Event) { h.Events = append(h.Events, e) }
	msg := func(s string) Message { return Message{Key: s[:1], ID: s, Body: "body " + s} }
	at := map[string]Place{"a1": {0, 0}, "a2": {0, 1}, "a3": {0, 2}, "b1": {1, 0}, "b2": {1, 1}}
	call := 0
	publish := func(lost bool, duplicate bool, names ...string) {
		call++
		e := Event{Kind: PublishCall, Call: call}
		r := Event{Kind: PublishReturn, Call: call, Lost: lost}
		for _, n := range names {
			e.Messages = append(e.Messages, msg(n))
			r.Receipts = append(r.Receipts, Receipt{Place: at[n], Duplicate: duplicate})
		}
		add(e)
		add(r)
	}
	receive := func(member string, lost bool, outs ...string) { // name/attempt
		call++
		add(Event{Kind: ReceiveCall, Call: call, Group: "g", Member: member})
		r := Event{Kind: ReceiveReturn, Call: call, Group: "g", Member: member, Lost: lost}
		for _, o := range outs {
			name, attempt, _ := strings.Cut(o, "/")
			r.Deliveries = append(r.Deliveries, Delivery{
				Place: at[name], Message: msg(name), Attempt: uint32(attempt[0] - '0'), Token: o,
			})
		}
		add(r)
	}
	settle := func(action Action, token string, res Settled) {
		call++
		add(Event{Kind: SettleCall, Call: call, Group: "g", Settlements: []Settlement{{token, action}}})
		add(Event{Kind: SettleReturn, Call: call, Group: "g", Settled: []Settled{res}})
	}
	publish(false, false, "a1", "a2")
	publish(false, false, "b1")
	publish(true, false, "a3", "b2")
	publish(false, true, "a3", "b2")
	receive("m", false, "a1/1", "b1/1")
	settle(Nack, "a1/1", Settled{})
	settle(Ack, "b1/1", Settled{})
	receive("n", true) // brought a1/2 to nobody
	settle(Ack, "a1/1", Settled{Refused: true})
	receive("m", false, "a1/3", "b2/1")
	receive("m", false, "a1/3", "b2/1") // asked again
	settle(Ack, "a1/3", Settled{})
	settle(Ack, "b2/1", Settled{})
	receive("n", false, "a2/1")
	settle(Reject, "a2/1", Settled{Dead: true})
	receive("n", false, "a3/1")
	settle(Release, "a3/1", Settled{})
	receive("m", false)
	call++
	add(Event{Kind: ReceiveCall, Call: call, Group: "g", Member: "m"})
	d := Delivery{Place: at["a3"], Message: msg("a3"), Attempt: 1, Token: "a3/1 again"}
	add(Event{Kind: ReceiveReturn, Call: call, Group: "g", Member: "m", Deliveries: []Delivery{d}})
	settle(Ack, "a3/1 again", Settled{})
	for _, n := range []string{"a1", "a2", "a3", "b1", "b2"} {
		h.Log = append(h.Log, Stored{at[n], msg(n)})
	}
	h.Groups = []Group{{
		Name: "g", MaxAttempts: 3, Keyed: true, Drained: true,
		Dead: []Dead{{at["a2"], msg("a2"), 1}},
	}}
	return &h
}

func TestGood(t *testing.T) {
	if v := Promises(*good()); len(v) > 0 {
		t.Fatalf("a good run is accused: %v", v)
	}
}

// find returns the nth event of a kind, from 0.
func (h *History) find(k Kind, n int) *Event {
	for i := range h.Events {
		if h.Events[i].Kind == k {
			if n == 0 {
				return &h.Events[i]
			}
			n--
		}
	}
	panic(fmt.Sprintf("no event %d of kind %d", n, k))
}

// insert puts events before the nth event of a kind.
func (h *History) insert(k Kind, n int, add ...Event) {
	target := h.find(k, n)
	for i := range h.Events {
		if &h.Events[i] == target {
			h.Events = append(h.Events[:i:i], append(add, h.Events[i:]...)...)
			return
		}
	}
}

// Each planted fault must be found, under its promise.
func TestPlanted(t *testing.T) {
	receive := func(call int, member string, d Delivery) []Event {
		return []Event{
			{Kind: ReceiveCall, Call: call, Group: "g", Member: member},
			{Kind: ReceiveReturn, Call: call, Group: "g", Member: member, Deliveries: []Delivery{d}},
		}
	}
	out := func(place Place, name string, attempt uint32, token string) Delivery {
		return Delivery{Place: place, Message: Message{name[:1], name, "body " + name}, Attempt: attempt, Token: token}
	}
	for _, c := range []struct {
		name, want string
		plant      func(h *History)
	}{
		{"acknowledged message lost", "P1: {a a3 body a3} was stored at 0/2 by its receipt, and is not there", func(h *History) {
			h.Log = append(h.Log[:2], h.Log[3:]...)
		}},
		{"body changed in the log", "P1: {b b1 body b1} was stored at 1/0 by its receipt, and {b b1 torn} is there", func(h *History) {
			h.Log[3].Message.Body = "torn"
		}},
		{"message that nobody sent", "P1: {a ghost } at 0/3 was never sent", func(h *History) {
			h.Log = append(h.Log[:3:3], append([]Stored{{Place{0, 3}, Message{"a", "ghost", ""}}}, h.Log[3:]...)...)
		}},
		{"hole in the log", "P1: the log of partition 1 goes on at offset 2 instead of 1", func(h *History) {
			h.Log[4].Place.Offset = 2
		}},
		{"refused message stored", "P1: key \"b\" id \"b1\" was refused each time", func(h *History) {
			h.find(PublishReturn, 1).Receipts[0] = Receipt{Refused: true}
		}},
		{"group forgot a message", "P1: group g: {a a3 body a3} at 0/2 is neither acked nor dead", func(h *History) {
			h.find(SettleReturn, 7).Settled[0].Refused = true
		}},
		{"handed out what is not stored", "P1: group g was handed {a a1 other}", func(h *History) {
			h.find(ReceiveReturn, 0).Deliveries[0].Message.Body = "other"
		}},
		{"offsets against the receipts", "P2: {a a3 body a3} got offset 0 after offset 1 of its key", func(h *History) {
			r := h.find(PublishReturn, 3)
			r.Receipts[0] = Receipt{Place: Place{0, 0}}
		}},
		{"order within a call turned", "P2: {a a2 body a2} got offset 0, below an earlier message", func(h *History) {
			r := h.find(PublishReturn, 0).Receipts
			r[0].Place, r[1].Place = r[1].Place, r[0].Place
		}},
		{"key in two partitions", "P2: key \"a\" is in partitions 0 and 1", func(h *History) {
			h.find(PublishReturn, 0).Receipts[1].Place.Partition = 1
		}},
		{"next of the key too early", "P3: group g, key \"a\": 0/1 was delivered while 0/0 was not done", func(h *History) {
			h.insert(SettleCall, 0, receive(90, "n", out(Place{0, 1}, "a2", 1, "a2/1"))...)
		}},
		{"reversal", "P3: group g, key \"b\": 1/0 was handed out after 1/1", func(h *History) {
			h.insert(SettleCall, 4, receive(90, "n", out(Place{1, 0}, "b1", 2, "b1/2"))...)
		}},
		{"message passed over", "P3: group g, key \"b\": 1/1 was delivered while 1/0 was not done", func(h *History) {
			r := h.find(ReceiveReturn, 0)
			r.Deliveries = r.Deliveries[:1]
		}},
		{"attempt counted twice", "P5: group g: 1/1 went from attempt 0 to 3, with 1 lost answers between", func(h *History) {
			h.find(ReceiveReturn, 2).Deliveries[1].Attempt = 3
			h.find(ReceiveReturn, 3).Deliveries[1].Attempt = 3
		}},
		{"attempt forgotten", "P5: group g: attempt 1 of 0/0 was handed out twice", func(h *History) {
			h.find(ReceiveReturn, 2).Deliveries[0].Attempt = 1
			h.find(ReceiveReturn, 3).Deliveries[0].Attempt = 1
		}},
		{"attempts fall", "P5: group g: attempt 2 of 0/2 came before attempt 1", func(h *History) {
			h.insert(SettleCall, 7, receive(90, "n", out(Place{0, 2}, "a3", 2, "a3/2"))...)
			h.insert(SettleCall, 7, receive(91, "n", out(Place{0, 2}, "a3", 1, "a3/1 late"))...)
			h.find(ReceiveReturn, 5).Deliveries[0].Attempt = 2
			h.find(ReceiveReturn, 7).Deliveries = nil
		}},
		{"attempt 0", "P5: group g: 1/0 was handed out with attempt 0", func(h *History) {
			h.find(ReceiveReturn, 0).Deliveries[1].Attempt = 0
		}},
		{"stale token accepted", "P6: group g: a token of attempt 1 of 0/0 was accepted after attempt 3", func(h *History) {
			h.insert(SettleCall, 3,
				Event{Kind: SettleCall, Call: 90, Group: "g", Settlements: []Settlement{{"a1/1", Nack}}},
				Event{Kind: SettleReturn, Call: 90, Group: "g", Settled: []Settled{{}}})
		}},
		{"repeated ack refused", "P6: group g: the ack that settled 1/0 was refused when it was repeated", func(h *History) {
			h.insert(SettleCall, 3,
				Event{Kind: SettleCall, Call: 90, Group: "g", Settlements: []Settlement{{"b1/1", Ack}}},
				Event{Kind: SettleReturn, Call: 90, Group: "g", Settled: []Settled{{Refused: true}}})
		}},
		{"again after its ack", "P6: group g: 1/0 was handed out again after its confirmed ack", func(h *History) {
			h.insert(ReceiveCall, 1, receive(90, "n", out(Place{1, 0}, "b1", 2, "b1/2"))...)
		}},
		{"same token after its ack", "P6: group g: 1/0 was delivered again after its confirmed ack", func(h *History) {
			h.insert(ReceiveCall, 1, receive(90, "m", out(Place{1, 0}, "b1", 1, "b1/1"))...)
		}},
		{"beyond the limit", "P7: group g: attempt 3 of 0/0 is beyond the limit of 2", func(h *History) {
			h.Groups[0].MaxAttempts = 2
		}},
		{"dead letter lost", "P7: group g: 0/1 became a dead letter by the answer, and is not among them", func(h *History) {
			h.Groups[0].Dead = nil
		}},
		{"dead twice", "P7: group g: 0/1 is dead twice", func(h *History) {
			h.Groups[0].Dead = append(h.Groups[0].Dead, h.Groups[0].Dead[0])
		}},
		{"dead and acked", "P7: group g: 1/0 is both acked and dead", func(h *History) {
			h.Groups[0].Dead = append(h.Groups[0].Dead, Dead{Place{1, 0}, Message{"b", "b1", "body b1"}, 1})
		}},
		{"dead letter lost its id", "P7: group g: the dead letter {a  body a2} at 0/1 is not what the log holds", func(h *History) {
			h.Groups[0].Dead[0].Message.ID = ""
		}},
		{"token of two hand-outs", "P8: group g: token a1/3 stands for attempt 3", func(h *History) {
			h.find(ReceiveReturn, 3).Deliveries[0].Attempt = 4
		}},
		{"token moved to another member", "P8: group g: token a1/3 stands for attempt 3 of 0/0 by m, and for attempt 3 of 0/0 by n", func(h *History) {
			h.find(ReceiveCall, 3).Member = "n"
		}},
		{"id stored twice", "P9: key \"b\" id \"b2\" is in the log at 1/1 and 1/2", func(h *History) {
			h.Log = append(h.Log, Stored{Place{1, 2}, Message{"b", "b2", "body b2"}})
		}},
		{"two receipts", "P9: key \"b\" id \"b2\" has receipts for 1/1 and 1/2", func(h *History) {
			h.find(PublishReturn, 2).Lost = false
			h.find(PublishReturn, 3).Receipts[1].Place.Offset = 2
		}},
		{"accepted twice", "P9: key \"a\" id \"a3\" was accepted twice as new", func(h *History) {
			h.find(PublishReturn, 2).Lost = false
			h.find(PublishReturn, 3).Receipts[0].Duplicate = false
		}},
		{"duplicate of nothing, routed, has another body", "P1:", func(h *History) {
			h.Routed = true
			h.find(PublishReturn, 3).Receipts[1].Duplicate = true
			h.find(PublishReturn, 3).Receipts[1].Place.Offset = 7
		}},
		{"duplicate of nothing", "P9: key \"b\" id \"b1\" is called a duplicate, and was sent once", func(h *History) {
			h.find(PublishReturn, 1).Receipts[0].Duplicate = true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			c.plant(h)
			var all []string
			for _, v := range Promises(*h) {
				if strings.HasPrefix(v.String(), c.want) {
					return
				}
				all = append(all, v.String())
			}
			t.Errorf("not found: %s\nfound:\n%s", c.want, strings.Join(all, "\n"))
		})
	}
}

// An attempt that no member saw is judged by the log: it was handed out, to a member
// that lost an answer, or that waited for one as a node was killed.
func TestUnseenAttempts(t *testing.T) {
	kill := []Event{{Kind: KillCall, Call: 100}, {Kind: KillReturn, Call: 100}}
	around := func(c Event) []Event { // a kill while a call is open that is answered
		ret := c
		ret.Kind = ReceiveReturn
		return []Event{c, kill[0], kill[1], ret}
	}
	waits := Event{Kind: ReceiveCall, Call: 101, Group: "g", Member: "o"}
	elsewhere := waits
	elsewhere.Group = "h"
	for _, c := range []struct {
		name   string
		logged []HandOut // of b2, whose third attempt is the first that a member sees
		plant  func(h *History)
		want   string // empty: nothing is wrong
	}{
		{"lost with two answers", []HandOut{{1, "n"}, {2, "n"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, Event{Kind: ReceiveCall, Call: 102, Group: "g", Member: "n"})
		}, ""},
		{
			"two of them with one answer", []HandOut{{1, "n"}, {2, "n"}, {3, "m"}}, func(*History) {},
			"P5: group g: attempt 2 of 1/1 was handed out to n, ",
		},
		{
			"to one that lost no answer", []HandOut{{1, "n"}, {2, "m"}, {3, "m"}}, func(*History) {},
			"P5: group g: attempt 2 of 1/1 was handed out to m, and came in no answer, although none was lost with it",
		},
		{
			"charged without a hand-out", []HandOut{{1, "n"}, {3, "m"}}, func(*History) {},
			"P5: group g: attempt 2 of 1/1 was charged, and the log has no hand-out of it",
		},
		{"lost with a leader", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, around(waits)...)
		}, ""},
		{"the call began as the leader ended", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, kill[0], waits, kill[1], Event{Kind: ReceiveReturn, Call: 101})
		}, ""},
		{"the call ended as the leader did", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, waits, kill[0], Event{Kind: ReceiveReturn, Call: 101}, kill[1])
		}, ""},
		{"asked before the kill", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, waits, Event{Kind: ReceiveReturn, Call: 101}, kill[0], kill[1])
		}, "P5: group g: attempt 2 of 1/1 was handed out to o, "},
		{"asked after the kill", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, kill[0], kill[1], waits, Event{Kind: ReceiveReturn, Call: 101})
		}, "P5: group g: attempt 2 of 1/1 was handed out to o, "},
		{"another waited", []HandOut{{1, "n"}, {2, "p"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, around(waits)...)
		}, "P5: group g: attempt 2 of 1/1 was handed out to p, "},
		{"waited in another group", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 1, around(elsewhere)...)
		}, "P5: group g: attempt 2 of 1/1 was handed out to o, "},
		{"killed when the later attempt was there", []HandOut{{1, "n"}, {2, "o"}, {3, "m"}}, func(h *History) {
			h.insert(ReceiveCall, 4, around(waits)...)
		}, "P5: group g: attempt 2 of 1/1 was handed out to o, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			h.Logged = func(group string, at Place) []HandOut {
				if group != "g" || at != (Place{1, 1}) {
					return []HandOut{{1, "m"}, {2, "n"}, {3, "m"}} // as good has a1
				}
				return c.logged
			}
			h.find(ReceiveReturn, 2).Deliveries[1].Attempt = 3
			h.find(ReceiveReturn, 3).Deliveries[1].Attempt = 3
			c.plant(h)
			found := Promises(*h)
			if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || !strings.HasPrefix(found[0].String(), c.want)) {
				t.Errorf("found %v, want %q", found, c.want)
			}
		})
	}
}

// Without the log, lost answers are counted.
func TestUnseenAttemptsWithoutTheLog(t *testing.T) {
	h := good()
	h.find(ReceiveReturn, 2).Deliveries[1].Attempt = 2
	h.find(ReceiveReturn, 3).Deliveries[1].Attempt = 2
	if found := Promises(*h); len(found) > 0 {
		t.Errorf("one lost answer, and one attempt: %v", found)
	}
	h.insert(ReceiveCall, 0, Event{Kind: KillCall, Call: 100}, Event{Kind: KillReturn, Call: 100})
	h.find(ReceiveReturn, 2).Deliveries[1].Attempt = 3
	h.find(ReceiveReturn, 3).Deliveries[1].Attempt = 3
	if found := Promises(*h); len(found) != 1 {
		t.Errorf("one lost answer, and two attempts: %v", found)
	}
}
