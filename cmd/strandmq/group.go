package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/offsets"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) groupCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "group",
		Short: "Create, list, describe, alter, reset, pause, resume and delete consumer groups",
		Long: `A group reads all of a topic, with acknowledgements, attempts and dead letters
of its own. Its members share the work.`,
		Example: `  strandmq group create orders billing --max-attempts 10
  strandmq group list
  strandmq group describe orders billing
  strandmq group reset orders billing --to @-15m --dry-run`,
	}, a.groupCreate(), a.groupList(), a.groupDescribe(), a.groupAlter(), a.groupReset(),
		a.groupPause(), a.groupResume(), a.groupDelete())
}

// policyFlags are the flags of what can be set of a group.
type policyFlags struct {
	mode, exhausted                           string
	ackDeadline, maxHold, backoff, backoffMax spanFlag
	attempts                                  countFlag
	memberLimit, partitionLimit               countFlag
	deferred, deferredKey                     countFlag
	breaker, breakerKeys                      countFlag
	breakerWindow                             spanFlag
	atMostOnce                                bool
	retention                                 string
	holdBytes                                 sizeFlag
	holdAge                                   spanFlag
}

func (p *policyFlags) flags(c *cobra.Command, defaults bool) {
	def := func(text string) string {
		if defaults {
			return " (default " + text + ")"
		}
		return ""
	}
	f := c.Flags()
	f.StringVar(&p.mode, "mode", "", "order: key, partition or none"+def("key"))
	f.Var(&p.ackDeadline, "ack-deadline", "a delivery lapses after this long"+def("30s"))
	f.Var(&p.maxHold, "max-hold", "the longest that a delivery can be held by extending it"+def("10m"))
	f.Var(&p.attempts, "max-attempts", "attempts before a message is a dead letter; 0: never"+def("5"))
	f.Var(&p.backoff, "backoff", "the wait before the second attempt; it doubles"+def("200ms"))
	f.Var(&p.backoffMax, "backoff-max", "the most that the wait grows to"+def("5m"))
	f.StringVar(&p.exhausted, "on-exhaustion", "", "skip: the key flows on; park: its later messages wait for replay or discard"+def("skip"))
	f.Var(&p.memberLimit, "max-in-flight-member", "the most deliveries that a member may hold"+def("1000"))
	f.Var(&p.partitionLimit, "max-in-flight-partition", "the most deliveries that a partition may have out"+def("10000"))
	f.Var(&p.deferred, "max-deferred", "the most messages of a partition that wait behind blocked keys"+def("2000000"))
	f.Var(&p.deferredKey, "max-deferred-key", "so many messages that wait behind one key are an alarm"+def("10000"))
	f.Var(&p.breaker, "breaker-failed-percent", "when so many of the last deliveries failed, try one message at a time and charge nothing; 0: never"+def("90"))
	f.Var(&p.breakerKeys, "breaker-keys", "and they were of so many keys at least"+def("20"))
	f.Var(&p.breakerWindow, "breaker-window", "how far that looks back"+def("30s"))
	f.BoolVar(&p.atMostOnce, "at-most-once", false, "the hand-out settles: nothing is retried")
	f.StringVar(&p.retention, "retention", "", "expire: lose what the topic's limits remove, with a record; hold: keep it, up to the limits below"+def("expire"))
	f.Var(&p.holdBytes, "hold-limit-bytes", "hold: how much of a partition is kept beyond the topic's limits, whole batches; 0: without limit"+def("1GiB"))
	f.Var(&p.holdAge, "hold-limit-age", "hold: the oldest message that is kept; 0: of any age"+def("0"))
	for _, name := range []string{
		"hold-limit-bytes", "hold-limit-age", "ack-deadline", "max-hold", "max-attempts", "backoff", "backoff-max", "max-in-flight-member",
		"max-in-flight-partition", "max-deferred", "max-deferred-key", "breaker-failed-percent", "breaker-keys", "breaker-window",
	} {
		f.Lookup(name).DefValue = ""
	}
	must(c.RegisterFlagCompletionFunc("mode", words("key", "partition", "none")))
	must(c.RegisterFlagCompletionFunc("on-exhaustion", words("skip", "park")))
	must(c.RegisterFlagCompletionFunc("retention", words("expire", "hold")))
}

