package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// completeTime bounds what a person waits for after pressing Tab.
const completeTime = 2 * time.Second

// A completer offers values, given the command with the flags that were typed so
// far, and the arguments. Where nobody answers there is nothing to offer: Tab
// shows no errors.
type completer func(ctx context.Context, cmd *cobra.Command, args []string) []string

// completions teaches the commands under c to complete their arguments, by the
// words of their usage lines, and the values of their flags, by name or type.
// What nothing is known of is never completed as the name of a file.
func (a *app) completions(c *cobra.Command) {
	for _, child := range c.Commands() {
		a.completions(child)
	}
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if _, known := c.GetFlagCompletionFunc(f.Name); !known && f.NoOptDefVal == "" {
				must(c.RegisterFlagCompletionFunc(f.Name, a.ofFlag(c, f)))
			}
		})
	}
	if c.ValidArgsFunction != nil || c.HasSubCommands() {
		return
	}
	var list []completer
	for _, word := range usageWords(c.Use) {
		list = append(list, map[string]completer{"TOPIC": a.topicNames, "GROUP": a.groupNames}[word])
	}
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(list) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.asking(list[len(args)])(cmd, args, begun)
	}
}

// ofFlag is what completes a flag that does not say so itself.
func (a *app) ofFlag(c *cobra.Command, f *pflag.Flag) cobra.CompletionFunc {
	switch {
	case f.Value.Type() == (*positionFlag)(nil).Type():
		if f.Name == "offset" {
			return words("earliest\tthe first message that is kept", "-1\tthe last message", "@-15m\tthe first one of the last 15 minutes")
		}
		return words("earliest\tthe first message that is kept", "latest\tonly what comes", "-1\tthe last message of each partition", "@-15m\twhat came in the last 15 minutes")
	case f.Name == "file":
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		}
	case f.Name == "data":
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
	case f.Name == "topic":
		return a.asking(a.topicNames)
	case f.Name == "group":
		return a.asking(a.groupNames)
	case f.Name == "member":
		return a.asking(a.memberNames)
	case f.Name == "partition":
		return a.asking(a.partitionNumbers)
	case c.HasParent() && c.Parent().Name() == "dead" && f.Name == "id":
		return a.asking(a.deadIDs)
	case c.HasParent() && c.Parent().Name() == "dead" && f.Name == "key":
		return a.asking(a.deadKeys)
	}
	return a.asking(nil)
}

// asking asks the broker, as long as a person waits.
func (a *app) asking(what completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (fit []string, _ cobra.ShellCompDirective) {
		if what == nil || a.checkShared() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		for _, s := range what(ctx, cmd, args) {
			// What a line could not hold, or would be taken for a description.
			if strings.HasPrefix(s, begun) && !strings.ContainsAny(s, "\t\r\n") {
				fit = append(fit, s)
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) topicNames(ctx context.Context, _ *cobra.Command, _ []string) (names []string) {
	res, err := a.dial().topics.ListTopics(ctx, &strandmqv1.ListTopicsRequest{})
	if err != nil {
		return nil
	}
	for _, t := range res.GetTopics() {
		names = append(names, t.GetName())
	}
	return names
}

func (a *app) groupNames(ctx context.Context, _ *cobra.Command, args []string) (names []string) {
	req := &strandmqv1.ListGroupsRequest{}
	if len(args) > 0 {
		req.Topic = args[0]
	}
	res, err := a.dial().groups.ListGroups(ctx, req)
	if err != nil {
		return nil
	}
	for _, g := range res.GetGroups() {
		names = append(names, g.GetGroup().GetName())
	}
	return names
}

func (a *app) memberNames(ctx context.Context, cmd *cobra.Command, args []string) (names []string) {
	group := cmd.Flag("group")
	if len(args) == 0 || group == nil {
		return nil
	}
	res, err := a.dial().groups.DescribeGroup(ctx, &strandmqv1.DescribeGroupRequest{Topic: args[0], Group: group.Value.String()})
	if err != nil {
		return nil
	}
	for _, m := range res.GetMembers() {
		names = append(names, m.GetName())
	}
	return names
}

func (a *app) partitionNumbers(ctx context.Context, _ *cobra.Command, args []string) (numbers []string) {
	if len(args) == 0 {
		return nil
	}
	res, err := a.dial().topics.DescribeTopic(ctx, &strandmqv1.DescribeTopicRequest{Topic: args[0]})
	if err != nil {
		return nil
	}
	for _, p := range res.GetPartitions() {
		numbers = append(numbers, strconv.FormatUint(uint64(p.GetPartition()), 10))
	}
	return numbers
}

func (a *app) deadIDs(ctx context.Context, _ *cobra.Command, args []string) (ids []string) {
	for _, m := range a.deadMessages(ctx, args) {
		if m.GetId() != "" {
			ids = append(ids, m.GetId())
		}
	}
	return ids
}

func (a *app) deadKeys(ctx context.Context, _ *cobra.Command, args []string) (keys []string) {
	seen := map[string]bool{}
	for _, m := range a.deadMessages(ctx, args) {
		if k := m.GetKey(); k != "" && !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// deadMessages are the first hundred dead letters of a group: who has more does
// not look for one by pressing Tab.
func (a *app) deadMessages(ctx context.Context, args []string) (out []*strandmqv1.Message) {
	if len(args) < 2 {
		return nil
	}
	res, err := a.dial().dead.ListDeadLetters(ctx, &strandmqv1.ListDeadLettersRequest{Topic: args[0], Group: args[1], PageSize: 100})
	if err != nil {
		return nil
	}
	for _, d := range res.GetDeadLetters() {
		out = append(out, d.GetMessage())
	}
	return out
}

// usageWords are the arguments of a usage line: TOPIC and GROUP of
// "reset TOPIC GROUP --to POSITION".
func usageWords(use string) (words []string) {
	for i, w := range strings.Fields(use) {
		if i == 0 {
			continue
		}
		w = strings.Trim(w, "[]") // it may be left out
		if w == "" || w[0] == '-' || w[0] == '(' {
			break // flags
		}
		words = append(words, w)
	}
	return words
}
