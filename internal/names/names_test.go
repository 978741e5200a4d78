package names

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 200)
	for _, tt := range []struct {
		what  string
		check func(string) error
		good  []string
		bad   map[string]string // name → what the error must say
	}{
		{"topic", Topic,
			[]string{"a", "Flights.2024_x-1", "-", "_", "strandmq", "strandmq_x", long},
			map[string]string{
				"": "is empty", long + "a": "at most 200", ".a": "begins with a dot", "..": "begins with a dot",
				"a/b": "byte 2", "a b": "byte 2", "a\n": "byte 2", "ä": "byte 1", "a\x00": "byte 2", "а": "byte 1",
				"strandmq.x": "belong to the broker", "StrandMQ.x": "belong to the broker",
			}},
		{"header", HeaderName,
			[]string{"a", "Content-Type", "x!#$%&'*+-.^_`|~9", ".a", "strandmq", long},
			map[string]string{
				"": "is empty", long + "a": "at most 200", "a:b": "byte 2", "a b": "byte 2", "a\r\nb": "byte 2", "é": "byte 1",
				"Strandmq-Token": "belong to the broker",
			}},
		{"text", HeaderText,
			[]string{"", "grüße, 世界", "a b"},
			map[string]string{
				"a\r\nb": "byte 2", "\x7f": "byte 1", "a\u0085": "byte 2", "\u2028": "byte 1", "\xff": "not valid UTF-8",
			}},
		{"id", MessageID,
			[]string{"a", "order 17/é", strings.Repeat("x", 256)},
			map[string]string{
				"": "is empty", strings.Repeat("x", 257): "at most 256", "a\tb": "byte 2", "\xc3": "not valid UTF-8",
			}},
		{"producer", ProducerID,
			[]string{"a", "0f8fad5b-d9cb-469f-a165-70867728950e", strings.Repeat("p", 64)},
			map[string]string{"": "is empty", strings.Repeat("p", 65): "at most 64", "a b": "byte 2"}},
	} {
		bytes := map[string]func([]byte) bool{"header": IsHeaderName, "id": IsMessageID}[tt.what]
		for _, s := range tt.good {
			if bytes != nil && !bytes([]byte(s)) {
				t.Errorf("%s %q is refused as bytes", tt.what, s)
			}
			if err := tt.check(s); err != nil {
				t.Errorf("%s %q: %v", tt.what, s, err)
			}
		}
		for s, want := range tt.bad {
			if bytes != nil && bytes([]byte(s)) {
				t.Errorf("%s %q is taken as bytes", tt.what, s)
			}
			err := tt.check(s)
			var typed *Error
			if !errors.As(err, &typed) {
				t.Errorf("%s %q: got %v, want an *Error", tt.what, s, err)
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %q does not say %q", tt.what, s, err, want)
			}
		}
	}
}

// What a stranger sent must not be able to draw on a terminal or forge a line
// of a log through an error's text.
func FuzzErrorTextIsSafe(f *testing.F) {
	for _, s := range []string{"", "a", "\x1b[31m", "a\r\nb", "\xff\xfe", strings.Repeat("é", 200), strings.Repeat("a", 63) + "世界"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if IsHeaderName([]byte(s)) != (HeaderName(s) == nil) || IsMessageID([]byte(s)) != (MessageID(s) == nil) {
			t.Fatalf("bytes and text are judged differently: %q", s)
		}
		for _, check := range []func(string) error{Topic, Group, Member, HeaderName, HeaderText, MessageID, ProducerID} {
			err := check(s)
			if err == nil {
				if !utf8.ValidString(s) || strings.ContainsAny(s, "\r\n\x00\x1b") {
					t.Fatalf("%q passed", s)
				}
				continue
			}
			text := err.Error()
			if len(text) > 1000 {
				t.Fatalf("an error of %d bytes for a name of %d", len(text), len(s))
			}
			for i := range len(text) {
				if text[i] < ' ' || text[i] > '~' {
					t.Fatalf("byte %d of %q is not printable", i, text)
				}
			}
		}
	})
}
