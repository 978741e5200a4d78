package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) traceCommand() *cobra.Command {
	var id string
	var partition countFlag
	var offset positionFlag
	c := command(&cobra.Command{
		Use:   "trace TOPIC (--id ID | --partition P --offset O)",
		Short: "Print one message's life in every group",
		Long: `Prints a message's life, read back from the log: when it was published, each
hand-out with member and attempt, nacks with their reasons, waits, its ack or
death, and replays; then where it stands in each group. The offset is one of
` + messageGrammar + `.`,
		Example: `  strandmq trace orders --id 7f3c
  strandmq trace orders --partition 3 --offset 17
  strandmq trace orders --partition 3 --offset -1 --output json
  strandmq trace orders --partition 3 --offset @-15m`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		set := cmd.Flags().Changed
		req := &strandmqv1.TraceRequest{Topic: args[0]}
		switch {
		case set("id") && !set("partition") && !set("offset"):
			req.Which = &strandmqv1.TraceRequest_Id{Id: id}
		case !set("id") && set("partition") && set("offset"):
			place, err := place(partition.n, &offset)
			if err != nil {
				return err
			}
			req.Which = &strandmqv1.TraceRequest_Place{Place: place}
		default:
			return usagef("say which message: --id, or --partition and --offset")
		}
		res, err := ask(cmd.Context(), a.dial().trace.Trace, req)
		if err != nil {
			return err
		}
		return a.show(res, func() error {
			for i, m := range res.GetMessages() {
				if i > 0 {
					fmt.Fprintln(a.out)
				}
				if err := a.life(m); err != nil {
					return err
				}
			}
			return nil
		})
	})
	c.Flags().StringVar(&id, "id", "", "the message's id")
	c.Flags().Var(&partition, "partition", "the message's partition")
	c.Flags().Lookup("partition").DefValue = ""
	c.Flags().Var(&offset, "offset", "the message's place: "+messageGrammar)
	return c
}

func (a *app) life(m *strandmqv1.MessageTrace) error {
	a.facts(
		"place", fmt.Sprintf("partition %d, offset %d", m.GetPartition(), m.GetOffset()),
		"key", keyText(m.GetMessage()),
		"id", orDash(m.GetMessage().GetId()),
		"body", plain.Short(string(body(m.GetMessage())), 200),
	)
	fmt.Fprintln(a.out)
	events := table.Table{Head: []string{"TIME", "LOG", "GROUP", "WHAT", "MEMBER", "ATTEMPT", "MORE"}, Right: []int{1, 5}}
	for _, e := range m.GetEvents() {
		attempt := "-"
		if e.GetAttempt() > 0 {
			attempt = fmt.Sprint(e.GetAttempt())
		}
		events.Add(stamp(e.GetTime()), e.GetLogIndex(), orDash(e.GetGroup()), e.GetWhat(), orDash(e.GetMember()), attempt, orDash(e.GetDetail()))
	}
	if err := a.printTable(&events, ""); err != nil {
		return err
	}
	if m.GetTruncated() {
		a.talk("there is more: the events were cut at the broker's limit")
	}
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
