package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
)

// loadFlags are the flags that are no plain fields of a loadtest.Config.
type loadFlags struct {
	c          loadtest.Config
	partitions countFlag
	keys       countFlag
	attempts   countFlag
	size       sizeFlag
	ids        bool
	shape      string
	transport  string
	window     countFlag
	count      countFlag

	warmup, duration, work, crash, leave, away, ackDeadline, backoff, retryFor, drainFor spanFlag
}

func newLoadFlags() *loadFlags {
	f := &loadFlags{partitions: countFlag{n: 8, least: 1}, keys: countFlag{n: 10_000, least: 1}}
	f.size.n = 100
	f.warmup.d, f.duration.d = time.Second, 30*time.Second
	f.away.d, f.backoff.d = time.Second, 200*time.Millisecond
	f.retryFor.d, f.drainFor.d = time.Minute, 30*time.Second
	f.c.Seed = 1
	return f
}

func (a *app) loadtestCommand() *cobra.Command {
	f := newLoadFlags()
	c := command(&cobra.Command{
		Use:   "loadtest [--rate N] [--duration SPAN]",
		Short: "Drive the broker with a load, measure it, and check what it promised",
		Long: `Publishes to a running broker and consumes with groups, for a while; then prints
rates and latencies, and a verdict: was anything stored and lost, delivered twice,
delivered out of the order of its key, or two of a key at a time?

With --rate, messages are due by a schedule that waits for nobody, and latency
counts from the moment that a message was due: to its receipt (publish), and to
its first delivery (end to end). A stall of the broker is therefore seen by all
that came due meanwhile. Without --rate, every producer sends for as long as
--in-flight lets it: that finds what the broker can carry, and its latencies are
those of a broker that is always full.

With --shape, it is one of the workloads by which brokers are compared: see
docs/loadtest.md. They push harder than a load of your own can, let nothing fail,
and check by counting.

Failures are mixed in with --nack, --lapse and --crash, and members that come and go
with --leave; the checker expects what was promised all the same. With --work a
member's handlers take their time, --workers of them at once. Everything else that
fails is tried again, so the broker may be stopped, killed and started meanwhile.

The topic is new and is deleted at the end, unless --keep. With --topic it gets
that name; if there is such a topic already, it is used from its end, and only the
groups are deleted.

What is kept in memory depends on --keys, --producers and --groups, not on the
length of the run. Ctrl-C ends the publishing; the rest is still checked.

Exit code 1 when a promise was broken, or when not everything could be checked.
docs/loadtest.md says what each figure means.`,
		Example: `  strandmq loadtest
  strandmq loadtest --rate 20000 --duration 60s --groups 2
  strandmq loadtest --rate 2000 --nack 5 --lapse 1 --crash 3s --members 8
  strandmq loadtest --members 100 --workers 4 --work 10ms --ahead 5000 --leave 1s
  strandmq loadtest --producers 16 --batch 500 --size 1KiB --duration 10s --groups 0
  strandmq loadtest --keys 1000000 --zipf 0.99 --rate 10000
  strandmq loadtest --shape w3max --duration 10s
  strandmq loadtest --transport unary --producers 16 --rate 2000
  strandmq loadtest --topic orders-test --keep --duration 5s --output json`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		return a.runLoadtest(cmd, f)
	})
	fl := c.Flags()
	fl.StringVar(&f.shape, "shape", "", "a limit to find instead, as fast as it goes: "+loadtest.ShapeNames())
	fl.Var(&f.window, "window", "with --shape, the most published and not handled messages of a partition; 0 is no bound")
	fl.Var(&f.count, "count", "with --shape w4, how many messages to publish first")
	fl.StringVar(&f.c.Topic, "topic", "", "the topic, made if there is none (default: a new one of a name of its own)")
	fl.Var(&f.partitions, "partitions", "how many partitions a new topic gets")
	f.c.Members = 4
	fl.Var(&wholeFlag{&f.c.Members}, "members", "how many members each group has")
	fl.BoolVar(&f.c.Keep, "keep", false, "leave the topic and the groups on the broker")
	f.common(c)
	c.AddCommand(a.sweepCommand())
	return c
}

