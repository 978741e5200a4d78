// Package offsets is the one grammar for a place in a log, wherever a person
// types one.
//
//	earliest            the first message that is kept
//	latest              after the last message: only what comes
//	42                  offset 42
//	-10                 10 messages before the end
//	@2026-11-29T08:00:00Z   the first message published then or later (RFC 3339)
//	@-15m               the same, counted back from now (s, m, h, d)
//
//	text ──Parse──► Position ──At(now)──► Position without "ago"
//
// It promises that Parse(p.String()) is p again, and that every refusal names
// the grammar. It refuses whatever could be read in two ways: signs other than
// one minus, spaces, leading zeros with a sign, times in the future of "ago".
// What a Position means in a given partition is the broker's to say.
package offsets

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/quantity"
)

// Grammar is the grammar in one line, for help texts.
const Grammar = "earliest, latest, N, -N (from the end), @RFC3339 or @-15m (ago)"

// Outside says, for help texts, what becomes of a group's position where a
// partition keeps no such place.
const Outside = `Before what a partition keeps, that is its first message; a time after its last
message is its end, as latest is. A number beyond its end is refused.`

// Kind is the form of a Position.
type Kind uint8

// The forms.
const (
	Earliest Kind = iota // the first offset kept
	Latest               // after the last message
	Offset               // N: an offset
	FromEnd              // -N: messages before the end
	Time                 // @RFC3339
	Ago                  // @-15m
)

// Position is a parsed place. The zero value is earliest.
type Position struct {
	Kind Kind
	N    uint64        // for Offset and FromEnd
	Time time.Time     // for Time, UTC
	Ago  time.Duration // for Ago, more than zero
}

// Error is a text that is no position.
type Error struct {
	Text string // what was given
	Why  string // what is wrong with it
}

func (e *Error) Error() string {
	return fmt.Sprintf("%q is no position: %s; use %s", e.Text, e.Why, Grammar)
}

// Parse reads a position.
func Parse(s string) (Position, error) {
	fail := func(why string) (Position, error) { return Position{}, &Error{Text: s, Why: why} }
	switch {
	case s == "":
		return fail("it is empty")
	case s == "earliest":
		return Position{Kind: Earliest}, nil
	case s == "latest":
		return Position{Kind: Latest}, nil
	case strings.HasPrefix(s, "@-"):
		d, err := quantity.ParseSpan(s[2:])
		if err != nil {
			return fail(err.Error())
		}
		if d <= 0 {
			return fail("the time ago must be more than zero")
		}
		return Position{Kind: Ago, Ago: d}, nil
	case s[0] == '@':
		t, err := time.Parse(time.RFC3339Nano, s[1:])
		if err != nil {
			return fail("what follows @ is no RFC 3339 time such as 2026-11-29T08:00:00Z")
		}
		// Years beyond these do not survive the wire's timestamps.
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			return fail("the year is out of range")
		}
		return Position{Kind: Time, Time: t.UTC()}, nil
	case s[0] == '-':
		n, why := digits(s[1:])
		if why != "" {
			return fail(why)
		}
		if n == 0 {
			return fail("-0 could be either end")
		}
		return Position{Kind: FromEnd, N: n}, nil
	default:
		n, why := digits(s)
		if why != "" {
			return fail(why)
		}
		return Position{Kind: Offset, N: n}, nil
	}
}

// digits reads a plain decimal number; offsets stay below 2^63.
func digits(s string) (uint64, string) {
	if s == "" {
		return 0, "a number is missing"
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, "it is neither a word nor a number"
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxInt64 {
		return 0, "the number is too large"
	}
	return n, ""
}

// At turns "ago" into a time, given the present one; other forms stay.
func (p Position) At(now time.Time) Position {
	if p.Kind != Ago {
		return p
	}
	return Position{Kind: Time, Time: now.Add(-p.Ago).UTC()}
}

// String prints the position in the grammar.
func (p Position) String() string {
	switch p.Kind {
	case Earliest:
		return "earliest"
	case Latest:
		return "latest"
	case Offset:
		return strconv.FormatUint(p.N, 10)
	case FromEnd:
		return "-" + strconv.FormatUint(p.N, 10)
	case Time:
		return "@" + p.Time.Format(time.RFC3339Nano)
	case Ago:
		return "@-" + quantity.FormatSpan(p.Ago)
	}
	return fmt.Sprintf("offsets.Kind(%d)", p.Kind)
}
