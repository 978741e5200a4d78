package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// eachCommand calls fn with every command, those of cobra included.
func eachCommand(root *cobra.Command, fn func(c *cobra.Command)) {
	fn(root)
	for _, c := range root.Commands() {
		eachCommand(c, fn)
	}
}

func testApp() *app {
	return &app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}
}

func TestEveryCommandIsExplained(t *testing.T) {
	eachCommand(testApp().root(), func(c *cobra.Command) {
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s has no short text or no example", c.CommandPath())
		}
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("the examples of %s do not use it", c.CommandPath())
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if len([]rune(strings.TrimRight(line, "\n"))) > 110 {
				t.Errorf("%s: a line of the help is too long: %s", c.CommandPath(), line)
			}
		}
	})
}

// argument splits an example as a shell would, as far as examples need it.
var argument = regexp.MustCompile(`'([^']*)'|[^ ]+`)

// Every example must be one that the command takes: right arguments, known
// flags, values that parse.
func TestExamplesParse(t *testing.T) {
	n := 0
	eachCommand(testApp().root(), func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, " && ", "\n")) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " > ")
			_, line, ok := strings.Cut(line, "strandmq ")
			if !ok {
				t.Errorf("%s: %q is no example of strandmq", c.CommandPath(), line)
				continue
			}
			line, _, _ = strings.Cut(line, " | ")
			var args []string
			for _, m := range argument.FindAllStringSubmatch(line, -1) {
				if m[1] != "" {
					m[0] = m[1]
				}
				args = append(args, m[0])
			}
			cmd, rest, err := testApp().root().Find(args)
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			n++
		}
	})
	if n < 50 {
		t.Errorf("only %d examples were found", n)
	}
}

// Tab offers something for every value that a flag takes, or nothing; never the
// names of files where none is wanted.
func TestEveryFlagCompletes(t *testing.T) {
	files := map[string]bool{"file": true, "data": true}
	n := 0
	eachCommand(testApp().root(), func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" {
				return // it takes no value
			}
			n++
			complete, ok := c.GetFlagCompletionFunc(f.Name)
			if !ok {
				t.Errorf("%s --%s does not say what Tab offers", c.CommandPath(), f.Name)
				return
			}
			c.SetContext(t.Context())
			values, directive := complete(c, nil, "")
			if ofFiles := directive&cobra.ShellCompDirectiveNoFileComp == 0; ofFiles != files[f.Name] {
				t.Errorf("%s --%s offers names of files: %t", c.CommandPath(), f.Name, ofFiles)
			}
			// What help lists as choices is what Tab offers.
			for _, v := range values {
				if word, _, described := strings.Cut(v, "\t"); !described && !strings.Contains(f.Usage, word) {
					t.Errorf("%s --%s offers %s, which its help does not name", c.CommandPath(), f.Name, word)
				}
			}
		})
	})
	if n < 60 {
		t.Errorf("only %d flags were found", n)
	}
}

// What this package imports of Connect stays in files named *_client.go; here
// that no command reaches for the process's own streams, which tests replace.
func TestStreamsComeFromTheApp(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") || f.Name() == "main.go" {
			continue
		}
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"os.Stdout", "os.Stderr", "os.Stdin", "fmt.Print("} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s uses %s: use the streams of app", f.Name(), bad)
			}
		}
	}
}
