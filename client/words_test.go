package client

import (
	"errors"
	"strings"
	"testing"
)

// A Run whose handlers did not return says so in a *Error, and counts them right.
func TestStillRun(t *testing.T) {
	for n, want := range map[int]string{1: "a handler has ", 2: "2 handlers have "} {
		err := errors.Join(nil, stillRun(n))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrDraining) || !strings.Contains(err.Error(), want) || Retryable(err) {
			t.Errorf("%v", err)
		}
	}
}
