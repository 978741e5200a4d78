package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
)

// confirmed has the name of what will be deleted typed again: at a terminal by
// hand, elsewhere by --confirm. what says what will be gone.
func (a *app) confirmed(ctx context.Context, name, flag, what string) error {
	if flag == "" {
		if !terminal(a.in) || !terminal(a.err) {
			return usagef("%s cannot be undone: repeat the command with --confirm %s", what, name)
		}
		fmt.Fprintf(a.err, "%s cannot be undone.\nType the name %s to go on: ", plain.Text(what), plain.Text(name))
		line, err := a.readLine(ctx)
		if ctx.Err() != nil {
			fmt.Fprintln(a.err)
			return fmt.Errorf("%w: nothing was deleted", ctx.Err())
		}
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

// readLine reads a line that somebody types, until ctx ends. Nothing ends the read
// of a terminal, so it is left behind then, until the process ends.
func (a *app) readLine(ctx context.Context) (line string, err error) {
	done := make(chan struct{})
	var typed string
	var failed error
	go func() {
		defer close(done)
		typed, failed = bufio.NewReader(a.in).ReadString('\n')
	}()
	select {
	case <-done:
		return typed, failed
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
