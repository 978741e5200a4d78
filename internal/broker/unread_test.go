package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"google.golang.org/protobuf/proto"
)

// A bit flips in an old message, and a new group comes to it. That group stands
// there, alone, and says so and how to go on; publishers and the group that is
// past it notice nothing. A reset beyond it helps, and so does a delete.
func TestGroupStandsBeforeRot(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "past", nil)
	a.store(t, "t", msg("k0", "before"))
	a.store(t, "t", msg("k1", strings.Repeat("0123456789", 50_000)))
	a.store(t, "t", msg("k2", "after"))
	if ds := a.receive(t, "t", "past", "m", 10); len(ds) != 3 {
		t.Fatalf("%d messages", len(ds))
	} else {
		for _, d := range ds {
			a.done(t, "t", "past", d, ack, "")
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	rot(t, dir)

	b = start(t, dir)
	a = newAPI(t, b.URL())
	for i, group := range []string{"new", "newer"} {
		earliest := &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
		if _, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: "t", Group: group, Start: earliest}); err != nil {
			t.Fatal(err)
		}
		ds := a.receive(t, "t", group, "m", 10)
		if len(ds) != 1 || ds[0].GetOffset() != 0 {
			t.Fatalf("%s got %v", group, ds)
		}
		a.done(t, "t", group, ds[0], ack, "")
		way := fmt.Sprintf("'strandmq group reset t %s --partition 0 --to 2'", group)
		p := a.describe(t, "t", group).GetPartitions()[0]
		n := slices.IndexFunc(p.GetStalls(), func(s *strandmqv1.Stall) bool { return s.GetReason() == "PARTITION_DAMAGED" })
		if n < 0 {
			t.Fatalf("stalls %v", p.GetStalls())
		}
		if s := p.GetStalls()[n]; s.GetOffset() != 1 || s.GetWaiting() != uint64(2+i) || !strings.Contains(s.GetText(), "the message at offset 1 of partition 0 of topic t") || !strings.Contains(s.GetText(), way) {
			t.Fatalf("stall %v", s)
		}
		res, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: group, Member: "m", MaxMessages: 1, WaitMs: 1})
		if err != nil || !strings.Contains(res.GetIdleReason(), way) {
			t.Fatalf("the member is told %q, %v", res.GetIdleReason(), err)
		}

		a.store(t, "t", msg("k3", "on"))
		if ds := a.receive(t, "t", "past", "m", 10); len(ds) != 1 || ds[0].GetOffset() != uint64(3+i) {
			t.Fatalf("the other group got %v", ds)
		} else {
			a.done(t, "t", "past", ds[0], ack, "")
		}
		if s := a.describe(t, "t", "past").GetPartitions()[0].GetStalls(); len(s) != 0 {
			t.Fatalf("the other group has stalls: %v", s)
		}
		if info := b.partitionFaults(); len(info) != 0 {
			t.Fatalf("faults %v", info)
		}
	}
	to := &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 2}}
	if _, err := a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "new", Partition: proto.Uint32(0), To: to}); err != nil {
		t.Fatal(err)
	}
	if ds := a.receive(t, "t", "new", "m", 10); len(ds) != 2 || ds[0].GetOffset() != 2 {
		t.Fatalf("after the reset came %v", ds)
	}
	if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "newer", Confirm: "newer"}); err != nil {
		t.Fatal(err)
	}
}

// A message that waits behind another of its key is damaged meanwhile, and the group has
// become an at-most-once one: it is handed out, cannot be read, and that is told.
func TestLostUnreadIsTold(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	a.store(t, "t", msg("k", "first"))
	a.store(t, "t", msg("k", strings.Repeat("0123456789", 50_000)))
	a.store(t, "t", msg("other", "behind both"))
	ds := a.receive(t, "t", "g", "m", 10)
	if len(ds) != 2 || ds[0].GetOffset() != 0 || ds[1].GetOffset() != 2 {
		t.Fatalf("%v", ds)
	}
	a.done(t, "t", "g", ds[1], ack, "")
	once := patient()
	once.AtMostOnce = new(true)
	if _, err := a.groups.AlterGroup(ctx(t), &strandmqv1.AlterGroupRequest{Topic: "t", Group: "g", Policy: once}); err != nil {
		t.Fatal(err)
	}
	a.done(t, "t", "g", ds[0], nack, "not yet")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	rot(t, dir)
	b = start(t, dir)
	a = newAPI(t, b.URL())
	inTime(t, "nothing is left", func() bool {
		for _, d := range a.receive(t, "t", "g", "m", 10) {
			if d.GetOffset() == 1 {
				t.Fatal("what cannot be read was handed out")
			}
		}
		return a.describe(t, "t", "g").GetCounts().GetLag() == 0
	})
	if e := a.awaitEvent(t, coordinator.LostUnread, anyEvent); e.GetTopic() != "t" || e.GetGroup() != "g" || e.Partition == nil || e.GetCount() != 1 ||
		!strings.Contains(e.GetText(), "the message at offset 1 cannot be read") || e.GetAdvice() != "strandmq group describe t g" {
		t.Errorf("%v", e)
	}
}
