package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) topicCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "topic",
		Short: "Create, list, describe, alter and delete topics",
		Long: `A topic is a named stream of messages, divided over partitions by the hash of
each message's key.`,
		Example: `  strandmq topic create orders --partitions 16
  strandmq topic list
  strandmq topic describe orders`,
	}, a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicAlter(), a.topicDelete())
}

// topicSettings are the flags of what can be set of a topic.
type topicSettings struct {
	retention      spanFlag
	retentionBytes sizeFlag
	maxBody        sizeFlag
	workQueue      bool
	refuse         bool
	replication    countFlag
}

func (s *topicSettings) flags(c *cobra.Command, defaults bool) {
	def := func(text string) string {
		if defaults {
			return ", default " + text
		}
		return ""
	}
	c.Flags().Var(&s.retention, "retention", "keep messages at least this long (7d, 12h; 0: without limit"+def("7d")+")")
	c.Flags().Var(&s.retentionBytes, "retention-bytes", "keep this much per partition at least, and remove what is older; whole batches, a 16th at a time (10GiB; 0: without limit"+def("0")+")")
	c.Flags().Var(&s.maxBody, "max-body", "the largest body (1MiB is the most"+def("1MiB")+")")
	c.Flags().BoolVar(&s.workQueue, "work-queue", false, "remove what every group has settled, too; =false: keep it as long as retention says"+def("false"))
	c.Flags().BoolVar(&s.refuse, "refuse-at-hold-limit", false, "refuse publishes while a group that holds is at its limit, instead of taking messages from it"+def("false"))
	s.replication.least, s.replication.most = 0, 5
	c.Flags().Var(&s.replication, "replication", "replicas of each partition: 1, 3 or 5; 0: 3 with three nodes or more, else 1"+def("0"))
	for _, name := range []string{"retention", "retention-bytes", "max-body", "replication"} {
		c.Flags().Lookup(name).DefValue = ""
	}
}

// config has what was set on the command line.
func (s *topicSettings) config(c *cobra.Command) (*strandmqv1.TopicConfig, error) {
	cfg := &strandmqv1.TopicConfig{}
	if c.Flags().Changed("retention") {
		ms, err := millis("retention", s.retention.d)
		if err != nil {
			return nil, err
		}
		cfg.RetentionMs = ms
	}
	if c.Flags().Changed("retention-bytes") {
		cfg.RetentionBytes = proto.Int64(s.retentionBytes.n)
	}
	if c.Flags().Changed("max-body") {
		cfg.MaxBodyBytes = proto.Int64(s.maxBody.n)
	}
	if c.Flags().Changed("work-queue") {
		cfg.Kind = strandmqv1.TopicKind_TOPIC_KIND_LOG
		if s.workQueue {
			cfg.Kind = strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE
		}
	}
	if c.Flags().Changed("replication") {
		cfg.Replication = proto.Uint32(s.replication.n)
	}
	if c.Flags().Changed("refuse-at-hold-limit") {
		cfg.RefusePublishesAtHoldLimit = proto.Bool(s.refuse)
	}
	return cfg, nil
}

func (a *app) topicCreate() *cobra.Command {
	var settings topicSettings
	var partitions countFlag
	partitions.least, partitions.most = 1, 1024
	c := command(&cobra.Command{
		Use:   "create TOPIC",
		Short: "Create a topic",
		Long: `Creates a topic and ends when its partitions take messages. Creating it again
with the settings that it has now succeeds; what is not given stands for the
default, also after 'strandmq topic alter'.

A work queue (--work-queue) removes a message when every group has settled it. The
broker knows a message's id until then, about a second after the last settlement:
an id that is published again later is a new message.`,
		Example: `  strandmq topic create orders
  strandmq topic create orders --partitions 16 --retention 30d --max-body 64KiB
  strandmq topic create jobs --work-queue --retention-bytes 10GiB`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		cfg, err := settings.config(cmd)
		if err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().topics.CreateTopic, &strandmqv1.CreateTopicRequest{
			Topic: args[0], Partitions: partitions.n, Config: cfg,
		})
		if err != nil {
			return inFlags(cmd, err)
		}
		if res.GetExisted() {
			a.talk("topic %s was there already, with these settings", args[0])
		} else {
			a.talk("topic %s created", args[0])
		}
		return a.show(res, func() error { return a.topicFacts(res.GetTopic()) })
	})
	c.Flags().Var(&partitions, "partitions", "how many partitions, 1 to 1024: the most members of a group that work without sharing one (default 8)")
	c.Flags().Lookup("partitions").DefValue = ""
	settings.flags(c, true)
	return c
}

