package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// cluster is what nodes have in common that keep a metadata log: the partitions are
// those of a topic in it, and where their replicas are is what the log says. The log
// is partition 0 and runs like the others, on every node.
//
//	steward ─► coordinator.Coordinator ─► metadata log ─► map, on every node
//	                                        │               │
//	                         placement.Make, by its leader  └─► deputy ─► replicas
//
// It begins with one node. The others join by tokens, the topic is made on three of
// them, and only then faults begin.
type cluster struct {
	s         *Sim
	r         *rand.Rand
	made      int              // machines that joined, or are about to
	newest    *coordinator.Map // that any node ever had
	outs      map[partition.PartitionID]map[partition.ReplicaID]bool
	ready     bool // the topic is there
	topic     coordinator.TopicID
	group     coordinator.GroupID
	attendees []*attendee
	steward   *steward
}

const (
	topicName = "orders"
	groupName = "readers"
	// sessionTime is how long who attends may be silent.
	sessionTime = 10 * time.Second
)

// found begins a cluster, and calls then when its topic is there.
func (s *Sim) found(then func()) {
	c := s.cluster
	first := s.machine(1, c.address())
	first.first = true
	s.boots(first)
	c.until("founding", func(n *node) error {
		if _, err := n.coord.Bootstrap(context.Background(), ""); err != nil {
			return err
		}
		_, err := n.coord.Found(context.Background(), n.at)
		return err
	}, func() { c.grow(s.plan.nodes-1, func() { c.create(then) }) })
}

// until has the metadata log's leader do something until it succeeds, before there
// are faults.
func (c *cluster) until(what string, do func(*node) error, then func()) {
	c.s.call(partition.Metadata, do, func(err error) {
		switch {
		case err == nil:
			then()
		case c.s.now > time.Minute:
			c.s.fault("%s: %v", what, err)
		default:
			c.s.after(100*time.Millisecond, what, func() { c.until(what, do, then) })
		}
	})
}

// grow has so many nodes join, one after another.
func (c *cluster) grow(count int, then func()) {
	if count == 0 {
		then()
		return
	}
	c.join(func(*node) { c.grow(count-1, then) })
}

// address is that of a new machine.
func (c *cluster) address() coordinator.Address {
	c.made++
	return coordinator.Address{Store: fmt.Sprintf("%032x", c.made), Boot: 1, Zone: c.s.plan.zones[c.made%len(c.s.plan.zones)]}
}

// join has a new machine join, with a token of its own, until it is a node.
func (c *cluster) join(then func(*node)) { c.admit(c.address(), then) }

func (c *cluster) admit(at coordinator.Address, then func(*node)) {
	var secret [8]byte
	for i := range secret {
		secret[i] = byte(c.r.Uint32())
	}
	hash := coordinator.HashToken(secret[:])
	var id partition.NodeID
	c.s.call(partition.Metadata, func(n *node) error {
		if _, err := n.coord.CreateJoinToken(context.Background(), hash, 60*60*1000); err != nil {
			return err
		}
		x, err := n.coord.AddNode(context.Background(), hash, at)
		if err == nil {
			id = x.ID
		}
		return err
	}, func(err error) {
		if err != nil {
			if !mayRefuse(err) {
				c.s.fault("a node that joins is refused: %v", err)
			}
			c.s.after(200*time.Millisecond, "join", func() { c.admit(at, then) })
			return
		}
		if int(id) != len(c.s.nodes)+1 {
			c.s.fault("H7: a machine that joins becomes %v, and there were %d nodes", id, len(c.s.nodes))
			return
		}
		c.s.count.placed["node joined"]++
		n := c.s.machine(id, at)
		c.s.boots(n)
		then(n)
	})
}

// machine is one more node, which is off.
func (s *Sim) machine(id partition.NodeID, at coordinator.Address) *node {
	n := &node{s: s, id: id, at: at, disk: newEmptyDisk(), held: make(map[partition.PartitionID]*place), rot: make(map[partition.PartitionID]bool), flipped: make(map[partition.PartitionID]bool)}
	s.nodes = append(s.nodes, n)
	return n
}

