package broker

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// plant stops a partition of a topic, as damage does. It is back after a restart.
func plant(t *testing.T, b *Broker, topic string, number int) {
	t.Helper()
	at, err := b.topic(topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.host.View(ctx(t), at.Partitions[number].ID, func(partition.App, partition.Position) { panic("planted") }); err == nil {
		t.Fatal("the partition goes on")
	}
}

// onlyZero checks that an answer names partition 0 and why, and no other.
func onlyZero(t *testing.T, what string, left []*strandmqv1.LeftOut) {
	t.Helper()
	if len(left) != 1 || left[0].GetPartition() != 0 || left[0].GetProblem().GetReason() != "PARTITION_DAMAGED" || !strings.Contains(left[0].GetProblem().GetMessage(), "planted") {
		t.Errorf("%s leaves out %v", what, left)
	}
}

// twoHalves is a topic with messages and dead letters of group g in both of its
// partitions.
func twoHalves(t *testing.T, a api) {
	t.Helper()
	a.topic(t, "t", 2)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1)})
	a.group(t, "t", "old", nil)
	var n [2]int
	for n[0] < 3 || n[1] < 3 {
		n[a.store(t, "t", msg(strings.Repeat("k", 1+n[0]+n[1]), "x"))[0].GetPartition()]++
	}
	var dead [2]bool
	for _, d := range a.receive(t, "t", "g", "m", 100) {
		if !dead[d.GetPartition()] {
			a.done(t, "t", "g", d, strandmqv1.SettleAction_SETTLE_ACTION_REJECT, "no")
		}
		dead[d.GetPartition()] = true
	}
	if dead != [2]bool{true, true} {
		t.Fatal("not each partition has a dead letter")
	}
}

// What is not known is not told as 0: of a partition that stopped there are no
// numbers, and no sum is taken for the whole.
func TestDamagedIsNotEmpty(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	twoHalves(t, a)
	plant(t, b, "t", 0)

	about, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	bad, good := about.GetPartitions()[0], about.GetPartitions()[1]
	if bad.StartOffset != nil || bad.EndOffset != nil || bad.Bytes != nil || bad.Duplicates != nil || bad.GetFault() == "" {
		t.Errorf("the damaged partition is told as %v", bad)
	}
	if good.GetEndOffset() < 3 || good.StartOffset == nil || good.Bytes == nil || good.GetFault() != "" {
		t.Errorf("the other one is told as %v", good)
	}
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(bad)
	if err != nil || strings.Contains(string(raw), "endOffset") || !strings.Contains(string(raw), "planted") {
		t.Errorf("as JSON: %s, %v", raw, err)
	}

	res := a.describe(t, "t", "g")
	onlyZero(t, "DescribeGroup", res.GetLeftOut())
	if p := res.GetPartitions()[0]; p.Counts != nil || p.End != nil || p.Floor != nil || p.Scanned != nil || p.HeldBytes != nil {
		t.Errorf("the group has %v in the damaged partition", p)
	}
	if got, want := res.GetCounts(), res.GetPartitions()[1].GetCounts(); !proto.Equal(got, want) || want.GetLag() == 0 {
		t.Errorf("counts %v, the other partition has %v", got, want)
	}
	list, err := a.groups.ListGroups(ctx(t), &strandmqv1.ListGroupsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list.GetGroups() {
		onlyZero(t, "ListGroups", g.GetLeftOut())
	}
	_, text := get(t, b.URL()+"/metrics")
	for _, name := range []string{"strandmq_group_lag_messages{", "strandmq_group_dead_messages{", "strandmq_log_messages{", "strandmq_log_size_bytes{"} {
		if strings.Contains(text, "\n"+name) {
			t.Errorf("there is a sample of %s} without the damaged partition", name)
		}
	}
	for _, line := range []string{`strandmq_partitions_damaged{topic="t"} 1`, `strandmq_group_members{group="g",topic="t"} 1`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s", line)
		}
	}

	plant(t, b, "t", 1)
	if res := a.describe(t, "t", "g"); res.GetCounts() != nil || len(res.GetLeftOut()) != 2 {
		t.Errorf("with nothing left there are counts: %v", res)
	}
}