// common are the flags of every load.
func (f *loadFlags) common(c *cobra.Command) {
	fl := c.Flags()
	whole := func(name string, n *int, otherwise int, help string) {
		*n = otherwise
		fl.Var(&wholeFlag{n}, name, help)
	}
	number := func(name string, n *float64, help string) { fl.Var(&floatFlag{n}, name, help) }
	fl.StringVar(&f.transport, "transport", "stream", "stream, or unary: a call for each batch")
	whole("in-flight", &f.c.InFlight, 512, "over streams, the most messages of a partition that wait for their receipt")
	fl.BoolVar(&f.c.Messages, "messages", false, "over streams, publish readable messages instead of record batches")
	fl.BoolVar(&f.c.Sequences, "sequences", false, "over streams, publish with a producer's sequence")
	must(c.RegisterFlagCompletionFunc("transport", words("stream", "unary")))
	whole("producers", &f.c.Producers, 4, "how many producers, each on a stream of its own; by unary calls, with one batch on its way at a time")
	whole("groups", &f.c.Groups, 1, "how many groups, each of which gets everything; 0 only publishes")
	fl.Var(&f.keys, "keys", "how many keys there are")
	number("zipf", &f.c.Zipf, "skew of the keys: key n is drawn in proportion to 1/n^zipf; 0 draws all alike")
	fl.Var(&f.size, "size", fmt.Sprintf("size of each body, at least %d", loadtest.MinSize))
	whole("rate", &f.c.Rate, 0, "messages a second, by schedule; 0 is as fast as possible")
	whole("batch", &f.c.Batch, 100, "the most messages of one publish; with --rate, only what is due")
	whole("take", &f.c.Take, 0, "the most messages that a member takes at once (default 500, with --work as many as --workers)")
	whole("ahead", &f.c.Ahead, 0, "without --rate, how many messages may be published and not handled; 0 is no bound")
	fl.Var(&f.work, "work", "how long a member's handler takes for each message; 0 is no time")
	whole("workers", &f.c.Workers, 1, "with --work, how many handlers a member runs at once")
	fl.Var(&f.warmup, "warmup", "how long it runs before the figures begin")
	fl.Var(&f.duration, "duration", "how long it runs for the figures")
	number("nack", &f.c.Nack, "percent of deliveries that are nacked")
	number("lapse", &f.c.Lapse, "percent of deliveries that nobody settles")
	fl.Var(&f.crash, "crash", "every so often a member drops what it holds and comes back later; 0 is never")
	fl.Var(&f.leave, "leave", "every so often a member gives back what it holds, leaves, and comes back later; 0 is never")
	fl.Var(&f.away, "away", "how long a member that crashed or left is away")
	fl.Var(&f.ackDeadline, "ack-deadline", "when an unsettled delivery lapses (default 30s, with --lapse 2s)")
	fl.Var(&f.backoff, "backoff", "the wait after a first failure")
	fl.Var(&f.attempts, "max-attempts", "after so many a message is a dead letter; 0 is never")
	fl.BoolVar(&f.ids, "ids", true, "give every message an id; without, a lost receipt ends the run")
	fl.Var(&f.retryFor, "retry-for", "how long to try again while the broker is away")
	fl.Var(&f.drainFor, "drain-for", "how long nothing may move before the end is not waited for any more")
	fl.Var(&seedFlag{&f.c.Seed}, "seed", "of keys and failures: the same load again")
}

// wholeFlag is a whole number; what it may be is the load's to say, which says
// all faults at once.
type wholeFlag struct{ n *int }

func (f *wholeFlag) String() string { return fmt.Sprint(*f.n) }
func (f *wholeFlag) Type() string   { return "number" }
func (f *wholeFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return usagef("a whole number is wanted")
	}
	*f.n = n
	return nil
}

