package duty

import (
	"fmt"
	"slices"
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
		{"who is gone is not fed while it is still wanted", Membership{self: r(1), voters: list(1, 2, 3), gone: list(3), hasVoters: list(1, 2)}, nil, nil, "waits"},
		{"who is to listen is fed", Membership{self: r(1), voters: list(1), listeners: list(2), hasVoters: list(1)}, nil, nil, "add n2"},
		{"who is to listen loses its vote", Membership{self: r(1), voters: list(1), listeners: list(2), hasVoters: list(1, 2), moving: true}, nil, nil, "demote n2"},
		{"the first is to lead", Membership{self: r(2), voters: list(1, 2, 3), hasVoters: list(1, 2, 3)}, nil, nil, "transfer n1"},
		{"not while it is down", Membership{self: r(2), voters: list(1, 2, 3), hasVoters: list(1, 2, 3)}, []partition.NodeID{1}, nil, "nothing"},
		{"a damaged one loses its vote before another comes", Membership{self: r(1), voters: list(1, 2), gone: list(3), hasVoters: list(1, 2, 3), moving: true}, []partition.NodeID{3}, nil, "demote n3"},
		{"then one of its node is fed", Membership{self: r(1), voters: []partition.ReplicaID{r(1), r(2), anew}, hasVoters: list(1, 2), moving: true}, nil, nil, "add n3.4"},
		{"a leader that is damaged lets another lead", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3), damaged: true, mends: true}, nil, []partition.NodeID{2}, "transfer n3"},
		{"not where it would be led from there again", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3), damaged: true}, nil, nil, "nothing"},
		{"not where the others are no majority", Membership{self: r(1), voters: list(1, 2, 3), hasVoters: list(1, 2, 3), damaged: true, mends: true}, []partition.NodeID{2}, nil, "nothing"},
		{"one that leaves, too", Membership{self: r(1), voters: list(2, 3), gone: list(1), hasVoters: list(1, 2, 3), moving: true, damaged: true}, nil, nil, "transfer n2"},
		{"it does not feed", Membership{self: r(1), voters: []partition.ReplicaID{r(1), r(2), anew}, hasVoters: list(1, 2), moving: true, damaged: true}, nil, nil, "transfer n2"},
		{"it takes nobody's vote", Membership{self: r(1), voters: list(1, 2), gone: list(3), hasVoters: list(1, 2, 3), moving: true, damaged: true}, []partition.NodeID{2}, nil, "waits"},
		{"it says of nobody that it is out", Membership{self: r(1), voters: list(1, 2), gone: list(3), hasVoters: list(1, 2), moving: true, damaged: true}, nil, nil, "waits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := func(ns []partition.NodeID, n partition.NodeID) bool {
				return strings.Contains(fmt.Sprint(ns)+" ", n.String())
			}
			c.m.up = func(n partition.NodeID) bool { return !in(c.down, n) }
			c.m.caught = func(r partition.ReplicaID) bool { return !in(c.lags, r.Node()) }
			c.m.lead = func(to partition.ReplicaID) bool { return c.m.up(to.Node()) }
			c.m.fit = func(partition.NodeID) bool { return true }
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

// A leader whose disk is full hands over to who has room, whatever else there is to do;
// where nobody has, it goes on; and nothing goes back to it before it has room again.
func TestUnfitLeaders(t *testing.T) {
	c, topic := four(t)
	m := c.View()
	p, _ := m.Partition(topic.Partitions[0].ID)
	first := p.Replicas
	nodes := p.Nodes()
	info := func(leads int, lag ...int) partition.Info {
		out := partition.Info{Replica: first[leads], Term: 3, LastIndex: 100, Voters: first}
		for i, r := range first {
			if f := (partition.Follower{Replica: r, Voter: true, Match: 100, Active: true}); i != leads {
				if slices.Contains(lag, i) {
					f.Match = 50
				}
				out.Followers = append(out.Followers, f)
			}
		}
		return out
	}
	for _, x := range []struct {
		name  string
		info  partition.Info
		unfit []partition.NodeID
		down  partition.NodeID
		want  partition.ReplicaID // 0: it goes on
		waits bool
	}{
		{"all are well", info(0), nil, 0, 0, false},
		{"it is full", info(0), nodes[:1], 0, first[1], false},
		{"the next is full, too", info(0), nodes[:2], 0, first[2], false},
		{"the next is down", info(0), nodes[:1], nodes[1], first[2], false},
		{"the next lags", info(0, 1), nodes[:1], 0, first[2], false},
		{"all others lag", info(0, 1, 2), nodes[:1], 0, 0, true},
		{"all are full", info(0), nodes, 0, 0, false},
		{"who is to lead is full", info(1), nodes[:1], 0, 0, false},
		{"who is to lead has room again", info(1), nil, 0, first[0], false},
	} {
		o := Others{
			Up:   func(n partition.NodeID) bool { return n != x.down },
			Stay: func(n partition.NodeID) bool { return n != x.down },
			Fit:  func(n partition.NodeID) bool { return !slices.Contains(x.unfit, n) },
		}
		moved := *p // as it is when all are where they are wanted
		moved.Settled = moved.Placement
		var k Keeper
		s := k.Lead(m, &moved, x.info, o, false)
		if got := s.Kind == Transfer; got != (x.want != 0) || s.To != x.want || s.Waiting != x.waits {
			t.Errorf("%s: kind %d to %v, waits %v; want to %v, waits %v", x.name, s.Kind, s.To, s.Waiting, x.want, x.waits)
		}
	}
}