func (s *Sim) boots(n *node) {
	if err := n.start(); err != nil {
		s.fault("%v", err)
	}
}

// create makes the topic, as a node does that is asked to: begin, wait until the
// partitions are led, finish.
func (c *cluster) create(then func()) {
	three := uint32(goal)
	c.until("creating the topic", func(n *node) error {
		t, _, err := n.coord.CreateTopic(context.Background(), coordinator.TopicSpec{
			Name: topicName, Partitions: c.s.plan.parts, Config: &strandmqv1.TopicConfig{Replication: &three},
		})
		if err != nil {
			return err
		}
		c.topic = t.ID
		for _, p := range t.Partitions {
			if c.s.leader(p.ID) == nil {
				return &partition.ErrNotLeader{Partition: p.ID}
			}
		}
		if _, err := n.coord.FinishTopic(context.Background(), t.ID); err != nil {
			return err
		}
		g, _, err := n.coord.CreateGroup(context.Background(), coordinator.GroupSpec{Topic: topicName, Name: groupName, Policy: &strandmqv1.GroupPolicy{}})
		if err != nil {
			return err
		}
		c.group = g.ID
		_, err = n.coord.FinishGroup(context.Background(), g.ID, g.Revision)
		return err
	}, func() {
		c.ready = true
		c.s.say("the topic is there")
		then()
	})
}

// mayRefuse tells whether what the metadata log was asked may be refused so.
func mayRefuse(err error) bool {
	var (
		conflict *coordinator.ErrConflict
		busy     *coordinator.ErrBusy
		active   *coordinator.ErrNotActive
		erasing  *coordinator.ErrErasing
		last     *coordinator.ErrLastNode
		holds    *coordinator.ErrNodeHolds
		gone     *coordinator.ErrNodeGone
		unknown  *coordinator.ErrNotFound // a leader of old does not know it yet
		token    *coordinator.ErrToken    // a clock has jumped
	)
	return retriable(err) || errors.As(err, &conflict) || errors.As(err, &busy) || errors.As(err, &active) || errors.As(err, &erasing) ||
		errors.As(err, &last) || errors.As(err, &holds) || errors.As(err, &gone) || errors.As(err, &unknown) || errors.As(err, &token)
}

// metadata makes the state of the metadata log on a node.
func (n *node) metadata(rows partition.Rows) (partition.App, error) {
	app, err := coordinator.NewApp(rows, coordinator.Config{
		SessionTimeout: partition.Millis(sessionTime.Milliseconds()), Node: n.id, Board: n.board, Now: n.clock,
		Balance: placement.Options{DeadAfter: partition.Millis(n.s.plan.deadAfter.Milliseconds())},
		Rand:    seeded{n.s.cluster.r},
	})
	if err == nil && n.coord == nil {
		// Those that a snapshot makes later show on the same board.
		n.coord = coordinator.New(&edge{n, n.boot}, app)
	}
	return app, err
}

// logs are all partitions that are judged, the metadata log among them.
func (s *Sim) logs() []partition.PartitionID {
	if s.cluster == nil {
		return s.parts()
	}
	return append([]partition.PartitionID{partition.Metadata}, s.parts()...)
}

// several tells whether there are, or will be, other nodes.
func (s *Sim) several() bool { return s.cluster != nil || len(s.nodes) > 1 }

// admits tells whether a node speaks with another one: not with those that its map
// says are out of the cluster.
func (n *node) admits(o *node) bool {
	if n.coord == nil {
		return true
	}
	x, ok := n.coord.View().Node(o.id)
	return !ok || x.State == coordinator.Active || x.State == coordinator.Draining
}

// outcast ends a node that the cluster has given up.
func (n *node) outcast() {
	n.s.say("%v is not of the cluster any more, and ends", n.id)
	n.giveUp()
	n.off("out of the cluster", 1)
}

// giveUp has nothing be demanded of a node any more.
func (n *node) giveUp() { n.broken, n.excused, n.gone = true, true, true }
