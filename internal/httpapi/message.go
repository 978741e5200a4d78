package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The ways a value is written in JSON.
const (
	asText   = "utf8"
	asJSON   = "json"
	asBase64 = "base64"
)

// maxDepth is how deep a value that is shown as JSON may be nested: readers that go
// down level by level end early, and would then read nothing of the whole answer.
const maxDepth = 64

// message reads one line of a publish.
//
//	{"key": "alice", "id": "a-1", "value": {"total": 12}, "headers": [{"name": "n", "value": "v"}]}
func message(b []byte) (*strandmqv1.Message, error) {
	f, err := object(b)
	if err != nil {
		return nil, err
	}
	m := &strandmqv1.Message{Id: f.text("id")}
	if key, ok := f.given("key"); ok {
		m.KeyKind = &strandmqv1.Message_Key{Key: key}
	}
	if key, ok := f.given("key_base64"); ok {
		if m.KeyKind != nil {
			f.fail("key_base64", "is there beside key: give one of the two")
		}
		m.KeyKind = &strandmqv1.Message_KeyBytes{KeyBytes: f.bytes("key_base64", key)}
	}
	how, told := f.given("encoding")
	raw, ok := f.take("value")
	switch {
	case !ok:
		f.fail("value", "is missing: give a string, any other JSON value, or a string in base64 with \"encoding\": \"base64\"")
	case told && how != asText && how != asJSON && how != asBase64:
		f.fail("encoding", "is not utf8, json or base64")
	case how == asBase64:
		m.Body = &strandmqv1.Message_Bytes{Bytes: f.bytes("value", f.string("value", raw))}
	case how == asText || !told && raw[0] == '"':
		m.Body = &strandmqv1.Message_Text{Text: f.string("value", raw)}
	default:
		var out bytes.Buffer
		_ = json.Compact(&out, raw) // it is valid
		m.Body = &strandmqv1.Message_Bytes{Bytes: out.Bytes()}
	}
	if raw, ok := f.take("headers"); ok {
		m.Headers = f.headers(raw)
	}
	return m, f.done()
}

func (f *fields) bytes(name, text string) []byte {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		f.fail(name, "is not base64 with padding")
	}
	return b
}

func (f *fields) headers(raw json.RawMessage) []*strandmqv1.Header {
	const form = `is not a list of headers such as [{"name": "trace", "value": "7"}]`
	var list []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		f.fail("headers", form)
		return nil
	}
	out := make([]*strandmqv1.Header, len(list))
	for i, one := range list {
		h, err := object(one)
		if err != nil {
			f.fail("headers", form)
			return nil
		}
		out[i] = &strandmqv1.Header{Name: h.text("name")}
		value, has := h.given("value")
		out[i].ValueKind = &strandmqv1.Header_Value{Value: value}
		if coded, ok := h.given("value_base64"); ok {
			if has {
				h.fail("value_base64", "is there beside value: give one of the two")
			}
			out[i].ValueKind = &strandmqv1.Header_ValueBytes{ValueBytes: h.bytes("value_base64", coded)}
		}
		if err := h.done(); err != nil && f.bad == nil {
			f.bad = refuse("BAD_REQUEST", "headers", "in the field \"headers\": %s", problemOf(err).detail)
		}
	}
	return out
}

// shown is a message as it is written in an answer.
type shown struct {
	Partition uint32          `json:"partition"`
	Offset    uint64          `json:"offset"`
	Key       *string         `json:"key,omitempty"`
	KeyBase64 *string         `json:"key_base64,omitempty"`
	ID        string          `json:"id,omitempty"`
	Headers   []shownHeader   `json:"headers,omitempty"`
	Value     json.RawMessage `json:"value"`
	Encoding  string          `json:"encoding"`
	Published string          `json:"published,omitempty"`
}

type shownHeader struct {
	Name        string  `json:"name"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 *string `json:"value_base64,omitempty"`
}

// show writes a message; its body was asked for as bytes. With coded its value is
// in base64, whatever it is.
func show(m *strandmqv1.Message, partition uint32, offset uint64, coded bool) shown {
	out := shown{Partition: partition, Offset: offset, ID: m.GetId(), Published: instant(m.GetPublishTime())}
	switch k := m.GetKeyKind().(type) {
	case *strandmqv1.Message_Key:
		out.Key = &k.Key
	case *strandmqv1.Message_KeyBytes:
		out.KeyBase64 = new(base64.StdEncoding.EncodeToString(k.KeyBytes))
	}
	for _, h := range m.GetHeaders() {
		one := shownHeader{Name: h.GetName()}
		if v, ok := h.GetValueKind().(*strandmqv1.Header_ValueBytes); ok {
			one.ValueBase64 = new(base64.StdEncoding.EncodeToString(v.ValueBytes))
		} else {
			one.Value = new(h.GetValue())
		}
		out.Headers = append(out.Headers, one)
	}
	out.Value, out.Encoding = value(m.GetBytes(), coded)
	return out
}

// value writes a body: objects and lists as the JSON that they are, other text as a
// string, and what is no text in base64.
func value(b []byte, coded bool) (json.RawMessage, string) {
	switch {
	case coded || !utf8.Valid(b):
		out, _ := encode(base64.StdEncoding.EncodeToString(b))
		return out, asBase64
	case compound(b):
		return b, asJSON
	}
	out, _ := encode(string(b))
	return out, asText
}

// compound tells JSON objects and lists, which nobody takes for text.
func compound(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	if len(b) == 0 || b[0] != '{' && b[0] != '[' || !json.Valid(b) {
		return false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			if depth++; depth > maxDepth {
				return false
			}
		case ']', '}':
			depth--
		}
	}
	return true
}

// instant writes a time; empty for none.
func instant(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}
