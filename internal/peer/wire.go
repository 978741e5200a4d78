package peer

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// A frame, little endian:
//
//	+0  length of the body   u32
//	+4  kind                 u8
//	+5  body
//
// The body of a message is the message. A beat is a stamp (u64), which means
// something to its sender only. An answer is the stamp of the beat that it
// answers, or 0, and the clock of who answers (i64, milliseconds since 1970). The
// others are fields.
const headerSize = 5

type kind uint8

const (
	kindHello   kind = 1
	kindWelcome kind = 2
	kindRefusal kind = 3
	kindMessage kind = 4
	kindBeat    kind = 5
	kindAnswer  kind = 6
	kindJoin    kind = 7
	kindJoined  kind = 8
)

const (
	beatSize   = 8
	answerSize = 16
	// helloLimit bounds a hello, a welcome and a refusal.
	helloLimit = 4 << 10
	// joinLimit bounds what is asked and answered when a node joins.
	joinLimit = 1 << 20
	// eagerSize is how much memory a header alone may claim. What is longer gets its
	// memory as it arrives.
	eagerSize = 1 << 20
)

func appendHeader(dst []byte, k kind, length int) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(length)), byte(k))
}

func appendFrame(dst []byte, k kind, body []byte) []byte {
	return append(appendHeader(dst, k, len(body)), body...)
}

// parseHeader takes a header apart. limit bounds the length of the body.
func parseHeader(h [headerSize]byte, limit int) (kind, int, error) {
	k, n := kind(h[4]), binary.LittleEndian.Uint32(h[:])
	if k < kindHello || k > kindJoined {
		return 0, 0, refuse(Malformed, "a frame has kind %d, which is not known", k)
	}
	if uint64(n) > uint64(limit) {
		return 0, 0, refuse(Malformed, "a frame has %d bytes, more than the %d that are taken", n, limit)
	}
	return k, int(n), nil
}

// readFrame reads one frame whose body has at most limit bytes. The body is the
// caller's.
func readFrame(r io.Reader, limit int) (kind, []byte, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	k, n, err := parseHeader(h, limit)
	if err != nil {
		return 0, nil, err
	}
	body, err := readBody(r, n)
	return k, body, err
}

// readBody reads n bytes. Memory beyond eagerSize is taken only as half of it has
// been filled, so that a length which somebody made up costs nothing.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, min(n, eagerSize))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, unexpected(err)
	}
	for have := len(body); have < n; have = len(body) {
		larger := make([]byte, min(n, 2*have))
		copy(larger, body)
		body = larger
		if _, err := io.ReadFull(r, body[have:]); err != nil {
			return nil, unexpected(err)
		}
	}
	return body, nil
}

// unexpected: a stream that ends behind a header ends too early.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Fields are what hellos, welcomes, refusals and joins consist of, so that a later
// version can add some that an earlier one does not know and skips:
//
//	+0  tag      u8
//	+1  length   u32
//	+5  value
type tag uint8

const (
	tagVersions tag = 1  // lowest and highest, u16 each; in a welcome both are the chosen one
	tagCluster  tag = 2  // text
	tagNode     tag = 3  // u64: who speaks
	tagTo       tag = 4  // u64: who is meant
	tagStore    tag = 5  // 16 bytes
	tagBoot     tag = 6  // u64
	tagLife     tag = 7  // u64
	tagClock    tag = 8  // i64, milliseconds since 1970
	tagReason   tag = 9  // u16
	tagText     tag = 10 // text
	tagSecret   tag = 11 // bytes
	tagRequest  tag = 12 // bytes
	tagReply    tag = 13 // bytes
	tagEarlier  tag = 14 // starts of 16 bytes: boot u64, life u64, in order
)

func appendField(dst []byte, t tag, value []byte) []byte {
	dst = append(dst, byte(t))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

func appendUint64(dst []byte, t tag, v uint64) []byte {
	return appendField(dst, t, binary.LittleEndian.AppendUint64(nil, v))
}

// parseFields calls each field in turn. The values alias b.
func parseFields(b []byte, each func(tag, []byte) error) error {
	for len(b) > 0 {
		if len(b) < 5 {
			return refuse(Malformed, "a field ends after %d bytes", len(b))
		}
		t, n := tag(b[0]), binary.LittleEndian.Uint32(b[1:])
		if uint64(n) > uint64(len(b)-5) {
			return refuse(Malformed, "field %d has %d bytes and says %d", t, len(b)-5, n)
		}
		if err := each(t, b[5:5+n]); err != nil {
			return err
		}
		b = b[5+n:]
	}
	return nil
}

func parseUint64(t tag, v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, refuse(Malformed, "field %d has %d bytes, and has 8 where it is right", t, len(v))
	}
	return binary.LittleEndian.Uint64(v), nil
}

// encodeRefusal is the body of a refusal.
func encodeRefusal(e *ErrRefused) []byte {
	text := e.Text
	if len(text) > 1<<10 {
		text = strings.ToValidUTF8(text[:1<<10], "")
	}
	b := appendField(nil, tagReason, binary.LittleEndian.AppendUint16(nil, uint16(e.Reason)))
	return appendField(b, tagText, []byte(text))
}

// parseRefusal takes the body of a refusal apart.
func parseRefusal(b []byte) (*ErrRefused, error) {
	e := &ErrRefused{Remote: true}
	err := parseFields(b, func(t tag, v []byte) error {
		switch t {
		case tagReason:
			if len(v) != 2 {
				return refuse(Malformed, "a refusal's reason has %d bytes, and has 2 where it is right", len(v))
			}
			e.Reason = Reason(binary.LittleEndian.Uint16(v))
		case tagText:
			if !utf8.Valid(v) || len(v) > 1<<10 {
				return refuse(Malformed, "a refusal's text is not text, or longer than 1,024 bytes")
			}
			e.Text = string(v)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if e.Reason == 0 {
		return nil, refuse(Malformed, "a refusal gives no reason")
	}
	return e, nil
}

// parseAnswer takes an answer apart: the beat's stamp, and the other's clock.
func parseAnswer(b []byte) (stamp uint64, clock int64, err error) {
	if len(b) != answerSize {
		return 0, 0, refuse(Malformed, "an answer has %d bytes, and has %d where it is right", len(b), answerSize)
	}
	return binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:])), nil
}

// expect reads a frame and takes its body when it is of the kind, or its refusal.
func expect(r io.Reader, want kind, limit int) ([]byte, error) {
	k, body, err := readFrame(r, limit)
	if err != nil {
		return nil, err
	}
	switch k {
	case want:
		return body, nil
	case kindRefusal:
		e, err := parseRefusal(body)
		if err != nil {
			return nil, err
		}
		return nil, e
	}
	return nil, refuse(Malformed, "a frame of kind %d came where one of kind %d belongs", k, want)
}
