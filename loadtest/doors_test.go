package loadtest

import (
	"slices"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/heldport"
)

// The node that a run is at dies: calls and streams go on at another, and stay there when
// it is back.
func TestFollowsToAnotherNode(t *testing.T) {
	first, second := &wired{b: newTextbook()}, &wired{b: newTextbook()}
	at, dies := serveUntil(t, first)
	c := short()
	c.Fallback = []string{"http://" + heldport.Address(t), "https://" + heldport.Address(t), serve(t, second)} // nobody listens at the first two
	b, done := Streams(at, c)
	defer done()
	creates := func(on *wired) {
		t.Helper()
		before := len(on.b.created)
		if _, err := b.CreateTopic(t.Context(), "t", 1); err != nil {
			t.Fatal(err)
		}
		s, err := b.Join(t.Context(), "t", "g", "m")
		if err != nil {
			t.Fatal(err)
		}
		s.Drop()
		if len(on.b.created) != before+1 {
			t.Errorf("created %v", on.b.created)
		}
	}
	for _, w := range []*wired{first, second} {
		if err := w.b.CreateGroup(t.Context(), "t", "g", Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	creates(first)
	dies()
	creates(second)
	creates(second)
	if n := len(first.b.created); n != 1 || first.b.groups["g"].joins != 1 || second.b.groups["g"].joins != 2 {
		t.Errorf("%d, and sessions %d and %d", n, first.b.groups["g"].joins, second.b.groups["g"].joins)
	}
}

// A topic whose creation was answered after a second try only is the run's, and goes at
// its end; so does one of which no answer came at all.
func TestTopicIsDeletedWhoseAnswerWasLost(t *testing.T) {
	w := &wired{b: newTextbook(), loses: 1}
	rep, err := streamRun(t, short(), w)
	if err != nil || rep.Groups[0].Verdict.Broken() > 0 {
		t.Fatalf("%v, %+v", err, rep)
	}
	if !slices.Equal(w.b.deleted, []string{"loadtest-test"}) || len(w.b.created) != 2 {
		t.Errorf("created %v, deleted %v", w.b.created, w.b.deleted)
	}

	w = &wired{b: newTextbook(), loses: 1 << 30}
	c := short()
	c.Name, c.RetryFor = "", time.Millisecond
	lost, end := Unary(serve(t, w), c)
	defer end()
	if _, err := Run(t.Context(), c, lost); err == nil {
		t.Fatal("it ran")
	}
	if len(w.b.deleted) != 1 || w.b.deleted[0] != w.b.created[0] {
		t.Errorf("created %v, deleted %v", w.b.created, w.b.deleted)
	}
}
