package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/offsets"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// consumeFlags are what the command line says of a consume.
type consumeFlags struct {
	group, member, exec, ack, bodyFormat string
	max, workers                         countFlag
	untilEmpty, noCreate                 bool
	from                                 positionFlag
	retryFor                             spanFlag
}

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	f.workers.n, f.workers.least, f.workers.most = 8, 1, 1000
	f.max.least = 1
	f.retryFor.d = time.Minute
	c := command(&cobra.Command{
		Use:   "consume TOPIC --group GROUP",
		Short: "Take messages as a member of a group, print them or run a command for each",
		Long: `Joins a group as a member and takes its messages: those of one key in order, one
at a time. A group that does not exist is created, at --from (default earliest):
` + offsets.Grammar + `.
` + offsets.Outside + `

Without --exec each message is printed, then acked. With --exec a shell command
runs for each message: the body on its standard input, the rest in variables.
Exit code 0 acks; any other fails the message with the last line of the command's
standard error as the reason, and the group's policy says when it is tried again.
Up to --workers commands run at once, for different keys. While a command runs,
its delivery is extended; it is killed when the broker no longer allows that.
What a command leaves running in the background goes on, and is not waited for:
the exit code alone counts, and output is kept for a second more at most.
For a group that is at-most-once nothing is repeated: a message whose command
failed is lost to the group, and the command ends with exit code 1.

  STRANDMQ_TOPIC STRANDMQ_GROUP STRANDMQ_MEMBER   whose message it is
  STRANDMQ_PARTITION STRANDMQ_OFFSET              where it is stored
  STRANDMQ_ID STRANDMQ_KEY STRANDMQ_KEY_BASE64    KEY only when it is text
  STRANDMQ_ATTEMPT STRANDMQ_REPLAYED              1, 2, ...; true or false
  STRANDMQ_FENCE                                  grows: to fence side effects
  STRANDMQ_HEADERS                                as JSON
  STRANDMQ_PUBLISH_TIME STRANDMQ_FIRST_SEEN STRANDMQ_DEADLINE

With --ack=none nothing is settled. When the command ends, the messages are given
back and no attempt is charged: a look at what comes next. With --member as well,
the member keeps them until their deadline (the group's --ack-deadline): the same
command shows the same deliveries again, with tokens that the API can settle.

With --output json, one line is printed for each delivery, as the API has it; with
--exec it is {"outcome", "reason", "delivery"}, and the command's own output goes
to standard error. The command ends after --max messages, with --until-empty when
nothing is left to do, or on Ctrl-C (SIGINT, SIGTERM), after finishing what it
began; other members get its partitions at once. A second Ctrl-C kills the
commands of --exec that still run, with all they started, nacks their messages,
and ends with exit code 1.`,
		Example: `  strandmq consume orders --group billing
  strandmq consume orders --group billing --exec './bill.sh' --workers 16
  strandmq consume orders --group audit --until-empty --output json > orders.ndjson
  strandmq consume orders --group look --max 5 --ack=none
  strandmq consume orders --group fresh --from @-15m`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		return a.runConsume(cmd, args[0], &f)
	})
	fl := c.Flags()
	fl.StringVarP(&f.group, "group", "g", "", "the group (required)")
	fl.StringVarP(&f.member, "member", "m", "", "this member's name (default: one of its own)")
	fl.Var(&f.max, "max", "end after so many messages")
	fl.Lookup("max").DefValue = ""
	fl.BoolVar(&f.untilEmpty, "until-empty", false, "end when everything is acked or dead")
	fl.StringVar(&f.exec, "exec", "", "run this shell command for each message")
	fl.Var(&f.workers, "workers", "how many commands of --exec run at once")
	fl.StringVar(&f.ack, "ack", "auto", "auto, or none: settle nothing")
	fl.Var(&f.from, "from", "where a new group starts: "+offsets.Grammar+" (default earliest)")
	fl.BoolVar(&f.noCreate, "no-create", false, "fail when there is no such group")
	fl.StringVar(&f.bodyFormat, "body-format", "text", "bodies in JSON: text (base64 where it is none), json or bytes")
	fl.Var(&f.retryFor, "retry-for", "how long to try again while the broker is away")
	must(c.RegisterFlagCompletionFunc("ack", words("auto", "none")))
	must(c.RegisterFlagCompletionFunc("body-format", words("text", "json", "bytes")))
	return c
}

