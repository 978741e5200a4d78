package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// decodeJSON reads a request as people write it. A field that does not exist is
// an error, and so is what JSON tools would change in silence. Where that stands
// in the json of a message, only that message is refused: see badBodies.
func decodeJSON(b []byte, msg proto.Message) error {
	if len(b) == 0 {
		return errors.New("the body is empty: send at least {}")
	}
	if tooDeep(b, 2*maxJSONDepth) { // beyond this, nobody looks which message it is
		return errDeep
	}
	err := checkText(b)
	if err == nil {
		err = unmarshalJSON(b, msg)
	}
	publish, ok := msg.(*strandmqv1.PublishRequest)
	if err == nil || !ok {
		return err
	}
	bad := badBodies(b)
	if len(bad) == 0 {
		return err
	}
	rest := slices.Clone(b)
	for _, v := range bad {
		// null, and white space so that later errors name the places they have.
		copy(rest[v.from:v.to], append([]byte("null"), bytes.Repeat([]byte{' '}, v.to-v.from-4)...))
	}
	proto.Reset(msg)
	if err = checkText(rest); err == nil {
		err = unmarshalJSON(rest, msg)
	}
	if err != nil {
		return err
	}
	for _, v := range bad {
		if v.message < len(publish.GetMessages()) {
			leaveFailure(publish.GetMessages()[v.message], errors.New(v.why))
		}
	}
	return nil
}

func unmarshalJSON(b []byte, msg proto.Message) error {
	return protojson.UnmarshalOptions{RecursionLimit: 4 * maxJSONDepth}.Unmarshal(b, msg)
}

// A badBody is the json of one message of a publish that cannot be stored as it
// was sent.
type badBody struct {
	message  int
	from, to int // where it stands in the request
	why      string
}

// badBodies finds them. A request that is no JSON beyond them yields none; the
// decoder says what is wrong with it.
func badBodies(b []byte) (out []badBody) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var skip json.RawMessage
	fields := func(each func(name string) bool) bool {
		if t, err := dec.Token(); err != nil || t != json.Delim('{') {
			return false
		}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return false
			}
			if text, _ := name.(string); !each(text) {
				return false
			}
		}
		_, err := dec.Token()
		return err == nil
	}
	message := func(i int) bool {
		return fields(func(name string) bool {
			if err := dec.Decode(&skip); err != nil {
				return false
			}
			if name != "json" || len(skip) < len("null") {
				return true // too short to hold anything that is lost
			}
			if _, ok := jsonValue(skip); !ok {
				to := int(dec.InputOffset())
				out = append(out, badBody{message: i, from: to - len(skip), to: to, why: whyNotValue(skip)})
			}
			return true
		})
	}
	whole := fields(func(name string) bool {
		if name != "messages" {
			return dec.Decode(&skip) == nil
		}
		if t, err := dec.Token(); err != nil || t != json.Delim('[') {
			return false
		}
		for i := 0; dec.More(); i++ {
			if !message(i) {
				return false
			}
		}
		_, err := dec.Token()
		return err == nil
	})
	if !whole {
		return nil
	}
	return out
}

// whyNotValue says what JSON tools would change in a value.
func whyNotValue(b []byte) string {
	if tooDeep(b, maxJSONDepth+1) { // the outermost is level 0
		return errDeep.Error()
	}
	if err := checkText(b); err != nil {
		return err.Error()
	}
	if n := lossyNumber(b, true); n.text != "" {
		return n.error(b).Error()
	}
	return "the JSON value has an object with the same name twice, of which tools keep one: send it once, or the whole body as text"
}

var errDeep = fmt.Errorf("it is nested deeper than %d levels: flatten it, or send the body as text", maxJSONDepth)

// tooDeep tells what is nested too deep before anything goes down there.
func tooDeep(b []byte, most int) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = endOfString(b, i)
		case '[', '{':
			if depth++; depth > most {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

// checkText looks for what a decoder would change in silence: half characters,
// and decimals that lose digits in a float64. Integers are left to the fields
// that they belong to: a uint64 takes them exactly.
func checkText(b []byte) error {
	if i := brokenSurrogate(b); i >= 0 {
		return fmt.Errorf("the escape %s %s is half of a surrogate pair, which no UTF-8 text can hold: send both halves, or the bytes in base64", b[i:i+6], whereIn(b, i))
	}
	if n := lossyNumber(b, false); n.text != "" {
		return n.error(b)
	}
	return nil
}

// A number is one that JSON tools change.
type number struct {
	text string
	at   int
}

func (n number) error(b []byte) error {
	text := n.text
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return fmt.Errorf("the number %s %s is not one that JSON tools keep as it is: send it as a string, or the whole body as text", text, whereIn(b, n.at))
}

// lossyNumber finds the first number that a float64 does not keep. Without all,
// it passes over integers.
func lossyNumber(b []byte, all bool) number {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			i = endOfString(b, i)
		case c == '-' || c >= '0' && c <= '9':
			start := i
			for i+1 < len(b) && strings.IndexByte("0123456789+-.eE", b[i+1]) >= 0 {
				i++
			}
			text := b[start : i+1]
			exponent := bytes.ContainsAny(text, "eE")
			if len(text) <= 15 && !exponent || !all && !exponent && bytes.IndexByte(text, '.') < 0 {
				continue // too short to lose a digit, or an integer
			}
			f, err := strconv.ParseFloat(string(text), 64)
			if err != nil || math.IsInf(f, 0) || !survives(string(text), f) {
				return number{string(text), start}
			}
		}
	}
	return number{}
}

// endOfString is where the string that begins at i ends.
func endOfString(b []byte, i int) int {
	for i++; i < len(b) && b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i
}

// whereIn names a byte of a text for people.
func whereIn(b []byte, at int) string {
	before := b[:at]
	line := bytes.Count(before, []byte{'\n'})
	return fmt.Sprintf("at line %d, column %d", line+1, at-bytes.LastIndexByte(before, '\n'))
}
