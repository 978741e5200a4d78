package coordinator

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Nodes are upgraded one after the other: the log is written by the newest rules that all
// of them apply, whoever leads it, and a node that applies less is not let in any more.
func TestRulesGoUpWithTheLastNode(t *testing.T) {
	h, c := newMemHost(t, 30_000)
	restart := func() {
		h.open(t)
		h.lead()
		c = New(h, h.app)
	}
	h.cfg.Rules = toldRules + 2 // who leads is upgraded
	restart()
	ctx := t.Context()
	at := func(node int, applies uint32) Address {
		return Address{Store: fmt.Sprintf("s%d", node), Boot: 1, Peer: fmt.Sprintf("n%d:1", node), Rules: applies}
	}
	written := func(want uint32) {
		t.Helper()
		if got := c.View().Rules(); got != want {
			t.Errorf("the map says rules %d, want %d", got, want)
		}
		if _, err := c.CreateJoinToken(ctx, HashToken([]byte(fmt.Sprint("any", len(h.log)))), 60_000); err != nil {
			t.Fatal(err)
		}
		var cmd storagev1.MetadataCommand
		if err := proto.Unmarshal(h.log[len(h.log)-1], &cmd); err != nil || cmd.Rules != want {
			t.Errorf("an entry with rules %d (%v), want %d", cmd.Rules, err, want)
		}
	}
	refused := func(err error, applies uint32) {
		t.Helper()
		var old *ErrOldRules
		if !errors.As(err, &old) || old.Applies != applies || old.Rules != c.View().Rules() {
			t.Errorf("%v", err)
		}
	}
	update := func(node int, applies uint32) error {
		n, _ := c.View().Node(partition.NodeID(node))
		next := at(node, applies)
		next.Boot = n.Boot + 1
		_, err := c.UpdateNode(ctx, n.ID, next)
		return err
	}

	if _, err := c.Bootstrap(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Found(ctx, at(1, 0)); err != nil { // one that says nothing of it
		t.Fatal(err)
	}
	for node := 2; node <= 3; node++ {
		secret := HashToken([]byte{byte(node)})
		if _, err := c.CreateJoinToken(ctx, secret, 60_000); err != nil {
			t.Fatal(err)
		}
		if _, err := c.AddNode(ctx, secret, at(node, toldRules)); err != nil {
			t.Fatal(err)
		}
	}
	written(toldRules)
	for node, applies := range map[int]uint32{1: toldRules + 1, 3: toldRules + 2} {
		if err := update(node, applies); err != nil {
			t.Fatal(err)
		}
	}
	written(toldRules)
	if err := update(1, toldRules); err != nil { // back again, while one is old
		t.Fatal(err)
	}
	for node, applies := range map[int]uint32{1: toldRules + 2, 2: toldRules + 1} {
		if err := update(node, applies); err != nil {
			t.Fatal(err)
		}
	}
	written(toldRules + 1)
	refused(update(3, toldRules), toldRules)
	secret := HashToken([]byte("late"))
	if _, err := c.CreateJoinToken(ctx, secret, 60_000); err != nil {
		t.Fatal(err)
	}
	_, err := c.AddNode(ctx, secret, at(4, toldRules))
	refused(err, toldRules)
	if _, err := c.AddNode(ctx, secret, at(4, toldRules+1)); err != nil { // its token is not used up
		t.Fatal(err)
	}
	// A restart knows as much, from the log and from rows.
	restart()
	written(toldRules + 1)
	if err := h.checkpoint(); err != nil {
		t.Fatal(err)
	}
	restart()
	written(toldRules + 1)
	// Who is out does not count.
	for _, node := range []partition.NodeID{2, 4} {
		if _, err := c.LoseNode(ctx, node, node.String()); err != nil {
			t.Fatal(err)
		}
	}
	written(toldRules + 2)
}
