//go:build unix

package logstore

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// restrict takes other users' rights from an open file.
func restrict(fd uintptr) error { return syscall.Fchmod(int(fd), 0o600) }

// lockHolder returns the process that holds the lock on a file, 0 if it cannot
// be told. It must not be called by the holder: closing any descriptor of the
// file gives the lock up.
func lockHolder(path string) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &l); err != nil || l.Type == syscall.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}

// lockHeldElsewhere tells whether an error of locking a file means that another
// process holds it. The errno stands alone then; one of opening the file comes
// with its path.
func lockHeldElsewhere(err error) bool {
	var perr *os.PathError
	return !errors.As(err, &perr) && (errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES))
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func noAccess(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS)
}
