package main

import (
	"encoding/base64"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (a *app) deadCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "dead",
		Short: "List, get, replay and discard a group's dead letters",
		Long: `A message that used up its attempts in a group, or was rejected, is a dead letter
of that group, with key, headers, body and the history of its attempts.`,
		Example: `  strandmq dead list orders billing
  strandmq dead get orders billing --partition 3 --offset 17
  strandmq dead replay orders billing --all`,
	}, a.deadList(), a.deadGet(), a.deadReplay(), a.deadDiscard())
}

// selector picks dead letters.
type selector struct {
	id, key, keyBase64 string
	partition          countFlag
	offset             positionFlag
	all                bool
	many               bool // keys and all can be picked
}

func (s *selector) flags(c *cobra.Command, many bool) {
	s.many = many
	f := c.Flags()
	f.StringVar(&s.id, "id", "", "the message with this id")
	f.Var(&s.partition, "partition", "with --offset: the message's partition")
	f.Lookup("partition").DefValue = ""
	f.Var(&s.offset, "offset", "with --partition: the message's place in the log: "+messageGrammar)
	if many {
		f.StringVar(&s.key, "key", "", "all of this key")
		f.StringVar(&s.keyBase64, "key-base64", "", "all of this key, given in base64")
		f.BoolVar(&s.all, "all", false, "all of the group")
	}
}

// selected gives the selector of the flags, of which exactly one must be set.
func selected(cmd *cobra.Command, s *selector) (*strandmqv1.DeadLetterSelector, error) {
	set := cmd.Flags().Changed
	var out *strandmqv1.DeadLetterSelector
	n := 0
	pick := func(sel *strandmqv1.DeadLetterSelector) { out = sel; n++ }
	if set("id") {
		pick(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Id{Id: s.id}})
	}
	if s.many && set("key") {
		pick(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Key{Key: s.key}})
	}
	if s.many && set("key-base64") {
		raw, err := base64.StdEncoding.DecodeString(s.keyBase64)
		if err != nil {
			return nil, usagef("--key-base64: %v", err)
		}
		pick(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_KeyBytes{KeyBytes: raw}})
	}
	if s.many && s.all {
		pick(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}})
	}
	if set("partition") || set("offset") {
		if !set("partition") || !set("offset") {
			return nil, usagef("--partition and --offset belong together")
		}
		place, err := place(s.partition.n, &s.offset)
		if err != nil {
			return nil, err
		}
		pick(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{Place: place}})
	}
	if n != 1 {
		if s.many {
			return nil, usagef("say which, in one way: --id, --key, --key-base64, --partition with --offset, or --all")
		}
		return nil, usagef("say which, in one way: --id, or --partition with --offset")
	}
	return out, nil
}

func (a *app) deadList() *cobra.Command {
	var most countFlag
	most.n = 100
	most.least = 1
	c := command(&cobra.Command{
		Use:     "list TOPIC GROUP",
		Aliases: []string{"ls"},
		Short:   "List a group's dead letters by partition and offset",
		Example: `  strandmq dead list orders billing
  strandmq dead list orders billing --max 1000 --output json | jq -r '.deadLetters[].message.key'`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		api := a.dial()
		all := &strandmqv1.ListDeadLettersResponse{}
		for uint32(len(all.GetDeadLetters())) < most.n {
			res, err := ask(cmd.Context(), api.dead.ListDeadLetters, &strandmqv1.ListDeadLettersRequest{
				Topic: args[0], Group: args[1],
				PageSize: min(1000, most.n-uint32(len(all.GetDeadLetters()))), PageToken: all.GetNextPageToken(),
			})
			if err != nil {
				return err
			}
			all.DeadLetters = append(all.DeadLetters, res.GetDeadLetters()...)
			all.LeftOut, all.Behind = res.GetLeftOut(), res.GetBehind()
			all.NextPageToken, all.Total = res.GetNextPageToken(), res.GetTotal()
			if res.GetNextPageToken() == "" {
				break
			}
		}
		a.tellLeftOut(all.GetLeftOut(), "whose dead letters cannot be read")
		return a.show(all, func() error {
			t := table.Table{Head: []string{"PARTITION", "OFFSET", "KEY", "ATTEMPTS", "DEAD SINCE", "STATE", "REASON"}, Right: []int{0, 1, 3}}
			for _, d := range all.GetDeadLetters() {
				state := "dead"
				if d.GetReplaying() {
					state = "replaying"
				}
				t.Add(d.GetPartition(), d.GetOffset(), keyText(d.GetMessage()), d.GetAttempts(), stamp(d.GetDeadSince()), state, plain.Short(d.GetReason(), 80))
			}
			if err := a.printTable(&t, "Group "+args[1]+" has no dead letters."); err != nil {
				return err
			}
			if shown := uint64(len(t.Rows)); shown > 0 && all.GetTotal() > shown {
				a.talk("%d more: ask with a larger --max", all.GetTotal()-shown)
			}
			return nil
		})
	})
	c.Flags().Var(&most, "max", "list at most so many")
	return c
}

