package peer

import (
	"fmt"
	"strconv"
)

// Reason is why a node refuses another. The numbers go over the wire and keep
// their meaning for good.
type Reason uint16

// What a node refuses another for.
const (
	// WrongCluster: the certificate or the hello names another cluster.
	WrongCluster Reason = 1
	// WrongNode: the certificate names another node than the hello does, or than
	// the one that was called.
	WrongNode Reason = 2
	// WrongStore: the cluster knows that node with another data folder.
	WrongStore Reason = 3
	// StoreTwice: two processes run with the same data folder, or copies of it.
	StoreTwice Reason = 4
	// OlderBoot: the data folder has been started again since; this is an earlier
	// process, or an earlier copy of the folder.
	OlderBoot Reason = 5
	// UnknownVersion: no version of the protocol is spoken by both.
	UnknownVersion Reason = 6
	// NotMember: the node is not in the cluster as it is known there: not yet, or
	// not any more.
	NotMember Reason = 7
	// ClockSkew: the certificate is not valid yet by the clock there.
	ClockSkew Reason = 8
	// CertificateExpired: the certificate is not valid any more by the clock there.
	CertificateExpired Reason = 9
	// BadCertificate: the certificate is not of the cluster's authority, or not one
	// of a node.
	BadCertificate Reason = 10
	// TokenUnknown, TokenExpired and TokenUsed are about a join token.
	TokenUnknown Reason = 11
	TokenExpired Reason = 12
	TokenUsed    Reason = 13
	// Malformed: what was sent is not what the protocol says.
	Malformed Reason = 14
	// Busy: too many ask at once.
	Busy Reason = 15
	// Failed: the request was understood and could not be carried out.
	Failed Reason = 16
	// Running: another process of the node is there and answers.
	Running Reason = 17
	// AddressTaken: another node of the cluster is known at the address where this one
	// says that it is.
	AddressTaken Reason = 18
)

var reasonNames = map[Reason]string{
	WrongCluster: "WRONG_CLUSTER", WrongNode: "WRONG_NODE", WrongStore: "WRONG_STORE", StoreTwice: "STORE_TWICE",
	OlderBoot: "OLDER_BOOT", UnknownVersion: "UNKNOWN_VERSION", NotMember: "NOT_MEMBER", ClockSkew: "CLOCK_SKEW",
	CertificateExpired: "CERTIFICATE_EXPIRED", BadCertificate: "BAD_CERTIFICATE", TokenUnknown: "TOKEN_UNKNOWN",
	TokenExpired: "TOKEN_EXPIRED", TokenUsed: "TOKEN_USED", Malformed: "MALFORMED", Busy: "BUSY", Failed: "FAILED",
	Running: "RUNNING", AddressTaken: "ADDRESS_TAKEN",
}

// String is the reason's stable name.
func (r Reason) String() string {
	if s := reasonNames[r]; s != "" {
		return s
	}
	return "REASON_" + strconv.Itoa(int(r))
}

// ErrRefused tells that a connection, a call or a join was refused, by this
// process or by the other. Text says what to do.
type ErrRefused struct {
	Reason Reason
	Text   string
	// Remote: the other side refused. Otherwise this process did.
	Remote bool
}

func (e *ErrRefused) Error() string {
	if e.Remote {
		return fmt.Sprintf("the other node refuses: %s (%s)", e.Text, e.Reason)
	}
	return fmt.Sprintf("%s (%s)", e.Text, e.Reason)
}

// Is makes two refusals for the same reason the same error.
func (e *ErrRefused) Is(target error) bool {
	t, ok := target.(*ErrRefused)
	return ok && t.Reason == e.Reason
}

// lasts tells whether trying again soon is of no use: somebody has to act first.
func (e *ErrRefused) lasts() bool {
	return e.Reason != NotMember && e.Reason != Busy && e.Reason != Failed && e.Reason != Running
}

func refuse(r Reason, format string, args ...any) *ErrRefused {
	return &ErrRefused{Reason: r, Text: fmt.Sprintf(format, args...)}
}

// ErrNoNode tells that a node is not among those that SetNodes named last.
type ErrNoNode struct{ Node uint64 }

func (e *ErrNoNode) Error() string {
	return fmt.Sprintf("node %d is not in the cluster as it is known here", e.Node)
}

// ErrUnreached tells that a call was not sent: the node is down, or no connection to
// it could be made.
type ErrUnreached struct {
	Node uint64
	Err  error
}

func (e *ErrUnreached) Error() string {
	return fmt.Sprintf("node %d is not reached: %v", e.Node, e.Err)
}

// Unwrap is why.
func (e *ErrUnreached) Unwrap() error { return e.Err }

// ErrClosed tells that the Transport was closed.
type ErrClosed struct{}

func (*ErrClosed) Error() string { return "the connections between nodes are closed" }
