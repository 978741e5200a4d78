package client_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

// A partition is read page by page, as it is stored, and again the same; what is not there
// yet is waited for.
func TestRead(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 1)
	p := publisher(t, b.Client, "orders")
	sent := []client.Message{
		{Key: "\xffkey", ID: "i-1", Headers: []client.Header{{"a", "1"}, {"a", "\xfe"}, {"b", ""}}, Body: []byte("\xfebody")},
		{Key: "alice", Body: []byte("12")},
		{Body: []byte{}},
	}
	for _, m := range sent {
		if _, err := p.Publish(within(t), m); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		at := client.Place{Topic: "orders"}
		var got []client.Message
		for len(got) < len(sent) {
			page, err := b.Client.Read(within(t), at, 2, 0)
			if err != nil || len(page.Messages) == 0 || len(page.Messages) > 2 || page.Removed != 0 {
				t.Fatalf("%+v, %v", page, err)
			}
			for i, m := range page.Messages {
				if m.Offset != at.Offset+uint64(i) || m.PublishTime.Before(time.Now().Add(-time.Hour)) {
					t.Errorf("%+v", m)
				}
				got = append(got, m.Message)
			}
			at.Offset = page.Next
		}
		if fmt.Sprint(got) != fmt.Sprint(sent) || at.Offset != uint64(len(sent)) {
			t.Errorf("read %v, want %v; then %d", got, sent, at.Offset)
		}
	}
	end := client.Place{Topic: "orders", Offset: 3}
	if page, err := b.Client.Read(within(t), end, 10, 0); err != nil || len(page.Messages) != 0 || page.Next != 3 {
		t.Errorf("at the end: %+v, %v", page, err)
	}
	came := make(chan client.Page, 1)
	go func() {
		defer close(came)
		for ctx := within(t); ctx.Err() == nil; {
			page, err := b.Client.Read(ctx, end, 10, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			if len(page.Messages) > 0 {
				came <- page
				return
			}
		}
	}()
	if _, err := p.Publish(within(t), client.Message{Key: "bob"}); err != nil {
		t.Fatal(err)
	}
	if page := <-came; len(page.Messages) != 1 || page.Messages[0].Key != "bob" || page.Next != 4 {
		t.Errorf("what came: %+v", page)
	}
	page, err := b.Client.Read(within(t), client.Place{Topic: "orders"}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	on := client.Place{Topic: "orders", Offset: page.Next, Incarnation: page.Incarnation}
	if page, err := b.Client.Read(within(t), on, 1, 0); err != nil || page.Messages[0].Offset != 1 {
		t.Errorf("in the same topic: %+v, %v", page, err)
	}
	anew(t, b, "orders", 1)
	publishes(t, b.Client, "orders", 5, 1)
	if _, err := b.Client.Read(within(t), on, 1, 0); !errors.Is(err, client.ErrTopicReplaced) {
		t.Errorf("of a topic that was made anew: %v", err)
	}
	for at, reason := range map[client.Place]client.Reason{
		{Topic: "nothing"}:              client.ErrUnknownTopic,
		{Topic: "orders", Partition: 7}: "UNKNOWN_PARTITION",
	} {
		if _, err := b.Client.Read(within(t), at, 1, 0); !errors.Is(err, reason) {
			t.Errorf("%+v: %v, want %s", at, err, string(reason))
		}
	}
}
