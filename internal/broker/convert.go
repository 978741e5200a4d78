package broker

import (
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// toRecord turns a message as a publisher wrote it into a record as it is
// stored. Lengths and names are the router's to judge; here is what only the
// readable form can get wrong. The record aliases the message.
func toRecord(m *strandmqv1.Message) (record.Record, *refusal) {
	r := record.Record{ID: m.GetId()}
	if why := failureOf(m); why != "" {
		return r, refuse("BAD_BODY", "json", "%s", why)
	}
	switch k := m.GetKeyKind().(type) {
	case *strandmqv1.Message_Key:
		r.HasKey, r.Key = true, []byte(k.Key)
	case *strandmqv1.Message_KeyBytes:
		r.HasKey, r.Key = true, k.KeyBytes
	}
	if n := len(m.GetHeaders()); n > 0 {
		r.Headers = make([]record.Header, n)
	}
	for i, h := range m.GetHeaders() {
		r.Headers[i].Name = h.GetName()
		switch v := h.GetValueKind().(type) {
		case *strandmqv1.Header_Value:
			if err := names.HeaderText(v.Value); err != nil {
				return r, refuse("BAD_HEADER", fmt.Sprintf("headers[%d].value", i), "%s", err)
			}
			r.Headers[i].Value = []byte(v.Value)
		case *strandmqv1.Header_ValueBytes:
			r.Headers[i].Value = v.ValueBytes
		}
	}
	switch b := m.GetBody().(type) {
	case *strandmqv1.Message_Text:
		r.Body = []byte(b.Text)
	case *strandmqv1.Message_Bytes:
		r.Body = b.Bytes
	case *strandmqv1.Message_Json:
		text, err := appendJSON(nil, b.Json, 0)
		if err != nil {
			return r, refuse("BAD_BODY", "json", "%s", err)
		}
		r.Body = text
	}
	return r, nil
}

// fromRecord writes a stored record for a reader. It copies what it takes.
func fromRecord(r record.Record, published int64, format strandmqv1.BodyFormat) *strandmqv1.Message {
	m := &strandmqv1.Message{Id: r.ID}
	if published != 0 {
		m.PublishTime = timestamp(published)
	}
	if r.HasKey {
		if utf8.Valid(r.Key) {
			m.KeyKind = &strandmqv1.Message_Key{Key: string(r.Key)}
		} else {
			m.KeyKind = &strandmqv1.Message_KeyBytes{KeyBytes: append([]byte{}, r.Key...)}
		}
	}
	if len(r.Headers) > 0 {
		m.Headers = make([]*strandmqv1.Header, len(r.Headers))
	}
	for i, h := range r.Headers {
		out := &strandmqv1.Header{Name: h.Name}
		if text := string(h.Value); names.HeaderText(text) == nil {
			out.ValueKind = &strandmqv1.Header_Value{Value: text}
		} else {
			out.ValueKind = &strandmqv1.Header_ValueBytes{ValueBytes: append([]byte{}, h.Value...)}
		}
		m.Headers[i] = out
	}
	switch {
	case format == strandmqv1.BodyFormat_BODY_FORMAT_JSON:
		if v, ok := jsonValue(r.Body); ok {
			m.Body = &strandmqv1.Message_Json{Json: v}
			return m
		}
	case format == strandmqv1.BodyFormat_BODY_FORMAT_BYTES:
		m.Body = &strandmqv1.Message_Bytes{Bytes: append([]byte{}, r.Body...)}
		return m
	}
	if utf8.Valid(r.Body) {
		m.Body = &strandmqv1.Message_Text{Text: string(r.Body)}
	} else {
		m.Body = &strandmqv1.Message_Bytes{Bytes: append([]byte{}, r.Body...)}
	}
	return m
}

// checkFormat refuses a body format that does not exist.
func checkFormat(f strandmqv1.BodyFormat) *refusal {
	if _, ok := strandmqv1.BodyFormat_name[int32(f)]; !ok {
		return refuse("BAD_VALUE", "body_format", "%d is not a body format", f)
	}
	return nil
}

func timestamp(ms int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(ms)) }

// timestampOrNil leaves a time out that is not known.
func timestampOrNil(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timestamp(ms)
}
