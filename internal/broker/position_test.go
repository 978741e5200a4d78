package broker

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func atEarliest() *strandmqv1.StartPosition {
	return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
}

func atLatest() *strandmqv1.StartPosition {
	return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}
}

func atOffset(n uint64) *strandmqv1.StartPosition {
	return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: n}}
}

func fromEnd(n uint64) *strandmqv1.StartPosition {
	return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_FromEnd{FromEnd: n}}
}

func atTime(t time.Time) *strandmqv1.StartPosition {
	return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(t)}}
}

// A group is not moved, and does not start, beyond the end of a partition by
// number. Other positions outside of what is kept are the nearest end.
func TestPositionsOfGroups(t *testing.T) {
	a := newAPI(t, start(t, t.TempDir()).URL())
	a.topic(t, "t", 2)
	long := a.store(t, "t", msg("a", "1"), msg("a", "2"), msg("a", "3"))[0].GetPartition()
	short := 1 - long
	a.group(t, "t", "g", nil)
	reset := func(to *strandmqv1.StartPosition, only *uint32, dry bool) (*strandmqv1.ResetGroupResponse, error) {
		return a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "g", To: to, Partition: only, DryRun: dry})
	}
	floors := func() (out [2]uint64) {
		for _, p := range a.describe(t, "t", "g").GetPartitions() {
			out[p.GetPartition()] = p.GetFloor()
		}
		return out
	}
	for _, c := range []struct {
		to   *strandmqv1.StartPosition
		want uint64 // in the long partition
	}{
		{atOffset(3), 3}, {atOffset(2), 2}, {atLatest(), 3}, {fromEnd(0), 3}, {fromEnd(1), 2}, {fromEnd(99), 0},
		{atTime(time.Unix(1, 0)), 0}, {atTime(time.Now().Add(time.Hour)), 3}, {atEarliest(), 0},
	} {
		res, err := reset(c.to, proto.Uint32(long), false)
		if err != nil {
			t.Fatalf("%v: %v", c.to, err)
		}
		if got := res.GetPartitions(); len(got) != 1 || got[0].GetTo() != c.want {
			t.Errorf("%v: %v, want to %d", c.to, got, c.want)
		}
	}

	// The short partition ends at 0, so nothing moves, in neither.
	before := floors()
	for _, dry := range []bool{true, false} {
		for _, c := range []struct {
			to   uint64
			only *uint32
			text string
		}{
			{2, nil, "ends at offset 0"}, {1, proto.Uint32(short), "ends at offset 0"}, {4, proto.Uint32(long), "ends at offset 3"},
		} {
			_, err := reset(atOffset(c.to), c.only, dry)
			wantReason(t, err, "OFFSET_BEYOND_END")
			if !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "use latest") {
				t.Errorf("reset to %d: %v", c.to, err)
			}
		}
	}
	if after := floors(); after != before {
		t.Errorf("a refused reset moved the group from %v to %v", before, after)
	}

	create := func(name string, n uint64) error {
		_, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: "t", Group: name, Start: atOffset(n)})
		return err
	}
	wantReason(t, create("h", 1), "OFFSET_BEYOND_END")
	_, err := a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "h"})
	wantReason(t, err, "UNKNOWN_GROUP")
	if err := create("h", 0); err != nil {
		t.Fatal(err)
	}
}

// A place names one message, by number or position; nothing stands for one that
// is not there.
func TestPositionsOfMessages(t *testing.T) {
	a := newAPI(t, start(t, t.TempDir()).URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	long := a.store(t, "t", msg("a", "1"), msg("a", "2"), msg("a", "3"))[0].GetPartition()
	for range 3 {
		a.done(t, "t", "g", a.one(t, "t", "g", "m"), strandmqv1.SettleAction_SETTLE_ACTION_REJECT, "no")
	}
	at := func(partition uint32, p *strandmqv1.StartPosition) *strandmqv1.MessagePlace {
		return &strandmqv1.MessagePlace{Partition: partition, Position: p}
	}
	trace := func(p *strandmqv1.MessagePlace) (uint64, error) {
		res, err := a.trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: "t", Which: &strandmqv1.TraceRequest_Place{Place: p}})
		if err != nil {
			return 0, err
		}
		return res.GetMessages()[0].GetOffset(), nil
	}
	which := func(p *strandmqv1.MessagePlace) *strandmqv1.DeadLetterSelector {
		return &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{Place: p}}
	}
	get := func(p *strandmqv1.MessagePlace) (uint64, error) {
		res, err := a.dead.GetDeadLetter(ctx(t), &strandmqv1.GetDeadLetterRequest{Topic: "t", Group: "g", Which: which(p)})
		return res.GetDeadLetter().GetOffset(), err
	}
	for _, c := range []struct {
		place  *strandmqv1.MessagePlace
		want   uint64
		reason string
	}{
		{&strandmqv1.MessagePlace{Partition: long, Offset: 1}, 1, ""},
		{at(long, atEarliest()), 0, ""},
		{at(long, atOffset(2)), 2, ""},
		{at(long, fromEnd(1)), 2, ""},
		{at(long, fromEnd(3)), 0, ""},
		{at(long, atTime(time.Unix(1, 0))), 0, ""},
		{at(long, fromEnd(4)), 0, "UNKNOWN_MESSAGE"},
		{at(long, fromEnd(0)), 0, "BAD_VALUE"},
		{at(long, atTime(time.Now().Add(time.Hour))), 0, "UNKNOWN_MESSAGE"},
		{at(long, atLatest()), 0, "BAD_VALUE"},
		{at(long, &strandmqv1.StartPosition{}), 0, "BAD_VALUE"},
		{at(1-long, atEarliest()), 0, "UNKNOWN_MESSAGE"},
		{at(1-long, fromEnd(1)), 0, "UNKNOWN_MESSAGE"},
		{at(2, atEarliest()), 0, "UNKNOWN_PARTITION"},
		{&strandmqv1.MessagePlace{Partition: long, Offset: 1, Position: atEarliest()}, 0, "BAD_VALUE"},
	} {
		for name, call := range map[string]func(*strandmqv1.MessagePlace) (uint64, error){"trace": trace, "get": get} {
			got, err := call(c.place)
			switch {
			case c.reason != "":
				wantReason(t, err, c.reason)
			case err != nil || got != c.want:
				t.Errorf("%s %v: %d, %v; want %d", name, c.place, got, err, c.want)
			}
		}
	}
	if res, err := a.dead.DiscardDeadLetters(ctx(t), &strandmqv1.DiscardDeadLettersRequest{Topic: "t", Group: "g", Which: which(at(long, fromEnd(1)))}); err != nil || res.GetDiscarded() != 1 {
		t.Errorf("discard the last: %v, %v", res, err)
	}
	_, err := get(at(long, atOffset(2)))
	wantReason(t, err, "UNKNOWN_DEAD_LETTER")
	if res, err := a.dead.ReplayDeadLetters(ctx(t), &strandmqv1.ReplayDeadLettersRequest{Topic: "t", Group: "g", Which: which(at(long, atEarliest()))}); err != nil || res.GetReplayed() != 1 {
		t.Errorf("replay the first: %v, %v", res, err)
	}
	if d := a.one(t, "t", "g", "m"); d.GetOffset() != 0 || !d.GetReplayed() {
		t.Errorf("replayed was %v", d)
	}
}
