package client

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// newer is a message as a later version may send it, with a field that is not known here.
func newer[M proto.Message](t *testing.T, m, into M) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	raw = protowire.AppendTag(raw, 5000, protowire.BytesType)
	raw = protowire.AppendString(raw, "what later versions have to say")
	if err := proto.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// What a newer broker says beside what is known here is passed over. A refusal for a reason
// that is not known here is one that passes if it says when, and a final one if it does not.
func TestWhatANewerBrokerSays(t *testing.T) {
	h := newHand("t", "g", 100, 4)
	arrives(t, h, 0, newer(t, gives(t, 1, 1, 50, "0:a", "1:b"), &strandmqv1.ConsumeResponse{}))
	ts, keys := starts(h, 0)
	wants(t, "started", keys, "ab")
	h.finish(ts[0], ackIt)
	h.finish(ts[1], ackIt)
	wants(t, "the acks", said(h.frame()), "+2 ACK 1-2")
	later := settled(1, 1, "OF_A_LATER_VERSION")
	later.Settled[0].Problem.RetryAfterMs = 200
	arrives(t, h, 0, newer(t, later, &strandmqv1.ConsumeResponse{}))
	arrives(t, h, 0, newer(t, settled(2, 2, "OF_A_LATER_VERSION"), &strandmqv1.ConsumeResponse{}))
	h.tick(200)
	wants(t, "what passes", said(h.frame()), "+0 ACK 1-1")
	if h.late != 1 || h.held.n != 1 {
		t.Errorf("%d late, %d held", h.late, h.held.n)
	}
	p := newer(t, problemOf("OF_A_LATER_VERSION", 0), &strandmqv1.Problem{})
	if err := refused(p, false); passing(p) || Retryable(err) || err.Reason != "OF_A_LATER_VERSION" {
		t.Errorf("a refusal that does not say when: %v", err)
	}
	p.RetryAfterMs = 200
	if err := refused(p, false); !passing(p) || !Retryable(err) {
		t.Errorf("a refusal that says when: %v", err)
	}
}
