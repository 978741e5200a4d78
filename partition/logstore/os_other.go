//go:build !unix

package logstore

import (
	"errors"
	"os"
)

func restrict(uintptr) error { return nil }

func lockHolder(string) int { return 0 }

func lockHeldElsewhere(err error) bool {
	var perr *os.PathError
	return !errors.As(err, &perr)
}

func diskFull(error) bool { return false }

func noAccess(err error) bool { return errors.Is(err, os.ErrPermission) }
