package broker

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Whatever is stored comes back byte for byte when the answer is published
// again, in every body format that keeps bytes, and through JSON text.
func TestMessageRoundTrip(t *testing.T) {
	bytesOrText := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
		rapid.Just([]byte(`{"b":1,"a":[1.50,{"c":"x"}]}`)), rapid.Just([]byte(`12345678901234567890`)))
	rapid.Check(t, func(t *rapid.T) {
		in := record.Record{
			HasKey: rapid.Bool().Draw(t, "hasKey"),
			ID:     rapid.String().Draw(t, "id"),
			Body:   bytesOrText.Draw(t, "body"),
		}
		if in.HasKey {
			in.Key = bytesOrText.Draw(t, "key")
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			in.Headers = append(in.Headers, record.Header{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"), Value: bytesOrText.Draw(t, "value")})
		}
		for _, f := range []strandmqv1.BodyFormat{strandmqv1.BodyFormat_BODY_FORMAT_UNSPECIFIED, strandmqv1.BodyFormat_BODY_FORMAT_BYTES} {
			text, err := jsonCodec{}.Marshal(fromRecord(in, 1, f))
			if err != nil {
				t.Fatal(err)
			}
			var m strandmqv1.Message
			if err := protojson.Unmarshal(text, &m); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			out, refused := toRecord(&m)
			if refused != nil {
				t.Fatalf("%s: %v", text, refused)
			}
			if out.ID != in.ID || out.HasKey != in.HasKey || !bytes.Equal(out.Key, in.Key) || !bytes.Equal(out.Body, in.Body) || len(out.Headers) != len(in.Headers) {
				t.Fatalf("%s: got %+v, want %+v", text, out, in)
			}
			for i := range in.Headers {
				if out.Headers[i].Name != in.Headers[i].Name || !bytes.Equal(out.Headers[i].Value, in.Headers[i].Value) {
					t.Fatalf("%s: header %d changed", text, i)
				}
			}
		}
	})
}

func TestBodyFormats(t *testing.T) {
	const text, raw, js = strandmqv1.BodyFormat_BODY_FORMAT_UNSPECIFIED, strandmqv1.BodyFormat_BODY_FORMAT_BYTES, strandmqv1.BodyFormat_BODY_FORMAT_JSON
	for _, c := range []struct {
		body   string
		format strandmqv1.BodyFormat
		want   string
	}{
		{`{"a":1}`, text, `{"text":"{\"a\":1}"}`},
		{`{"a":1}`, raw, `{"bytes":"eyJhIjoxfQ=="}`},
		{`{"a":1}`, js, `{"json":{"a":1}}`},
		{`9007199254740993`, js, `{"text":"9007199254740993"}`},
		{"\xff", js, `{"bytes":"/w=="}`},
		{"\xff", text, `{"bytes":"/w=="}`},
		{"", text, `{"text":""}`},
		{"", js, `{"text":""}`},
		{"null", js, `{"json":null}`},
	} {
		m := fromRecord(record.Record{Body: []byte(c.body)}, 0, c.format)
		var want strandmqv1.Message
		if err := protojson.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if got := m.String(); got != want.String() {
			t.Errorf("%q as %v: got %s, want %s", c.body, c.format, got, &want)
		}
	}
}
