package broker

import (
	"fmt"
	"regexp"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A group that asked for nothing keeps its messages when the world fails; one that
// turned the breaker off does not; and one bad message is dead-lettered as ever.
func TestCircuitBreaker(t *testing.T) {
	const n = 25
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	twice := func(p *strandmqv1.GroupPolicy) *strandmqv1.GroupPolicy {
		p.BackoffMs, p.MaxAttempts = proto.Int64(1), proto.Uint32(2)
		return p
	}
	a.group(t, "t", "default", twice(&strandmqv1.GroupPolicy{}))
	a.group(t, "t", "off", twice(&strandmqv1.GroupPolicy{BreakerFailedPercent: proto.Uint32(0)}))
	a.group(t, "t", "poison", twice(&strandmqv1.GroupPolicy{}))
	for i := range n {
		a.store(t, "t", msg(fmt.Sprint("key-", i), "x"))
	}
	circuit := func(group string) *strandmqv1.GroupCircuit {
		return a.describe(t, "t", group).GetPartitions()[0].GetCircuit()
	}

	first := a.receive(t, "t", "default", "m", n)
	if len(first) != n {
		t.Fatalf("%d deliveries, want %d", len(first), n)
	}
	for i, d := range first {
		if c := circuit("default"); c.GetOpen() != (i >= 20) {
			t.Fatalf("after %d failures over as many keys: %v", i, c)
		}
		a.done(t, "t", "default", d, nack, "the database is down")
	}
	g := a.describe(t, "t", "default")
	if s := g.GetPartitions()[0].GetStalls(); len(s) == 0 || s[0].GetReason() != "CIRCUIT_OPEN" || s[0].GetUntil() == nil {
		t.Fatalf("stalls: %v", s)
	}
	if c := circuit("default"); c.GetOpened() != 1 || c.GetUntil() == nil {
		t.Fatalf("the circuit: %v", c)
	}
	_, metrics := get(t, b.URL()+"/metrics")
	for _, want := range []string{
		`strandmq_group_open_circuits\{group="default",topic="t"\} 1`, `strandmq_group_circuit_opened_total\{group="default",topic="t"\} 1`,
		`strandmq_group_open_circuits\{group="off",topic="t"\} 0`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(metrics) {
			t.Errorf("no %s", want)
		}
	}
	// The world is mended: the probe succeeds, and all the others follow.
	probe := a.receive(t, "t", "default", "m", n)
	if len(probe) != 1 || !circuit("default").GetOpen() {
		t.Fatalf("%d deliveries while the circuit is open", len(probe))
	}
	a.done(t, "t", "default", probe[0], ack, "")
	for left := n - 1; left > 0; {
		for _, d := range a.receive(t, "t", "default", "m", n) {
			a.done(t, "t", "default", d, ack, "")
			left--
		}
	}
	g = a.describe(t, "t", "default")
	if c := circuit("default"); g.GetCounts().GetAcked() != n || g.GetCounts().GetDead() != 0 || c.GetOpen() || c.GetOpened() != 1 {
		t.Errorf("in the end: %v, circuit %v", g.GetCounts(), c)
	}

	for a.describe(t, "t", "off").GetCounts().GetDead() < n {
		for _, d := range a.receive(t, "t", "off", "m", n) {
			a.done(t, "t", "off", d, nack, "")
		}
	}
	if c := circuit("off"); c.GetOpened() != 0 {
		t.Errorf("turned off: %v", c)
	}

	for a.describe(t, "t", "poison").GetCounts().GetLag() > 0 {
		for _, d := range a.receive(t, "t", "poison", "m", n) {
			if d.GetMessage().GetKey() == "key-7" {
				a.done(t, "t", "poison", d, nack, "")
			} else {
				a.done(t, "t", "poison", d, ack, "")
			}
		}
	}
	if g := a.describe(t, "t", "poison"); g.GetCounts().GetDead() != 1 || g.GetCounts().GetAcked() != n-1 || circuit("poison").GetOpened() != 0 {
		t.Errorf("one bad message: %v, circuit %v", g.GetCounts(), circuit("poison"))
	}
}
