package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// completeTime bounds what a person waits for after pressing Tab.
const completeTime = 2 * time.Second

// completions teaches the commands under c to complete what stands for a topic or
// a group from what the broker has. Where nobody answers there is nothing to
// offer, and never a file's name.
func (a *app) completions(c *cobra.Command, what map[string]completer) {
	for _, child := range c.Commands() {
		a.completions(child, what)
	}
	if c.ValidArgsFunction != nil || c.HasSubCommands() {
		return
	}
	var args []completer
	for _, word := range usageWords(c.Use) {
		args = append(args, what[word])
	}
	c.ValidArgsFunction = func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(given) >= len(args) || args[len(given)] == nil || a.checkShared() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		return args[len(given)](ctx, given), cobra.ShellCompDirectiveNoFileComp
	}
}

// A completer offers values for an argument, given those before it.
type completer func(ctx context.Context, before []string) []string

func (a *app) topicNames(ctx context.Context, _ []string) (names []string) {
	res, err := a.dial().topics.ListTopics(ctx, &strandmqv1.ListTopicsRequest{})
	if err != nil {
		return nil // Tab shows no errors
	}
	for _, t := range res.GetTopics() {
		names = append(names, t.GetName())
	}
	return names
}

func (a *app) groupNames(ctx context.Context, before []string) (names []string) {
	req := &strandmqv1.ListGroupsRequest{}
	if len(before) > 0 {
		req.Topic = before[0]
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