// policy has what was set on the command line.
func (p *policyFlags) policy(c *cobra.Command) (*strandmqv1.GroupPolicy, error) {
	out := &strandmqv1.GroupPolicy{}
	set := c.Flags().Changed
	if set("mode") {
		mode, ok := map[string]strandmqv1.GroupMode{
			"key":       strandmqv1.GroupMode_GROUP_MODE_KEY,
			"partition": strandmqv1.GroupMode_GROUP_MODE_PARTITION,
			"none":      strandmqv1.GroupMode_GROUP_MODE_NONE,
		}[p.mode]
		if !ok {
			return nil, usagef("--mode %q: choose key, partition or none", p.mode)
		}
		out.Mode = mode
	}
	if set("on-exhaustion") {
		on, ok := map[string]strandmqv1.OnExhaustion{
			"skip": strandmqv1.OnExhaustion_ON_EXHAUSTION_SKIP,
			"park": strandmqv1.OnExhaustion_ON_EXHAUSTION_PARK,
		}[p.exhausted]
		if !ok {
			return nil, usagef("--on-exhaustion %q: choose skip or park", p.exhausted)
		}
		out.OnExhaustion = on
	}
	if set("retention") {
		keep, ok := map[string]strandmqv1.GroupRetention{
			"expire": strandmqv1.GroupRetention_GROUP_RETENTION_EXPIRE,
			"hold":   strandmqv1.GroupRetention_GROUP_RETENTION_HOLD,
		}[p.retention]
		if !ok {
			return nil, usagef("--retention %q: choose expire or hold", p.retention)
		}
		out.Retention = keep
	}
	if set("hold-limit-bytes") {
		out.HoldLimitBytes = proto.Uint64(uint64(p.holdBytes.n))
	}
	for _, s := range []struct {
		name string
		flag *spanFlag
		into **int64
	}{
		{"ack-deadline", &p.ackDeadline, &out.AckDeadlineMs},
		{"max-hold", &p.maxHold, &out.MaxHoldMs},
		{"backoff", &p.backoff, &out.BackoffMs},
		{"backoff-max", &p.backoffMax, &out.BackoffMaxMs},
		{"breaker-window", &p.breakerWindow, &out.BreakerWindowMs},
		{"hold-limit-age", &p.holdAge, &out.HoldLimitMs},
	} {
		if set(s.name) {
			ms, err := millis(s.name, s.flag.d)
			if err != nil {
				return nil, err
			}
			*s.into = ms
		}
	}
	for _, n := range []struct {
		name string
		flag *countFlag
		into **uint32
	}{
		{"max-attempts", &p.attempts, &out.MaxAttempts},
		{"max-in-flight-member", &p.memberLimit, &out.MaxInFlightMember},
		{"max-in-flight-partition", &p.partitionLimit, &out.MaxInFlightPartition},
		{"max-deferred", &p.deferred, &out.MaxDeferred},
		{"max-deferred-key", &p.deferredKey, &out.MaxDeferredKey},
		{"breaker-failed-percent", &p.breaker, &out.BreakerFailedPercent},
		{"breaker-keys", &p.breakerKeys, &out.BreakerKeys},
	} {
		if set(n.name) {
			*n.into = proto.Uint32(n.flag.n)
		}
	}
	if set("at-most-once") {
		out.AtMostOnce = proto.Bool(p.atMostOnce)
	}
	return out, nil
}

func modeText(m strandmqv1.GroupMode) string {
	return strings.ToLower(strings.TrimPrefix(m.String(), "GROUP_MODE_"))
}

func retentionText(p *strandmqv1.GroupPolicy) string {
	if p.GetRetention() != strandmqv1.GroupRetention_GROUP_RETENTION_HOLD {
		return "expire"
	}
	text := "hold, " + limit(int64(p.GetHoldLimitBytes()), quantity.FormatSize(int64(p.GetHoldLimitBytes()))+" a partition")
	if ms := p.GetHoldLimitMs(); ms > 0 {
		text += ", not older than " + quantity.FormatSpan(span(ms))
	}
	return text
}

