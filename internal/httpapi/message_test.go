package httpapi

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Whatever a line has, a message that is taken comes out the same when it is shown
// and read again.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		`{"value":"x"}`, `{"key":"k","id":"i","value":{"a":[1,2,{"b":null}]},"headers":[{"name":"n","value":"v"},{"name":"n","value_base64":"/w=="}]}`,
		`{"key_base64":"/w==","value":"/w==","encoding":"base64"}`, `{"value":"[1, 2]","encoding":"utf8"}`, `{"value":" [1]","encoding":"json"}`,
		`{"value":"\ud800"}`, `{"value":1e400}`, `{"value":"\u2028","key":"😀"}`, `{"value":"` + strings.Repeat("[", 70) + `"}`, `{"value":"[\"\\\""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := message(line)
		if err != nil {
			if p := problemOf(err); p.detail == "" || p.reason == "INTERNAL" {
				t.Fatalf("%q: %v", line, err)
			}
			return
		}
		stored := proto.CloneOf(m)
		if text, ok := m.GetBody().(*strandmqv1.Message_Text); ok {
			stored.Body = &strandmqv1.Message_Bytes{Bytes: []byte(text.Text)}
		}
		for _, coded := range []bool{false, true} {
			s := show(stored, 1, 2, coded)
			out, err := encode(s)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Count(out, []byte("\n")) != 1 {
				t.Fatalf("more than one line: %q", out)
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(out, &fields); err != nil {
				t.Fatal(err)
			}
			for _, own := range []string{"partition", "offset", "published"} {
				delete(fields, own)
			}
			again, err := encode(fields)
			if err != nil {
				t.Fatal(err)
			}
			back, err := message(again)
			if err != nil {
				t.Fatalf("%q was shown as %q: %v", line, again, err)
			}
			got := append(back.GetBytes(), back.GetText()...)
			want := stored.GetBytes()
			if s.Encoding == asJSON { // white space between its parts is not kept
				var b bytes.Buffer
				if err := json.Compact(&b, want); err != nil {
					t.Fatal(err)
				}
				want = b.Bytes()
			}
			if !bytes.Equal(got, want) || back.GetId() != m.GetId() || len(back.GetHeaders()) != len(m.GetHeaders()) ||
				string(back.GetKeyBytes())+back.GetKey() != string(m.GetKeyBytes())+m.GetKey() {
				t.Fatalf("%q was shown as %q, which is %v", line, again, back)
			}
		}
	})
}

// A header's value comes back from what it is written as.
func FuzzDecoded(f *testing.F) {
	for _, seed := range []string{"", "plain", "%C3%BC", "%", "%zz", "a b%0A"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		out, err := decoded("Strandmq-Key", value)
		if err != nil {
			if problemOf(err).reason != "BAD_HEADER" {
				t.Fatal(err)
			}
			return
		}
		if back, err := decoded("Strandmq-Key", url.PathEscape(out)); err != nil || back != out {
			t.Fatalf("%q is %q, and back %q: %v", value, out, back, err)
		}
	})
}

// A place is written as it is read.
func FuzzPlaces(f *testing.F) {
	for _, seed := range []string{"0:0", "0:17,1:4", ":", "0:", "1:9223372036854775807", "4294967296:1", "0:1,", "0x1:1", "0:1~k3x9", "0:1~", "0:1~0", "0:1~zzzzzzzzzzzzzz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, mark, err := parsePlaces("from", text)
		if err != nil {
			if problemOf(err).reason != "BAD_VALUE" {
				t.Fatal(err)
			}
			return
		}
		written := places(list, mark)
		again, same, err := parsePlaces("from", written)
		if err != nil || len(again) != len(list) || same != mark || places(again, same) != written || !isPlaces(written) {
			t.Fatalf("%q is %v of %d, and back %v of %d: %v", text, list, mark, again, same, err)
		}
	})
}
