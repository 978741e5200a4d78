package check

import "fmt"

// Item is one message of an input whose right order is known: the order of the
// input itself, key by key.
type Item struct {
	Key   string
	Body  string
	Stamp string // grows with the input, within a key; compared as text
}

// Order watches one group handle the items of an input, and counts each time
// that the order of a key is broken: an item before its turn, an item that comes
// back, another body than was sent, a stamp that goes back. Not safe for
// concurrent use.
//
// Whoever watches tells HandedOut when a message arrives, and Done before it is
// settled for good: once the broker knows, the next one may be anywhere. A
// message can also die without anyone being told, when its last delivery lapses.
// So an item that is passed over is judged by Finish: it must be dead.
type Order struct {
	items  []Item
	rank   []int             // of each item within its key
	keys   map[string][]int  // by key: its items, in order
	next   map[string]int    // by key: the rank that must come
	done   map[int]int       // by item: how many may have ended it, each in its own way
	stamp  map[string]string // by key: the latest stamp that was handed out
	passed []int             // items that were passed over
	found  []Violation
	count  int
}

// keepViolations bounds what is kept in words; all are counted.
const keepViolations = 20

// NewOrder expects the items, in their order.
func NewOrder(items []Item) *Order {
	o := &Order{
		items: items, rank: make([]int, len(items)),
		keys: map[string][]int{}, next: map[string]int{}, done: map[int]int{}, stamp: map[string]string{},
	}
	for i, it := range items {
		o.rank[i] = len(o.keys[it.Key])
		o.keys[it.Key] = append(o.keys[it.Key], i)
	}
	return o
}

// HandedOut judges the arrival of item i with a key and body, first attempt or
// later one.
func (o *Order) HandedOut(i int, key, body string) {
	it := o.items[i]
	if it.Key != key || it.Body != body {
		o.say("item %d arrived as %.80q of key %q, and was sent as %.80q of key %q", i+1, body, key, it.Body, it.Key)
		return
	}
	switch want := o.next[key]; {
	case o.rank[i] < want:
		o.say("key %s: number %d arrived when number %d was due", key, o.rank[i]+1, want+1)
	case o.rank[i] > want:
		o.passed = append(o.passed, o.keys[key][want:o.rank[i]]...)
		o.next[key] = o.rank[i]
	}
	if it.Stamp < o.stamp[key] {
		o.say("key %s: went back from %s to %s", key, o.stamp[key], it.Stamp)
	}
	o.stamp[key] = max(o.stamp[key], it.Stamp)
}

// Done says that item i is about to be acked or given up: the next one of its
// key is due.
func (o *Order) Done(i int) {
	key := o.items[i].Key
	o.done[i]++
	o.next[key] = max(o.next[key], o.rank[i]+1)
}

// Undone takes one Done back: the broker refused the settlement. When two
// members settle an item, since the first was too slow, only one is refused. If
// a later item of the key arrived meanwhile, that was wrong already.
func (o *Order) Undone(i int) {
	key := o.items[i].Key
	if o.done[i]--; o.done[i] > 0 {
		return
	}
	delete(o.done, i)
	if o.next[key] == o.rank[i]+1 {
		o.next[key] = o.rank[i]
	}
}

// Left counts the items that are still to come.
func (o *Order) Left() (n int) {
	for key, items := range o.keys {
		n += len(items) - o.next[key]
	}
	return n
}

// Finish judges what was passed over, now that it is known which items are dead
// letters, and counts the items that are neither done nor dead.
func (o *Order) Finish(dead func(i int) bool) (missing int) {
	for _, i := range o.passed {
		if !dead(i) {
			o.say("key %s: number %d was passed over, and is no dead letter", o.items[i].Key, o.rank[i]+1)
		}
	}
	o.passed = nil
	for key, items := range o.keys {
		for _, i := range items[o.next[key]:] {
			if !dead(i) {
				missing++
			}
		}
	}
	return missing
}

// Count is how often the order was broken.
func (o *Order) Count() int { return o.count }

// Violations has the first of them in words.
func (o *Order) Violations() []Violation { return o.found }

func (o *Order) say(format string, args ...any) {
	o.count++
	if len(o.found) < keepViolations {
		o.found = append(o.found, Violation{"P3", fmt.Sprintf(format, args...)})
	}
}
