package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// eventWait is how long one question waits for an event, and eventPatience how long a
// broker that is away is asked again while events are followed.
const (
	eventWait     = 20 * time.Second
	eventPatience = 10 * time.Minute
)

func (a *app) eventsCommand() *cobra.Command {
	var kind, node string
	var follow bool
	var last int
	req := &strandmqv1.ListEventsRequest{}
	c := command(&cobra.Command{
		Use:   "events",
		Short: "Show what the cluster did by itself",
		Long: `Shows what the cluster did by itself and what happened to it: circuits that opened, messages that
went unread, keys that were parked, replicas that were damaged and made anew, nodes that were given up
and came back, limits that were reached. What happens again within a minute is one event, with a count.
The last 1,000 are kept, on every node; docs/events.md has the kinds. With --follow those that come are
printed as they come; with --output json that is one event per line.`,
		Example: `  strandmq events
  strandmq events --last 20 --follow
  strandmq events --kind CIRCUIT_OPENED --topic orders
  strandmq events --node 3 --output json | jq '.events[].text'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		req.Kind = strings.ToUpper(strings.ReplaceAll(kind, "-", "_"))
		if node != "" {
			n, err := nodeNumber(node)
			if err != nil {
				return err
			}
			req.Node = n
		}
		if last < 0 {
			return usagef("--last %d is below 0", last)
		}
		api := a.dial()
		res, err := ask(cmd.Context(), api.cluster.ListEvents, req)
		if err != nil {
			return err
		}
		if n := len(res.GetEvents()); cmd.Flags().Changed("last") && n > last {
			res.Events = res.Events[n-last:]
		}
		if !follow {
			return a.show(res, func() error { return a.printEvents(res.GetEvents()) })
		}
		return a.followEvents(cmd.Context(), api, req, res)
	})
	fl := c.Flags()
	fl.BoolVarP(&follow, "follow", "f", false, "print those that come, too, until it is interrupted")
	fl.IntVar(&last, "last", 0, "of those that are kept, only the last so many")
	fl.StringVar(&kind, "kind", "", "only events of this kind, such as CIRCUIT_OPENED")
	fl.StringVar(&req.Topic, "topic", "", "only events of this topic")
	fl.StringVar(&req.Group, "group", "", "only events of groups of this name")
	fl.StringVar(&node, "node", "", "only events of this node")
	must(c.RegisterFlagCompletionFunc("kind", a.asking(a.eventKinds)))
	return c
}

// followEvents prints what is there, and then what comes.
func (a *app) followEvents(ctx context.Context, api *clients, req *strandmqv1.ListEventsRequest, res *strandmqv1.ListEventsResponse) error {
	waiting := func(err error, d time.Duration) { a.talk("waiting %v: %v", d.Round(time.Millisecond), err) }
	req.WaitMs = eventWait.Milliseconds()
	for {
		if res.GetMissed() {
			a.talk("note: some events came and went meanwhile: only the last 1,000 are kept")
		}
		for _, e := range res.GetEvents() {
			if err := a.printEvent(e); err != nil {
				return err
			}
		}
		req.After = res.GetNext()
		var err error
		if res, err = patiently(ctx, eventPatience, waiting, api.cluster.ListEvents, req); err != nil {
			if ctx.Err() != nil {
				return nil // that is how it ends
			}
			return err
		}
	}
}

// printEvent prints one event on a line.
func (a *app) printEvent(e *strandmqv1.ClusterEvent) error {
	if a.json() {
		raw, err := marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.out, "%s\n", raw)
		return err
	}
	line := fmt.Sprintf("%s  %s ×%d  %s  %s", stamp(e.GetLast()), e.GetKind(), e.GetCount(), eventAbout(e), e.GetText())
	if e.GetAdvice() != "" {
		line += "  next: " + a.advised(e.GetAdvice())
	}
	_, err := fmt.Fprintln(a.out, plain.Text(line))
	return err
}

func (a *app) printEvents(events []*strandmqv1.ClusterEvent) error {
	t := &table.Table{Head: []string{"LAST", "KIND", "COUNT", "ABOUT", "WHAT", "NEXT"}, Right: []int{2}}
	for _, e := range events {
		t.Add(stamp(e.GetLast()), e.GetKind(), e.GetCount(), eventAbout(e), e.GetText(), orDash(a.advised(e.GetAdvice())))
	}
	return a.printTable(t, "There are no such events.")
}

// eventAbout is what an event is about: a node, a partition, a group.
func eventAbout(e *strandmqv1.ClusterEvent) string {
	var words []string
	if e.GetTopic() != "" {
		topic := e.GetTopic()
		if e.Partition != nil {
			topic += fmt.Sprintf("/%d", e.GetPartition())
		}
		words = append(words, topic)
	}
	if e.GetGroup() != "" {
		words = append(words, e.GetGroup())
	}
	if e.GetNode() != 0 {
		words = append(words, nodeList([]uint64{e.GetNode()}))
	}
	return orDash(strings.Join(words, " "))
}

// eventKinds are the kinds of the events that are kept.
func (a *app) eventKinds(ctx context.Context, _ *cobra.Command, _ []string) (kinds []string) {
	res, err := a.dial().cluster.ListEvents(ctx, &strandmqv1.ListEventsRequest{})
	if err != nil {
		return nil
	}
	for _, e := range res.GetEvents() {
		kinds = append(kinds, e.GetKind())
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
