package broker

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// grpcurl knows nothing of the API but what reflection tells it.
func TestGRPCurl(t *testing.T) {
	// It brings forty modules along and builds for most of a minute the first
	// time, so make builds it and this test takes what is there.
	tool, err := filepath.Abs("../../bin/grpcurl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(tool); err != nil {
		if tool, err = exec.LookPath("grpcurl"); err != nil {
			t.Skip("grpcurl is not here: 'make bin/grpcurl' builds it, and 'make test' does that by itself")
		}
	}
	b := start(t, t.TempDir())
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx(t), tool, append([]string{"-plaintext"}, args...)...).CombinedOutput()
		return string(out), err
	}
	call := func(method, request string, answer any) {
		t.Helper()
		out, err := run("-d", request, b.Addr(), method)
		if err != nil {
			t.Fatalf("%s: %v\n%s", method, err, out)
		}
		if answer != nil {
			if err := json.Unmarshal([]byte(out), answer); err != nil {
				t.Fatalf("%s: %v\n%s", method, err, out)
			}
		}
	}

	out, err := run(b.Addr(), "list")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if have := strings.Fields(out); !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(append(services(), "grpc.health.v1.Health")))) {
		t.Errorf("it lists %v", have)
	}
	if out, err := run(b.Addr(), "describe", "strandmq.v1.GroupPolicy"); err != nil || !strings.Contains(out, "optional int64 ack_deadline_ms") {
		t.Errorf("describe: %v\n%s", err, out)
	}

	call("strandmq.v1.TopicService/CreateTopic", `{"topic":"t","partitions":1}`, nil)
	call("strandmq.v1.PublishService/Publish", `{"topic":"t","messages":[{"key":"k","id":"1","json":{"n":1}}]}`, nil)
	var received struct {
		Deliveries []struct {
			Token   string
			Message struct{ Key, Text string }
		}
	}
	call("strandmq.v1.ConsumeService/Receive", `{"topic":"t","group":"g","member":"m","create_group":true,"wait_ms":5000}`, &received)
	if len(received.Deliveries) != 1 || received.Deliveries[0].Message.Key != "k" || received.Deliveries[0].Message.Text != `{"n":1}` {
		t.Fatalf("received %+v", received)
	}
	call("strandmq.v1.ConsumeService/Settle", `{"topic":"t","group":"g","member":"m","settlements":[{"token":"`+received.Deliveries[0].Token+`","action":"SETTLE_ACTION_ACK"}]}`, nil)
	var described struct{ Counts struct{ Acked string } }
	call("strandmq.v1.GroupService/DescribeGroup", `{"topic":"t","group":"g"}`, &described)
	if described.Counts.Acked != "1" {
		t.Errorf("%+v", described)
	}
	call("grpc.health.v1.Health/Check", `{"service":"strandmq.v1.PublishService"}`, nil)

	// A refusal comes with its Problem, which reflection lets it read too.
	out, err = run("-d", `{"topic":"nowhere"}`, b.Addr(), "strandmq.v1.TopicService/DescribeTopic")
	if err == nil || !strings.Contains(out, "NotFound") || !strings.Contains(out, `"reason": "UNKNOWN_TOPIC"`) {
		t.Errorf("%v\n%s", err, out)
	}
}
