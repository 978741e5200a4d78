package httpapi

import (
	"math"
	"net/http"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// shownTopic is a topic in an answer.
type shownTopic struct {
	Topic           string `json:"topic"`
	Partitions      uint32 `json:"partitions"`
	RetentionMs     int64  `json:"retention_ms"`
	RetentionBytes  int64  `json:"retention_bytes"`
	MaxBodyBytes    int64  `json:"max_body_bytes"`
	Kind            string `json:"kind"`
	Replication     uint32 `json:"replication"`
	RefuseAtHolding bool   `json:"refuse_publishes_at_hold_limit"`
	Created         string `json:"created"`
}

// describedTopic is a topic with its partitions.
type describedTopic struct {
	shownTopic
	Groups []string         `json:"groups"`
	Logs   []shownPartition `json:"partition_list"`
	Behind string           `json:"behind,omitempty"`
}

// shownPartition is a partition in an answer. What is not known is left out.
type shownPartition struct {
	Partition uint32  `json:"partition"`
	Start     *uint64 `json:"start_offset,omitempty"`
	End       *uint64 `json:"end_offset,omitempty"`
	Bytes     *uint64 `json:"bytes,omitempty"`
	Leader    uint64  `json:"leader,omitempty"`
	Fault     string  `json:"fault,omitempty"`
	Reason    string  `json:"fault_reason,omitempty"`
}

// The kinds of topics, as they are written.
const (
	logKind   = "log"
	queueKind = "work-queue"
)

func topicOf(t *strandmqv1.Topic) shownTopic {
	c := t.GetConfig()
	kind := logKind
	if c.GetKind() == strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE {
		kind = queueKind
	}
	return shownTopic{
		Topic: t.GetName(), Partitions: t.GetPartitions(), RetentionMs: c.GetRetentionMs(), RetentionBytes: c.GetRetentionBytes(),
		MaxBodyBytes: c.GetMaxBodyBytes(), Kind: kind, Replication: c.GetReplication(), RefuseAtHolding: c.GetRefusePublishesAtHoldLimit(),
		Created: instant(t.GetCreated()),
	}
}

func noParameters(r *http.Request) error {
	f, _, err := query(r)
	if err != nil {
		return err
	}
	return f.done()
}

func (a *api) listTopics(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	res, err := a.calls.topics.ListTopics(r.Context(), &strandmqv1.ListTopicsRequest{})
	if err != nil {
		return err
	}
	out := make([]shownTopic, len(res.GetTopics()))
	for i, t := range res.GetTopics() {
		out[i] = topicOf(t)
	}
	answer(w, http.StatusOK, map[string]any{"topics": out})
	return nil
}

func (a *api) describeTopic(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	res, err := a.calls.topics.DescribeTopic(r.Context(), &strandmqv1.DescribeTopicRequest{Topic: r.PathValue("topic")})
	if err != nil {
		return err
	}
	out := describedTopic{
		shownTopic: topicOf(res.GetTopic()), Groups: append([]string{}, res.GetGroups()...),
		Logs: make([]shownPartition, len(res.GetPartitions())), Behind: res.GetBehind(),
	}
	for i, p := range res.GetPartitions() {
		out.Logs[i] = shownPartition{
			Partition: p.GetPartition(), Start: p.StartOffset, End: p.EndOffset, Bytes: p.Bytes,
			Leader: p.GetLeader(), Fault: p.GetFault(), Reason: p.GetFaultReason(),
		}
	}
	answer(w, http.StatusOK, out)
	return nil
}

// createTopic creates a topic; again with the same settings it changes nothing.
func (a *api) createTopic(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	f, err := body(r, true)
	if err != nil {
		return err
	}
	req := &strandmqv1.CreateTopicRequest{Topic: r.PathValue("topic"), Config: &strandmqv1.TopicConfig{}}
	if n := f.number("partitions", math.MaxUint32); n != nil {
		req.Partitions = uint32(*n)
	}
	for name, into := range map[string]**int64{
		"retention_ms": &req.Config.RetentionMs, "retention_bytes": &req.Config.RetentionBytes, "max_body_bytes": &req.Config.MaxBodyBytes,
	} {
		if n := f.number(name, math.MaxInt64); n != nil {
			*into = new(int64(*n))
		}
	}
	if n := f.number("replication", math.MaxUint32); n != nil {
		req.Config.Replication = new(uint32(*n))
	}
	if _, has := f.of["refuse_publishes_at_hold_limit"]; has {
		req.Config.RefusePublishesAtHoldLimit = new(f.yes("refuse_publishes_at_hold_limit"))
	}
	switch kind, has := f.given("kind"); {
	case !has:
	case kind == logKind:
		req.Config.Kind = strandmqv1.TopicKind_TOPIC_KIND_LOG
	case kind == queueKind:
		req.Config.Kind = strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE
	default:
		f.fail("kind", "is not log or work-queue")
	}
	if err := f.done(); err != nil {
		return err
	}
	res, err := a.calls.topics.CreateTopic(r.Context(), req)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if res.GetExisted() {
		status = http.StatusOK
	}
	answer(w, status, topicOf(res.GetTopic()))
	return nil
}

// deleteTopic deletes a topic whose name is given twice.
func (a *api) deleteTopic(w http.ResponseWriter, r *http.Request) error {
	f, _, err := query(r)
	if err != nil {
		return err
	}
	confirm := f.text("confirm")
	if err := f.done(); err != nil {
		return err
	}
	if _, err := a.calls.topics.DeleteTopic(r.Context(), &strandmqv1.DeleteTopicRequest{Topic: r.PathValue("topic"), Confirm: confirm}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