// floatFlag is a number; the rest as for wholeFlag.
type floatFlag struct{ n *float64 }

func (f *floatFlag) String() string { return fmt.Sprint(*f.n) }
func (f *floatFlag) Type() string   { return "number" }
func (f *floatFlag) Set(s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return usagef("a number such as 2 or 0.5 is wanted")
	}
	*f.n = n
	return nil
}

// seedFlag is any number.
type seedFlag struct{ n *uint64 }

func (f *seedFlag) String() string { return fmt.Sprint(*f.n) }
func (f *seedFlag) Type() string   { return "number" }
func (f *seedFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return usagef("a whole number from 0 is wanted")
	}
	*f.n = n
	return nil
}

func (a *app) runLoadtest(cmd *cobra.Command, f *loadFlags) error {
	if f.shape != "" {
		return a.runShape(cmd, f)
	}
	for _, name := range []string{"window", "count"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s: it is of a shape; --shape names one", name)
		}
	}
	way, err := f.way(cmd)
	if err != nil {
		return err
	}
	c, err := f.config(cmd)
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return usagef("this load cannot be run:\n%v", err)
	}
	show := a.newLoadProgress()
	c.Tick, c.Tell = show.every, show.tell
	server, err := a.server(cmd.Context())
	if err != nil {
		return err
	}
	c.Fallback = a.others(server)
	broker, done := way(server, c)
	defer done()
	rep, err := loadtest.Run(cmd.Context(), c, broker)
	show.board.settle()
	if rep == nil {
		return cannotRun(err)
	}
	if perr := a.showLoad(rep, c.Keep); perr != nil {
		err = errors.Join(err, perr)
	}
	if err != nil {
		return fmt.Errorf("the run ended early: %w", err)
	}
	return verdictError(rep)
}

// config is the load that the flags ask for.
func (f *loadFlags) config(cmd *cobra.Command) (loadtest.Config, error) {
	c := f.c
	// Zero means the default there, and nothing here.
	counts := map[string]int{"producers": c.Producers, "members": c.Members, "batch": c.Batch, "in-flight": c.InFlight, "workers": c.Workers}
	if cmd.Flags().Changed("take") {
		counts["take"] = c.Take
	}
	for name, n := range counts {
		if n < 1 {
			return c, usagef("--%s %d: at least 1", name, n)
		}
	}
	for name, d := range map[string]time.Duration{"duration": f.duration.d, "away": f.away.d, "backoff": f.backoff.d, "retry-for": f.retryFor.d, "drain-for": f.drainFor.d} {
		if d == 0 {
			return c, usagef("--%s 0: it must take some time", name)
		}
	}
	if f.size.n < loadtest.MinSize || f.size.n > 1<<20 {
		return c, usagef("--size %s: from %d bytes, which the checker needs, to 1MiB", quantity.FormatSize(f.size.n), loadtest.MinSize)
	}
	for name, d := range map[string]time.Duration{"ack-deadline": f.ackDeadline.d, "backoff": f.backoff.d} {
		if _, err := millis(name, d); err != nil {
			return c, err
		}
	}
	c.Partitions, c.Keys, c.MaxAttempts, c.Size = f.partitions.n, f.keys.n, f.attempts.n, int(f.size.n)
	c.Warmup, c.Duration, c.Work = f.warmup.d, f.duration.d, f.work.d
	c.Crash, c.Leave, c.Away = f.crash.d, f.leave.d, f.away.d
	c.AckDeadline, c.Backoff, c.RetryFor, c.DrainFor = f.ackDeadline.d, f.backoff.d, f.retryFor.d, f.drainFor.d
	c.NoIDs = !f.ids
	return c, nil
}

