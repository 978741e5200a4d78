package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A group's row that a newer version wrote stops its partition; every answer
// about it says what to run, and the other partition goes on.
func TestNewerRow(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	var keys [2]string // one of each partition
	for i := 0; keys[0] == "" || keys[1] == ""; i++ {
		k := fmt.Sprint("k", i)
		keys[a.store(t, "t", msg(k, "x"))[0].GetPartition()] = k
	}
	topic, err := b.topic("t")
	if err != nil {
		t.Fatal(err)
	}
	id := topic.Partitions[0].ID
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	row := rewrite(t, dir, id, 'g', func(v []byte) []byte { v[0]++; return v })

	b = start(t, dir)
	a = newAPI(t, b.URL())
	says := func(what, reason, text string) {
		t.Helper()
		if reason != "NEWER_FORMAT" || !strings.Contains(text, "partition 0 of topic t") || !strings.Contains(text, "run that version or newer") {
			t.Errorf("%s says %s: %s", what, reason, text)
		}
	}
	stalls := a.describe(t, "t", "g").GetPartitions()[0].GetStalls()
	if len(stalls) != 1 {
		t.Fatalf("stalls %v", stalls)
	}
	says("describe", stalls[0].GetReason(), stalls[0].GetText())
	described, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "t"})
	if p := described.GetPartitions()[0]; err != nil || p.GetFaultReason() != "NEWER_FORMAT" || described.GetPartitions()[1].GetFault() != "" {
		t.Errorf("%v, %v", described, err)
	}
	node, err := a.node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
	if s := node.GetStopped(); err != nil || len(s) != 1 || s[0].GetReason() != "NEWER_FORMAT" || s[0].GetTopic() != "t" {
		t.Errorf("%v, %v", s, err)
	}
	out, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg(keys[0], "y"), msg(keys[1], "y")}})
	if err != nil {
		t.Fatal(err)
	}
	p := out.GetResults()[0].GetProblem()
	says("publish", p.GetReason(), p.GetMessage())
	if out.GetResults()[1].GetReceipt() == nil {
		t.Errorf("the other partition refuses: %v", out.GetResults()[1])
	}
	_, err = a.trace.Trace(ctx(t), &strandmqv1.TraceRequest{Topic: "t", Which: &strandmqv1.TraceRequest_Place{Place: &strandmqv1.MessagePlace{}}})
	p = problemOf(err)
	says("trace", p.GetReason(), p.GetMessage())
	for _, d := range a.receive(t, "t", "g", "m", 100) {
		if d.GetPartition() != 1 {
			t.Errorf("a delivery of the stopped partition: %v", d)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// It stands as it was, and the version that wrote it goes on.
	rewrite(t, dir, id, 'g', func(v []byte) []byte {
		if string(v) != string(row) {
			t.Errorf("the row was %x and is %x", row, v)
		}
		v[0]--
		return v
	})
	b = start(t, dir)
	a = newAPI(t, b.URL())
	a.store(t, "t", msg(keys[0], "z"))
	seen := map[uint32]bool{}
	for _, d := range a.receive(t, "t", "g", "m", 100) {
		seen[d.GetPartition()] = true
	}
	if !seen[0] {
		t.Error("nothing comes from the partition that is read again")
	}
}

// The metadata log is the node's: where a newer version wrote it, the broker
// does not start.
func TestNewerMetadata(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	newAPI(t, b.URL()).topic(t, "t", 1)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, dir, partition.Metadata, 'c', func(v []byte) []byte {
		var row storagev1.ClusterRow
		if err := proto.Unmarshal(v, &row); err != nil {
			t.Fatal(err)
		}
		row.Format++
		v, _ = proto.Marshal(&row)
		return v
	})
	for range 2 {
		again, err := Start(context.Background(), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			again.Close()
			t.Fatal("started on newer metadata")
		}
		var se *StartError
		if !errors.As(err, &se) || se.Reason != FolderNewer || !strings.Contains(err.Error(), "run that version or newer") {
			t.Fatalf("got %v, want %s", err, FolderNewer)
		}
	}
}

// rewrite changes the first row of a kind in a partition of a store that nobody
// has open, as another version would, and returns it.
func rewrite(t *testing.T, dir string, id partition.PartitionID, kind byte, change func([]byte) []byte) []byte {
	t.Helper()
	s, err := logstore.Open(logstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	var key, value []byte
	err = s.Iterate(logstore.AppRows, uint64(id), []byte{kind}, []byte{kind + 1}, func(k, v []byte) bool {
		key, value = append(key, k...), append(value, v...)
		return false
	})
	if err != nil || key == nil {
		t.Fatalf("no row %q: %v", kind, err)
	}
	value = change(value)
	b := s.NewBatch()
	if err := b.Set(logstore.AppRows, uint64(id), key, value); err != nil {
		t.Fatal(err)
	}
	if err := s.CommitNoSync(b); err != nil {
		t.Fatal(err)
	}
	return value
}