func (a *app) groupFacts(g *strandmqv1.Group) {
	p := g.GetPolicy()
	attempts := strconv.Itoa(int(p.GetMaxAttempts()))
	if p.GetMaxAttempts() == 0 {
		attempts = "without limit"
	}
	state := "running"
	if g.GetPaused() {
		state = "paused"
	}
	pairs := []string{
		"group", g.GetName(),
		"topic", g.GetTopic(),
		"state", state,
		"mode", modeText(p.GetMode()),
		"ack deadline", quantity.FormatSpan(span(p.GetAckDeadlineMs())),
		"max hold", quantity.FormatSpan(span(p.GetMaxHoldMs())),
		"attempts", attempts,
		"backoff", quantity.FormatSpan(span(p.GetBackoffMs())) + ", doubling up to " + quantity.FormatSpan(span(p.GetBackoffMaxMs())),
		"on exhaustion", strings.ToLower(strings.TrimPrefix(p.GetOnExhaustion().String(), "ON_EXHAUSTION_")),
		"in flight at most", fmt.Sprintf("%d a member, %d a partition", p.GetMaxInFlightMember(), p.GetMaxInFlightPartition()),
		"deferred at most", fmt.Sprintf("%d a partition, alarm at %d a key", p.GetMaxDeferred(), p.GetMaxDeferredKey()),
		"retention", retentionText(p),
		"created", stamp(g.GetCreated()),
	}
	opens := "never"
	if n := p.GetBreakerFailedPercent(); n > 0 {
		opens = fmt.Sprintf("at %d %% failed within %s, over %d keys", n, quantity.FormatSpan(span(p.GetBreakerWindowMs())), p.GetBreakerKeys())
	}
	pairs = append(pairs, "circuit opens", opens)
	if p.GetAtMostOnce() {
		pairs = append(pairs, "delivery", "at most once")
	}
	a.facts(pairs...)
}

func (a *app) groupCreate() *cobra.Command {
	var policy policyFlags
	var from positionFlag
	c := command(&cobra.Command{
		Use:   "create TOPIC GROUP",
		Short: "Create a group",
		Long: `Creates a group and ends when every partition knows it. Creating it again with
the policy that it has now succeeds; what is not given stands for the default.
--from says where it starts:
` + offsets.Grammar + `.
` + offsets.Outside,
		Example: `  strandmq group create orders billing
  strandmq group create orders audit --from latest --max-attempts 0
  strandmq group create orders strict --mode partition --on-exhaustion park`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		p, err := policy.policy(cmd)
		if err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().groups.CreateGroup, &strandmqv1.CreateGroupRequest{
			Topic: args[0], Group: args[1], Policy: p, Start: from.wire(time.Now()),
		})
		if err != nil {
			return inFlags(cmd, err)
		}
		if res.GetExisted() {
			a.talk("group %s was there already, with this policy", args[1])
		} else {
			a.talk("group %s created", args[1])
		}
		a.tellLeftOut(res.GetLeftOut(), toldLater)
		return a.show(res, func() error { a.groupFacts(res.GetGroup()); return nil })
	})
	policy.flags(c, true)
	c.Flags().Var(&from, "from", "where to start: "+offsets.Grammar+" (default earliest)")
	return c
}

