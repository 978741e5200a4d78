package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"
)

// maxJSONDepth bounds how deep arrays and objects may be nested, in a request
// and in a body that is written as a JSON value. Deeper ones cost stack for
// nothing that a person could read.
const maxJSONDepth = 64

// maxSafeInteger is the largest integer that every JSON tool keeps: from 2^53
// on, two integers share one float64.
const maxSafeInteger = 1<<53 - 1

// appendJSON writes a JSON value as compact JSON text with sorted names. Equal
// values give equal text, so the same body sent again is the same message.
func appendJSON(dst []byte, v *structpb.Value, depth int) ([]byte, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("the JSON value is nested deeper than %d levels: flatten it, or send it as text", maxJSONDepth)
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_NullValue:
		return append(dst, "null"...), nil
	case *structpb.Value_BoolValue:
		return strconv.AppendBool(dst, k.BoolValue), nil
	case *structpb.Value_NumberValue:
		return appendNumber(dst, k.NumberValue)
	case *structpb.Value_StringValue:
		return appendString(dst, k.StringValue), nil
	case *structpb.Value_ListValue:
		dst = append(dst, '[')
		for i, e := range k.ListValue.GetValues() {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendJSON(dst, e, depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case *structpb.Value_StructValue:
		fields := k.StructValue.GetFields()
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		sort.Strings(names)
		dst = append(dst, '{')
		for i, name := range names {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, name), ':')
			var err error
			if dst, err = appendJSON(dst, fields[name], depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	default:
		return nil, errors.New("the JSON value has no kind: send null, true, false, a number, a string, a list or an object")
	}
}

// appendNumber writes a number as short as it can be read back. An integer that
// large has met a float64 before it came here, so it may no longer be what was
// sent: it is refused rather than stored changed.
func appendNumber(dst []byte, f float64) ([]byte, error) {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return nil, errors.New("the JSON value has a number that JSON cannot write (NaN or infinity): send it as text")
	case f == math.Trunc(f) && math.Abs(f) > maxSafeInteger:
		return nil, errors.New("the JSON value has an integer beyond 2^53, which JSON tools would change: send the number as a string, or the whole body as text")
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && a < 1e-6 {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64), nil
}

// appendString writes s as a JSON string, keeping everything that may stand as
// it is.
func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte{'\n'})...)
}

// jsonValue reads a stored body as a JSON value if the body is JSON that
// survives being one: no name twice in an object, no number that a float64
// changes, no broken surrogate, no more than maxJSONDepth levels. White space
// and the order of names are not part of the value.
func jsonValue(body []byte) (*structpb.Value, bool) {
	if !utf8.Valid(body) || brokenSurrogate(body) >= 0 {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	v, ok := readValue(dec, 0)
	if !ok {
		return nil, false
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, false
	}
	return v, true
}

func readValue(dec *json.Decoder, depth int) (*structpb.Value, bool) {
	if depth > maxJSONDepth {
		return nil, false
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, false
	}
	switch t := tok.(type) {
	case nil:
		return structpb.NewNullValue(), true
	case bool:
		return structpb.NewBoolValue(t), true
	case string:
		return structpb.NewStringValue(t), true
	case json.Number:
		f, err := strconv.ParseFloat(string(t), 64)
		if err != nil || !survives(string(t), f) {
			return nil, false
		}
		return structpb.NewNumberValue(f), true
	case json.Delim:
		if t == '[' {
			list := &structpb.ListValue{}
			for dec.More() {
				v, ok := readValue(dec, depth+1)
				if !ok {
					return nil, false
				}
				list.Values = append(list.Values, v)
			}
			if _, err := dec.Token(); err != nil {
				return nil, false
			}
			return structpb.NewListValue(list), true
		}
		obj := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, false
			}
			s, _ := name.(string) // the decoder allows nothing else here
			if _, twice := obj.Fields[s]; twice {
				return nil, false
			}
			v, ok := readValue(dec, depth+1)
			if !ok {
				return nil, false
			}
			obj.Fields[s] = v
		}
		if _, err := dec.Token(); err != nil {
			return nil, false
		}
		return structpb.NewStructValue(obj), true
	}
	return nil, false
}

// brokenSurrogate finds a \u escape of half a surrogate pair, which a decoder
// replaces in silence: where it begins, or -1.
func brokenSurrogate(b []byte) int {
	for i := 0; i+1 < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if b[i+1] != 'u' {
			i++ // skips the escaped byte, which may be a backslash
			continue
		}
		u, ok := hex4(b, i+2)
		if !ok {
			return -1 // not JSON; the decoder will say so
		}
		at := i
		i += 5
		switch {
		case u >= 0xdc00 && u <= 0xdfff:
			return at
		case u >= 0xd800 && u <= 0xdbff:
			if i+2 >= len(b) || b[i+1] != '\\' || b[i+2] != 'u' {
				return at
			}
			low, ok := hex4(b, i+3)
			if !ok || low < 0xdc00 || low > 0xdfff {
				return at
			}
			i += 6
		}
	}
	return -1
}

func hex4(b []byte, at int) (uint64, bool) {
	if at+4 > len(b) {
		return 0, false
	}
	u, err := strconv.ParseUint(string(b[at:at+4]), 16, 32)
	return u, err == nil
}

// survives reports whether the number written as text is the number that f is
// written as: the same decimal digits and the same exponent.
func survives(text string, f float64) bool {
	if math.IsInf(f, 0) || (f == math.Trunc(f) && math.Abs(f) > maxSafeInteger) {
		return false
	}
	ad, ae, aneg := decimal(text)
	bd, be, bneg := decimal(strconv.FormatFloat(f, 'e', -1, 64))
	return ad == bd && ae == be && aneg == bneg
}

// decimal takes a JSON number apart: significant digits without zeros at either
// end ("" for zero), and the power of ten of the first of them.
func decimal(s string) (digits string, exp int, neg bool) {
	if neg = strings.HasPrefix(s, "-"); neg {
		s = s[1:]
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.Atoi(strings.TrimPrefix(s[i+1:], "+"))
		if err != nil {
			return "?", 0, neg // an absurd exponent: equal to nothing
		}
		exp, s = e, s[:i]
	}
	whole, frac, _ := strings.Cut(s, ".")
	exp += len(whole) - 1
	digits = whole + frac
	trimmed := strings.TrimLeft(digits, "0")
	exp -= len(digits) - len(trimmed)
	trimmed = strings.TrimRight(trimmed, "0")
	if trimmed == "" {
		return "", 0, neg
	}
	return trimmed, exp, neg
}
