package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) traceCommand() *cobra.Command {
	var id, key string
	var partition countFlag
	var offset positionFlag
	var since, until, at momentFlag
	var latest, all bool
	events, before := countFlag{n: 200, least: 20, most: 1000}, countFlag64{}
	c := command(&cobra.Command{
		Use:   "trace TOPIC (--id ID | --partition P --offset O | --key KEY)",
		Short: "Print one message's life in every group",
		Long: `Prints a message's life, read back from the log: when it was published, each
hand-out with member and attempt, nacks with their reasons, waits, its ack or
death, and replays; then where it stands in each group. TERM is the log's at each
line, and NODE the one that led the partition then, and so did it; - where that is
not known. The offset is one of
` + messageGrammar + `.

With --key the messages of a key are looked for in its partition, from the newest
back, in the time that --since, --until or --at say: ` + momentGrammar + `.
Of several the newest 20 are listed, with their states; --latest traces the newest, --all
each of them. What was not looked at is said.

Of a message with more than --limit events the first ten and the latest are shown, and it is
said how many were between them; --before pages back.

--output timeline draws it: a line for each hand-out, from then until it ended.`,
		Example: `  strandmq trace orders --id 7f3c
  strandmq trace orders --partition 3 --offset 17
  strandmq trace orders --partition 3 --offset -1 --output json
  strandmq trace orders --partition 3 --offset @-15m
  strandmq trace orders --key alice --since 5m
  strandmq trace orders --key alice --latest --output timeline`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		set := cmd.Flags().Changed
		timed := set("since") || set("until") || set("at")
		req := &strandmqv1.TraceRequest{Topic: args[0], Limit: events.n, Before: before.n}
		switch {
		case set("key") && !set("id") && !set("partition") && !set("offset"):
			if set("at") && (set("since") || set("until")) {
				return usagef("--at is a time, --since and --until are the bounds of one: give the one or the others")
			}
			if latest && all {
				return usagef("--latest is one message, --all are all: give one of the two")
			}
			if key == "" {
				return usagef("--key is empty: messages without a key are found by --id, or by --partition and --offset")
			}
			s := keySearch{topic: args[0], key: []byte(key), most: mostTraced, look: mostLooked, events: req}
			now := time.Now()
			if since.set {
				s.since = since.at(now)
			}
			if until.set {
				s.until = until.at(now)
			}
			if at.set {
				s.since, s.until = at.at(now).Add(-around), at.at(now).Add(around)
			}
			if !s.until.IsZero() && !s.since.Before(s.until) {
				return usagef("--since is not before --until")
			}
			if latest {
				s.most = 1
			}
			return a.printKey(cmd.Context(), s, latest || all)
		case set("key") || timed || latest || all:
			return usagef("--since, --until, --at, --latest and --all belong to --key, and that stands alone")
		case set("id") && !set("partition") && !set("offset"):
			req.Which = &strandmqv1.TraceRequest_Id{Id: id}
		case !set("id") && set("partition") && set("offset"):
			place, err := place(partition.n, &offset)
			if err != nil {
				return err
			}
			req.Which = &strandmqv1.TraceRequest_Place{Place: place}
		default:
			return usagef("say which message: --id, or --partition and --offset, or --key")
		}
		res, err := ask(cmd.Context(), a.dial().trace.Trace, req)
		if err != nil {
			return err
		}
		return a.show(res, func() error { return a.lives(res) })
	})
	fl := c.Flags()
	fl.StringVar(&id, "id", "", "the message's id")
	fl.Var(&partition, "partition", "the message's partition")
	fl.Lookup("partition").DefValue = ""
	fl.Var(&offset, "offset", "the message's place: "+messageGrammar)
	fl.StringVar(&key, "key", "", "the message's key")
	fl.Var(&since, "since", "with --key: published then or later: "+momentGrammar)
	fl.Var(&until, "until", "with --key: published before")
	fl.Var(&at, "at", "with --key: published within 30s of it")
	fl.BoolVar(&latest, "latest", false, "with --key: the newest one")
	fl.BoolVar(&all, "all", false, "with --key: trace each, the newest 20 at most")
	fl.Var(&events, "limit", "so many events of a message: the first ten, and the latest")
	fl.Var(&before, "before", "only events before this place in the log, as the column LOG has it")
	fl.Lookup("before").DefValue = ""
	c.Annotations = map[string]string{moreOutputs: "timeline"}
	return c
}

