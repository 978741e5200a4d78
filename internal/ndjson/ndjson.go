// Package ndjson reads keyed lines: files with one JSON value a line, of which
// a top-level field is the key of a message and another may be its id.
//
//	file or pipe ─► Reader.Next ─► Line{Number, Text, Key, ID}
//	                     └──────► *Error{Line, Why}: the first bad line ends it
//
// The text of a line stays as it came, byte for byte, bar its line end: keys are
// read out of it, nothing is written back. Empty lines are passed over, but
// counted. A byte order mark in front and CRLF ends are accepted.
//
// It promises that lines before a bad one were given out before the error, that
// the error names the line, and that memory stays below the longest line
// allowed. It refuses what would make a key uncertain: JSON that is broken,
// text that is not UTF-8, a key field that is missing, null, compound, there
// twice, or with half of a character.
package ndjson

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Config says what to read out of each line.
type Config struct {
	KeyField string // top-level field that is the key; empty: lines have none
	IDField  string // top-level field that is the id; empty: lines have none
	MaxLine  int    // longest line in bytes; 0: 1 MiB
}

// Line is one line.
type Line struct {
	Number int    // from 1, empty lines counted
	Text   []byte // without its end; valid until the next call of Next
	Key    string // the key field: a string's text, or a number or boolean as written
	ID     string // the id field, likewise
	End    int64  // bytes read up to and with this line
}

// Error is a line that cannot be used.
type Error struct {
	Line int
	Why  string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

// Reader reads lines. Not safe for concurrent use.
type Reader struct {
	cfg    Config
	in     *bufio.Reader
	buf    []byte
	number int
	read   int64
	err    error // sticky
}

// NewReader reads from in.
func NewReader(in io.Reader, cfg Config) *Reader {
	if cfg.MaxLine <= 0 {
		cfg.MaxLine = 1 << 20
	}
	return &Reader{cfg: cfg, in: bufio.NewReaderSize(in, 64<<10)}
}

// Next returns the next line; io.EOF after the last; *Error for a bad one, after
// which nothing more is read; or the error of the underlying reader.
func (r *Reader) Next() (Line, error) {
	if r.err != nil {
		return Line{}, r.err
	}
	line, err := r.next()
	if err != nil {
		r.err = err
	}
	return line, err
}

func (r *Reader) next() (Line, error) {
	for {
		text, err := r.line()
		if err != nil {
			return Line{}, err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		line := Line{Number: r.number, Text: text, End: r.read}
		if why := r.cfg.fields(&line); why != "" {
			return Line{}, &Error{Line: r.number, Why: why}
		}
		return line, nil
	}
}

// line reads up to the next newline, at most MaxLine bytes.
func (r *Reader) line() ([]byte, error) {
	r.buf = r.buf[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		r.read += int64(len(part))
		r.buf = append(r.buf, part...)
		// The end of a line may add two bytes that do not count.
		if len(r.buf) > r.cfg.MaxLine+2 {
			return nil, r.tooLong()
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if len(r.buf) == 0 {
				return nil, io.EOF
			}
		case err != nil:
			return nil, fmt.Errorf("after line %d: %w", r.number, err)
		}
		break
	}
	r.number++
	text := r.buf
	text = bytes.TrimSuffix(text, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\r"))
	if r.number == 1 {
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	}
	if len(text) > r.cfg.MaxLine {
		r.number-- // tooLong counts it again
		return nil, r.tooLong()
	}
	return text, nil
}

func (r *Reader) tooLong() error {
	r.number++
	return &Error{Line: r.number, Why: fmt.Sprintf("longer than the limit of %d bytes", r.cfg.MaxLine)}
}

// fields checks the line's JSON and reads key and id out of it. It returns what
// is wrong, or nothing.
func (c *Config) fields(line *Line) string {
	if !utf8.Valid(line.Text) {
		return "not valid UTF-8"
	}
	if !json.Valid(line.Text) {
		return "not JSON: " + syntax(line.Text)
	}
	if c.KeyField == "" && c.IDField == "" {
		return ""
	}
	if first := bytes.TrimLeft(line.Text, " \t\r\n"); first[0] != '{' {
		return "not a JSON object, so it has no field for the key or the id"
	}
	var key, id json.RawMessage
	if why := eachField(line.Text, func(name string, value json.RawMessage) string {
		for _, want := range []struct {
			name string
			into *json.RawMessage
		}{{c.KeyField, &key}, {c.IDField, &id}} {
			if want.name != "" && name == want.name {
				if *want.into != nil {
					return fmt.Sprintf("the field %q is there twice", name)
				}
				*want.into = value
			}
		}
		return ""
	}); why != "" {
		return why
	}
	var why string
	if c.KeyField != "" {
		if line.Key, why = scalar(c.KeyField, key); why != "" {
			return why
		}
	}
	if c.IDField != "" {
		if line.ID, why = scalar(c.IDField, id); why != "" {
			return why
		}
	}
	return ""
}

// eachField calls fn with the top-level fields of a valid object. What fn
// returns ends it.
func eachField(text []byte, fn func(name string, value json.RawMessage) string) string {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return err.Error()
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err.Error()
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err.Error()
		}
		if why := fn(name.(string), value); why != "" {
			return why
		}
	}
	return ""
}

// scalar turns a field's value into text.
func scalar(field string, value json.RawMessage) (text, why string) {
	switch {
	case value == nil:
		return "", fmt.Sprintf("no field %q", field)
	case value[0] == '{' || value[0] == '[':
		return "", fmt.Sprintf("the field %q is not a string, number or boolean", field)
	case string(value) == "null":
		return "", fmt.Sprintf("the field %q is null", field)
	case value[0] != '"':
		return string(value), ""
	}
	if err := json.Unmarshal(value, &text); err != nil {
		return "", fmt.Sprintf("the field %q: %v", field, err)
	}
	if text == "" {
		return "", fmt.Sprintf("the field %q is empty", field)
	}
	if half := HalfSurrogate(value); half != "" {
		return "", fmt.Sprintf("the field %q has %s, which is half of a character: write both halves, or the character itself", field, half)
	}
	return text, ""
}

// HalfSurrogate finds an escape in a valid JSON string that is half of a pair
// without the other half. It stands for no character, so decoders put U+FFFD in
// its place, and different texts would become one.
func HalfSurrogate(value []byte) string {
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' {
			continue
		}
		r := escaped(value[i:])
		if i++; r < 0 { // another escape, such as \\ itself
			continue
		}
		if utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, escaped(value[i+5:])) == utf8.RuneError {
				return string(value[i-1 : i+5])
			}
			i += 6
		}
		i += 4
	}
	return ""
}

// escaped is the code of a \u escape that b begins with; -1: it does not.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// syntax says what is wrong with JSON that is not valid.
func syntax(text []byte) string {
	var any json.RawMessage
	err := json.Unmarshal(text, &any)
	var bad *json.SyntaxError
	switch {
	case errors.As(err, &bad):
		return fmt.Sprintf("%v (byte %d of the line)", bad, bad.Offset)
	case err != nil:
		return err.Error()
	}
	return "it does not parse"
}