// A damaged partition blocks no administration of the others: every call does
// what it can, names the partition, and what the partition was not told it is
// told when it is back.
func TestAdministrationOfTheRest(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	twoHalves(t, a)
	plant(t, b, "t", 0)

	policy := &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(7)}
	for range 2 { // the second time nothing is new, and the answer is the same
		made, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{
			Topic: "t", Group: "new", Policy: policy, Start: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
		onlyZero(t, "CreateGroup", made.GetLeftOut())
	}
	if got := a.receive(t, "t", "new", "m", 100); len(got) == 0 || got[0].GetPartition() != 1 {
		t.Fatalf("the new group gets %v", got)
	}
	altered, err := a.groups.AlterGroup(ctx(t), &strandmqv1.AlterGroupRequest{Topic: "t", Group: "new", Policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(9)}})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "AlterGroup", altered.GetLeftOut())
	paused, err := a.groups.PauseGroup(ctx(t), &strandmqv1.PauseGroupRequest{Topic: "t", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "PauseGroup", paused.GetLeftOut())
	resumed, err := a.groups.ResumeGroup(ctx(t), &strandmqv1.ResumeGroupRequest{Topic: "t", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "ResumeGroup", resumed.GetLeftOut())
	if _, err := a.groups.PauseGroup(ctx(t), &strandmqv1.PauseGroupRequest{Topic: "t", Group: "new"}); err != nil {
		t.Fatal(err)
	}
	toStart := &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
	moved, err := a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "new", To: toStart})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "ResetGroup", moved.GetLeftOut())
	if p := moved.GetPartitions(); len(p) != 1 || p[0].GetPartition() != 1 {
		t.Errorf("moved %v", p)
	}
	_, err = a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "new", To: toStart, Partition: proto.Uint32(0)})
	if problemOf(err).GetReason() != "PARTITION_DAMAGED" {
		t.Errorf("a reset of the damaged partition alone: %v", err)
	}
	dead, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: "t", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "ListDeadLetters", dead.GetLeftOut())
	if len(dead.GetDeadLetters()) != 1 || dead.GetDeadLetters()[0].GetPartition() != 1 || dead.GetTotal() != 1 {
		t.Errorf("dead letters %v", dead)
	}
	all := &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}}
	gone, err := a.dead.DiscardDeadLetters(ctx(t), &strandmqv1.DiscardDeadLettersRequest{Topic: "t", Group: "g", Which: all, Confirm: "g"})
	if err != nil || gone.GetDiscarded() != 1 {
		t.Fatal(gone, err)
	}
	onlyZero(t, "DiscardDeadLetters", gone.GetLeftOut())
	deleted, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "old", Confirm: "old"})
	if err != nil {
		t.Fatal(err)
	}
	onlyZero(t, "DeleteGroup", deleted.GetLeftOut())
	_, err = a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "old"})
	if problemOf(err).GetReason() != "UNKNOWN_GROUP" {
		t.Errorf("the deleted group: %v", err)
	}

	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir)
	a = newAPI(t, b.URL())
	topic, err := b.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	var kept []consumer.GroupID
	in, err := b.groups.Kept(ctx(t), topic.Partitions[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	for id := range in {
		kept = append(kept, id)
	}
	slices.Sort(kept)
	var want []consumer.GroupID
	for g := range topic.Groups() {
		want = append(want, consumer.GroupID(g.ID))
		if g.Logged != g.Revision {
			t.Errorf("group %s is at revision %d, and %d is logged", g.Name, g.Revision, g.Logged)
		}
	}
	slices.Sort(want)
	if !slices.Equal(kept, want) {
		t.Errorf("the partition is back with groups %v, the topic has %v", kept, want)
	}
	if s := a.describe(t, "t", "new").GetPartitions()[0].GetStalls(); !slices.ContainsFunc(s, func(s *strandmqv1.Stall) bool { return s.GetReason() == "PAUSED" }) {
		t.Errorf("the partition is back and was not told of the pause: %v", s)
	}
	res := a.describe(t, "t", "new")
	if len(res.GetLeftOut()) != 0 || res.GetGroup().GetPolicy().GetMaxAttempts() != 9 || res.GetPartitions()[0].GetStart() != 1 {
		t.Errorf("the group that was made meanwhile: %v", res)
	}
}
