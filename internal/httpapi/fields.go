package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/strandmq/strandmq/internal/ndjson"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
)

// fields are a JSON object, or the parameters of a query, as they are read one by
// one. The first fault stays; what nobody asked for is one, too.
type fields struct {
	of   map[string]json.RawMessage
	what string // for people: "field" or "parameter"
	bad  *problem
}

func (f *fields) fail(name, format string, args ...any) {
	if f.bad == nil {
		f.bad = refuse("BAD_REQUEST", name, "the "+f.what+" %s "+format, append([]any{plain.Quote(name)}, args...)...)
	}
}

// take takes a field out.
func (f *fields) take(name string) (json.RawMessage, bool) {
	raw, ok := f.of[name]
	delete(f.of, name)
	return raw, ok
}

// done is the first fault.
func (f *fields) done() error {
	if f.bad == nil && len(f.of) > 0 {
		var names []string
		for name := range f.of {
			names = append(names, name)
		}
		slices.Sort(names)
		f.bad = refuse("BAD_REQUEST", names[0], "there is no %s %s here: take it out, or see GET /v1/openapi.json", f.what, plain.Quote(names[0]))
	}
	if f.bad != nil {
		return f.bad
	}
	return nil
}

// text is a field's text, empty if it is not there.
func (f *fields) text(name string) string {
	s, _ := f.given(name)
	return s
}

// given is text that tells whether it is there.
func (f *fields) given(name string) (string, bool) {
	raw, ok := f.take(name)
	if !ok {
		return "", false
	}
	return f.string(name, raw), true
}

func (f *fields) string(name string, raw json.RawMessage) (s string) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		f.fail(name, "is not a string")
		return ""
	}
	if half := ndjson.HalfSurrogate(raw); half != "" {
		f.fail(name, "has %s, which is half of a character: write both halves, or the character itself", half)
	}
	return s
}

// texts is a list of strings.
func (f *fields) texts(name string) []string {
	raw, ok := f.take(name)
	if !ok {
		return nil
	}
	var list []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		f.fail(name, "is not a list of strings")
		return nil
	}
	out := make([]string, len(list))
	for i, one := range list {
		out[i] = f.string(name, one)
	}
	return out
}

// number is a whole number of 0 or more; nil if it is not there.
func (f *fields) number(name string, most uint64) *uint64 {
	raw, ok := f.take(name)
	if !ok {
		return nil
	}
	text := string(raw)
	if f.what == parameter {
		text = f.string(name, raw)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		f.fail(name, "is not a whole number from 0 to %d", most)
		return nil
	}
	return &n
}

// yes is a boolean, false if it is not there.
func (f *fields) yes(name string) bool {
	raw, ok := f.take(name)
	text := string(raw)
	if f.what == parameter && ok {
		text = f.string(name, raw)
	}
	switch {
	case !ok || text == "false":
		return false
	case text == "true":
		return true
	}
	f.fail(name, "is neither true nor false")
	return false
}

// span is a time such as 500ms, 20s or 7d; 0 if it is not there.
func (f *fields) span(name string) time.Duration {
	raw, ok := f.take(name)
	if !ok {
		return 0
	}
	d, err := quantity.ParseSpan(f.string(name, raw))
	if err != nil {
		f.fail(name, "is not a time such as 500ms, 20s or 7d")
	}
	return d
}

const parameter = "parameter"

// query reads the parameters of a request. Those of many may be given more than
// once and are left out.
func query(r *http.Request, many ...string) (*fields, url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, refuse("BAD_REQUEST", "", "the query cannot be read: %s", plain.Quote(err.Error()))
	}
	f := &fields{of: make(map[string]json.RawMessage, len(q)), what: parameter}
	for name, values := range q {
		for _, v := range append(values, name) {
			if !utf8.ValidString(v) {
				return nil, nil, refuse("BAD_REQUEST", "", "the query is not in UTF-8")
			}
		}
		if slices.Contains(many, name) {
			continue
		}
		if len(values) > 1 {
			return nil, nil, refuse("BAD_REQUEST", name, "the parameter %s is there %d times: give it once", plain.Quote(name), len(values))
		}
		f.of[name], _ = json.Marshal(values[0]) // a string always encodes
	}
	return f, q, nil
}

// body reads a request's JSON object. Without a body it is an empty one, where
// that may be.
func body(r *http.Request, mayBeEmpty bool) (*fields, error) {
	if err := plainBody(r); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(b)) == 0 && mayBeEmpty {
		return &fields{what: "field"}, nil
	}
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	charset, has := params["charset"]
	if err != nil || kind != "application/json" || has && !strings.EqualFold(charset, "utf-8") {
		return nil, refuse("BAD_CONTENT_TYPE", "Content-Type", "the content type %s is not one that is read here: send JSON with -H 'Content-Type: application/json'", plain.Quote(given))
	}
	return object(b)
}

// object reads one JSON object.
func object(b []byte) (*fields, error) {
	bad := func(format string, args ...any) (*fields, error) {
		return nil, refuse("BAD_REQUEST", "", format, args...)
	}
	switch {
	case len(b) == 0:
		return bad("the body is empty: send a JSON object, at least {}")
	case !utf8.Valid(b):
		return bad("the JSON is not valid UTF-8")
	case !json.Valid(b):
		var any json.RawMessage
		why := "it has no end"
		var syntax *json.SyntaxError
		if errors.As(json.Unmarshal(b, &any), &syntax) {
			why = syntax.Error()
		}
		return bad("the body is not JSON: %s", why)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad("the body is JSON, but not an object such as {\"a\": 1}")
	}
	f := &fields{of: map[string]json.RawMessage{}, what: "field"}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return bad("the body is not JSON: %s", err)
		}
		if _, twice := f.of[name]; twice {
			return nil, refuse("BAD_REQUEST", name, "the field %s is there twice", plain.Quote(name))
		}
		f.of[name] = value
	}
	return f, nil
}
