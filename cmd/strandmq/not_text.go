package main

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/strandmq/strandmq/internal/plain"
)

// noText tells what was typed and goes into a request as text, and is none; nil: that is
// not why the command failed. It is looked at afterwards, since bodies and paths may be
// any bytes, and only the request knows what has to be text.
func noText(cmd *cobra.Command, args []string, err error) error {
	var e *apiError
	if !errors.As(err, &e) || e.reason != "" || !strings.HasPrefix(e.text, "marshal message") || !strings.Contains(e.text, "UTF-8") {
		return nil
	}
	which := "what was typed"
	for _, a := range args {
		if !utf8.ValidString(a) {
			which = plain.Quote(a)
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if v := f.Value.String(); !utf8.ValidString(v) {
			which = "--" + f.Name + " " + plain.Quote(v)
		}
	})
	return usagef("%s is not valid text: names, keys and ids are UTF-8", which)
}
