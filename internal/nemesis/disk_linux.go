package nemesis

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls to a file system that no header of ours names: ext4 and XFS know the first,
// and all know the others.
const (
	ioctlShutdown = 0x8004587d
	ioctlFreeze   = 0xc0045877
	ioctlThaw     = 0xc0045878

	shutdownNoFlush = 2 // the journal is not written first
)

// Disk is an ext4 file system in a file, mounted.
type Disk struct {
	image, dir string
	mounted    bool
}

// NewDisk makes one of so many bytes below a folder. An error says why this machine does
// not allow it.
func NewDisk(folder, name string, size int64) (*Disk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting a disk needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("a disk of its own needs the command %s: %w", tool, err)
		}
	}
	d := &Disk{image: filepath.Join(folder, name+".img"), dir: filepath.Join(folder, name)}
	f, err := os.OpenFile(d.image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	err = errors.Join(f.Truncate(size), f.Close(), os.Mkdir(d.dir, 0o700))
	if err == nil {
		err = run("mkfs.ext4", "-q", "-F", "-m", "0", d.image)
	}
	if err == nil {
		err = d.On()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Dir is where it is mounted.
func (d *Disk) Dir() string { return d.dir }

// On mounts it: what was synced when the power went is there again.
func (d *Disk) On() error {
	err := run("mount", "-o", "loop", d.image, d.dir)
	d.mounted = err == nil
	return err
}

// Cut cuts its power: nothing reaches it any more, and what was not synced is lost. Those
// who have files on it open get errors, and have to go before Off.
func (d *Disk) Cut() error {
	return d.ioctl(ioctlShutdown, shutdownNoFlush)
}

// Off unmounts it.
func (d *Disk) Off() error {
	if !d.mounted {
		return nil
	}
	err := run("umount", d.dir)
	d.mounted = err != nil
	return err
}

// Freeze has every write and sync on it wait until Thaw.
func (d *Disk) Freeze() error { return d.ioctl(ioctlFreeze, 0) }

// Thaw ends Freeze.
func (d *Disk) Thaw() error { return d.ioctl(ioctlThaw, 0) }

func (d *Disk) ioctl(call uintptr, arg uint32) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), call, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		return fmt.Errorf("ioctl %#x of %s: %w", call, d.dir, errno)
	}
	return nil
}

// Fill takes all the room that is left, but so many bytes, and Empty gives it back.
func (d *Disk) Fill(leave int64) error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// In pieces, since a call that finds too little room takes none.
	at := int64(0)
	for piece := int64(64 << 20); piece >= 4096; {
		free, err := d.free()
		if err != nil {
			return err
		}
		if free-piece < leave {
			piece /= 2
			continue
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, at, piece); {
		case errors.Is(err, unix.ENOSPC):
			piece /= 2
		case err != nil:
			return fmt.Errorf("filling %s: %w", d.dir, err)
		default:
			at += piece
		}
	}
	return nil
}

// Empty gives back what Fill took.
func (d *Disk) Empty() error {
	err := os.Remove(d.ballast())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }

func (d *Disk) free() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// Close takes it away, with all that is on it.
func (d *Disk) Close() error {
	var errs []error
	if d.mounted {
		_ = d.Thaw() // refused where it is not frozen
		errs = append(errs, d.Off())
	}
	return errors.Join(append(errs, os.Remove(d.image), os.Remove(d.dir))...)
}

// SelfTest proves on an empty disk that Cut loses what was not synced and nothing else;
// without that a power cut would be a kill by another name.
func (d *Disk) SelfTest() error {
	text := bytes.Repeat([]byte("strandmq"), 4096)
	write := func(name string, sync bool) error {
		f, err := os.Create(filepath.Join(d.dir, name))
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		if err == nil && sync {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	}
	for _, err := range []error{write("synced", true), write("unsynced", false), d.Cut(), d.Off(), d.On()} {
		if err != nil {
			return err
		}
	}
	if got, err := os.ReadFile(filepath.Join(d.dir, "synced")); err != nil || !bytes.Equal(got, text) {
		return fmt.Errorf("a file that was synced is lost by a power cut: %d bytes, %w", len(got), err)
	}
	got, err := os.ReadFile(filepath.Join(d.dir, "unsynced"))
	switch {
	case err == nil && strings.Contains(string(got), "strandmq"):
		return errors.New("a file that was not synced outlives a power cut, so it is none")
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	_ = os.Remove(filepath.Join(d.dir, "unsynced"))
	return os.Remove(filepath.Join(d.dir, "synced"))
}