func (a *app) deadGet() *cobra.Command {
	var which selector
	c := command(&cobra.Command{
		Use:   "get TOPIC GROUP",
		Short: "Show one dead letter with its attempts",
		Example: `  strandmq dead get orders billing --id 7f3c
  strandmq dead get orders billing --partition 3 --offset 17 --output json
  strandmq dead get orders billing --partition 3 --offset -1`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		sel, err := selected(cmd, &which)
		if err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().dead.GetDeadLetter, &strandmqv1.GetDeadLetterRequest{Topic: args[0], Group: args[1], Which: sel})
		if err != nil {
			return err
		}
		return a.show(res, func() error { return a.deadLetter(res.GetDeadLetter()) })
	})
	which.flags(c, false)
	return c
}

func (a *app) deadLetter(d *strandmqv1.DeadLetter) error {
	m := d.GetMessage()
	a.facts(
		"topic", d.GetTopic(),
		"group", d.GetGroup(),
		"place", fmt.Sprintf("partition %d, offset %d", d.GetPartition(), d.GetOffset()),
		"key", keyText(m),
		"id", orDash(m.GetId()),
		"published", stamp(m.GetPublishTime()),
		"first handed out", stamp(d.GetFirstSeen()),
		"dead since", stamp(d.GetDeadSince()),
		"attempts", fmt.Sprint(d.GetAttempts()),
		"reason", orDash(d.GetReason()),
	)
	if d.GetReplaying() {
		a.facts("state", "waits to be delivered again")
	}
	for _, h := range m.GetHeaders() {
		a.facts("header "+h.GetName(), headerValue(h))
	}
	a.facts("body", plain.Short(string(body(m)), 2000))
	fmt.Fprintln(a.out)
	t := table.Table{Head: []string{"ATTEMPT", "MEMBER", "HANDED OUT", "ENDED", "OUTCOME", "REASON"}, Right: []int{0}}
	for _, h := range d.GetHistory() {
		t.Add(h.GetAttempt(), h.GetMember(), stamp(h.GetHandedOut()), stamp(h.GetEnded()), h.GetOutcome(), orDash(h.GetReason()))
	}
	return a.printTable(&t, "")
}

func (a *app) deadReplay() *cobra.Command {
	var which selector
	c := command(&cobra.Command{
		Use:   "replay TOPIC GROUP",
		Short: "Hand dead letters to their group again",
		Long: `Hands dead letters to their own group again, and to no other: with their id,
offset and headers, in key order, with fresh attempts. Asking again for what
already waits adds nothing.`,
		Example: `  strandmq dead replay orders billing --id 7f3c
  strandmq dead replay orders billing --key customer-12
  strandmq dead replay orders billing --partition 3 --offset 17
  strandmq dead replay orders billing --all`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		sel, err := selected(cmd, &which)
		if err != nil {
			return err
		}
		res, err := ask(cmd.Context(), a.dial().dead.ReplayDeadLetters, &strandmqv1.ReplayDeadLettersRequest{Topic: args[0], Group: args[1], Which: sel})
		if err != nil {
			return err
		}
		a.talk("%d to be delivered again, %d already were", res.GetReplayed(), res.GetAlready())
		a.tellLeftOut(res.GetLeftOut(), "whose dead letters stay")
		return a.show(res, func() error { return nil })
	})
	which.flags(c, true)
	return c
}

func (a *app) deadDiscard() *cobra.Command {
	var which selector
	var confirm string
	c := command(&cobra.Command{
		Use:   "discard TOPIC GROUP",
		Short: "Give dead letters up; a parked key flows on",
		Long: `Gives dead letters up for good. For --all, the group's name has to be typed
again: at a terminal by hand, elsewhere with --confirm.`,
		Example: `  strandmq dead discard orders billing --id 7f3c
  strandmq dead discard orders billing --partition 3 --offset @2026-11-29T08:00:00Z
  strandmq dead discard orders billing --all --confirm billing`,
		Args: exact("TOPIC", "GROUP"),
	}, func(cmd *cobra.Command, args []string) error {
		sel, err := selected(cmd, &which)
		if err != nil {
			return err
		}
		if which.all {
			if err := a.knownGroup(cmd, args); err != nil {
				return err
			}
			if err := a.confirmed(cmd.Context(), args[1], confirm, "Discarding all dead letters of group "+args[1]); err != nil {
				return err
			}
			confirm = args[1]
		}
		res, err := ask(cmd.Context(), a.dial().dead.DiscardDeadLetters, &strandmqv1.DiscardDeadLettersRequest{
			Topic: args[0], Group: args[1], Which: sel, Confirm: confirm,
		})
		if err != nil {
			return err
		}
		a.talk("%d given up", res.GetDiscarded())
		a.tellLeftOut(res.GetLeftOut(), "whose dead letters stay")
		return a.show(res, func() error { return nil })
	})
	which.flags(c, true)
	c.Flags().StringVar(&confirm, "confirm", "", "for --all: the group's name again")
	return c
}
