package broker

import (
	"testing"

	"github.com/strandmq/strandmq/internal/record"
)

// A message is of the trace that its header names in the form of W3C, and of no other.
func TestCalledBy(t *testing.T) {
	t.Parallel()
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for parent, want := range map[string]string{
		"00-" + trace + "-" + span + "-01":                    trace,
		"cc-" + trace + "-" + span + "-01-what-comes":         trace,
		"cc-" + trace + "-" + span + "-01":                    trace,
		"00-" + trace + "-" + span + "-01-what-comes":         "",
		"cc-" + trace + "-" + span + "-01.what-comes":         "",
		"ff-" + trace + "-" + span + "-01":                    "",
		"00-" + trace + "-" + span:                            "",
		"00-" + trace[1:] + "-" + span + "-01":                "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span + "-01": "",
		"00-00000000000000000000000000000000-" + span + "-01": "",
		"00-" + trace + "-0000000000000000-01":                "",
		" 00-" + trace + "-" + span + "-01":                   "",
		"00-" + trace + "-" + span + "-01\n":                  "",
		"":                                                    "",
	} {
		got, request := calledBy([]record.Header{{Name: "a", Value: []byte("b")}, {Name: "Traceparent", Value: []byte(parent)}})
		if got != want || request != "" {
			t.Errorf("%q is of trace %q, and not %q; request %q", parent, got, want, request)
		}
	}
	_, request := calledBy([]record.Header{{Name: "x-request-id", Value: []byte("r-1")}, {Name: "x-request-id", Value: []byte("r-2")}})
	if request != "r-1" {
		t.Errorf("request %q", request)
	}
}
