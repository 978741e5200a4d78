package duplex

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Error is a refusal by the other side, or the end of the stream by it.
type Error struct {
	Code    string // of the Connect protocol, such as unavailable
	Message string
	Details []Detail
}

// Detail is one typed detail of an error.
type Detail struct {
	Type  string // a protobuf message's full name
	Value []byte // the message
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Code + ": " + e.Message
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"details"`
}

func (w *wireError) error() error {
	e := &Error{Code: w.Code, Message: w.Message}
	for _, d := range w.Details {
		v, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err == nil {
			e.Details = append(e.Details, Detail{Type: d.Type, Value: v})
		}
	}
	return e
}

// endOf reads the last envelope of a call.
func endOf(b []byte) error {
	var end struct {
		Error *wireError `json:"error"`
	}
	if err := json.Unmarshal(b, &end); err != nil {
		return fmt.Errorf("duplex: the end of the call cannot be read: %w", err)
	}
	if end.Error == nil {
		return io.EOF
	}
	return end.Error.error()
}

// Refused reads the body of an answer with another HTTP status than 200: of a
// call that did not begin, or of a unary one.
func Refused(status string, b []byte) error {
	var w wireError
	if err := json.Unmarshal(b, &w); err != nil || w.Code == "" {
		return &Error{Code: "unknown", Message: "the server answered with HTTP status " + status}
	}
	return w.error()
}
