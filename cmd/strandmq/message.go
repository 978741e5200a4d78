package main

import (
	"strconv"

	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// messageKey gives a message's key as bytes, and whether it has one.
func messageKey(m *strandmqv1.Message) ([]byte, bool) {
	switch k := m.GetKeyKind().(type) {
	case *strandmqv1.Message_Key:
		return []byte(k.Key), true
	case *strandmqv1.Message_KeyBytes:
		return k.KeyBytes, true
	}
	return nil, false
}

// keyText prints a message's key: quoted when it is not plain text.
func keyText(m *strandmqv1.Message) string {
	key, ok := messageKey(m)
	if !ok {
		return "-"
	}
	return plain.Short(plain.Key(key), 60)
}

// body gives a message's body as bytes.
func body(m *strandmqv1.Message) []byte {
	switch b := m.GetBody().(type) {
	case *strandmqv1.Message_Text:
		return []byte(b.Text)
	case *strandmqv1.Message_Bytes:
		return b.Bytes
	case *strandmqv1.Message_Json:
		raw, err := marshal(b.Json)
		if err != nil {
			return nil
		}
		return raw
	}
	return nil
}

// headerValue gives a header's value as text for people.
func headerValue(h *strandmqv1.Header) string {
	if v, ok := h.GetValueKind().(*strandmqv1.Header_ValueBytes); ok {
		return strconv.Quote(string(v.ValueBytes))
	}
	return h.GetValue()
}