func (a *app) runConsume(cmd *cobra.Command, topic string, f *consumeFlags) error {
	switch {
	case f.group == "":
		return usagef("--group is missing: the group to take messages for")
	case f.ack != "auto" && f.ack != "none":
		return usagef("--ack %q: choose auto or none", f.ack)
	case f.ack == "none" && f.exec != "":
		return usagef("--exec settles by the command's exit code: it does not go with --ack=none")
	case cmd.Flags().Changed("exec") && f.exec == "":
		return usagef("--exec is empty")
	}
	format, ok := map[string]strandmqv1.BodyFormat{
		"text":  strandmqv1.BodyFormat_BODY_FORMAT_UNSPECIFIED,
		"json":  strandmqv1.BodyFormat_BODY_FORMAT_JSON,
		"bytes": strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
	}[f.bodyFormat]
	if !ok {
		return usagef("--body-format %q: choose text, json or bytes", f.bodyFormat)
	}
	if f.exec != "" {
		if f.bodyFormat == "json" {
			return usagef("--body-format json does not go with --exec: the command gets the body byte for byte; choose text or bytes for what is printed")
		}
		// The command gets what was stored, byte for byte.
		format = strandmqv1.BodyFormat_BODY_FORMAT_BYTES
	}
	named := f.member != ""
	if !named {
		f.member = ownName()
	}
	m := &member{
		api: a.dial(), topic: topic, group: f.group, name: f.member, format: format, retryFor: f.retryFor.d,
		waiting: func(err error, d time.Duration) { a.talk("waiting %v: %v", d.Round(time.Millisecond), err) },
	}
	if err := a.ensureGroup(cmd, m, f); err != nil {
		return err
	}
	peek := f.ack == "none"
	// A look with a name of its own goes on with the session that is open, so
	// that what it holds is shown again; everyone else begins anew.
	if !peek || !named {
		if err := m.join(cmd.Context()); err != nil {
			return err
		}
	}
	c := &consumption{a: a, m: m, f: f, peek: peek, out: bufio.NewWriter(a.out), began: time.Now()}
	var err error
	if f.exec != "" {
		err = c.runCommands(cmd.Context())
	} else {
		err = c.print(cmd.Context())
	}
	if !peek || !named {
		// The command's context may have ended: leaving has its own time.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 5*time.Second)
		defer cancel()
		m.leave(ctx)
	}
	if flush := c.out.Flush(); err == nil {
		err = flush
	}
	if err == nil && c.lost > 0 {
		err = fmt.Errorf("the command failed for %s of %s messages, and they are not repeated: group %s is at-most-once ('strandmq group alter %s %s --at-most-once=false' has failed messages tried again)",
			quantity.Count(c.lost), quantity.Count(c.taken), m.group, topic, m.group)
	}
	a.talk("%s", c.summary())
	return err
}

// ownName is a member's name that no other has.
func ownName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	clean := make([]rune, 0, len(host))
	for _, r := range host {
		if r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			r = '-'
		}
		clean = append(clean, r)
	}
	if len(clean) > 100 {
		clean = clean[:100]
	}
	// A name may not begin with a dot.
	return "m-" + string(clean) + "-" + fmt.Sprint(os.Getpid()) + "-" + uuid.NewString()[:8]
}

