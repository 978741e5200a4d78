package broker

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func get(t testing.TB, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestProbes(t *testing.T) {
	b := start(t, t.TempDir())
	for _, path := range []string{"/livez", "/startupz", "/readyz"} {
		if code, body := get(t, b.URL()+path); code != 200 || body != "ok\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
		if code, body := get(t, b.URL()+path+"?verbose"); code != 200 || !strings.Contains(body, "[+] ") {
			t.Errorf("%s?verbose: %d %q", path, code, body)
		}
	}
	if code, body := get(t, b.URL()+"/"); code != 200 || !strings.Contains(body, "StrandMQ test") {
		t.Errorf("/: %d %q", code, body)
	}
	b.fail(fmt.Errorf("the disk is gone"))
	if err := <-b.Failed(); err == nil || err.Error() != "the disk is gone" {
		t.Errorf("Failed: %v", err)
	}
	if code, body := get(t, b.URL()+"/readyz"); code != 503 || !strings.Contains(body, "[-] store: the disk is gone") {
		t.Errorf("/readyz of a failed node: %d %q", code, body)
	}
	if code, _ := get(t, b.URL()+"/livez"); code != 200 {
		t.Errorf("/livez of a failed node: %d", code)
	}
	info, err := newAPI(t, b.URL()).node.NodeInfo(ctx(t), &strandmqv1.NodeInfoRequest{})
	if err != nil || info.GetNode() != 1 || info.GetCluster() == "" || info.GetVersion() != "test" || len(info.GetFaults()) != 1 {
		t.Errorf("NodeInfo: %v, %v", info, err)
	}
}

func TestMetrics(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(1), MaxAttempts: proto.Uint32(2)})
	m := msg("k", "x")
	m.Id = "1"
	a.store(t, "t", m, msg("l", "y"))
	a.store(t, "t", m)
	d := a.one(t, "t", "g", "m")
	a.done(t, "t", "g", d, nack, "")
	for a.describe(t, "t", "g").GetCounts().GetDead() == 0 {
		for _, d := range a.receive(t, "t", "g", "m", 2) {
			if d.GetMessage().GetKey() == "k" {
				a.done(t, "t", "g", d, nack, "")
			}
		}
	}
	// The token of the first attempt is not current any more.
	if _, err := a.consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: []*strandmqv1.Settlement{{Token: d.GetToken(), Action: ack}}}); err != nil {
		t.Fatal(err)
	}
	_, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "nowhere"})
	wantReason(t, err, "UNKNOWN_TOPIC")
	code, body := get(t, b.URL()+"/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{
		`strandmq_messages_published_total{topic="t"} 2`,
		`strandmq_messages_duplicate_total{topic="t"} 1`,
		`strandmq_messages_nacked_total{group="g",topic="t"} 2`,
		`strandmq_messages_dead_lettered_by_members_total{group="g",topic="t"} 1`,
		`strandmq_messages_redelivered_total{group="g",topic="t"} [1-9]`,
		`strandmq_messages_delivered_total{group="g",topic="t"} [3-9]`,
		`strandmq_group_lag_messages{group="g",topic="t"} 1`,
		`strandmq_messages_in_flight{group="g",topic="t"} 1`,
		`strandmq_group_dead_messages{group="g",topic="t"} 1`,
		`strandmq_group_members{group="g",topic="t"} 1`,
		`strandmq_group_handed_out_total{group="g",topic="t"} 3`,
		`strandmq_group_failed_attempts_by_cause_total{cause="nacked",group="g",topic="t"} 2`,
		`strandmq_group_failed_attempts_by_cause_total{cause="lapsed",group="g",topic="t"} 0`,
		`strandmq_group_parked_messages{group="g",topic="t"} 0`,
		`strandmq_group_lag_seconds{group="g",topic="t"} \d`,
		`strandmq_messages_stale_total{group="g",topic="t"} 1`,
		`strandmq_log_messages{topic="t"} 2`,
		`strandmq_log_published_total{topic="t"} 2`,
		`strandmq_log_duplicates_total{topic="t"} 1`,
		`strandmq_log_size_bytes{topic="t"} [1-9]`,
		`strandmq_fsync_duration_seconds_count [1-9]`,
		`strandmq_publish_duration_seconds_count{topic="t"} 2`,
		`strandmq_rejected_total{reason="UNKNOWN_TOPIC"} 1`,
		`strandmq_rpc_server_call_duration_seconds_count{rpc_method="strandmq.v1.TopicService/DescribeTopic",rpc_response_status_code="not_found",rpc_system_name="connect"} 1`,
		`strandmq_build_info{go="go[^"]+",revision="[^"]+",version="test"} 1`,
		`strandmq_ready 1`,
		`strandmq_partitions 2`, // the metadata log is one
		`strandmq_partitions_led 2`,
		`strandmq_queued_bytes \d+`,
		`go_goroutines [1-9]`,
	} {
		if !regexp.MustCompile("(?m)^" + strings.NewReplacer("{", `\{`, "}", `\}`).Replace(want)).MatchString(body) {
			t.Errorf("no %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
	if _, err := a.topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: "t", Confirm: "t"}); err != nil {
		t.Fatal(err)
	}
	if _, body := get(t, b.URL()+"/metrics"); strings.Contains(body, `topic="t"`) {
		t.Error("a deleted topic still has metrics")
	}
}

