package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
)

// confirmed has the name of what will be deleted typed again: at a terminal by
// hand, elsewhere by --confirm. what says what will be gone.
func (a *app) confirmed(name, flag, what string) error {
	if flag == "" {
		if !terminal(a.in) || !terminal(a.err) {
			return usagef("%s cannot be undone: repeat the command with --confirm %s", what, name)
		}
		fmt.Fprintf(a.err, "%s cannot be undone.\nType the name %s to go on: ", plain.Text(what), plain.Text(name))
		line, err := bufio.NewReader(a.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		flag = strings.TrimRight(line, "\r\n")
	}
	if flag != name {
		return usagef("%q is not %q: nothing was deleted", flag, name)
	}
	return nil
}
