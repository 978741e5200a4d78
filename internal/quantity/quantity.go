// Package quantity reads and prints the two measures that people type: spans of
// time and sizes.
//
//	span   500ms  30s  15m  12h  7d  1h30m          0 is allowed, less is not
//	size   100  512B  64KiB  10MiB  2GiB  1TiB      binary units only
//
// It promises that what it prints it reads again, and refuses what is negative,
// too large, or of a unit with two meanings (KB, MB). Moments it only prints.
package quantity

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Error is a text that is no quantity.
type Error struct {
	Text string
	Why  string
}

func (e *Error) Error() string { return fmt.Sprintf("%q %s", e.Text, e.Why) }

const spanHint = "is no span of time such as 500ms, 30s, 15m, 12h or 7d"

// aSpan is the form of a span, whatever its length.
var aSpan = regexp.MustCompile(`^([0-9]+d)?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`)

// ParseSpan reads a span of time: Go's durations, and d for 24 hours in front.
func ParseSpan(s string) (time.Duration, error) {
	fail := func() (time.Duration, error) {
		if s != "" && aSpan.MatchString(s) {
			return 0, &Error{s, fmt.Sprintf("is out of range: the longest span of time is %dd, about 292 years", math.MaxInt64/(24*time.Hour))}
		}
		return 0, &Error{s, spanHint}
	}
	if s == "0" {
		return 0, nil
	}
	if s == "" || s[0] == '-' || s[0] == '+' {
		return fail()
	}
	var days time.Duration
	rest := s
	if i := strings.IndexByte(s, 'd'); i >= 0 {
		n, err := strconv.ParseUint(s[:i], 10, 32)
		if err != nil || n > uint64(math.MaxInt64/(24*time.Hour)) {
			return fail()
		}
		days, rest = time.Duration(n)*24*time.Hour, s[i+1:]
		if rest == "" {
			return days, nil
		}
		if rest[0] == '-' || rest[0] == '+' {
			return fail()
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d > math.MaxInt64-days {
		return fail()
	}
	return days + d, nil
}

// FormatSpan prints a span so that ParseSpan reads it: 7d, 1h30m, 200ms.
func FormatSpan(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	if d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// FormatMillis prints a span of milliseconds. What is negative, or too long for
// ParseSpan, stays a number.
func FormatMillis[N ~int64](ms N) string {
	if ms < 0 || int64(ms) > math.MaxInt64/int64(time.Millisecond) {
		return fmt.Sprintf("%d ms", int64(ms))
	}
	return FormatSpan(time.Duration(ms) * time.Millisecond)
}

// units from the largest, so that printing finds the first that divides.
var units = [...]struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

const (
	sizeHint  = "is no size such as 4096, 64KiB, 10MiB or 2GiB"
	sizeRange = "is out of range: sizes are below 8388608TiB"
)

// ParseSize reads a size in bytes.
func ParseSize(s string) (int64, error) {
	number, unit := s, int64(1)
	for _, u := range units {
		if strings.HasSuffix(s, u.name) {
			number, unit = strings.TrimSuffix(s, u.name), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	switch {
	case number == "" || strings.Trim(number, "0123456789") != "":
		return 0, &Error{s, sizeHint}
	case err != nil || int64(n) > math.MaxInt64/unit:
		return 0, &Error{s, sizeRange}
	}
	return int64(n) * unit, nil
}

// FormatSize prints a size exactly, in the largest unit that divides it.
func FormatSize(n int64) string {
	if n == 0 {
		return "0B"
	}
	for _, u := range units {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// RoughSize prints a size for a glance: 1.8 MiB.
func RoughSize(n uint64) string {
	for _, u := range units[:4] {
		if n >= uint64(u.bytes) {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}

// Count prints a number with commas between thousands: 20,000.
func Count[N ~uint64 | ~int | ~int64 | ~uint32](n N) string {
	s := fmt.Sprintf("%d", n)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Many prints how many there are of something: 1 delivery, 2,000 deliveries.
func Many[N ~uint64 | ~int | ~int64 | ~uint32](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + more
}

// Some is Many for words with a plural of the usual form: 3 groups, 3 deliveries.
func Some[N ~uint64 | ~int | ~int64 | ~uint32](n N, one string) string {
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		return Many(n, one, stem+"ies")
	}
	return Many(n, one, one+"s")
}

// FormatTime prints a moment, given in milliseconds since 1970, to the second.
func FormatTime(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