// Topics and groups through their lives, with restarts.
func TestTopicAndGroupLives(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	created, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "t", Config: &strandmqv1.TopicConfig{RetentionMs: proto.Int64(5000_000)}})
	if err != nil || created.GetTopic().GetPartitions() != 8 || created.GetTopic().GetConfig().GetRetentionMs() != 5000_000 || created.GetTopic().GetConfig().GetMaxBodyBytes() != 1<<20 {
		t.Fatalf("created %v, %v", created, err)
	}
	for i := range 80 {
		a.store(t, "t", msg(fmt.Sprint(i), "x"))
	}
	if _, err := a.topics.AlterTopic(ctx(t), &strandmqv1.AlterTopicRequest{Topic: "t", Config: &strandmqv1.TopicConfig{MaxBodyBytes: proto.Int64(10)}}); err != nil {
		t.Fatal(err)
	}
	half := time.Now()
	for time.Now().UnixMilli() <= half.UnixMilli()+1 {
		time.Sleep(time.Millisecond) // so that times tell the halves apart
	}
	half = time.Now()
	for i := range 80 {
		a.store(t, "t", msg(fmt.Sprint(i), "y"))
	}
	position := func(at any) *strandmqv1.StartPosition {
		switch at := at.(type) {
		case string:
			if at == "latest" {
				return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}
			}
			return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
		case int:
			if at < 0 {
				return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_FromEnd{FromEnd: uint64(-at)}}
			}
			return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: uint64(at)}}
		}
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(half)}}
	}
	lag := func(group string) uint64 { return a.describe(t, "t", group).GetCounts().GetLag() }
	for name, c := range map[string]struct {
		at   any
		want uint64
	}{"earliest": {"earliest", 160}, "latest": {"latest", 0}, "offset": {1, 152}, "from-end": {-1, 8}, "time": {nil, 80}} {
		if _, err := a.groups.CreateGroup(ctx(t), &strandmqv1.CreateGroupRequest{Topic: "t", Group: name, Start: position(c.at)}); err != nil {
			t.Fatal(err)
		}
		if got := lag(name); got != c.want {
			t.Errorf("group %s starts with a lag of %d, want %d", name, got, c.want)
		}
	}
	// Reset: a dry run says the same and changes nothing.
	reset := func(dry bool, at any) (moved uint64) {
		t.Helper()
		res, err := a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "t", Group: "earliest", To: position(at), DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range res.GetPartitions() {
			moved += p.GetTo() - p.GetFrom()
		}
		return moved
	}
	if moved := reset(true, nil); moved != 80 || lag("earliest") != 160 {
		t.Fatalf("a dry run moved %d, and the lag is %d", moved, lag("earliest"))
	}
	if moved := reset(false, nil); moved != 80 || lag("earliest") != 80 {
		t.Fatalf("a reset moved %d, and the lag is %d", moved, lag("earliest"))
	}

	// Pause and policy, kept over a restart.
	if _, err := a.groups.PauseGroup(ctx(t), &strandmqv1.PauseGroupRequest{Topic: "t", Group: "time"}); err != nil {
		t.Fatal(err)
	}
	altered, err := a.groups.AlterGroup(ctx(t), &strandmqv1.AlterGroupRequest{Topic: "t", Group: "time", Policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(7), AckDeadlineMs: proto.Int64(3_600_000)}})
	if err != nil || altered.GetGroup().GetPolicy().GetMaxAttempts() != 7 || altered.GetGroup().GetPolicy().GetMaxHoldMs() != 3_600_000 || altered.GetGroup().GetPolicy().GetBackoffMs() != 200 {
		t.Fatalf("altered %v, %v", altered, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir)
	a = newAPI(t, b.URL())
	if reason := a.none(t, "t", "time", "m"); !strings.Contains(reason, "pause") {
		t.Errorf("a paused group says %q", reason)
	}
	g := a.describe(t, "t", "time").GetGroup()
	if !g.GetPaused() || g.GetPolicy().GetMaxAttempts() != 7 {
		t.Fatalf("after a restart: %v", g)
	}
	if _, err := a.groups.ResumeGroup(ctx(t), &strandmqv1.ResumeGroupRequest{Topic: "t", Group: "time"}); err != nil {
		t.Fatal(err)
	}
	if d := a.one(t, "t", "time", "m"); d.GetMessage().GetText() != "y" {
		t.Fatalf("resumed: %v", d)
	}
	list, err := a.groups.ListGroups(ctx(t), &strandmqv1.ListGroupsRequest{})
	if err != nil || len(list.GetGroups()) != 5 || list.GetGroups()[0].GetCounts() == nil {
		t.Fatalf("groups %v, %v", list, err)
	}
	described, err := a.topics.DescribeTopic(ctx(t), &strandmqv1.DescribeTopicRequest{Topic: "t"})
	if err != nil || len(described.GetPartitions()) != 8 || len(described.GetGroups()) != 5 {
		t.Fatalf("described %v, %v", described, err)
	}
	var end, bytes uint64
	for _, p := range described.GetPartitions() {
		end += p.GetEndOffset()
		bytes += p.GetBytes()
		if p.GetFault() != "" {
			t.Errorf("partition %d: %s", p.GetPartition(), p.GetFault())
		}
	}
	if end != 160 || bytes == 0 {
		t.Fatalf("the partitions end at %d with %d bytes", end, bytes)
	}

	// Deleted is deleted: name and messages are free.
	if _, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "time", Confirm: "time"}); err != nil {
		t.Fatal(err)
	}
	_, err = a.groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "t", Group: "time"})
	wantReason(t, err, "UNKNOWN_GROUP")
	if _, err := a.topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: "t", Confirm: "t"}); err != nil {
		t.Fatal(err)
	}
	if n := len(b.host.Partitions()); n != 1 {
		t.Fatalf("%d partitions are left, want the metadata alone", n)
	}
	a.topic(t, "t", 1)
	a.group(t, "t", "time", nil)
	if got := lag("time"); got != 0 {
		t.Fatalf("a new topic of the name has a lag of %d", got)
	}
}

// However many names there are, the series are bounded, and deleting frees
// their places.
func TestMetricLabelsAreBounded(t *testing.T) {
	m := newMetrics("test")
	for i := range maxLabels {
		if topic, group := m.label(fmt.Sprint("t", i/2), fmt.Sprint("g", i%2)); topic == otherLabel || group == otherLabel {
			t.Fatalf("name %d has no series", i)
		}
	}
	if topic, _ := m.label("more", "g0"); topic != otherLabel {
		t.Fatalf("one name more has a series: %s", topic)
	}
	if topic, _ := m.label("t0", "g0"); topic != "t0" {
		t.Fatal("a name lost its series")
	}
	m.forget("t0")
	m.forgetGroup("t1", "g1")
	for i := range 3 {
		if topic, _ := m.label(fmt.Sprint("new", i), "g"); topic == otherLabel {
			t.Fatal("a deleted name keeps its place")
		}
	}
	if topic, _ := m.label("more", "g0"); topic != otherLabel {
		t.Fatal("more names than places")
	}
}
