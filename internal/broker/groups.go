package broker

import (
	"context"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// ensureGroup finds a group, or creates it with the default policy when asked
// to.
func (b *Broker) ensureGroup(ctx context.Context, topicName, groupName string, create bool) (*topic, *coordinator.Group, error) {
	seen := b.revision()
	t, g, err := b.group(topicName, groupName)
	if err == nil || !create {
		return t, g, err
	}
	if b.caughtUp(ctx, seen) {
		if t, g, err = b.group(topicName, groupName); err == nil {
			return t, g, nil
		}
	}
	if r := reasonOf(err); r != "UNKNOWN_GROUP" && r != "IN_PROGRESS" {
		return nil, nil, err
	}
	if _, err := b.topic(topicName); err != nil {
		return nil, nil, err
	}
	if b.far != nil && !b.far.here(partition.Metadata) {
		if err := b.createGroupThere(ctx, topicName, groupName); err != nil {
			return nil, nil, err
		}
	} else if _, _, _, err := b.createGroup(ctx, topicName, groupName, nil, nil); err != nil {
		if reasonOf(err) != "GROUP_EXISTS" { // someone was faster, with a policy of their own
			return nil, nil, err
		}
	}
	return b.group(topicName, groupName)
}

// createGroup creates a group, or finds one with the same policy.
func (b *Broker) createGroup(
	ctx context.Context, topicName, groupName string, change *strandmqv1.GroupPolicy, start *strandmqv1.StartPosition,
) (g *coordinator.Group, existed bool, left []*strandmqv1.LeftOut, err error) {
	policy := policyProto(consumer.Default())
	if err := withPolicy(policy, change); err != nil {
		return nil, false, nil, err
	}
	g, existed, err = b.coord.CreateGroup(ctx, coordinator.GroupSpec{Topic: topicName, Name: groupName, Policy: policy, Start: start})
	if err != nil {
		return nil, false, nil, err
	}
	t, err := b.topic(topicName)
	if err != nil {
		return nil, false, nil, err
	}
	g, left, err = b.logged(ctx, t, g)
	return g, existed, left, err
}

// logged sees to it that every partition that works has logged the group as it
// is, and gives those that do not.
func (b *Broker) logged(ctx context.Context, t *topic, g *coordinator.Group) (*coordinator.Group, []*strandmqv1.LeftOut, error) {
	if g.Phase == coordinator.Ready && g.Logged >= g.Revision {
		return g, nil, nil
	}
	return b.readyGroup(ctx, t.Topic, g)
}

// statesOfRest asks every partition for a group's state, as far as they go on.
// One that stopped has a stall that says so and no counts, and is left out.
func (b *Broker) statesOfRest(ctx context.Context, t *coordinator.Topic, g *coordinator.Group) ([]groupState, *leftOut, error) {
	return b.statesWhere(ctx, t, g, everywhere)
}

func everywhere(coordinator.Partition) bool { return true }

// statesWhere is statesOfRest for some partitions; the states of others are empty.
func (b *Broker) statesWhere(ctx context.Context, t *coordinator.Topic, g *coordinator.Group, where func(coordinator.Partition) bool) ([]groupState, *leftOut, error) {
	out := make([]groupState, len(t.Partitions))
	r := &leftOut{b: b}
	err := r.each(ctx, t, func(ctx context.Context, i int, id partition.PartitionID) (err error) {
		if !where(t.Partitions[i]) {
			return nil
		}
		out[i], err = b.parts.Stats(ctx, id, consumer.GroupID(g.ID))
		return err
	})
	for _, l := range r.out {
		out[l.GetPartition()].Stalls = []consumer.Stall{{Reason: l.GetProblem().GetReason(), Text: l.GetProblem().GetMessage()}}
	}
	return out, r, err
}
