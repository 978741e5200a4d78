package partition

import (
	"math"
	"testing"
)

func TestReplicaID(t *testing.T) {
	for _, c := range []struct {
		node        NodeID
		incarnation uint32
		text        string
	}{{1, 0, "n1"}, {3, 2, "n3.2"}, {math.MaxUint32, math.MaxUint32, "n4294967295.4294967295"}} {
		id := NewReplicaID(c.node, c.incarnation)
		if id.Node() != c.node || id.Incarnation() != c.incarnation || id.String() != c.text {
			t.Errorf("%v, %d: %v with %v, %d", c.node, c.incarnation, id, id.Node(), id.Incarnation())
		}
	}
	for id, valid := range map[ReplicaID]bool{NodeID(3).Replica(): true, NewReplicaID(3, 2): true, 0: false, NewReplicaID(0, 7): false} {
		if id.Valid() != valid {
			t.Errorf("%v is valid: %v", id, !valid)
		}
	}
	// What was written before there were incarnations is valid as it is.
	if NewReplicaID(7, 0) != ReplicaID(NodeID(7)) {
		t.Error("incarnation 0 is not the plain node id")
	}
}
