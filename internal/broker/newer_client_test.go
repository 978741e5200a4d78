package broker

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What a newer client says beside what is known here, in protobuf, is passed over. In JSON, which
// people write, it is refused: see TestBadRequests.
func TestNewerClient(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", patient())
	later := protowire.AppendString(protowire.AppendTag(nil, 5000, protowire.BytesType), "what later versions have to say")
	req := &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "1")}}
	req.ProtoReflect().SetUnknown(later)
	req.Messages[0].ProtoReflect().SetUnknown(later)
	res, err := a.publish.Publish(ctx(t), req)
	if err != nil || res.GetResults()[0].GetProblem() != nil {
		t.Fatal(err, res)
	}
	for name, open := range consumings(t, b) {
		what := opened("t", "g", "m")
		what.ProtoReflect().SetUnknown(later)
		m := joins(t, open, what, 10)
		got := m.take(1)
		run := &strandmqv1.SettleRun{First: got[0].number, Action: release}
		run.ProtoReflect().SetUnknown(later)
		last := &strandmqv1.ConsumeRequest{Settlements: []*strandmqv1.SettleRun{run}}
		last.ProtoReflect().SetUnknown(later)
		m.send(last)
		if r := m.results(1)[0]; r.GetProblem() != nil {
			t.Errorf("%s: %v", name, r)
		}
		m.send(&strandmqv1.ConsumeRequest{Leave: true})
		m.end("")
	}
}
