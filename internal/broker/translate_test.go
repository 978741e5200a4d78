package broker

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/router"
)

// Callers know the partitions of a topic by their numbers. The ids by which the
// log knows them mean nothing to a caller, and look like numbers of the topic.
func TestRefusalsNameTheTopicsPartitions(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "first", 4)
	a.topic(t, "orders", 2)
	topic, _ := b.coord.View().FindTopic("orders")
	id := topic.Partitions[1].ID
	list := []error{
		&partition.ErrUnknownPartition{}, &partition.ErrFull{}, &partition.ErrDiskStuck{}, &partition.ErrNotLeader{}, &partition.ErrOutcomeUnknown{},
		&partition.ErrNotStored{}, &partition.ErrDamaged{}, &partition.ErrUnreadable{}, &partition.ErrExpired{}, &partition.ErrIDReused{}, &partition.ErrBehind{},
		&partition.ErrSequenceGap{}, &partition.ErrSequenceReused{}, &partition.ErrSequenceExpired{},
		&consumer.ErrUnknownGroup{}, &consumer.ErrNotDead{}, &consumer.ErrReplayLimit{}, &consumer.ErrReplaying{},
	}
	have := map[string]bool{}
	for _, err := range list {
		v := reflect.ValueOf(err).Elem()
		have[v.Type().String()] = true
		v.FieldByName("Partition").Set(reflect.ValueOf(id))
		for _, given := range []error{err, fmt.Errorf("wrapped: %w", err), &router.ErrOutcomeUnknown{Err: &partition.ErrStopped{Cause: err}}, &router.ErrOutcomeUnknown{Err: err}} {
			r := b.explain(given)
			if strings.Contains(r.text, id.String()) {
				t.Errorf("%T: %q names %v", err, r.text, id)
			}
			if r.reason == "INTERNAL" {
				t.Errorf("%T: %v", err, r)
			}
			if names := strings.Contains(r.text, "partition 1 of topic orders"); !names && !strings.HasPrefix(r.reason, "SEQUENCE_") && r.reason != "DISK_STUCK" && given == err {
				t.Errorf("%T: %q does not name the partition", err, r.text)
			}
		}
	}
	// No caller meets these: nodes change a partition's replicas among themselves.
	for _, err := range []error{&partition.ErrOtherReplica{}, &partition.ErrChange{}, &partition.ErrTransfer{}} {
		have[reflect.TypeOf(err).Elem().String()] = true
	}
	// None is forgotten: every error of those packages that has a partition.
	for _, file := range []string{"../../partition/errors.go", "../../consumer/errors.go"} {
		for _, name := range errorsOfPartitions(t, file) {
			if !have[name] {
				t.Errorf("%s names a partition and is not in this test", name)
			}
		}
	}
	// One that is met for real.
	m := msg("k", "one")
	m.Id = "x"
	a.store(t, "orders", m)
	m.Body = &strandmqv1.Message_Text{Text: "two"}
	res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m}})
	if err != nil {
		t.Fatal(err)
	}
	if p := res.GetResults()[0].GetProblem(); p.GetReason() != "ID_REUSED" || !strings.Contains(p.GetMessage(), " of topic orders holds another message") {
		t.Errorf("id reused: %v", p)
	}
	if b.partitionName(partition.Metadata) != "the metadata log" || b.partitionName(id+1) != "a partition that was deleted" {
		t.Error("the metadata log and deleted partitions have names of their own")
	}
}

// errorsOfPartitions lists the structs of a file that have a Partition.
func errorsOfPartitions(t *testing.T, file string) (out []string) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					if name.Name == "Partition" {
						out = append(out, f.Name.Name+"."+spec.Name.Name)
					}
				}
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s has none: look elsewhere", file)
	}
	return out
}

// What is wrong with a message is said in a publisher's words.
func TestMessageRefusals(t *testing.T) {
	many := make([]record.Header, record.MaxHeaders+1)
	for i := range many {
		many[i].Name = "h"
	}
	for _, c := range []struct {
		record record.Record
		field  string
		reason string
	}{
		{record.Record{HasKey: true}, "key", "BAD_KEY"},
		{record.Record{HasKey: true, Key: make([]byte, record.MaxKey+1)}, "key", "BAD_KEY"},
		{record.Record{ID: strings.Repeat("x", record.MaxID+1)}, "id", "BAD_ID"},
		{record.Record{Headers: many}, "headers", "BAD_HEADER"},
		{record.Record{Headers: []record.Header{{Name: "h", Value: make([]byte, record.MaxHeaderBytes)}}}, "headers", "BAD_HEADER"},
		{record.Record{Headers: []record.Header{{Name: "no spaces"}}}, "headers[0].name", "BAD_HEADER"},
		{record.Record{Body: make([]byte, record.MaxBody+1)}, "body", "BODY_TOO_LARGE"},
	} {
		table, err := router.NewTable(1, 0, []router.Target{{ID: 1, Range: keyspace.Ranges(1)[0]}})
		if err != nil {
			t.Fatal(err)
		}
		results, err := router.NewPublisher(nil, router.Config{}).Publish(t.Context(), router.Request{Table: table, Records: []record.Record{c.record}})
		if err != nil {
			t.Fatal(err)
		}
		var message *router.ErrMessage
		if !errors.As(results[0].Err, &message) {
			t.Fatalf("%s: %v", c.field, results[0].Err)
		}
		r := messageError(message)
		if r.reason != c.reason || r.field != c.field || strings.Contains(r.text, "record batch") {
			t.Errorf("%s: got %s of %s: %s", c.field, r.reason, r.field, r.text)
		}
	}
}
