package plain

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "",
		"café 東京 🛫":             "café 東京 🛫",
		"\x1b[31mred\x1b[0m":    `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\x07":      `\x1b]0;title\x07`,
		"a\r\nb\tc":             `a\r\nb\tc`,
		"\u009b2J":              `\x9b2J`,
		"bad \xff byte":         `bad \xff byte`,
		"evil\u202etxt.exe":     `evil\u202etxt.exe`,
		"line\u2028sep":         `line\u2028sep`,
		"back\x08space\x7f\x00": `back\x08space\x7f\x00`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q; want %q", in, got, want)
		}
	}
	if got := Lines("a\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("Lines keeps lines: %q", got)
	}
}

func TestShort(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {strings.Repeat("é", 100), 4, "ééé…"}, {"\x1b\x1b", 5, `\x1b…`},
	} {
		if got := Short(c.in, c.n); got != c.want {
			t.Errorf("Short(%q, %d) = %q; want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"orders":                               `"orders"`,
		"a\x1b[2J\u202e":                       `"a\x1b[2J\u202e"`,
		strings.Repeat("x", 64):                `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):                `"` + strings.Repeat("x", 64) + `"... (65 bytes)`,
		strings.Repeat("x", 63) + "é and more": `"` + strings.Repeat("x", 63) + `"... (74 bytes)`, // no rune is cut
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %s; want %s", in, got, want)
		}
	}
}

func TestKey(t *testing.T) {
	for in, want := range map[string]string{"JFK": "JFK", "": "", "東京": "東京", "\xff\x00": `"\xff\x00"`} {
		if got := Key([]byte(in)); got != want {
			t.Errorf("Key(%q) = %s; want %s", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[2J")
	f.Add("plain")
	f.Add("\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		if Text(got) != got {
			t.Fatalf("cleaning %q twice changes it", got)
		}
	})
}
