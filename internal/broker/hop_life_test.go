package broker

import (
	"reflect"
	"testing"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// A message's life comes to another node as it is.
func TestLifeSurvivesTheHop(t *testing.T) {
	t.Parallel()
	all := consumer.TraceEvent{
		Time: 1, Index: 2, Term: 3, Node: 4, Group: 5, What: "nacked", Member: "m", Attempt: 6, Detail: "d",
		Reason: "r", Until: 7, NextAttempt: 8, Uncharged: true, Settled: true, Again: true,
	}
	for v, i := reflect.ValueOf(all), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("%s is not looked at", v.Type().Field(i).Name)
		}
	}
	was := life{
		message:   partition.Message{Offset: 9, PublishTime: 10, Record: record.Record{ID: "i", Body: []byte("b")}},
		publishes: []consumer.TraceEvent{{Time: 1, Index: 1, Term: 2, Node: 3, What: "published"}},
		groups: consumer.Life{
			Events: []consumer.TraceEvent{all, {Time: 2, Index: 3, What: "acked"}},
			States: []consumer.MessageInGroup{{Group: 5, Name: "g", State: "acked", Attempts: 6, Detail: "d"}},
		},
		cut: 11, truncated: true,
	}
	is, err := lifeFrom(lifeTo(was))
	if err != nil {
		t.Fatal(err)
	}
	is.message.Record, was.message.Record = record.Record{}, record.Record{}
	if !reflect.DeepEqual(was, is) {
		t.Fatalf("it was\n%+v, and is\n%+v", was, is)
	}
}
