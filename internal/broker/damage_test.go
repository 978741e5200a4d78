package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// When one partition of a topic stops, every answer that concerns it says so,
// and a member goes on with the others, leaves and comes back.
func TestOnePartitionStops(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	var keys [2]string // one of each partition
	for i := 0; keys[0] == "" || keys[1] == ""; i++ {
		k := fmt.Sprint("k", i)
		keys[a.store(t, "t", msg(k, "x"))[0].GetPartition()] = k
	}
	before := a.describe(t, "t", "g").GetCounts().GetNotScanned()
	topic, err := b.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	// What panics in a partition's state stops it, as damage does.
	err = b.host.View(ctx(t), topic.Partitions[0].ID, func(partition.App, partition.Position) { panic("planted") })
	if err == nil {
		t.Fatal("the partition goes on")
	}

	info, err := a.node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s := info.GetStopped(); len(s) != 1 || s[0].GetTopic() != "t" || s[0].GetPartition() != 0 || !strings.Contains(s[0].GetWhy(), "planted") {
		t.Errorf("NodeInfo says that these stopped: %v", s)
	}
	got := a.receive(t, "t", "g", "m", 100)
	if len(got) == 0 {
		t.Fatal("nothing comes from the other partition")
	}
	for _, d := range got {
		if d.GetPartition() != 1 {
			t.Fatalf("a delivery of the stopped partition: %v", d)
		}
	}
	res := a.describe(t, "t", "g")
	if s := res.GetPartitions()[0].GetStalls(); len(s) != 1 || s[0].GetReason() != "PARTITION_DAMAGED" || !strings.Contains(s[0].GetText(), "planted") {
		t.Fatalf("stalls %v", s)
	}
	if n := res.GetPartitions()[1].GetCounts(); n.GetInFlight() == 0 || n.GetLag() >= before {
		t.Fatalf("the other partition has %v of %d in all", n, before)
	}
	out, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg(keys[0], "y"), msg(keys[1], "y")}})
	if err != nil {
		t.Fatal(err)
	}
	if r := out.GetResults(); r[0].GetProblem().GetReason() != "PARTITION_DAMAGED" || r[1].GetReceipt() == nil {
		t.Fatalf("results %v", r)
	}
	_, g, err := b.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	m, ok := g.Member("m")
	if !ok {
		t.Fatal("no member")
	}
	if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "m", Session: sessionText(g.ID, "m", m.Session)}); err != nil {
		t.Fatal(err)
	}
	if again := a.receive(t, "t", "g", "m", 100); len(again) < len(got) {
		t.Fatalf("%d come again of %d", len(again), len(got))
	}
}
