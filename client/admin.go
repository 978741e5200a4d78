package client

import (
	"context"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Admin makes, describes and deletes topics and groups, in the messages of the API
// (proto/strandmq/v1/admin.proto). Calls are made again while no node answers: see
// WithRetryFor. Creating what exists
// already, with the same settings, is a success.
type Admin struct{ c *Client }

// Admin gives the administration of topics and groups.
func (c *Client) Admin() Admin { return Admin{c} }

// CreateTopic makes a topic. ErrTopicExists: there is one with other settings.
func (a Admin) CreateTopic(ctx context.Context, req *strandmqv1.CreateTopicRequest) (*strandmqv1.CreateTopicResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.CreateTopicResponse, error) {
		return n.topics.CreateTopic(ctx, req)
	})
}

// ListTopics lists all topics.
func (a Admin) ListTopics(ctx context.Context) ([]*strandmqv1.Topic, error) {
	res, err := ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.ListTopicsResponse, error) {
		return n.topics.ListTopics(ctx, &strandmqv1.ListTopicsRequest{})
	})
	return res.GetTopics(), err
}

// DescribeTopic tells of a topic and its partitions.
func (a Admin) DescribeTopic(ctx context.Context, topic string) (*strandmqv1.DescribeTopicResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.DescribeTopicResponse, error) {
		return n.topics.DescribeTopic(ctx, &strandmqv1.DescribeTopicRequest{Topic: topic})
	})
}

// AlterTopic changes settings of a topic.
func (a Admin) AlterTopic(ctx context.Context, req *strandmqv1.AlterTopicRequest) (*strandmqv1.AlterTopicResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.AlterTopicResponse, error) {
		return n.topics.AlterTopic(ctx, req)
	})
}

// DeleteTopic deletes a topic with its messages and groups. confirm is its name
// again: ErrNotConfirmed otherwise.
func (a Admin) DeleteTopic(ctx context.Context, topic, confirm string) error {
	_, err := ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.DeleteTopicResponse, error) {
		return n.topics.DeleteTopic(ctx, &strandmqv1.DeleteTopicRequest{Topic: topic, Confirm: confirm})
	})
	return err
}

// CreateGroup makes a group. ErrGroupExists: there is one with another policy.
func (a Admin) CreateGroup(ctx context.Context, req *strandmqv1.CreateGroupRequest) (*strandmqv1.CreateGroupResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.CreateGroupResponse, error) {
		return n.groups.CreateGroup(ctx, req)
	})
}

// ListGroups lists a topic's groups; of all topics if topic is empty.
func (a Admin) ListGroups(ctx context.Context, topic string) ([]*strandmqv1.GroupSummary, error) {
	res, err := ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.ListGroupsResponse, error) {
		return n.groups.ListGroups(ctx, &strandmqv1.ListGroupsRequest{Topic: topic})
	})
	return res.GetGroups(), err
}

// DescribeGroup tells of a group: what is left to do, its members, why it waits.
func (a Admin) DescribeGroup(ctx context.Context, topic, group string) (*strandmqv1.DescribeGroupResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.DescribeGroupResponse, error) {
		return n.groups.DescribeGroup(ctx, &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
	})
}

// AlterGroup changes a group's policy.
func (a Admin) AlterGroup(ctx context.Context, req *strandmqv1.AlterGroupRequest) (*strandmqv1.AlterGroupResponse, error) {
	return ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.AlterGroupResponse, error) {
		return n.groups.AlterGroup(ctx, req)
	})
}

// DeleteGroup deletes a group with its dead letters. confirm is its name again:
// ErrNotConfirmed otherwise.
func (a Admin) DeleteGroup(ctx context.Context, topic, group, confirm string) error {
	_, err := ask(ctx, a.c, func(ctx context.Context, n *node) (*strandmqv1.DeleteGroupResponse, error) {
		return n.groups.DeleteGroup(ctx, &strandmqv1.DeleteGroupRequest{Topic: topic, Group: group, Confirm: confirm})
	})
	return err
}