// ensureGroup creates the group when there is none and the flags allow it.
func (a *app) ensureGroup(cmd *cobra.Command, m *member, f *consumeFlags) error {
	ctx := cmd.Context()
	describe := func() error {
		res, err := patiently(ctx, m.retryFor, m.waiting, m.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: m.topic, Group: m.group})
		m.once = res.GetGroup().GetPolicy().GetAtMostOnce()
		return err
	}
	err := describe()
	switch {
	case err == nil:
		if f.from.set {
			a.talk("group %s exists, so --from is not used: 'strandmq group reset' moves a group", m.group)
		}
		return nil
	case !isReason(err, "UNKNOWN_GROUP"):
		return err
	case f.noCreate:
		return fmt.Errorf("topic %s has no group %s: leave --no-create out, or create it with 'strandmq group create %s %s'", m.topic, m.group, m.topic, m.group)
	}
	_, err = patiently(ctx, m.retryFor, m.waiting, m.api.groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: m.topic, Group: m.group, Start: f.from.wire(time.Now())})
	if isReason(err, "GROUP_EXISTS") {
		return describe() // another member was faster, with a policy of its own
	}
	if err == nil {
		at := "earliest"
		if f.from.set {
			at = f.from.p.String()
		}
		a.talk("group %s created, from %s", m.group, at)
	}
	return err
}

// consumption is one run of the command. Its fields belong to the goroutine that
// runs it.
type consumption struct {
	a     *app
	m     *member
	f     *consumeFlags
	peek  bool
	out   *bufio.Writer
	began time.Time

	taken, acked, failed, dead, stale int
	lost                              int             // failed, of a group that is at-most-once
	killed                            int             // commands, by a second signal
	asked                             bool            // a first Receive was made
	looked                            time.Time       // when the counts were last asked for
	idleTold                          map[string]bool // the reasons to wait that were told, without their numbers
	idleSaid                          time.Time       // when some were told last
	waited                            bool            // the last Receive brought nothing
	elsewhere                         string          // what --until-empty waits for in partitions of other members, in words
}

func (c *consumption) summary() string {
	text := fmt.Sprintf("%s taken", quantity.Count(c.taken))
	if !c.peek {
		text += fmt.Sprintf(", %s acked", quantity.Count(c.acked))
	}
	if c.failed > 0 {
		text += fmt.Sprintf(", %s failed", quantity.Count(c.failed))
	}
	if c.dead > 0 {
		text += fmt.Sprintf(", %s dead", quantity.Count(c.dead))
	}
	if c.lost > 0 {
		text += fmt.Sprintf(", %s lost", quantity.Count(c.lost))
	}
	if c.stale > 0 {
		text += fmt.Sprintf(", %s settled too late", quantity.Count(c.stale))
	}
	return text + fmt.Sprintf(", in %v", time.Since(c.began).Round(time.Millisecond))
}

// room is how many more may be taken, at most n.
func (c *consumption) room(n int) int {
	if c.f.max.n > 0 {
		n = min(n, int(c.f.max.n)-c.taken)
	}
	return n
}

// receive asks for at most n deliveries. The first look of a member that kept
// its session has no request id: it shows what is outstanding.
func (c *consumption) receive(ctx context.Context, n int, wait time.Duration) ([]*strandmqv1.Delivery, error) {
	id := ""
	if c.asked || !c.peek {
		id = newRequestID()
	}
	out, err := c.m.receive(ctx, id, n, wait)
	c.asked = true
	c.took(len(out))
	return out, err
}

// took counts what came.
func (c *consumption) took(n int) {
	c.taken += n
	if n > 0 {
		c.idleTold, c.waited = nil, false
	}
}

// pollTime is how long a Receive waits: short when an empty answer is news, and never
// long, since the broker takes a member that waits for one that lives: a process that
// stands still is missed when this is over, and then the session timeout.
func (c *consumption) pollTime() time.Duration {
	switch {
	case c.f.untilEmpty:
		return 200 * time.Millisecond
	case !c.waited:
		return time.Second // then it is told why there is nothing
	}
	return 5 * time.Second
}

