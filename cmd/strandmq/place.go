package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/offsets"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// place turns a partition and a typed position into a message's place. Only
// positions from the end or the start need to ask the broker.
func (a *app) place(cmd *cobra.Command, topic string, partition uint32, f *positionFlag) (*strandmqv1.MessagePlace, error) {
	switch f.p.Kind {
	case offsets.Offset:
		return &strandmqv1.MessagePlace{Partition: partition, Offset: f.p.N}, nil
	case offsets.Latest:
		return nil, usagef("latest is the place of the next message: use -1 for the last one")
	case offsets.Time, offsets.Ago:
		return nil, usagef("--offset %v: one message is wanted, by N, -N or earliest", f.p)
	}
	res, err := ask(cmd.Context(), a.dial().topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		return nil, err
	}
	for _, p := range res.GetPartitions() {
		if p.GetPartition() != partition {
			continue
		}
		offset, ok := f.p.In(p.GetStartOffset(), p.GetEndOffset())
		if !ok {
			return nil, fmt.Errorf("partition %d of topic %s keeps offsets %d to %d: there is no message at %v",
				partition, topic, p.GetStartOffset(), int64(p.GetEndOffset())-1, f.p)
		}
		return &strandmqv1.MessagePlace{Partition: partition, Offset: offset}, nil
	}
	return nil, fmt.Errorf("topic %s has no partition %d: they are numbered from 0 to %d", topic, partition, len(res.GetPartitions())-1)
}

// beyond warns of an offset that lies behind what partitions hold: a group that
// goes there begins at their ends, which is perhaps not what was meant.
func (a *app) beyond(cmd *cobra.Command, topic string, f *positionFlag, only *uint32) {
	if f.p.Kind != offsets.Offset {
		return
	}
	res, err := ask(cmd.Context(), a.dial().topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		return // the call that matters says what is wrong
	}
	var behind []string
	for _, p := range res.GetPartitions() {
		if (only == nil || *only == p.GetPartition()) && f.p.N > p.GetEndOffset() {
			behind = append(behind, fmt.Sprintf("%d (at %d)", p.GetPartition(), p.GetEndOffset()))
		}
	}
	if len(behind) > 0 {
		a.talk("warning: offset %d is beyond the end of partitions %s: there it stands for the end", f.p.N, strings.Join(behind, ", "))
	}
}
