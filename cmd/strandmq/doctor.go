package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
)

// scope are the flags that say what is looked at.
type scope struct{ topic, group string }

func (s *scope) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.topic, "topic", "", "look at this topic and its groups only")
	c.Flags().StringVar(&s.group, "group", "", "with --topic: look at this group only")
}

func (s *scope) check() error {
	if s.group != "" && s.topic == "" {
		return usagef("--group needs --topic: groups of one name can be of several topics")
	}
	return nil
}

// known refuses a topic or group that was named and does not exist.
func (s *scope) known(f *doctor.Facts) error {
	switch {
	case f.Cluster.Behind != "": // which is worse, and why some of it may not be known
		return nil
	case s.group != "" && len(f.Groups) == 0 && !slices.ContainsFunc(f.Unreached, func(u doctor.Unreached) bool { return u.What == theGroups }):
		return fmt.Errorf("topic %s has no group %s: 'strandmq group list' shows those that there are", s.topic, s.group)
	case s.topic != "" && len(f.Topics) == 0 && len(f.Groups) == 0 && len(f.Unreached) > 0:
		return errors.New(f.Unreached[len(f.Unreached)-1].Why)
	}
	return nil
}

func (a *app) doctorCommand() *cobra.Command {
	var s scope
	var m oneMessage
	within := spanFlag{9 * time.Second}
	behind, watch := spanFlag{doctor.DefaultBehind}, spanFlag{3 * time.Second}
	c := command(&cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong, why, and what to do next",
		Long: `Looks at the nodes, topics and groups of a cluster twice, from any of its nodes, and
names what is wrong: causes, not symptoms, the heaviest first, each with the figures
that say so and the command to type next. What did not answer is named, and the rest
is judged without it. It changes nothing.

Of one message, with --id, or --partition and --offset, it says why it came twice: it
is stored twice, or was handed out again; and what it did not look at.

Exit codes: 0 nothing is wrong (notes are no fault), 1 something is, or nobody could be
asked, 2 wrong usage. docs/troubleshooting.md goes from symptoms to causes.`,
		Example: `  strandmq doctor
  strandmq doctor --topic orders --group billing
  strandmq doctor --topic orders --partition 3 --offset 17
  strandmq doctor --watch 30s --behind 5m
  strandmq doctor --output json | jq '.findings[0].cause'`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if err := s.check(); err != nil {
			return err
		}
		one, err := m.request(cmd, s.topic)
		if err != nil {
			return err
		}
		if behind.d <= 0 {
			return usagef("--behind 0: everything would be behind; use 1s or more")
		}
		if within.d <= 0 {
			return usagef("--timeout 0: nobody answers in no time; use 1s or more")
		}
		// The message is asked about meanwhile: there is one time for all.
		asking, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		message := make(chan aboutMessage, 1)
		if one != nil {
			go func() { message <- a.askMessage(asking, one, s.group, watch.d+within.d) }()
		}
		facts, err := a.inquire(cmd.Context(), s.topic, s.group, watch.d, within.d, true)
		if err == nil {
			err = s.known(facts)
		}
		if err != nil {
			cancel()
		}
		if one != nil {
			if t := <-message; err == nil {
				withMessage(facts, one, &t)
				err = t.err
			}
		}
		if err != nil {
			return err
		}
		found := doctor.Diagnose(facts, doctor.Options{Behind: behind.d})
		for _, f := range found {
			for i := range f.Next {
				f.Next[i] = a.advised(f.Next[i])
			}
		}
		if err := a.prescribe(facts, found); err != nil {
			return err
		}
		if doctor.Worst(found) > doctor.Note || len(facts.Unreached) > 0 {
			return &exit{code: exitFailed}
		}
		return nil
	})
	s.flags(c)
	m.flags(c)
	c.Flags().Var(&behind, "behind", "a group is asked why when its oldest message waits for so long")
	c.Flags().Var(&within, "timeout", "how long asking may take in all, beside --watch: what has not answered by then counts as not answering")
	c.Flags().Var(&watch, "watch", "how long to wait between two looks at what counts; 0: look once")
	return c
}

// advised is a command to go on with as one types it here: without the environment, it
// would go to another broker.
func (a *app) advised(command string) string {
	if !a.named {
		return command
	}
	return askedOf(command, a.servers)
}

// askedOf is a command that asks the brokers that this one was told to ask.
func askedOf(command string, servers []string) string {
	does, why, remark := strings.Cut(command, "    # ")
	words := strings.Fields(does)
	if len(words) < 2 || words[0] != "strandmq" || words[1] == "serve" || slices.Contains(words, "--server") || slices.Contains(words, "--of-server") {
		return command
	}
	does += " --server " + strings.Join(servers, ",")
	if remark {
		does += "    # " + why
	}
	return does
}

// prescribe prints the findings.
func (a *app) prescribe(f *doctor.Facts, found []doctor.Finding) error {
	if a.json() {
		return a.printValue(struct {
			Findings  []doctor.Finding   `json:"findings"`
			Unreached []doctor.Unreached `json:"unreached"`
			Nodes     int                `json:"nodes"`
			Topics    int                `json:"topics"`
			Groups    int                `json:"groups"`
			Watched   float64            `json:"watchedSeconds"`
		}{orNone(found), orNone(f.Unreached), len(f.Nodes), len(f.Topics), len(f.Groups), f.Apart.Seconds()})
	}
	for i, x := range found {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		fmt.Fprintf(a.out, "%s %s: %s\n", strings.ToUpper(x.Severity.String()), x.Cause, plain.Text(x.Text))
		for _, e := range x.Evidence {
			fmt.Fprintln(a.out, "  - "+plain.Text(e))
		}
		for i, n := range x.Next {
			word := "      "
			if i == 0 {
				word = "next: "
			}
			fmt.Fprintln(a.out, "  "+word+plain.Text(n))
		}
	}
	for _, u := range f.Unreached {
		a.talk("not asked: %s: %s", u.What, u.Why)
	}
	looked := fmt.Sprintf("%s, %s, %s", quantity.Some(len(f.Nodes), "node"), quantity.Some(len(f.Topics), "topic"), quantity.Some(len(f.Groups), "group"))
	switch {
	case doctor.Worst(found) > doctor.Note:
	case len(f.Unreached) > 0:
		fmt.Fprintf(a.out, "nothing is wrong in what could be asked: %s\n", looked)
	default:
		fmt.Fprintf(a.out, "nothing is wrong: %s\n", looked)
	}
	return nil
}

func orNone[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// printValue prints what is not the API's own.
func (a *app) printValue(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
