package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/cmd/strandmq/sample"
	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) demoCommand() *cobra.Command {
	var data, listen string
	var exit bool
	c := command(&cobra.Command{
		Use:   "demo",
		Short: "See the main job at work on 20,000 real flights",
		Long: `Starts a broker, publishes 20,000 flights keyed by the airport they left from, and
runs two groups over them while they come in. 'board' handles everything at once.
'billing' meets failures: some flights fail once or twice, a few never succeed and
become dead letters, and one member crashes with work in its hands. Each group is
checked against the data itself: every airport's flights, in their exact order, one
at a time, whatever failed.

The broker keeps serving afterwards, so that you can look around; --exit ends it.
Running the demo again in the same folder publishes nothing twice and starts the
two groups afresh.`,
		Example: `  strandmq demo
  strandmq demo --exit
  strandmq demo --data /tmp/demo --listen 127.0.0.1:0 --exit --output json`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		b, err := broker.Start(cmd.Context(), broker.Config{
			DataDir: data, Listen: listen, Version: versionText(),
			Logger: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			return startFailure(err)
		}
		a.talk("A broker serves at %s and keeps its data in %s.", b.URL(), data)
		d := &demo{a: a, api: dial(b.URL()), failed: b.Failed()}
		err = d.run(cmd.Context())
		if cmd.Context().Err() != nil {
			err = fmt.Errorf("interrupted; what was published is kept in %s: run the same command again to go on", data)
		}
		if err != nil {
			return errors.Join(err, b.Close())
		}
		if exit {
			return b.Close()
		}
		a.nextSteps(b.URL())
		return a.serve(cmd.Context(), b, closeTime)
	})
	c.Flags().StringVar(&data, "data", env("STRANDMQ_DATA", defaultData), "the data folder; made if it does not exist")
	c.Flags().StringVar(&listen, "listen", env("STRANDMQ_LISTEN", broker.DefaultListen), "address and port; port 0 takes a free one")
	c.Flags().BoolVar(&exit, "exit", false, "stop the broker when the demo is over")
	return c
}

// nextSteps prints what to try while the broker serves.
func (a *app) nextSteps(url string) {
	server := ""
	if url != "http://"+broker.DefaultListen {
		server = " --server " + url
	}
	a.talk(`
The broker keeps serving at %s. In another terminal, try:

  strandmq%[2]s group describe flights billing
  strandmq%[2]s dead list flights billing
  strandmq%[2]s trace flights --partition 0 --offset 0
  strandmq%[2]s consume flights --group mine --max 5
  strandmq%[2]s dead replay flights billing --all
  curl -s %[1]s/strandmq.v1.TopicService/ListTopics -H 'content-type: application/json' -d '{}'

Ctrl-C stops it.`, url, server)
}

// demo is one run. Its groups run in goroutines of their own; all of them end
// with the context of run.
type demo struct {
	a      *app
	api    *clients
	failed <-chan error // the broker's end
	sample *flights     // nil: the whole one that is embedded
}

// published is what publishing the sample did.
type published struct {
	stored, duplicates int
}

// groupResult is one line of the summary.
type groupResult struct {
	Group      string `json:"group"`
	Members    int    `json:"members"`
	Acked      uint64 `json:"acked"`
	Retried    uint64 `json:"retried"`
	Dead       uint64 `json:"dead"`
	Violations int    `json:"order_violations"`
}

// demoResult is the summary for programs.
type demoResult struct {
	Topic      string        `json:"topic"`
	Messages   int           `json:"messages"`
	Published  int           `json:"published"`
	Duplicates int           `json:"duplicates"`
	Groups     []groupResult `json:"groups"`
}

func (d *demo) run(ctx context.Context) error {
	var err error
	if d.sample == nil {
		if d.sample, err = readFlights(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-d.failed:
			cancel(fmt.Errorf("the broker stopped: %w", err))
		case <-ctx.Done():
		}
	}()
	if _, err := ask(ctx, d.api.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: sample.Topic}); err != nil && !isReason(err, "TOPIC_EXISTS") {
		return err
	}
	groups := []*demoGroup{
		newDemoGroup(d, "board", 3, &strandmqv1.GroupPolicy{}),
		newDemoGroup(d, "billing", 4, &strandmqv1.GroupPolicy{
			MaxAttempts: proto.Uint32(5), BackoffMs: proto.Int64(50), BackoffMaxMs: proto.Int64(1000),
		}),
	}
	groups[1].failing = true
	for _, g := range groups {
		if err := g.create(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	progress := d.newProgress(groups)
	pub := make(chan error, 1)
	var did published
	go func() {
		var err error
		did, err = d.publish(ctx, progress)
		pub <- err
	}()
	for _, g := range groups {
		g.start(ctx, cancel)
	}
	err = progress.watch(ctx)
	cancel(nil)
	for _, g := range groups {
		g.members.Wait()
	}
	if perr := <-pub; err == nil {
		err = perr
	}
	if err != nil {
		return err
	}
	d.a.talk("Done in %v.", time.Since(began).Round(10*time.Millisecond))
	if did.stored == 0 {
		d.a.talk("All %s flights were here from an earlier run: their ids were recognised, and nothing was published twice. The groups started afresh.", quantity.Count(did.duplicates))
	} else if did.duplicates > 0 {
		d.a.talk("%s flights were here from an earlier run: their ids were recognised, and only the other %s were published.", quantity.Count(did.duplicates), quantity.Count(did.stored))
	}
	return d.summary(context.WithoutCancel(ctx), did, groups)
}

// publish publishes the sample in batches, one after the other, and checks that
// the offsets of each key go up in the order of the lines.
func (d *demo) publish(ctx context.Context, progress *demoProgress) (published, error) {
	p := &publisher{api: d.api, topic: sample.Topic, retryFor: 30 * time.Second}
	var did published
	type end struct {
		partition uint32
		next      uint64
	}
	ends := map[string]end{}
	for from := 0; from < len(d.sample.items); from += batchMessages {
		to := min(from+batchMessages, len(d.sample.items))
		batch := make([]*strandmqv1.Message, 0, batchMessages)
		for i := from; i < to; i++ {
			it := d.sample.items[i]
			batch = append(batch, &strandmqv1.Message{
				KeyKind: &strandmqv1.Message_Key{Key: it.Key}, Id: d.sample.ids[i],
				Body: &strandmqv1.Message_Text{Text: it.Body},
			})
		}
		results, err := p.send(ctx, batch)
		if err != nil {
			return did, err
		}
		for n, r := range results {
			if refused := r.GetProblem(); refused != nil {
				return did, fmt.Errorf("flight %d was refused: %s", from+n+1, refused.GetMessage())
			}
			at, key := r.GetReceipt(), d.sample.items[from+n].Key
			if e, ok := ends[key]; ok && (e.partition != at.GetPartition() || at.GetOffset() < e.next) {
				return did, fmt.Errorf("flight %d of %s was stored at %d/%d, before an earlier one of its key",
					from+n+1, key, at.GetPartition(), at.GetOffset())
			}
			ends[key] = end{at.GetPartition(), at.GetOffset() + 1}
			if at.GetDuplicate() {
				did.duplicates++
			} else {
				did.stored++
			}
		}
		progress.published.Store(int64(to))
	}
	return did, nil
}

// summary prints the table and judges: what the groups say of themselves, what
// the members saw, and the data must agree.
func (d *demo) summary(ctx context.Context, did published, groups []*demoGroup) error {
	res := demoResult{Topic: sample.Topic, Messages: len(d.sample.items), Published: did.stored, Duplicates: did.duplicates}
	t := table.Table{
		Head:  []string{"GROUP", "MEMBERS", "PUBLISHED", "ACKED", "RETRIED", "DEAD", "ORDER VIOLATIONS"},
		Right: []int{1, 2, 3, 4, 5, 6},
	}
	var faults []error
	for _, g := range groups {
		r, err := g.result(ctx)
		if err != nil {
			faults = append(faults, err)
		}
		res.Groups = append(res.Groups, r)
		t.Add(r.Group, r.Members, quantity.Count(len(d.sample.items)), quantity.Count(r.Acked), quantity.Count(r.Retried), quantity.Count(r.Dead), r.Violations)
	}
	if d.a.json() {
		raw, err := json.Marshal(res)
		if err != nil {
			return err
		}
		fmt.Fprintln(d.a.out, string(raw))
	} else if err := d.a.printTable(&t, ""); err != nil {
		return err
	}
	return errors.Join(faults...)
}