// cannotRun is the error of a run that did not begin. What the broker refuses for
// what it is, such as more partitions than a topic may have, is wrong usage, as it
// is when the load finds out by itself.
func cannotRun(err error) error {
	var r *loadtest.Refusal
	if errors.As(err, &r) {
		switch r.Reason {
		case "BAD_NAME", "BAD_VALUE", "BAD_POLICY":
			return usagef("this load cannot be run:\n%s", r.Text)
		}
	}
	return err
}

// way gives the transport that the flags ask for.
func (f *loadFlags) way(cmd *cobra.Command) (func(string, loadtest.Config) (loadtest.Broker, func()), error) {
	switch f.transport {
	case "stream":
		return loadtest.Streams, nil
	case "unary":
		for _, name := range []string{"in-flight", "messages", "sequences"} {
			if cmd.Flags().Changed(name) {
				return nil, usagef("--%s: unary calls carry readable messages, one call after the other; it needs --transport stream", name)
			}
		}
		return loadtest.Unary, nil
	}
	return nil, usagef("--transport %q: there are stream and unary", f.transport)
}

// verdictError turns a verdict that is not good into exit code 1.
func verdictError(rep *loadtest.Report) error {
	switch v := rep.Verdict; v.Outcome {
	case loadtest.Broken:
		return fmt.Errorf("%s violations of what was promised", quantity.Count(v.Broken()))
	case loadtest.Incomplete:
		return fmt.Errorf("not everything could be checked: %s", whyIncomplete(rep))
	}
	return nil
}

func whyIncomplete(rep *loadtest.Report) string {
	v := rep.Verdict
	switch {
	case v.Left > 0:
		return quantity.Count(v.Left) + " messages were still with the broker when nothing moved any more; --drain-for waits longer, 'strandmq group describe' says what stalls (with --keep)"
	case v.Unjudged > 0:
		return quantity.Count(v.Unjudged) + " deliveries came too late to be told from repeated ones"
	}
	return "the broker still counts messages that nobody got"
}

// loadProgress shows a run while it goes on.
type loadProgress struct {
	a     *app
	board *board
	every time.Duration
	title string // before the rest, if there is one
}

func (a *app) newLoadProgress() *loadProgress {
	p := &loadProgress{a: a, board: a.newBoard(), every: 5 * time.Second}
	if p.board.live {
		p.every = 500 * time.Millisecond
	}
	return p
}

func (p *loadProgress) tell(x loadtest.Progress) {
	phase := fmt.Sprintf("%.0f of %.0f s", min(x.At, x.Total).Seconds(), x.Total.Seconds())
	if !x.Publishing {
		phase = "published; waiting for the groups"
	}
	if p.title != "" {
		phase = p.title + ": " + phase
	}
	lines := []string{fmt.Sprintf("%s: published %s, %s/s, p99 %s", phase, quantity.Count(x.Published), whole(x.Rate), ms(x.Publish.P99))}
	for i, g := range x.Groups {
		line := fmt.Sprintf("group %d: done %s, %s/s, end to end p99 %s", i+1, quantity.Count(g.Ended), whole(g.Rate), ms(g.Latency.P99))
		if g.Violations > 0 {
			line += ", VIOLATIONS " + quantity.Count(g.Violations)
		}
		lines = append(lines, line)
	}
	if p.board.live {
		p.board.draw(lines)
		return
	}
	p.a.talk("  %s", strings.Join(lines, " | "))
}

func whole(rate float64) string { return quantity.Count(int64(rate + 0.5)) }

// rated is whole where 0 is no rate: it was not measured, or nothing came.
func rated(rate float64) string {
	if rate == 0 {
		return "-"
	}
	return whole(rate)
}

// ms prints milliseconds with three digits or so.
func ms(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return quantity.Count(int64(v+0.5)) + " ms"
}

