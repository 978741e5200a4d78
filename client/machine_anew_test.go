package client

import (
	"errors"
	"fmt"
	"testing"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// An outboxTest is an outbox on a stream.
type outboxTest struct {
	*testing.T
	*outbox
	told map[string]error // by body
}

func newOutboxTest(t *testing.T, partitions int) *outboxTest {
	o := &outboxTest{t, &outbox{topic: "t", producer: "p", most: 1 << 20}, map[string]error{}}
	o.route(tableFor(t, 1, partitions), 1000)
	o.again()
	return o
}

func (o *outboxTest) again() { o.tell(o.reopen(), nil) }

func (o *outboxTest) tell(out []answered, err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
	for _, a := range out {
		a.each()
	}
}

func (o *outboxTest) publish(key, body string) {
	o.Helper()
	r := &record.Record{HasKey: key != "", Key: []byte(key), Body: []byte(body)}
	if err := o.put(r, waiting{done: func(_ Receipt, err error) { o.told[body] = err }}); err != nil {
		o.Fatal(err)
	}
}

// send gives the batches that go out now.
func (o *outboxTest) send() []*strandmqv1.PublishBatch {
	for _, p := range o.take() {
		o.add(p.encode())
	}
	return o.frame().GetBatches()
}

// parsed is what a batch has in it, by the table that the outbox goes by.
func (o *outboxTest) parsed(b *strandmqv1.PublishBatch) (bodies []string, producer string, first uint64) {
	o.Helper()
	got, err := o.table.Parse(b.GetRecordBatch(), b.GetPartition(), 1000)
	if err != nil {
		o.Fatal(err)
	}
	got.Each(func(_ int, r record.Raw) bool { bodies = append(bodies, string(r.Body())); return true })
	name, first := got.Producer()
	return bodies, string(name), first
}

func stale(batch int, seed uint64, partitions int, t *testing.T) *strandmqv1.PublishBatchResult {
	return &strandmqv1.PublishBatchResult{Batch: uint64(batch), Problem: problemOf("STALE_ROUTE", 0), Route: routeOf(tableFor(t, seed, partitions))}
}

// What was on its way to a topic that was deleted goes to the one that was made anew, before
// what waited, under a new sequence; what the old one stored is answered by it alone.
func TestOutboxOfATopicMadeAnew(t *testing.T) {
	o := newOutboxTest(t, 8)
	for i := range 50 {
		o.publish("k", fmt.Sprint("first ", i))
		o.publish(fmt.Sprint("k", i), fmt.Sprint("other ", i))
	}
	way := o.send()
	o.publish("k", "second")
	took := 0 // which the old topic stored
	for i, b := range way {
		if bodies, _, _ := o.parsed(b); took == 0 && bodies[0] != "first 0" {
			took = i + 1
			o.tell(o.answer(&strandmqv1.PublishBatchResult{Batch: uint64(took), Run: &strandmqv1.ReceiptRun{Count: uint32(len(bodies))}}))
		}
	}
	acked := len(o.told)
	for i := range way {
		if i+1 == took {
			continue
		}
		if o.redo {
			t.Fatal("a stream ends before all that was sent on it is answered")
		}
		o.tell(o.answer(stale(i+1, 2, 2, t)))
		if f := o.frame(); f != nil {
			t.Fatal("something goes by the old table")
		}
	}
	if !o.redo || len(o.told) != acked {
		t.Fatalf("a new stream: %t; %d were told", o.redo, len(o.told)-acked)
	}
	o.again()
	var of []string
	n := 0
	for _, b := range o.send() {
		bodies, _, first := o.parsed(b)
		if first != 0 {
			t.Errorf("a sequence begins at %d", first)
		}
		n += len(bodies)
		for _, body := range bodies {
			if body == "second" || body[:5] == "first" {
				of = append(of, body)
			}
		}
	}
	if n != 101-acked || len(of) != 51 || of[0] != "first 0" || of[49] != "first 49" || of[50] != "second" {
		t.Errorf("%d messages were sent, want %d; of one key: %v", n, 101-acked, of)
	}
}

// A keyless batch whose answer was lost may be in the new topic: it goes out again as it was,
// under its sequence, if the new table has it in the same place. With one that has a key in it
// the new topic has not taken it.
func TestOutboxKeepsAKeylessSequence(t *testing.T) {
	for _, c := range []struct {
		key        string
		partitions int
		kept       bool
	}{{"", 2, true}, {"k", 2, false}, {"", 1, true}, {"", 64, false}} {
		o := newOutboxTest(t, 2)
		o.loose = 0 // a partition that is in the smaller tables too
		for i := range 20 {
			o.publish("", fmt.Sprint(i))
		}
		if c.key != "" {
			for i := range 20 { // some are of the same partition
				o.publish(fmt.Sprint(c.key, i), fmt.Sprint("keyed ", i))
			}
		}
		sent := o.send()
		_, producer, _ := o.parsed(sent[0])
		o.tell(o.answer(stale(1, 2, c.partitions, t)))
		o.again()
		for _, b := range o.send() {
			if _, now, _ := o.parsed(b); (now == producer) != c.kept {
				t.Errorf("%+v: it was %s and is %s", c, producer, now)
			}
		}
	}
}

// While no topic has the name, messages are refused; those behind go to the topic that comes.
func TestOutboxWithoutATopic(t *testing.T) {
	o := newOutboxTest(t, 1)
	o.publish("k", "a")
	o.send()
	o.publish("k", "b")
	o.tell(o.answer(&strandmqv1.PublishBatchResult{Batch: 1, Problem: problemOf("UNKNOWN_TOPIC", 0)}))
	if err := o.told["a"]; !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("%v", err)
	}
	o.again()
	if len(o.send()) != 1 {
		t.Fatal("what comes behind is not sent")
	}
	// Its partition went while it waited there.
	if _, err := o.answer(&strandmqv1.PublishBatchResult{Batch: 1, Problem: problemOf("UNKNOWN_PARTITION", 0)}); !Retryable(err) {
		t.Fatalf("%v", err)
	}
	o.again()
	o.send()
	o.tell(o.answer(stale(1, 2, 3, t)))
	o.again()
	if bodies, _, _ := o.parsed(o.send()[0]); len(bodies) != 1 || bodies[0] != "b" {
		t.Errorf("%q was sent", bodies)
	}
	// A broker that refuses what it says itself is not asked for ever.
	o.tell(o.answer(stale(1, 2, 3, t)))
	if err := o.told["b"]; !errors.Is(err, ErrStaleRoute) {
		t.Errorf("%v", err)
	}
}
