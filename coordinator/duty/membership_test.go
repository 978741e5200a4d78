package duty

import (
	"fmt"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// One step at a time, from what there is to what the map wants.
func TestMembershipSteps(t *testing.T) {
	r := func(n partition.NodeID) partition.ReplicaID { return n.Replica() }
	list := func(ns ...partition.NodeID) (out []partition.ReplicaID) {
		for _, n := range ns {
			out = append(out, r(n))
		}
		return out
	}
	anew := partition.NewReplicaID(3, 4)
	for _, c := range []struct {
		name string
		m    Membership
		down []partition.NodeID
		lags []partition.NodeID
		want string
	}{
		{"as it is wanted", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3)}, nil, nil, "nothing"},
		{"reached, and not said", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3), moving: true}, nil, nil, "settle"},
		{"a new one is fed", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1), moving: true}, nil, nil, "add n2"},
		{"not while its node is down", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1), moving: true}, []partition.NodeID{2}, nil, "add n3"},
		{"nobody to feed", Membership{self: r(1), voters: list(1, 2), hasVoters: list(1), moving: true}, []partition.NodeID{2}, nil, "waits"},
		{"a vote when it has caught up", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1), hasLearners: list(2, 3), moving: true}, nil, []partition.NodeID{2}, "promote n3"},
		{"no vote before", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 3), hasLearners: list(2), moving: true}, nil, []partition.NodeID{2}, "waits"},
		{"the old one keeps its vote until the new one has it", Membership{self: r(1), voters: list(1, 2, 4), gone: list(3), hasVoters: list(1, 2, 3), hasLearners: list(4), moving: true}, nil, []partition.NodeID{4}, "waits"},
		{"then it loses it", Membership{self: r(1), voters: list(1, 2, 4), gone: list(3), hasVoters: list(1, 2, 3, 4), moving: true}, nil, nil, "demote n3"},
		{"and then it goes", Membership{self: r(1), voters: list(1, 2, 4), gone: list(3), hasVoters: list(1, 2, 4), hasLearners: list(3), moving: true}, nil, nil, "remove n3"},
		{"a leader that leaves hands over first", Membership{self: r(1), voters: list(2, 3, 4), gone: list(1), hasVoters: list(1, 2, 3, 4), moving: true}, []partition.NodeID{2}, nil, "transfer n3"},
		{"a replica that comes again waits for the old one to go", Membership{self: r(1), voters: []partition.ReplicaID{r(1), r(2), anew}, gone: list(3), hasVoters: list(1, 2, 3), moving: true}, nil, nil, "waits"},
		{"who is not named is left alone", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3, 4), hasLearners: list(5)}, nil, nil, "nothing"},
		{"who is to listen is fed", Membership{self: r(1), voters: list(1), listeners: list(2), hasVoters: list(1)}, nil, nil, "add n2"},
		{"who is to listen loses its vote", Membership{self: r(1), voters: list(1), listeners: list(2), hasVoters: list(1, 2), moving: true}, nil, nil, "demote n2"},
		{"the first is to lead", Membership{self: r(2), voters: list(1, 2, 3), hasVoters: list(1, 2, 3)}, nil, nil, "transfer n1"},
		{"not while it is down", Membership{self: r(2), voters: list(1, 2, 3), hasVoters: list(1, 2, 3)}, []partition.NodeID{1}, nil, "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := func(ns []partition.NodeID, n partition.NodeID) bool {
				return strings.Contains(fmt.Sprint(ns)+" ", n.String())
			}
			c.m.up = func(n partition.NodeID) bool { return !in(c.down, n) }
			c.m.caught = func(r partition.ReplicaID) bool { return !in(c.lags, r.Node()) }
			c.m.lead = func(to partition.ReplicaID) bool { return c.m.up(to.Node()) }
			s := c.m.Next()
			got := map[StepKind]string{Nothing: "nothing", Change: s.Change.String(), Transfer: "transfer " + s.To.String(), Settle: "settle"}[s.Kind]
			if s.Kind == Nothing && s.Waiting {
				got = "waits"
			}
			if got != c.want {
				t.Errorf("%s; want %s", got, c.want)
			}
		})
	}
}
