package broker

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A request that cannot be decoded must still be answered with a reason. The
// decoder of the RPC library gives it a code and no detail, and interceptors run
// after it; so the codecs here report success and leave the reason in the
// message, in an unknown field of a number that no message uses, where the
// interceptor finds it before the method runs. A caller that sends the field
// itself is refused as well.
const failureField = 536870911 // the last field number there is

func leaveFailure(m proto.Message, err error) {
	proto.Reset(m)
	b := protowire.AppendTag(nil, failureField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(b, err.Error()))
}

// failureOf is what leaveFailure left, empty for nothing.
func failureOf(m proto.Message) string {
	for b := m.ProtoReflect().GetUnknown(); len(b) > 0; {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return ""
		}
		if num == failureField {
			_, _, t := protowire.ConsumeTag(b)
			text, _ := protowire.ConsumeString(b[t:])
			return valid(text)
		}
		b = b[n:]
	}
	return ""
}

// decodeFailure is why a request did not decode, nil if it did.
func decodeFailure(m any) *refusal {
	if msg, ok := m.(proto.Message); ok {
		if why := failureOf(msg); why != "" {
			return refuse("BAD_REQUEST", "", "the request cannot be decoded: %s", why)
		}
	}
	return nil
}

var errNotProto = errors.New("not a protobuf message")

// jsonCodec is JSON as people write it: a field that does not exist is an error
// and not silence, what JSON tools would change is refused, and answers show
// zeros and empty lists too.
type jsonCodec struct{ name string }

var _ connect.Codec = jsonCodec{}

func (c jsonCodec) Name() string   { return c.name }
func (c jsonCodec) IsBinary() bool { return false }

func (c jsonCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (jsonCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.MarshalAppend(dst, msg)
}

func (c jsonCodec) MarshalStable(m any) ([]byte, error) { return c.Marshal(m) }

func (jsonCodec) Unmarshal(b []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errNotProto
	}
	if err := decodeJSON(b, msg); err != nil {
		leaveFailure(msg, plainText(err))
	}
	return nil
}

// protoCodec is binary protobuf, lenient about unknown fields as protobuf is.
type protoCodec struct{}

var _ connect.Codec = protoCodec{}

func (protoCodec) Name() string { return "proto" }

func (c protoCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (protoCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, msg)
}

func (protoCodec) MarshalStable(m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(msg)
}

func (protoCodec) IsBinary() bool { return true }

func (protoCodec) Unmarshal(b []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errNotProto
	}
	// Nesting in binary is bounded like nesting in JSON: each level of a value
	// takes three messages.
	if err := (proto.UnmarshalOptions{RecursionLimit: 4 * maxJSONDepth}).Unmarshal(b, msg); err != nil {
		leaveFailure(msg, plainText(err))
	}
	return nil
}

// plainText takes the library's prefix off and bounds the text, which may quote
// the request.
func plainText(err error) error {
	s := err.Error()
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	for _, prefix := range []string{"proto:\u00a0", "proto: "} {
		if len(s) > len(prefix) && s[:len(prefix)] == prefix {
			s = s[len(prefix):]
		}
	}
	return fmt.Errorf("%s", s)
}
