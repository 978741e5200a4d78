package broker

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// StartReason says why a broker did not start.
type StartReason string

// The reasons.
const (
	BadConfig     StartReason = "BAD_CONFIG"      // Config.Validate says no
	BadListen     StartReason = "BAD_LISTEN"      // not an address and port
	NotLoopback   StartReason = "NOT_LOOPBACK"    // an address that others can reach
	ListenFailed  StartReason = "LISTEN_FAILED"   // the machine does not give that address or port
	PortTaken     StartReason = "PORT_TAKEN"      // something listens there
	FolderInUse   StartReason = "FOLDER_IN_USE"   // another broker has the folder open
	FolderForeign StartReason = "FOLDER_FOREIGN"  // something else is in the folder
	FolderNewer   StartReason = "FOLDER_NEWER"    // a newer version wrote it
	FolderDamaged StartReason = "FOLDER_DAMAGED"  // what is stored is not what was written
	FolderAccess  StartReason = "FOLDER_ACCESS"   // no right to read or write it
	NodeRefused   StartReason = "NODE_REFUSED"    // the folder is not that of this node, or an older copy
	NoIdentity    StartReason = "NO_IDENTITY"     // the data is that of a cluster's node, and who it is is missing or unreadable
	FolderEmpty   StartReason = "FOLDER_EMPTY"    // it was to hold a node, and does not
	FolderHasData StartReason = "FOLDER_HAS_DATA" // a node that joins begins with nothing
	WrongCluster  StartReason = "WRONG_CLUSTER"   // the folder or the token is of another cluster
	JoinRefused   StartReason = "JOIN_REFUSED"    // the cluster does not let the node in
	JoinFailed    StartReason = "JOIN_FAILED"     // the cluster cannot be asked
	DiskFull      StartReason = "DISK_FULL"       // no room
	DiskTooSmall  StartReason = "DISK_TOO_SMALL"  // no room ever, whatever is freed
	StartFailed   StartReason = "START_FAILED"    // anything else
)

// StartError is why a broker did not start, with the way out in its text.
type StartError struct {
	Reason StartReason
	Text   string
	Err    error
}

// Error is for people.
func (e *StartError) Error() string { return e.Text }

// Unwrap gives the error below.
func (e *StartError) Unwrap() error { return e.Err }

// startError gives whatever stopped the start its reason.
func startError(err error, store logstore.Config) error {
	var (
		started *StartError
		inUse   *logstore.ErrInUse
		foreign *logstore.ErrForeign
		none    *logstore.ErrNoStore
		newer   *format.ErrNewer
		damaged *logstore.ErrDamaged
		stopped *partition.ErrDamaged
		access  *logstore.ErrAccess
		full    *logstore.ErrDiskFull
		another *coordinator.ErrNodeActive
		oldBoot *coordinator.ErrOldBoot
		older   *coordinator.ErrOldRules
		gone    *coordinator.ErrNodeGone
	)
	reason, text := StartFailed, ""
	switch {
	case err == nil:
		return nil
	case errors.As(err, &started):
		return err
	case errors.As(err, &inUse):
		reason = FolderInUse
	case errors.As(err, &foreign), errors.As(err, &none):
		reason = FolderForeign
	case errors.As(err, &newer):
		reason = FolderNewer
	case errors.As(err, &damaged):
		reason = FolderDamaged
	case errors.As(err, &stopped) && stopped.Newer == nil:
		// Only the metadata log keeps a node from starting.
		what := "the metadata log, which has all topics and groups"
		if at := stopped.Entries(); at != "" {
			what += " (" + at + ")"
		}
		return &StartError{Reason: FolderDamaged, Err: err, Text: fmt.Sprintf(
			"the folder %s is damaged: %s, does not read: %s; nothing was changed: restore the folder from a backup, or, where other nodes of a cluster have it, join anew with an empty folder and replace this node", store.Dir, what, stopped.Why)}
	case errors.As(err, &stopped):
		reason = FolderDamaged
	case errors.As(err, &another), errors.As(err, &oldBoot), errors.As(err, &older), errors.As(err, &gone):
		reason = NodeRefused
	case errors.As(err, &access):
		reason = FolderAccess
	case errors.As(err, &full):
		reason = DiskFull
		if room, err := store.Room(); err == nil {
			text = fmt.Sprintf(" (%s are free, and opening the store wants up to %s)", size(room.Free), size(store.RoomNeeded()))
		}
	}
	return &StartError{Reason: reason, Text: err.Error() + text, Err: err}
}

// listenError names the usual reasons for a port that cannot be had.
func listenError(addr string, err error) error {
	return portError(addr, "--listen", err, "by another program, perhaps another broker: stop it, or choose another port with --listen")
}

// peerListenError is listenError for the port for nodes. A folder remembers that port, so
// who has it is mostly the node itself, and the folder a copy of one that runs.
func peerListenError(addr string, who *peer.Identity, err error) error {
	by := "by another program, perhaps another node: stop it, or choose another port with --peer-listen"
	if who != nil {
		by = fmt.Sprintf("and node %d listens there for other nodes: it may be running already, with this data folder or a copy of it, and of those one process runs at a time; if another program has the port, stop that, or choose another port with --peer-listen", who.Node())
	}
	return portError(addr, "--peer-listen", err, by)
}

func portError(addr, flag string, err error, taken string) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &StartError{Reason: PortTaken, Err: err, Text: fmt.Sprintf("%s is taken %s", addr, taken)}
	case errors.Is(err, syscall.EACCES):
		return &StartError{Reason: ListenFailed, Err: err, Text: fmt.Sprintf("%s may not be used by this user: choose a port of 1024 or above with %s", addr, flag)}
	}
	return &StartError{Reason: ListenFailed, Err: err, Text: fmt.Sprintf("cannot listen on %s: %v: give an address of this machine with %s", addr, err, flag)}
}
