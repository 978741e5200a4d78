package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

func (mc *machine) createTopic(c *storagev1.CreateTopic) *result {
	if err := names.Topic(c.GetName()); err != nil {
		return refuse(err)
	}
	cfg, err := DefaultTopicConfig().With(c.Config)
	if err != nil {
		return refuse(err)
	}
	n := int(c.Partitions)
	if n < 1 || n > mc.limits.topicPartitions {
		return refuse(&ErrInvalid{Faults: []Fault{{"partitions", fmt.Sprintf("use 1 to %d", mc.limits.topicPartitions)}}})
	}
	if t, ok := mc.m.FindTopic(c.Name); ok {
		switch {
		case t.Phase == Deleting:
			return refuse(busy(KindTopic, t.Name, t.Phase))
		case len(t.Partitions) != n:
			return refuse(&ErrExists{Kind: KindTopic, Name: t.Name, Differs: fmt.Sprintf("it has %s, not %d", partitions(len(t.Partitions)), n), Fixed: true})
		case t.Config != cfg:
			return refuse(&ErrExists{Kind: KindTopic, Name: t.Name, Differs: differs(t.Config, cfg)})
		}
		return &result{topic: t, existed: true}
	}
	switch {
	case len(mc.m.topics) >= mc.limits.topics:
		return refuse(&ErrLimit{"topics", mc.limits.topics})
	case mc.m.partitions+n > mc.limits.partitions:
		return refuse(&ErrLimit{"partitions", mc.limits.partitions})
	}
	placed, err := mc.placements(c, n, cfg.Replication)
	if err != nil {
		return refuse(err)
	}
	t := &Topic{
		ID: mc.next.topic, Name: c.Name, Phase: Creating, Seed: c.Seed, Config: cfg, Created: mc.clock,
		Partitions: make([]Partition, n),
	}
	mc.next.topic++
	for i, r := range keyspace.Ranges(n) {
		t.Partitions[i] = Partition{ID: mc.next.partition, Range: r}
		if placed != nil {
			t.Partitions[i].begin(placed[i], uint64(mc.at))
		}
		mc.next.partition++
	}
	m := mc.edit()
	m.partitions += n
	m.nextPartition = mc.next.partition
	mc.place()
	mc.putTopic(t)
	return &result{topic: t}
}

// differs names every setting in which two configs differ, and how it is now.
// What was asked for may be a default that nobody typed, after the topic was
// altered.
func differs(have, want TopicConfig) string {
	var all []string
	usual, wanted := DefaultTopicConfig().inWords(), want.inWords()
	for i, now := range have.inWords() {
		if now == wanted[i] {
			continue
		}
		text := fmt.Sprintf("its %s is %s now, not %s", now.name, now.value, wanted[i].value)
		if wanted[i] == usual[i] {
			text += " (the default)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

type setting struct{ name, value string }

// inWords has every setting, with the API's name and a value for people. Values
// that differ have words that differ.
func (c TopicConfig) inWords() []setting {
	unlimited := func(n int64, text string) string {
		if n == 0 {
			return "without limit"
		}
		return text
	}
	kind, replication := "log", strconv.Itoa(c.Replication)
	if c.WorkQueue {
		kind = "work queue"
	}
	if c.Replication == 0 {
		replication = "by the number of nodes"
	}
	return []setting{
		{"retention_ms", unlimited(int64(c.Retention), quantity.FormatMillis(c.Retention))},
		{"retention_bytes", unlimited(c.RetentionBytes, quantity.FormatSize(c.RetentionBytes))},
		{"max_body_bytes", quantity.FormatSize(c.MaxBody)},
		{"replication", replication},
		{"kind", kind},
		{"refuse_publishes_at_hold_limit", strconv.FormatBool(c.RefuseAtHold)},
	}
}

// topicFor finds the topic of a command that needs it not to be on its way out.
func (mc *machine) topicFor(id uint64) (*Topic, error) {
	t, ok := mc.m.TopicByID(TopicID(id))
	switch {
	case !ok:
		return nil, &ErrNotFound{Kind: KindTopic, Name: TopicID(id).String()}
	case t.Phase == Deleting:
		return nil, busy(KindTopic, t.Name, t.Phase)
	}
	return t, nil
}

func (mc *machine) finishTopic(c *storagev1.FinishTopic) *result {
	t, err := mc.topicFor(c.GetTopicId())
	if err != nil {
		return refuse(err)
	}
	if t.Phase == Ready {
		return &result{topic: t, existed: true}
	}
	next := *t
	next.Phase = Ready
	mc.putTopic(&next)
	mc.place()
	return &result{topic: &next}
}

func (mc *machine) alterTopic(c *storagev1.AlterTopic) *result {
	t, err := mc.topicFor(c.GetTopicId())
	if err != nil {
		return refuse(err)
	}
	cfg, err := t.Config.With(c.Config)
	if err != nil {
		return refuse(err)
	}
	if cfg == t.Config {
		return &result{topic: t, existed: true}
	}
	if cfg.Replication != t.Config.Replication {
		if active := mc.m.active(); cfg.Replication > max(active, 1) {
			return refuse(&ErrReplication{Want: cfg.Replication, Nodes: active})
		}
		mc.place()
	}
	next := *t
	next.Config = cfg
	mc.putTopic(&next)
	return &result{topic: &next}
}

func (mc *machine) deleteTopic(c *storagev1.DeleteTopic) *result {
	t, ok := mc.m.TopicByID(TopicID(c.GetTopicId()))
	switch {
	case !ok:
		return refuse(&ErrNotFound{Kind: KindTopic, Name: TopicID(c.GetTopicId()).String()})
	case t.Phase == Deleting:
		return &result{topic: t, existed: true}
	}
	for _, g := range t.groups {
		if len(g.Members) > 0 {
			next := *g
			mc.setMembers(&next, nil, "the topic is deleted")
		}
	}
	next, _ := mc.m.TopicByID(t.ID)
	gone := *next
	gone.Phase = Deleting
	mc.putTopic(&gone)
	return &result{topic: &gone}
}

func (mc *machine) removeTopic(c *storagev1.RemoveTopic) *result {
	t, ok := mc.m.TopicByID(TopicID(c.GetTopicId()))
	switch {
	case !ok:
		return &result{existed: true}
	case t.Phase != Deleting:
		return refuse(&ErrInvalid{Faults: []Fault{{"topic_id", fmt.Sprintf("topic %s is %v; delete it before it is removed", plain.Quote(t.Name), t.Phase)}}})
	}
	m := mc.edit()
	for _, g := range t.groups {
		mc.touch(rowKey{kind: rowGroup, id: uint64(g.ID)})
	}
	m.groupsByID = slices.DeleteFunc(slices.Clone(m.groupsByID), func(g *Group) bool { return g.Topic == t.ID })
	m.topics = without(m.topics, t.Name, topicName)
	m.topicsByID = without(m.topicsByID, t.ID, topicID)
	m.partitions -= len(t.Partitions)
	mc.place()
	mc.touch(rowKey{kind: rowTopic, id: uint64(t.ID)})
	return &result{topic: t}
}

// partitions are so many, in words.
func partitions(n int) string {
	if n == 1 {
		return "1 partition"
	}
	return fmt.Sprintf("%d partitions", n)
}
