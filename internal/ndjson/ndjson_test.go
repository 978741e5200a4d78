package ndjson

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func readAll(r *Reader) (lines []string, err error) {
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		lines = append(lines, fmt.Sprintf("%d|%s|%s|%s", l.Number, l.Key, l.ID, l.Text))
	}
}

func TestLines(t *testing.T) {
	in := "\xef\xbb\xbf{\"k\":\"a\",\"n\":1}\r\n\n  \n{ \"n\": 2.50, \"k\" : \"caf\\u00e9\" }\n{\"k\":true,\"n\":12345678901234567890}"
	got, err := readAll(NewReader(iotest.OneByteReader(strings.NewReader(in)), Config{KeyField: "k", IDField: "n"}))
	want := []string{
		`1|a|1|{"k":"a","n":1}`,
		`4|café|2.50|{ "n": 2.50, "k" : "caf\u00e9" }`,
		`5|true|12345678901234567890|{"k":true,"n":12345678901234567890}`,
	}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestKeyless(t *testing.T) {
	got, err := readAll(NewReader(strings.NewReader("1\n[2]\n\"three\"\n"), Config{}))
	if err != nil || len(got) != 3 {
		t.Errorf("got %q, %v", got, err)
	}
}

// Every refusal names its line and keeps the lines before it.
func TestBadLine(t *testing.T) {
	for _, c := range []struct{ line, why string }{
		{`{"k":"b"`, "not JSON: unexpected end of JSON input (byte 8 of the line)"},
		{`{"k":"b"} {"k":"c"}`, "not JSON"},
		{`{"k":"b",}`, "not JSON"},
		{`hello`, "not JSON"},
		{`[1]`, "not a JSON object"},
		{`"k"`, "not a JSON object"},
		{`{"x":{"k":"inner"}}`, `no field "k"`},
		{`{"k":null}`, `the field "k" is null`},
		{`{"k":""}`, `the field "k" is empty`},
		{`{"k":{}}`, `the field "k" is not a string`},
		{`{"k":["a"]}`, `the field "k" is not a string`},
		{`{"k":"a","k":"b"}`, `the field "k" is there twice`},
		{"{\"k\":\"\xff\"}", "not valid UTF-8"},
		{`{"k":"` + strings.Repeat("x", 100) + `"}`, "longer than the limit of 64 bytes"},
		{strings.Repeat("y", 200000), "longer than the limit of 64 bytes"},
	} {
		in := "{\"k\":\"a\"}\n\n" + c.line + "\n{\"k\":\"after\"}\n"
		r := NewReader(strings.NewReader(in), Config{KeyField: "k", MaxLine: 64})
		got, err := readAll(r)
		var bad *Error
		if !errors.As(err, &bad) || bad.Line != 3 || !strings.Contains(bad.Why, c.why) {
			t.Errorf("%.40s: %v; want line 3: %s", c.line, err, c.why)
		}
		if len(got) != 1 {
			t.Errorf("%.40s: %d lines before the bad one, want 1", c.line, len(got))
		}
		if _, again := r.Next(); again != err {
			t.Errorf("%.40s: read on after the error: %v", c.line, again)
		}
	}
}

func TestReadError(t *testing.T) {
	broken := errors.New("the pipe broke")
	r := NewReader(io.MultiReader(strings.NewReader("{}\n{}\n"), iotest.ErrReader(broken)), Config{})
	got, err := readAll(r)
	if !errors.Is(err, broken) || len(got) != 2 {
		t.Errorf("%d lines, %v", len(got), err)
	}
}

func TestIdentity(t *testing.T) {
	ids := func(label string, in string) (out []string) {
		d := NewIdentity(label)
		r := NewReader(strings.NewReader(in), Config{})
		for {
			l, err := r.Next()
			if err != nil {
				return out
			}
			out = append(out, d.ID(l))
		}
	}
	base := ids("", "1\n2\n2\n3\n")
	seen := map[string]bool{}
	for _, id := range base {
		if len(id) != 26 || seen[id] {
			t.Errorf("ids %q: not 26 long, or one is there twice", base)
		}
		seen[id] = true
	}
	if again := ids("", "1\n2\n2\n3\n4\n"); strings.Join(again[:4], " ") != strings.Join(base, " ") {
		t.Error("the same lines of a longer file have other ids")
	}
	if crlf := ids("", "1\r\n2\r\n2\r\n3"); strings.Join(crlf, " ") != strings.Join(base, " ") {
		t.Error("line ends change ids")
	}
	mended := ids("", "1\n2\n5\n3\n")
	if mended[2] == base[2] || mended[1] != base[1] || mended[3] != base[3] {
		t.Error("a mended line must change its own id and no other")
	}
	for _, other := range [][]string{ids("again", "1\n2\n2\n3\n"), ids("", "0\n2\n2\n3\n")} {
		for i := range base {
			if other[i] == base[i] {
				t.Errorf("line %d has the same id under another label or in another file", i+1)
			}
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add("{\"k\":\"a\"}\n\n{\"k\":1}\r\n")
	f.Add("{\"k\":")
	f.Add("\xef\xbb\xbf{}")
	f.Fuzz(func(t *testing.T, in string) {
		r := NewReader(strings.NewReader(in), Config{KeyField: "k", MaxLine: 256})
		last, end := 0, int64(0)
		for {
			l, err := r.Next()
			if err != nil {
				break
			}
			if l.Number <= last || l.End <= end || len(l.Text) > 256 || l.Key == "" {
				t.Fatalf("line %d after %d: %+v", l.Number, last, l)
			}
			last, end = l.Number, l.End
		}
	})
}

// A key with half of a surrogate pair would become one with U+FFFD in its place,
// as any other such key would.
func TestHalvesOfCharacters(t *testing.T) {
	for _, c := range []struct{ value, key string }{ // no key: refused
		{`a\ud800`, ""}, {`a\udfff`, ""}, {`\udc00\ud800`, ""}, {`\ud800\ud800\udc00`, ""}, {`\ud83d\ude00\ud83d`, ""},
		{`\ud800x\udc00`, ""}, {`\ud800\n\udc00`, ""}, {`\\\ud800`, ""}, {`\uD800\u0041`, ""},
		{`\ud83d\ude00`, "😀"}, {`\uD83D\uDE00b`, "😀b"}, {`a\ufffd`, "a\ufffd"}, {"a\ufffd", "a\ufffd"},
		{`\\ud800`, `\ud800`}, {`\u005cud800`, `\ud800`}, {`\\\\udfff`, `\\udfff`}, {`\u0041`, "A"},
	} {
		for _, cfg := range []Config{{KeyField: "k"}, {IDField: "k"}} {
			l, err := NewReader(strings.NewReader(`{"k":"`+c.value+`"}`), cfg).Next()
			var bad *Error
			if c.key == "" && (!errors.As(err, &bad) || !strings.Contains(bad.Why, "half of a character")) || c.key != "" && (err != nil || l.Key+l.ID != c.key) {
				t.Errorf("%s: %q, %v", c.value, l.Key+l.ID, err)
			}
		}
	}
}