// finished judges an empty answer under --until-empty.
func (c *consumption) finished(ctx context.Context) (bool, error) {
	if !c.f.untilEmpty {
		return false, nil
	}
	if c.peek {
		return true, nil // nothing is settled, so nothing would ever be empty
	}
	res, err := ask(ctx, c.m.api.groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: c.m.topic, Group: c.m.group})
	if err != nil {
		return false, err
	}
	c.elsewhere = leftElsewhere(res, c.m.name)
	n := res.GetCounts()
	var unread uint64 // behind what is damaged
	var why string
	for _, p := range res.GetPartitions() {
		for _, s := range p.GetStalls() {
			if s.GetReason() == "PARTITION_DAMAGED" && s.GetWaiting() > 0 {
				unread += s.GetWaiting()
				why = s.GetText()
			}
		}
	}
	switch {
	case unread > 0 && unread == n.GetLag():
		return true, fmt.Errorf("the rest was consumed, but %s", why)
	case n.GetLag() == 0:
		for _, p := range res.GetPartitions() {
			for _, s := range p.GetStalls() {
				if r := s.GetReason(); r == "PARTITION_DAMAGED" || r == "NEWER_FORMAT" {
					return true, fmt.Errorf("the rest was consumed, but %s", s.GetText())
				}
			}
		}
		return true, nil
	case res.GetGroup().GetPaused():
		return true, fmt.Errorf("group %s is paused with %d messages left: 'strandmq group resume %s %s' starts it again",
			c.m.group, n.GetLag(), c.m.topic, c.m.group)
	case n.GetLag() == n.GetParked():
		return true, fmt.Errorf("%d messages are parked behind dead letters of their keys: replay or discard those ('strandmq dead list %s %s')",
			n.GetParked(), c.m.topic, c.m.group)
	}
	return false, nil
}

// print prints deliveries and acks each batch when it is printed.
func (c *consumption) print(ctx context.Context) error {
	for {
		n := c.room(500)
		if n == 0 {
			return nil
		}
		got, err := c.receive(ctx, n, c.pollTime())
		if ctx.Err() != nil {
			return nil // what came is given back by leaving
		}
		if err != nil {
			return err
		}
		for _, d := range got {
			if err := c.printDelivery(d); err != nil {
				return err
			}
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
		if len(got) == 0 {
			if done, err := c.finished(ctx); done || err != nil {
				return err
			}
			c.sayIdle()
			continue
		}
		if c.peek {
			continue
		}
		acks := make([]*strandmqv1.Settlement, len(got))
		for i, d := range got {
			acks[i] = &strandmqv1.Settlement{Token: d.GetToken(), Action: strandmqv1.SettleAction_SETTLE_ACTION_ACK}
		}
		// Printed is handled: the acks go out even after Ctrl-C.
		results, err := c.m.settle(context.WithoutCancel(ctx), acks)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.GetProblem() == nil {
				c.acked++
			} else {
				c.stale++
			}
		}
		// Fewer than could have come: perhaps that was all. Asking for the counts
		// now and then costs less than waiting for an empty answer.
		if len(got) < n && time.Since(c.looked) > 200*time.Millisecond {
			c.looked = time.Now()
			if done, err := c.finished(ctx); done || err != nil {
				return err
			}
		}
	}
}

func (c *consumption) printDelivery(d *strandmqv1.Delivery) error {
	if c.a.json() {
		raw, err := marshal(d)
		if err != nil {
			return err
		}
		_, err = c.out.Write(append(raw, '\n'))
		return err
	}
	_, err := fmt.Fprintf(c.out, "%d/%d\t%s\t%s\n", d.GetPartition(), d.GetOffset(), keyText(d.GetMessage()), plain.Text(string(body(d.GetMessage()))))
	return err
}