// printKey prints what a search for a key finds: the life of one, or a list.
func (a *app) printKey(ctx context.Context, s keySearch, whole bool) error {
	res, found, err := a.traceKey(ctx, a.dial(), s)
	if err != nil {
		return err
	}
	return a.show(res, func() error {
		n := len(res.GetMessages())
		if whole || n == 1 {
			err = a.lives(res)
		} else if err = a.printFound(res); err == nil {
			a.talk("%d messages: --latest traces the newest, --all each, --partition %d --offset O one", n, found.partition)
		}
		return err
	}, func() {
		switch {
		case found.more && s.most == 1:
			a.talk("there are earlier ones: without --latest they are listed")
		case found.more:
			a.talk("there are more: these are the newest %d; look at earlier ones with --until", s.most)
		case found.beyond() != "":
			a.talk("note: %s", found.beyond())
		}
	})
}

// lives prints each message's life.
func (a *app) lives(res *strandmqv1.TraceResponse) error {
	show := a.life
	if a.output == "timeline" {
		show = a.printTimeline
	}
	for i, m := range res.GetMessages() {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		if err := show(m); err != nil {
			return err
		}
	}
	if a.output == "timeline" && len(res.GetMessages()) > 0 {
		a.talk("%s", timelineLegend)
	}
	return nil
}

// whole prints what a message is.
func (a *app) whole(m *strandmqv1.MessageTrace) {
	facts := []string{
		"place", fmt.Sprintf("partition %d, offset %d", m.GetPartition(), m.GetOffset()),
		"key", keyText(m.GetMessage()),
		"id", orDash(m.GetMessage().GetId()),
		"body", plain.Short(string(body(m.GetMessage())), 200),
	}
	if id := m.GetTraceId(); id != "" {
		facts = append(facts, "trace", id)
	}
	if id := m.GetRequestId(); id != "" {
		facts = append(facts, "request", plain.Short(id, 200))
	}
	a.facts(facts...)
}

// countOrDash is a number; - for 0, which is none.
func countOrDash[N uint32 | uint64](n N) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func (a *app) life(m *strandmqv1.MessageTrace) error {
	a.whole(m)
	fmt.Fprintln(a.out)
	events := table.Table{Head: []string{"TIME", "LOG", "TERM", "NODE", "GROUP", "WHAT", "MEMBER", "ATTEMPT", "MORE"}, Right: []int{1, 2, 3, 7}}
	for i, e := range m.GetEvents() {
		if m.GetCut() > 0 && i == int(m.GetCutAt()) {
			events.Add("...", "...", "...", "...", "...", fmt.Sprintf("%s more", quantity.Count(m.GetCut())), "...", "...", "...")
		}
		events.Add(stamp(e.GetTime()), e.GetLogIndex(), countOrDash(e.GetTerm()), countOrDash(e.GetNode()), orDash(e.GetGroup()), e.GetWhat(),
			orDash(e.GetMember()), countOrDash(e.GetAttempt()), orDash(e.GetDetail()))
	}
	if err := a.printTable(&events, ""); err != nil {
		return err
	}
	a.cut(m)
	return a.stands(m)
}

// cut says what is not shown.
func (a *app) cut(m *strandmqv1.MessageTrace) {
	switch i := int(m.GetCutAt()); {
	case m.GetCut() > 0 && i < len(m.GetEvents()):
		e := m.GetEvents()[i]
		// What happened in the same entry may be on either side.
		a.talk("events left out before %s: %s; see them with --before %d", stamp(e.GetTime()), quantity.Count(m.GetCut()), e.GetLogIndex()+1)
	case m.GetTruncated():
		a.talk("there may be more: so much was published after it that not all of it was looked through for repeats")
	}
}

// stands prints where a message stands in each group.
func (a *app) stands(m *strandmqv1.MessageTrace) error {
	if len(m.GetStates()) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	states := table.Table{Head: []string{"GROUP", "STATE", "ATTEMPTS", "MORE"}, Right: []int{2}}
	for _, s := range m.GetStates() {
		states.Add(s.GetGroup(), s.GetState(), s.GetAttempts(), orDash(s.GetDetail()))
	}
	return a.printTable(&states, "")
}
