package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/plain"
)

// app is what commands share: the three streams and the flags of all.
type app struct {
	in  io.Reader
	out io.Writer
	err io.Writer

	servers []string // --server
	named   bool     // --server was given as a flag
	output  string   // --output

	noHelp error // help was asked for what does not exist
}

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is wrong usage: exit code 2. Everything that cobra refuses is one
// too, since only a command's own run returns a failure.
type usageError struct {
	text string
	err  error // who says so, where it is not this program; may be nil
}

func (e *usageError) Error() string { return e.text }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// failure is an error from running a command that was used rightly.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// run runs one command line and returns the exit code. The first signal cancels
// the command's context, so that it can end what it began; the second kills.
func run(a *app, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.noHelp
	}
	if err == nil {
		return exitDone
	}
	var said *exit
	if errors.As(err, &said) {
		return said.code
	}
	text := err.Error()
	if ctx.Err() != nil { // by a signal
		text = strings.NewReplacer(context.Canceled.Error(), "interrupted", context.Cause(ctx).Error(), "interrupted").Replace(text)
	}
	a.tellError(reasonOf(err), requestOf(err), text)
	var failed *failure
	if errors.As(err, &failed) {
		return exitFailed
	}
	if !a.json() {
		fmt.Fprintf(a.err, "See '%s --help'.\n", cmd.CommandPath())
	}
	if code, err := strconv.Atoi(cmd.Annotations[usageExit]); err == nil {
		return code
	}
	return exitUsage
}

// usageExit annotates a command whose exit code for wrong usage is another one.
const usageExit = "usage-exit"

// moreOutputs annotates a command that prints its data in one more way.
const moreOutputs = "more-outputs"

// exit ends a command that has said all there is to say with a code.
type exit struct{ code int }

func (e *exit) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "strandmq",
		Short: "A message broker that keeps the order of every key, whatever fails",
		Long: `StrandMQ is a partitioned message broker. Messages of one key are
handled in order, one at a time, by every consumer group; keys run in parallel.

Start a broker with 'strandmq serve', or see one work with 'strandmq demo'. The
other commands talk to a broker at --server, which may name several nodes of one
cluster, with commas or repeated.

Exit codes: 0 done, 1 failed, 2 wrong usage ('strandmq check' has those of
monitoring). Data goes to standard output, talk to standard error. An error ends
with its reason in parentheses, where it has one; with --output json it is an object
there: {"error":{"reason":"NO_QUORUM","text":"..."}}. NO_COLOR is respected.`,
		Example: `  strandmq demo
  strandmq serve --data ./data
  strandmq topic create orders
  strandmq publish orders --file orders.ndjson --key-field customer
  strandmq consume orders --group billing --until-empty --output json
  strandmq group describe orders billing`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          onlyCommands,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			a.named = cmd.Flags().Changed("server")
			if more := cmd.Annotations[moreOutputs]; more != "" && a.output == more {
				return a.checkServers()
			}
			return a.checkShared()
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return errors.New(flagFault(err.Error())) })
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.PersistentFlags().StringSliceVar(&a.servers, "server", envList("STRANDMQ_SERVER", "http://"+broker.DefaultListen), "the broker's URL; of several, the first that answers is asked (environment: STRANDMQ_SERVER)")
	root.PersistentFlags().Lookup("server").DefValue = strings.Join(a.servers, ",") // as one types it
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "how to print data: table or json (the API's own JSON)")
	must(root.RegisterFlagCompletionFunc("output", func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if more := cmd.Annotations[moreOutputs]; more != "" {
			return words("table", "json", more)(cmd, args, begun)
		}
		return words("table", "json")(cmd, args, begun)
	}))
	root.AddCommand(
		a.serveCommand(), a.devCommand(), a.demoCommand(),
		a.topicCommand(), a.publishCommand(), a.consumeCommand(),
		a.groupCommand(), a.deadCommand(), a.traceCommand(), a.nodeCommand(), a.clusterCommand(), a.eventsCommand(), a.doctorCommand(), a.topCommand(), a.checkCommand(), a.debugCommand(), a.generateCommand(), a.loadtestCommand(), a.versionCommand(),
	)
	a.helpOfCobra(root)
	a.completions(root)
	return root
}

// helpOfCobra makes the commands that cobra adds like ours: with examples, and
// strict. Asked for help on what does not exist, cobra gives help on what does,
// and success.
func (a *app) helpOfCobra(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, given []string) {
		// With --help, what stands before it was taken for arguments.
		if left := cmd.Flags().Args(); cmd.HasSubCommands() && len(left) > 0 {
			a.noHelp = unknownCommand(cmd, left[0])
			return
		}
		help(cmd, given)
	})
	root.SetHelpCommand(&cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help on a command",
		Example: "  strandmq help\n  strandmq help group reset",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || cmd.HasSubCommands() && len(rest) > 0 {
				return unknownCommand(cmd, rest[0])
			}
			return cmd.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, begun string) (names []string, _ cobra.ShellCompDirective) {
			if cmd, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, c := range cmd.Commands() {
					if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), begun) {
						names = append(names, c.Name()+"\t"+c.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	})
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  strandmq completion bash\n  strandmq completion zsh > _strandmq"
		c.Args, c.RunE = cobra.ArbitraryArgs, onlyCommands
		for _, shell := range c.Commands() {
			shell.Example = "  strandmq completion " + shell.Name()
		}
	}
}

// checkShared checks the flags that all commands have.
func (a *app) checkShared() error {
	if a.output != "table" && a.output != "json" {
		return usagef("--output %q: choose table or json", a.output)
	}
	return a.checkServers()
}

func (a *app) checkServers() error {
	if len(a.servers) == 0 {
		return usagef("--server is empty: give a URL such as http://%s", broker.DefaultListen)
	}
	for i, s := range a.servers {
		if !strings.Contains(s, "://") {
			s = "http://" + s
		}
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usagef("--server %q is no URL such as http://%s", s, broker.DefaultListen)
		}
		a.servers[i] = s
	}
	return nil
}

// json tells whether data is for programs.
func (a *app) json() bool { return a.output == "json" }

// talk prints a line for people.
func (a *app) talk(format string, args ...any) {
	fmt.Fprintln(a.err, plain.Lines(fmt.Sprintf(format, args...)))
}

// terminal tells whether a stream is a person's terminal.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
}

// command makes a leaf: its errors are failures unless they say otherwise.
func command(c *cobra.Command, runE func(cmd *cobra.Command, args []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		err := runE(cmd, args)
		var usage *usageError
		var said *exit
		if err == nil || errors.As(err, &usage) || errors.As(err, &said) {
			return err
		}
		if wrong := noText(cmd, args, err); wrong != nil {
			return wrong
		}
		return &failure{err}
	}
	return c
}

// noun makes a command that only holds others.
func noun(c *cobra.Command, children ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = onlyCommands
	c.AddCommand(children...)
	return c
}

// onlyCommands runs a command that only holds others: help when it stands
// alone, an error with what was perhaps meant otherwise.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

// unknownCommand says what was perhaps meant.
func unknownCommand(cmd *cobra.Command, word string) error {
	text := fmt.Sprintf("%q is no command of '%s'", word, cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		text += fmt.Sprintf("; did you mean '%s %s'?", cmd.CommandPath(), near[0])
	}
	return usagef("%s", text)
}

// exact wants these arguments, by name.
func exact(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s is missing: %s", names[len(args)], cmd.UseLine())
		case len(args) > len(names):
			return usagef("%q is one argument too many: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// words completes a flag from fixed values.
func words(values ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

// must panics on faults of the command tree itself, which every test would see.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
