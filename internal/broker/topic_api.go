package broker

import (
	"context"
	"errors"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// topicAPI is strandmq.v1.TopicService.
type topicAPI struct{ b *Broker }

// CreateTopic creates a topic and its partitions.
func (a topicAPI) CreateTopic(ctx context.Context, req *strandmqv1.CreateTopicRequest) (*strandmqv1.CreateTopicResponse, error) {
	if err := names.Topic(req.GetTopic()); err != nil {
		return nil, inField(err, "topic")
	}
	spec := coordinator.TopicSpec{Name: req.GetTopic(), Partitions: int(req.GetPartitions()), Config: req.GetConfig()}
	t, existed, err := a.b.coord.CreateTopic(ctx, spec)
	// Who has just come to lead the metadata log hears of the others in a moment.
	for few := (*coordinator.ErrReplication)(nil); errors.As(err, &few) && len(few.Unheard) > 0 && pauseFor(ctx, agentPause) == nil; {
		t, existed, err = a.b.coord.CreateTopic(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	if t.Phase != coordinator.Ready {
		if t, err = a.b.readyTopic(ctx, t); err != nil {
			return nil, err
		}
	}
	return &strandmqv1.CreateTopicResponse{Topic: topicProto(t), Existed: existed}, nil
}

// ListTopics lists all topics in use.
func (a topicAPI) ListTopics(context.Context, *strandmqv1.ListTopicsRequest) (*strandmqv1.ListTopicsResponse, error) {
	res := &strandmqv1.ListTopicsResponse{Behind: a.b.mapBehind()}
	for t := range a.b.coord.View().Topics() {
		if t.Phase == coordinator.Ready {
			res.Topics = append(res.Topics, topicProto(t))
		}
	}
	return res, nil
}

// DescribeTopic gives settings and partitions.
func (a topicAPI) DescribeTopic(ctx context.Context, req *strandmqv1.DescribeTopicRequest) (*strandmqv1.DescribeTopicResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	ctx, held := maybeBehind(ctx)
	res := &strandmqv1.DescribeTopicResponse{Topic: topicProto(t.Topic), Partitions: make([]*strandmqv1.PartitionInfo, len(t.Partitions))}
	err = each(ctx, t.Topic, func(ctx context.Context, i int, id partition.PartitionID) error {
		p := &t.Partitions[i]
		out := &strandmqv1.PartitionInfo{Partition: uint32(i), HashFirst: p.Range.First, HashLast: p.Range.Last, Moving: p.Moving()}
		for _, n := range p.Nodes() {
			out.Nodes = append(out.Nodes, uint64(n))
		}
		// Of one that stopped nothing is known: it may have done so before it
		// had read anything, and then all would be 0.
		switch info, err := a.b.parts.Info(ctx, p.ID); {
		case err != nil:
			told := a.b.explain(err)
			out.Fault, out.FaultReason = told.text, told.reason
		case info.Fault != "":
			out.Fault, out.FaultReason = info.Fault, stopReason(info.Info)
		default:
			out.StartOffset, out.EndOffset = new(uint64(info.Position.Start)), new(uint64(info.Position.End))
			out.Bytes, out.Duplicates = new(info.Bytes), new(info.Duplicates)
			out.Oldest = timestampOrNil(int64(info.Oldest))
			out.Leader = uint64(info.Leader)
			if info.heldBy != 0 {
				out.HeldBy, out.HeldBytes = a.b.groupName(info.heldBy), info.heldBytes
			}
			if held.of(id) {
				told := a.b.explain(notLed(id))
				out.Leader, out.Fault, out.FaultReason = 0, told.text, told.reason
			}
		}
		res.Partitions[i] = out
		return nil
	})
	if err != nil {
		return nil, err
	}
	res.Behind = held.words(a.b)
	for g := range t.Groups() {
		if g.Phase == coordinator.Ready {
			res.Groups = append(res.Groups, g.Name)
		}
	}
	return res, nil
}

// AlterTopic changes settings.
func (a topicAPI) AlterTopic(ctx context.Context, req *strandmqv1.AlterTopicRequest) (*strandmqv1.AlterTopicResponse, error) {
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	altered, err := a.b.coord.AlterTopic(ctx, t.Name, req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &strandmqv1.AlterTopicResponse{Topic: topicProto(altered)}, nil
}

// DeleteTopic deletes a topic and all in it.
func (a topicAPI) DeleteTopic(ctx context.Context, req *strandmqv1.DeleteTopicRequest) (*strandmqv1.DeleteTopicResponse, error) {
	if err := names.Topic(req.GetTopic()); err != nil {
		return nil, inField(err, "topic")
	}
	t, err := a.b.coord.DeleteTopic(ctx, req.GetTopic(), req.GetConfirm())
	if err != nil {
		return nil, err
	}
	if err := a.b.removeTopic(ctx, t); err != nil {
		return nil, err
	}
	a.b.metrics.forget(t.Name)
	return &strandmqv1.DeleteTopicResponse{}, nil
}

func topicProto(t *coordinator.Topic) *strandmqv1.Topic {
	return &strandmqv1.Topic{Name: t.Name, Partitions: uint32(len(t.Partitions)), Config: t.Config.Proto(), Created: timestampOrNil(int64(t.Created))}
}
