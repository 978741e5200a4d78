// Package names holds the rules for everything that a caller may name.
//
// It owns the alphabet and the length of the names of topics, groups and
// members, of header names and header text, of message ids and producer ids,
// and the prefix that only the broker may use. It promises that a string which
// passed is safe to print in a log line, a table, a URL segment or an HTTP
// header: no control bytes, no path tricks, no look-alike letters. It refuses
// with one error type that says which rule was broken and what to use instead.
// It does not know whether a name is taken: that is the metadata log's matter.
//
//	what            alphabet                          length     reserved prefix
//	topic, group    A-Z a-z 0-9 . _ -  no dot first   1..200     strandmq.
//	member          the same                          1..200     strandmq.
//	header name     RFC 9110 token                    1..200     strandmq-
//	header text     UTF-8, no control characters      any        none
//	message id      UTF-8, no control characters      1..256     none
//	producer id     A-Z a-z 0-9 . _ -                 1..64      none
//
// Names are never used as file paths; the rule against a leading dot is there
// for the shells and tools of those who do.
package names

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/strandmq/strandmq/internal/plain"
)

// The longest names, in bytes.
const (
	MaxName     = 200
	MaxHeader   = 200
	MaxID       = 256
	MaxProducer = 64
)

// What only the broker itself may begin names with. Both are compared without
// regard to case, as header names are.
const (
	ReservedPrefix       = "strandmq."
	ReservedHeaderPrefix = "strandmq-"
)

// Kind is what a name is for.
type Kind string

// The kinds of names.
const (
	KindTopic       Kind = "topic"
	KindGroup       Kind = "group"
	KindMember      Kind = "member"
	KindHeaderName  Kind = "header name"
	KindHeaderValue Kind = "header value"
	KindMessageID   Kind = "message id"
	KindProducerID  Kind = "producer id"
)

// Error is a name that was refused. It is the asker's error: trying again
// unchanged does not help.
type Error struct {
	Kind Kind
	Name string // as given; Error prints it quoted and cut
	Why  string // the broken rule and what to use instead
}

// Error says which name, which rule, and what to use instead.
func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s is empty: %s", e.Kind, e.Why)
	}
	return fmt.Sprintf("%s %s is refused: %s", e.Kind, plain.Quote(e.Name), e.Why)
}

// Topic checks a topic's name.
func Topic(s string) error { return word(KindTopic, s) }

// Group checks a group's name.
func Group(s string) error { return word(KindGroup, s) }

// Member checks a member's name.
func Member(s string) error { return word(KindMember, s) }

const wordRule = "use 1 to 200 of the letters A-Z and a-z, digits, dot, underscore and dash"

func word(kind Kind, s string) error {
	switch {
	case s == "":
		return &Error{kind, s, wordRule}
	case len(s) > MaxName:
		return &Error{kind, s, fmt.Sprintf("it has %d bytes; at most %d are allowed", len(s), MaxName)}
	case s[0] == '.':
		return &Error{kind, s, "it begins with a dot; begin with a letter, digit, underscore or dash"}
	}
	for i := range len(s) {
		if !wordByte(s[i]) {
			return &Error{kind, s, fmt.Sprintf("byte %d is not allowed; %s", i+1, wordRule)}
		}
	}
	if hasPrefixFold(s, ReservedPrefix) {
		return &Error{kind, s, "names that begin with " + ReservedPrefix + " belong to the broker; choose another beginning"}
	}
	return nil
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '.' || c == '_' || c == '-'
}

// HeaderName checks a header's name: a token of RFC 9110, section 5.6.2.
func HeaderName(s string) error {
	const rule = "use 1 to 200 letters, digits and !#$%&'*+-.^_`|~"
	switch {
	case s == "":
		return &Error{KindHeaderName, s, rule}
	case len(s) > MaxHeader:
		return &Error{KindHeaderName, s, fmt.Sprintf("it has %d bytes; at most %d are allowed", len(s), MaxHeader)}
	}
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return &Error{KindHeaderName, s, fmt.Sprintf("byte %d is not allowed; %s", i+1, rule)}
		}
	}
	if hasPrefixFold(s, ReservedHeaderPrefix) {
		return &Error{KindHeaderName, s, "header names that begin with " + ReservedHeaderPrefix + " belong to the broker; choose another beginning"}
	}
	return nil
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// IsHeaderName is HeaderName without the words, for bytes that are looked at in
// passing: it allocates nothing.
func IsHeaderName(b []byte) bool {
	if len(b) == 0 || len(b) > MaxHeader {
		return false
	}
	for _, c := range b {
		if !tokenByte(c) {
			return false
		}
	}
	n := len(ReservedHeaderPrefix)
	return len(b) < n || !strings.EqualFold(string(b[:n]), ReservedHeaderPrefix)
}

// HeaderText checks a header's value that was given as text.
func HeaderText(s string) error {
	return text(KindHeaderValue, s, "send such a value as bytes")
}

// MessageID checks a message id. The empty id, which means that there is none,
// is not for this function.
func MessageID(s string) error {
	switch {
	case s == "":
		return &Error{KindMessageID, s, "leave the id out, or give 1 to 256 bytes"}
	case len(s) > MaxID:
		return &Error{KindMessageID, s, fmt.Sprintf("it has %d bytes; at most %d are allowed: use a hash of it", len(s), MaxID)}
	}
	return text(KindMessageID, s, "encode it, in hexadecimal or base64 for instance")
}

// IsMessageID is MessageID without the words, for bytes that are looked at in
// passing: it allocates nothing.
func IsMessageID(b []byte) bool {
	if len(b) == 0 || len(b) > MaxID || !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) { // no copy is made
		if forges(r) {
			return false
		}
	}
	return true
}

// ProducerID checks a producer's id.
func ProducerID(s string) error {
	const rule = "use 1 to 64 of the letters A-Z and a-z, digits, dot, underscore and dash; a random UUID will do"
	switch {
	case s == "":
		return &Error{KindProducerID, s, rule}
	case len(s) > MaxProducer:
		return &Error{KindProducerID, s, fmt.Sprintf("it has %d bytes; at most %d are allowed", len(s), MaxProducer)}
	}
	for i := range len(s) {
		if !wordByte(s[i]) {
			return &Error{KindProducerID, s, fmt.Sprintf("byte %d is not allowed; %s", i+1, rule)}
		}
	}
	return nil
}

// text refuses what is not UTF-8 and what could forge a line of a log or of an
// HTTP head: control characters, and the two Unicode line ends.
func text(kind Kind, s, instead string) error {
	if !utf8.ValidString(s) {
		return &Error{kind, s, "it is not valid UTF-8; " + instead}
	}
	for i, r := range s {
		if forges(r) {
			return &Error{kind, s, fmt.Sprintf("byte %d begins a control character; %s", i+1, instead)}
		}
	}
	return nil
}

// forges tells what could begin a line of its own.
func forges(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

// hasPrefixFold is strings.HasPrefix for ASCII without regard to case.
func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