func (a *app) groupList() *cobra.Command {
	return command(&cobra.Command{
		Use:     "list [TOPIC]",
		Aliases: []string{"ls"},
		Short:   "List the groups of a topic, or all",
		Example: `  strandmq group list
  strandmq group list orders --output json | jq '.groups[].counts.lag'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exact("TOPIC")(cmd, args)
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string) error {
		req := &strandmqv1.ListGroupsRequest{}
		if len(args) == 1 {
			req.Topic = args[0]
		}
		res, err := ask(cmd.Context(), a.dial().groups.ListGroups, req)
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			t := table.Table{
				Head:  []string{"TOPIC", "GROUP", "MODE", "STATE", "MEMBERS", "LAG", "IN FLIGHT", "DEAD", "ACKED"},
				Right: []int{4, 5, 6, 7, 8},
			}
			for _, g := range res.GetGroups() {
				state := "running"
				if g.GetGroup().GetPaused() {
					state = "paused"
				}
				n := g.GetCounts()
				count := func(n uint64) string { return strconv.FormatUint(n, 10) }
				switch left := g.GetLeftOut(); {
				case n == nil:
					count = func(uint64) string { return "?" }
				case len(left) > 0:
					count = func(n uint64) string { return strconv.FormatUint(n, 10) + " + ?" }
				}
				if left := g.GetLeftOut(); len(left) > 0 {
					state += ", " + stoppedWord(left[0].GetProblem().GetReason()) + ": " + leftOutText(left)
				}
				t.Add(g.GetGroup().GetTopic(), g.GetGroup().GetName(), modeText(g.GetGroup().GetPolicy().GetMode()), state,
					g.GetMembers(), count(n.GetLag()), count(n.GetInFlight()), count(n.GetDead()), count(n.GetAcked()))
			}
			return a.printTable(&t, "There are no groups yet: 'strandmq consume TOPIC --group NAME' makes one.")
		})
	})
}

func (a *app) groupDescribe() *cobra.Command {
	return command(&cobra.Command{
		Use:   "describe TOPIC GROUP",
		Short: "Show a group's policy, members, counts, and why anything stalls",
		Long: `Shows a group's policy and members, and splits each partition's messages into
ready, blocked by an earlier one of their key, in flight, backing off, parked
behind a dead letter, dead, acked, skipped (by a reset, a discard, or retention), and
not scanned yet. The numbers of a partition are taken at one position of its log and
add up. For whatever waits, it
names the key, the offset and until when; for what retention took before it was
settled, how many, which, and why. Behind the members it says when and why the
partitions were assigned anew, such as that a member joined.`,
		Example: `  strandmq group describe orders billing
  strandmq group describe orders billing --output json | jq .counts`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: args[0], Group: args[1]})
		if err != nil {
			return err
		}
		return a.show(res, func() error { return a.groupDescription(res) })
	})
}

func (a *app) groupDescription(res *strandmqv1.DescribeGroupResponse) error {
	a.groupFacts(res.GetGroup())
	fmt.Fprintln(a.out)
	counts := table.Table{
		Head: []string{
			"PARTITION", "FLOOR", "SCANNED", "NEXT", "READY", "BLOCKED", "IN FLIGHT", "BACKING OFF", "PARKED",
			"DEAD", "ACKED", "SKIPPED", "NOT SCANNED", "LAG",
		},
		Right: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
	}
	add := func(name, floor, scanned, end any, n *strandmqv1.GroupCounts) {
		counts.Add(name, floor, scanned, end, n.GetReady(), n.GetBlocked(), n.GetInFlight(), n.GetBackingOff(),
			n.GetParked(), n.GetDead(), n.GetAcked(), n.GetSkipped(), n.GetNotScanned(), n.GetLag())
	}
	for _, p := range res.GetPartitions() {
		if p.GetCounts() == nil {
			word := "damaged"
			for _, l := range res.GetLeftOut() {
				if l.GetPartition() == p.GetPartition() {
					word = stoppedWord(l.GetProblem().GetReason())
				}
			}
			counts.Add(p.GetPartition(), word, "?", "?", "?", "?", "?", "?", "?", "?", "?", "?", "?", "?")
			continue
		}
		add(p.GetPartition(), p.GetFloor(), p.GetScanned(), p.GetEnd(), p.GetCounts())
	}
	switch left := res.GetLeftOut(); {
	case res.GetCounts() == nil: // nothing to add up
	case len(left) > 0:
		add("all but "+leftOutText(left), "", "", "", res.GetCounts())
	default:
		add("all", "", "", "", res.GetCounts())
	}
	if err := a.printTable(&counts, ""); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	members := table.Table{Head: []string{"MEMBER", "PARTITIONS", "IN FLIGHT", "JOINED", "LAST SEEN"}, Right: []int{2}}
	for _, m := range res.GetMembers() {
		partitions := sharesText(m.GetAssignment())
		switch {
		case m.GetAway():
			partitions = "away"
		case m.GetDraining():
			partitions = "draining"
		}
		members.Add(m.GetName(), partitions, m.GetInFlight(), stamp(m.GetJoined()), stamp(m.GetLastSeen()))
	}
	if len(members.Rows) == 0 {
		fmt.Fprintln(a.out, "members: none")
	} else if err := a.printTable(&members, ""); err != nil {
		return err
	}
	if x := res.GetAssignment(); x.GetReason() != "" {
		fmt.Fprintf(a.out, "assigned by generation %d, %s: %s\n", x.GetGeneration(), stamp(x.GetChanged()), x.GetReason())
	}
	losses := table.Table{Head: []string{"PARTITION", "LOST", "FIRST", "LAST", "TO THE LIMIT OF", "FROM", "UNTIL"}, Right: []int{0, 1, 2, 3}}
	copies := table.Table{Head: []string{"PARTITION", "COPIED DEAD LETTERS", "SIZE"}, Right: []int{0, 1, 2}}
	for _, p := range res.GetPartitions() {
		for _, l := range p.GetLosses() {
			losses.Add(p.GetPartition(), l.GetCount(), l.GetFirst(), l.GetLast(), l.GetCause(), stamp(l.GetFrom()), stamp(l.GetUntil()))
		}
		if p.GetCopiedDead() > 0 {
			copies.Add(p.GetPartition(), p.GetCopiedDead(), quantity.RoughSize(p.GetCopiedDeadBytes()))
		}
	}
	circuits := table.Table{Head: []string{"PARTITION", "CIRCUIT", "OPENED", "NEXT TRY"}, Right: []int{0, 2}}
	for _, p := range res.GetPartitions() {
		c := p.GetCircuit()
		if c.GetOpened() == 0 {
			continue
		}
		state := "closed"
		if c.GetOpen() {
			state = "open"
		}
		circuits.Add(p.GetPartition(), state, c.GetOpened(), stamp(c.GetUntil()))
	}
	for _, t := range []*table.Table{&losses, &copies, &circuits} {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprintln(a.out)
		if err := a.printTable(t, ""); err != nil {
			return err
		}
	}
	stalls := table.Table{Head: []string{"PARTITION", "WAITS FOR", "KEY", "OFFSET", "ATTEMPTS", "WAITING", "UNTIL", "MORE"}, Right: []int{0, 3, 4, 5}}
	for _, p := range res.GetPartitions() {
		for _, s := range p.GetStalls() {
			stalls.Add(p.GetPartition(), s.GetReason(), orDash(s.GetKey()), s.GetOffset(), s.GetAttempts(), s.GetWaiting(), stamp(s.GetUntil()), s.GetText())
		}
	}
	if len(stalls.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	return a.printTable(&stalls, "")
}

// leftOutText is the numbers of partitions that an answer is without.
func leftOutText(left []*strandmqv1.LeftOut) string {
	numbers := make([]string, len(left))
	for i, l := range left {
		numbers[i] = strconv.FormatUint(uint64(l.GetPartition()), 10)
	}
	return strings.Join(numbers, ", ")
}

const toldLater = "which is told when it is back"

// tellLeftOut says which partitions an answer is without, and what becomes of them.
func (a *app) tellLeftOut(left []*strandmqv1.LeftOut, then string) {
	for _, l := range left {
		a.talk("without partition %d, %s: %s", l.GetPartition(), then, l.GetProblem().GetMessage())
	}
}

// sharesText prints an assignment: 0, 1, 2 (1 of 3).
func sharesText(shares []*strandmqv1.PartitionShare) string {
	var out []string
	for _, s := range shares {
		text := strconv.Itoa(int(s.GetPartition()))
		if s.GetShares() > 1 {
			text += fmt.Sprintf(" (%d of %d)", s.GetShare()+1, s.GetShares())
		}
		out = append(out, text)
	}
	return orDash(strings.Join(out, ", "))
}

func (a *app) groupAlter() *cobra.Command {
	var policy policyFlags
	c := command(&cobra.Command{
		Use:   "alter TOPIC GROUP",
		Short: "Change a group's policy",
		Long: `Changes what is given of the policy; the rest stays. Every partition has taken it
up in its log when the command ends.`,
		Example: `  strandmq group alter orders billing --max-attempts 10
  strandmq group alter orders billing --ack-deadline 2m --on-exhaustion park`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		p, err := policy.policy(cmd)
		if err != nil {
			return err
		}
		if proto.Size(p) == 0 {
			return usagef("nothing to change: see 'strandmq group alter --help' for what can be")
		}
		res, err := ask(cmd.Context(), a.dial().groups.AlterGroup, &strandmqv1.AlterGroupRequest{Topic: args[0], Group: args[1], Policy: p})
		if err != nil {
			return inFlags(cmd, err)
		}
		a.talk("group %s altered", args[1])
		a.tellLeftOut(res.GetLeftOut(), toldLater)
		return a.show(res, func() error { a.groupFacts(res.GetGroup()); return nil })
	})
	policy.flags(c, false)
	return c
}

func (a *app) groupReset() *cobra.Command {
	var to positionFlag
	var partition countFlag
	var dry bool
	c := command(&cobra.Command{
		Use:   "reset TOPIC GROUP --to POSITION",
		Short: "Move a group to another position",
		Long: `Moves a group, in every partition or in one. What was handed out and not settled
becomes stale, what is dead stays dead. The position is one of
` + offsets.Grammar + `.
` + offsets.Outside + `
--dry-run only says what would move.`,
		Example: `  strandmq group reset orders billing --to earliest
  strandmq group reset orders billing --to @-15m --dry-run
  strandmq group reset orders billing --to @2026-11-29T08:00:00Z
  strandmq group reset orders billing --to -100 --partition 3`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		if !to.set {
			return usagef("--to is missing: %s", offsets.Grammar)
		}
		req := &strandmqv1.ResetGroupRequest{Topic: args[0], Group: args[1], To: to.wire(time.Now()), DryRun: dry}
		if cmd.Flags().Changed("partition") {
			req.Partition = proto.Uint32(partition.n)
		}
		res, err := ask(cmd.Context(), a.dial().groups.ResetGroup, req)
		if err != nil {
			return err
		}
		if dry {
			a.talk("nothing was moved; without --dry-run this would be:")
		} else {
			a.talk("group %s moved", args[1])
		}
		a.tellLeftOut(res.GetLeftOut(), "where the group stays: reset it again when the partition is back")
		return a.show(res, func() error {
			t := table.Table{Head: []string{"PARTITION", "FROM", "TO"}, Right: []int{0, 1, 2}}
			for _, p := range res.GetPartitions() {
				t.Add(p.GetPartition(), p.GetFrom(), p.GetTo())
			}
			return a.printTable(&t, "")
		})
	})
	c.Flags().Var(&to, "to", "where to: "+offsets.Grammar)
	c.Flags().Var(&partition, "partition", "only this partition")
	c.Flags().Lookup("partition").DefValue = ""
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would move")
	return c
}

func (a *app) groupPause() *cobra.Command {
	return command(&cobra.Command{
		Use:     "pause TOPIC GROUP",
		Short:   "Stop handing out messages; settling goes on",
		Example: `  strandmq group pause orders billing`,
		Args:    exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().groups.PauseGroup, &strandmqv1.PauseGroupRequest{Topic: args[0], Group: args[1]})
		if err != nil {
			return err
		}
		a.talk("group %s paused: 'strandmq group resume %s %s' starts it again", args[1], args[0], args[1])
		a.tellLeftOut(res.GetLeftOut(), toldLater)
		return a.show(res, func() error { return nil })
	})
}

func (a *app) groupResume() *cobra.Command {
	return command(&cobra.Command{
		Use:     "resume TOPIC GROUP",
		Short:   "Start handing out messages again",
		Example: `  strandmq group resume orders billing`,
		Args:    exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		res, err := ask(cmd.Context(), a.dial().groups.ResumeGroup, &strandmqv1.ResumeGroupRequest{Topic: args[0], Group: args[1]})
		if err != nil {
			return err
		}
		a.talk("group %s runs", args[1])
		a.tellLeftOut(res.GetLeftOut(), toldLater)
		return a.show(res, func() error { return nil })
	})
}

func (a *app) groupDelete() *cobra.Command {
	var confirm string
	c := command(&cobra.Command{
		Use:   "delete TOPIC GROUP",
		Short: "Delete a group with its state and dead letters",
		Long: `Deletes a group: its position, attempts and dead letters. The topic's messages
stay. The name has to be typed again: at a terminal by hand, elsewhere with
--confirm.`,
		Example: `  strandmq group delete orders billing
  strandmq group delete orders billing --confirm billing`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		if err := a.knownGroup(cmd, args); err != nil {
			return err
		}
		if err := a.confirmed(cmd.Context(), args[1], confirm, "Deleting group "+args[1]+" of topic "+args[0]+" with its dead letters"); err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: args[0], Group: args[1], Confirm: args[1]})
		if err != nil {
			return err
		}
		a.talk("group %s deleted", args[1])
		a.tellLeftOut(res.GetLeftOut(), "which forgets the group when it is back")
		return a.show(res, func() error { return nil })
	})
	c.Flags().StringVar(&confirm, "confirm", "", "the group's name again")
	return c
}

// knownGroup refuses a group that does not exist, before its name has to be typed
// again. Without an answer it is asked for all the same.
func (a *app) knownGroup(cmd *cobra.Command, args []string) error {
	_, err := ask(cmd.Context(), a.dial().groups.DescribeGroup, &strandmqv1.DescribeGroupRequest{Topic: args[0], Group: args[1]})
	if isReason(err, "UNKNOWN_TOPIC") || isReason(err, "UNKNOWN_GROUP") {
		return err
	}
	return nil
}
