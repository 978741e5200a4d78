package main

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// FuzzHeaders: a --header is refused as wrong usage, or is a header that can be
// sent and says what was typed.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{"", "a", "a=", "=a", "a=b", "a=b=c", "a b=c", "\xff=a", "a=\xff", "ä=ö"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		headers, err := parseHeaders([]string{"first=1", s})
		if err != nil {
			if !errors.As(err, new(*usageError)) {
				t.Fatalf("%q gives %v, which is no wrong usage", s, err)
			}
			return
		}
		if len(headers) != 2 || headers[0].GetName() != "first" {
			t.Fatalf("%q gives %v", s, headers)
		}
		if h := headers[1]; h.GetName() == "" || h.GetName()+"="+h.GetValue() != s {
			t.Fatalf("%q is taken for %v", s, h)
		}
		if _, err := proto.Marshal(&strandmqv1.Message{Headers: headers}); err != nil {
			t.Fatalf("%q cannot be sent: %v", s, err)
		}
	})
}