// limit prints a limit, of which 0 is none.
func limit(n int64, text string) string {
	if n == 0 {
		return "without limit"
	}
	return text
}

func (a *app) topicFacts(t *strandmqv1.Topic) error {
	cfg := t.GetConfig()
	a.facts(
		"topic", t.GetName(),
		"partitions", strconv.Itoa(int(t.GetPartitions())),
		"retention", limit(cfg.GetRetentionMs(), quantity.FormatSpan(span(cfg.GetRetentionMs()))),
		"retention per partition", limit(cfg.GetRetentionBytes(), quantity.FormatSize(cfg.GetRetentionBytes())),
		"kind", kindText(cfg),
		"replication", replicationText(cfg.GetReplication()),
		"largest body", quantity.FormatSize(cfg.GetMaxBodyBytes()),
		"created", stamp(t.GetCreated()),
	)
	return nil
}

func replicationText(n uint32) string {
	if n == 0 {
		return "3 with three nodes or more, else 1"
	}
	return strconv.FormatUint(uint64(n), 10)
}

func kindText(cfg *strandmqv1.TopicConfig) string {
	text := "log"
	if cfg.GetKind() == strandmqv1.TopicKind_TOPIC_KIND_WORK_QUEUE {
		text = "work queue: what every group has settled is removed"
	}
	if cfg.GetRefusePublishesAtHoldLimit() {
		text += "; publishes are refused at a group's hold limit"
	}
	return text
}

