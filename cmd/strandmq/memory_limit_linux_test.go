package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// TestMemoryLimit gives the real binary the least --memory that there is, and then
// a backlog, hundreds of members on streams who read nothing, publishers who take no
// answers, and others who publish what they can by calls, and holds it to the limit. One
// publisher and one member beside all that are served.
func TestMemoryLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("it publishes 300 MB")
	}
	const (
		memory = 384 << 20
		// What the kernel counts beside: what the C library keeps of memory tables and
		// blocks that the store gave back, and what is allocated until a collection ends.
		slack   = 192 << 20
		members = 150
		deaf    = 30
	)
	p := startMeasured(t, buildMeasured(t), filepath.Join(t.TempDir(), "data"), "--memory", "384MiB")
	defer p.stop()
	l := newLoad(t, p.url)
	w := p.watch(t)
	defer w.stop()
	l.fill() // a backlog that fills the memory tables; nobody who takes it reads
	l.topic("pushed", 8)

	c, leave := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	var ends []func() error
	defer func() {
		leave()
		for _, end := range ends {
			_ = end()
		}
		p.stop()
		crowd.Wait()
	}()
	// The windows of HTTP/2 are what a caller takes without being asked.
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	narrow := &http.Transport{Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 16, MaxReceiveBufferPerConnection: 1 << 17}}
	t.Cleanup(narrow.CloseIdleConnections)
	caller := &http.Client{Transport: narrow}
	consume := strandmqv1connect.NewConsumeServiceClient(caller, p.url, connect.WithGRPC())
	publish := strandmqv1connect.NewPublishServiceClient(caller, p.url, connect.WithGRPC())
	// Those who take nothing are there for half a minute, until their streams are cut, and
	// a busy machine may be as long about the rest: so what they hold is looked at from now on.
	var mu sync.Mutex
	var held, most float64
	crowd.Go(func() {
		for c.Err() == nil {
			if text, err := p.metrics(); err == nil {
				mu.Lock()
				held, most = max(held, fieldOf(text, "\nstrandmq_stream_memory_bytes ")), fieldOf(text, "\nstrandmq_stream_memory_limit_bytes ")
				mu.Unlock()
			}
			time.Sleep(50 * time.Millisecond) // between two looks
		}
	})
	for i := range members {
		group := fmt.Sprint("g", i%4)
		if i < 4 {
			l.group("fill", group)
		}
		s, err := consume.Consume(c)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.CloseResponse)
		_ = s.Send(&strandmqv1.ConsumeRequest{
			Open:    &strandmqv1.ConsumeOpen{Topic: "fill", Group: group, Member: fmt.Sprint("m", i), RecordBatches: i%2 == 0},
			Credits: 1_000_000,
		}) // one too many is told so, and there is nobody to read it
	}
	body := strings.Repeat("x", 8<<10)
	message := func(key string) *strandmqv1.Message {
		return &strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{Key: key}, Body: &strandmqv1.Message_Text{Text: body}}
	}
	for i := range deaf {
		s, err := publish.PublishStream(c)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.CloseResponse)
		crowd.Go(func() {
			batches := make([]*strandmqv1.PublishBatch, 20)
			for j := range batches {
				batches[j] = &strandmqv1.PublishBatch{Topic: "pushed", Messages: []*strandmqv1.Message{message(fmt.Sprint(i, "-", j))}}
			}
			for s.Send(&strandmqv1.PublishStreamRequest{Batches: batches}) == nil && c.Err() == nil {
			}
		})
	}
	pushed := 0
	for i := range 16 {
		crowd.Go(func() {
			ms := make([]*strandmqv1.Message, 200)
			for j := range ms {
				ms[j] = message(fmt.Sprint(i, "-", j))
			}
			for c.Err() == nil {
				_, err := l.publish.Publish(c, &strandmqv1.PublishRequest{Topic: "pushed", Messages: ms})
				if err == nil {
					mu.Lock()
					pushed++
					mu.Unlock()
				}
			}
		})
	}

	l.topic("mine", 1)
	l.group("mine", "g")
	f := l.feed("mine")
	for i := range 1000 {
		f.add(fmt.Sprint(i), 1000)
	}
	f.close()
	l.take("mine", "g", 100).run(1000, func(d *delivery) *strandmqv1.SettleRun {
		return d.settle(strandmqv1.SettleAction_SETTLE_ACTION_ACK, 0)
	})
	deadline := time.Now().Add(2 * time.Minute)
	for enough := false; !enough && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond) // nobody tells of it
		mu.Lock()
		enough = most > 0 && held > most/3 && pushed >= 50
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	if held < most/3 {
		t.Errorf("the crowd holds %.0f MiB of %.0f MiB: no crowd", held/(1<<20), most/(1<<20))
	}
	if least := float64((members + deaf) * (32 << 10)); held > most+least {
		t.Errorf("the streams hold %.0f MiB, and are to hold %.0f MiB", held/(1<<20), most/(1<<20))
	}
	m := w.memory(t)
	t.Logf("%v; streams hold %.0f of %.0f MiB", m, held/(1<<20), most/(1<<20))
	if m.held() > float64(memory-memory/6)/(1<<20) {
		t.Errorf("%.0f MiB are in use of %d, and some are to be left for garbage and code", m.held(), memory>>20)
	}
	if m.peak > float64(memory+slack)/(1<<20) {
		t.Errorf("the process took %.0f MiB, and was to keep to %d and %d beside", m.peak, memory>>20, slack>>20)
	}
}
