package client

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The bounds of options. The broker takes no more credits of a member; the times are
// longer than anybody waits on purpose.
const (
	mostCredits   = 1_000_000
	longestDrain  = 24 * time.Hour
	longestRetry  = 24 * time.Hour
	longestLinger = time.Minute
)

// badOption is the error of an argument that the client refuses.
func badOption(field, format string, args ...any) *Error {
	return &Error{Reason: ErrBadValue, Field: field, Message: fmt.Sprintf(format, args...)}
}

// whole checks a number of an option, and notes what is wrong with it. 0 is the default.
func whole(wrong *[]error, option string, n, least, most, byDefault int) int {
	switch {
	case n == 0:
		return byDefault
	case n < least || n > most:
		*wrong = append(*wrong, badOption(option, "%s: %d is not %d to %d, or 0 for the default, %d", option, n, least, most, byDefault))
		return byDefault
	}
	return n
}

// span checks a time of an option, and notes what is wrong with it.
func span(wrong *[]error, option string, d, most time.Duration) time.Duration {
	if d < 0 || d > most {
		*wrong = append(*wrong, badOption(option, "%s: %v is not 0 to %v", option, d, most))
		return 0
	}
	return d
}

// allOf is all that is wrong as one error; nil: nothing is.
func allOf(wrong []error) error {
	all := errors.Join(wrong...)
	if list, ok := all.(interface{ Unwrap() []error }); ok && len(list.Unwrap()) == 1 {
		return list.Unwrap()[0]
	}
	return all
}

// addressOf checks an address of a broker, as the ith of a list.
func addressOf(s string, i int) (string, error) {
	refused := func(why string) error {
		return badOption(fmt.Sprintf("servers[%d]", i), "address %d is none of a broker, since %s: write it as http://host:port", i, why)
	}
	shown := strconv.Quote(s)
	if strings.Contains(s, "@") {
		shown = "it" // it may hold a password
	}
	u, err := url.Parse(s)
	switch {
	case !strings.Contains(s, "://"):
		return "", refused(shown + " has no scheme")
	case err != nil:
		return "", refused(shown + " is no URL")
	case u.User != nil:
		return "", refused("it has a user, which the broker does not know")
	case u.Scheme == "https":
		return "", refused(shown + " asks for TLS, which the broker does not have")
	case u.Scheme != "http":
		return "", refused(shown + " does not begin with http://")
	case u.Hostname() == "":
		return "", refused(shown + " names no host")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", refused(shown + " goes on behind host and port")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return "", refused(fmt.Sprintf("port %s of %s is not 1 to 65535", p, shown))
		}
	}
	return "http://" + u.Host, nil
}
