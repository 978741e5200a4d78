package client_test

import (
	"fmt"
	"testing"

	"github.com/strandmq/strandmq/client"
	"github.com/strandmq/strandmq/client/strandmqtest"
)

// With several addresses, the next is asked when one does not answer, also in the
// middle.
func TestSeveralAddresses(t *testing.T) {
	b := strandmqtest.Start(t)
	b.Topic(t, "orders", 2)
	group(t, b.Client, "orders", "g", nil)
	first, second := newRelay(t, b.URL), newRelay(t, b.URL)
	nobody := newRelay(t, b.URL)
	nobody.stop()
	c, err := client.Dial(within(t), []string{nobody.URL, first.URL, second.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p := publisher(t, c, "orders")
	j := newJudge(t)
	stop := runs(t, consumer(t, c, "orders", "g"), j.handler)
	for i := range 30 {
		if i == 10 {
			first.stop()
		}
		if _, err := p.Publish(within(t), client.Message{Key: "k", Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all", func() bool { return counts(t, b.Client, "orders", "g").GetLag() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := p.Close(within(t)); err != nil {
		t.Error(err)
	}
	if n := stored(t, b.Client, "orders"); n != 30 || j.total() != 30 {
		t.Errorf("%d stored and %d handled of 30", n, j.total())
	}
}