func (a *app) topicList() *cobra.Command {
	return command(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all topics",
		Example: `  strandmq topic list
  strandmq topic list --output json | jq -r '.topics[].name'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().topics.ListTopics, &strandmqv1.ListTopicsRequest{})
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			t := table.Table{Head: []string{"TOPIC", "PARTITIONS", "RETENTION", "CREATED"}, Right: []int{1}}
			for _, topic := range res.GetTopics() {
				ms := topic.GetConfig().GetRetentionMs()
				t.Add(topic.GetName(), topic.GetPartitions(), limit(ms, quantity.FormatSpan(span(ms))), stamp(topic.GetCreated()))
			}
			return a.printTable(&t, "There are no topics yet: 'strandmq topic create NAME' makes one.")
		})
	})
}

func (a *app) topicDescribe() *cobra.Command {
	return command(&cobra.Command{
		Use:   "describe TOPIC",
		Short: "Show a topic's settings, partitions and groups",
		Long: `Shows a topic's settings, its groups, and of each partition the offsets that it
keeps, their bytes, when the oldest was published, which group holds messages
that the topic's limits would not keep, the nodes that are to hold it, which of
them leads it, and what is wrong, if anything is.`,
		Example: `  strandmq topic describe orders
  strandmq topic describe orders --output json | jq '.partitions[].endOffset'`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: args[0]})
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			if err := a.topicFacts(res.GetTopic()); err != nil {
				return err
			}
			a.facts("groups", orDash(strings.Join(res.GetGroups(), ", ")))
			fmt.Fprintln(a.out)
			t := table.Table{Head: []string{"PARTITION", "FIRST", "NEXT", "MESSAGES", "SIZE", "OLDEST", "HELD BY", "DUPLICATES", "NODES", "LEADER", "FAULT"}, Right: []int{0, 1, 2, 3, 4, 7}}
			for _, p := range res.GetPartitions() {
				held := p.GetHeldBy()
				if held != "" {
					held += ": " + quantity.RoughSize(p.GetHeldBytes())
				}
				if p.StartOffset == nil { // it stopped: nothing is known, and nothing is 0
					t.Add(p.GetPartition(), stoppedWord(p.GetFaultReason()), "?", "?", "?", "?", "?", "?", orDash(nodeList(p.GetNodes())), "?", orDash(p.GetFault()))
					continue
				}
				t.Add(p.GetPartition(), p.GetStartOffset(), p.GetEndOffset(), p.GetEndOffset()-p.GetStartOffset(),
					quantity.RoughSize(p.GetBytes()), stamp(p.GetOldest()), orDash(held), p.GetDuplicates(), placedText(p), leaderText(p), orDash(p.GetFault()))
			}
			return a.printTable(&t, "")
		})
	})
}

// stoppedWord is what to call a partition that cannot be asked.
func stoppedWord(reason string) string {
	switch reason {
	case "", "PARTITION_DAMAGED", "NEWER_FORMAT":
		return "damaged"
	}
	return "away"
}

func placedText(p *strandmqv1.PartitionInfo) string {
	text := orDash(nodeList(p.GetNodes()))
	if p.GetMoving() {
		text += " (moving)"
	}
	return text
}

func leaderText(p *strandmqv1.PartitionInfo) string {
	if p.GetLeader() == 0 {
		return "none"
	}
	return nodeList([]uint64{p.GetLeader()})
}

func (a *app) topicAlter() *cobra.Command {
	var settings topicSettings
	c := command(&cobra.Command{
		Use:   "alter TOPIC",
		Short: "Change a topic's settings",
		Long:  `Changes the settings that are given; the others stay.`,
		Example: `  strandmq topic alter orders --retention 14d
  strandmq topic alter orders --max-body 256KiB --retention-bytes 0`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		cfg, err := settings.config(cmd)
		if err != nil {
			return err
		}
		if proto.Size(cfg) == 0 {
			return usagef("nothing to change: give --retention, --retention-bytes, --max-body, --work-queue, --replication or --refuse-at-hold-limit")
		}
		res, err := ask(cmd.Context(), a.dial().topics.AlterTopic, &strandmqv1.AlterTopicRequest{Topic: args[0], Config: cfg})
		if err != nil {
			return inFlags(cmd, err)
		}
		a.talk("topic %s altered", args[0])
		return a.show(res, func() error { return a.topicFacts(res.GetTopic()) })
	})
	settings.flags(c, false)
	return c
}

func (a *app) topicDelete() *cobra.Command {
	var confirm string
	c := command(&cobra.Command{
		Use:   "delete TOPIC",
		Short: "Delete a topic with its messages and groups",
		Long: `Deletes a topic, its messages, its groups and their dead letters. The name has
to be typed again: at a terminal by hand, elsewhere with --confirm.`,
		Example: `  strandmq topic delete orders
  strandmq topic delete orders --confirm orders`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		// To type a name again that stands for nothing helps nobody. Without an
		// answer the question is asked all the same.
		if _, err := ask(cmd.Context(), a.dial().topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: args[0]}); isReason(err, "UNKNOWN_TOPIC") {
			return err
		}
		if err := a.confirmed(cmd.Context(), args[0], confirm, "Deleting topic "+args[0]+" with its messages, groups and dead letters"); err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().topics.DeleteTopic, &strandmqv1.DeleteTopicRequest{Topic: args[0], Confirm: args[0]})
		if err != nil {
			return err
		}
		a.talk("topic %s deleted", args[0])
		return a.show(res, func() error { return nil })
	})
	c.Flags().StringVar(&confirm, "confirm", "", "the topic's name again")
	return c
}