// showLoad prints a report.
func (a *app) showLoad(rep *loadtest.Report, kept bool) error {
	if a.json() {
		raw, err := json.MarshalIndent(rep, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.out, string(raw))
		return err
	}
	t := table.Table{
		Head:  []string{"WHAT", "MESSAGES", "PER SECOND", "P50", "P90", "P99", "P99.9", "MAX"},
		Right: []int{1, 2, 3, 4, 5, 6, 7},
	}
	row := func(what string, n uint64, rate float64, l loadtest.Latency) {
		t.Add(what, quantity.Count(n), rated(rate), ms(l.P50), ms(l.P90), ms(l.P99), ms(l.P999), ms(l.Max))
	}
	row("publish", rep.Publish.Messages, rep.Publish.Rate, rep.Publish.Latency)
	for i, g := range rep.Groups {
		row(fmt.Sprintf("end to end, group %d", i+1), g.Messages, g.Rate, g.Latency)
	}
	if err := a.printTable(&t, ""); err != nil {
		return err
	}
	if len(rep.Groups) > 0 {
		did := table.Table{
			Head:  []string{"GROUP", "ACKED", "NACKED", "LAPSED", "CRASHES", "LEFT", "AGAIN", "DEAD", "LONGEST GAP"},
			Right: []int{1, 2, 3, 4, 5, 6, 7, 8},
		}
		verdicts := table.Table{
			Head:  []string{"GROUP", "LOST", "DUPLICATED", "OUT OF ORDER", "OVERLAPPING", "OTHER", "VERDICT"},
			Right: []int{1, 2, 3, 4, 5},
		}
		for i, g := range rep.Groups {
			did.Add(i+1, quantity.Count(g.Acked), quantity.Count(g.Nacked), quantity.Count(g.Lapsed), g.Crashes, g.Leaves, quantity.Count(g.Redelivered), quantity.Count(g.Dead), ms(g.Gap))
			v := g.Verdict
			verdicts.Add(i+1, v.Lost, v.Duplicated, v.Disordered, v.Overlapping, v.Altered+v.Other, v.Outcome)
		}
		for _, t := range []*table.Table{&did, &verdicts} {
			fmt.Fprintln(a.out)
			if err := a.printTable(t, ""); err != nil {
				return err
			}
		}
	}
	a.loadNotes(rep, kept)
	return nil
}

// loadNotes says in words what the tables do not.
func (a *app) loadNotes(rep *loadtest.Report, kept bool) {
	p := rep.Publish
	figures := fmt.Sprintf("figures of %.1f s after %.1f s of warm-up.", rep.Measured/1000, rep.Load.Warmup/1000)
	if p.Rate > 0 {
		figures = fmt.Sprintf("%s of bodies a second, %.1f messages a call; ",
			quantity.RoughSize(uint64(p.Bytes)), float64(p.Messages)/max(float64(p.Calls), 1)) + figures
	}
	a.talk("%s", figures)
	if len(rep.Groups) > 0 && rep.Drained {
		a.talk("The groups were through %s after the last receipt.", ms(rep.Drain))
	}
	if p.Unsent > 0 {
		why := ": the rate was too high"
		if rep.Interrupted {
			why = " when the run was cut short"
		}
		a.talk("%s messages were due and never sent%s. They are in the publish latencies with the time that they had waited.", quantity.Count(p.Unsent), why)
	}
	if p.Duplicates > 0 {
		a.talk("%s receipts were lost on their way; the messages were sent again and recognised.", quantity.Count(p.Duplicates))
	}
	if p.Unknown > 0 {
		a.talk("%s messages have no receipt, and nobody knows whether they were stored.", quantity.Count(p.Unknown))
	}
	if rep.Interrupted {
		a.talk("The run was cut short; the figures are of the part before.")
	}
	for _, text := range rep.Verdict.Examples {
		a.talk("VIOLATION %s", text)
	}
	switch rep.Verdict.Outcome {
	case loadtest.Kept:
		a.talk("Checked: nothing lost, nothing twice, every key in order and one at a time.")
	case loadtest.NotJudged:
		a.talk("There was no group, so nothing was checked but the receipts.")
	}
	if kept {
		a.talk("Topic %s stays on the broker: 'strandmq topic delete %s' removes it.", rep.Topic, rep.Topic)
	}
}
