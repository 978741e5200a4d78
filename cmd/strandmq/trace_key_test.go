package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strandmq/strandmq/client/strandmqtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The messages of a key are found in its partition, the newest first, over several pages,
// and a search that stopped before says how far back it looked.
func TestTraceKey(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 4)
	api, ctx := dial(b.URL), t.Context()
	keys := func(key string) *strandmqv1.Message {
		return &strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{Key: key}}
	}
	// Three of the key, and so many others between them that each is on a page of its own.
	var want []uint64
	var partition uint32
	for i := range 3 {
		res, err := ask(ctx, api.publish.Publish, &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{keys("a")}})
		if err != nil || res.GetResults()[0].GetReceipt() == nil {
			t.Fatalf("publish: %v, %v", res, err)
		}
		partition = res.GetResults()[0].GetReceipt().GetPartition()
		want = append(want, res.GetResults()[0].GetReceipt().GetOffset())
		// Keys are spread evenly: a quarter of these are in its partition, and each is seen.
		for n := 0; n < 6*lookPage; n += 1000 {
			var list []*strandmqv1.Message
			for k := range 1000 {
				list = append(list, keys(fmt.Sprint("other-", i, "-", n+k)))
			}
			if _, err := ask(ctx, api.publish.Publish, &strandmqv1.PublishRequest{Topic: "orders", Messages: list}); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Reverse(want)
	a := &app{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	search := func(s keySearch) *keyFound {
		t.Helper()
		s.topic, s.key = "orders", []byte("a")
		if s.most == 0 {
			s.most = mostTraced
		}
		if s.look == 0 {
			s.look = mostLooked
		}
		f, err := a.searchKey(ctx, api, s)
		if err != nil {
			t.Fatal(err)
		}
		if f.partition != partition {
			t.Fatalf("looked in partition %d, and it is in %d", f.partition, partition)
		}
		return f
	}
	if f := search(keySearch{}); !slices.Equal(f.offsets, want) || f.more || f.cut || f.expired || f.looked < 3*lookPage {
		t.Errorf("found %+v, and not %v", f, want)
	}
	if f := search(keySearch{most: 2}); !slices.Equal(f.offsets, want[:2]) || !f.more {
		t.Errorf("of two at most: %+v", f)
	}
	if f := search(keySearch{most: 3}); !slices.Equal(f.offsets, want) || f.more {
		t.Errorf("of three at most: %+v", f)
	}
	if f := search(keySearch{look: 10}); len(f.offsets) != 0 || !f.cut || f.looked != 10 || !strings.Contains(f.beyond(), "the last 10 messages") || f.back.IsZero() {
		t.Errorf("of ten messages looked at: %+v", f)
	}
	now := time.Now()
	if f := search(keySearch{since: now.Add(time.Hour)}); f.looked != 0 {
		t.Errorf("of later than now: %+v", f)
	}
	if f := search(keySearch{until: now.Add(-time.Hour)}); f.looked != 0 {
		t.Errorf("of before all: %+v", f)
	}
	if f := search(keySearch{since: now.Add(-time.Hour), until: now.Add(time.Hour)}); !slices.Equal(f.offsets, want) {
		t.Errorf("of around now: %+v", f)
	}
}
