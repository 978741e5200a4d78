// Package plain makes text from strangers safe to print: keys, bodies, reasons
// and headers may hold anything, and a terminal obeys some of it.
//
//	"\x1b[2J wiped" ─► Text ─► `\x1b[2J wiped`
//
// It promises that what it returns has no control characters, no invalid UTF-8
// and no character that changes the direction of text, and that text without
// them comes back as it was. It keeps no information: two different inputs may
// print alike, so what it returns is for eyes, never for programs.
package plain

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s on one line with everything a terminal could obey written out.
func Text(s string) string { return clean(s, false) }

// Lines is Text, but keeps newlines and tabs.
func Lines(s string) string { return clean(s, true) }

// Short is Text, cut to at most n characters, the last of which is then "…".
func Short(s string, n int) string {
	// Cleaning makes text longer, never shorter: what is beyond is not needed.
	if len(s) > 4*n {
		s = s[:4*n] + "\x00"
	}
	t := []rune(Text(s))
	if len(t) <= n {
		return string(t)
	}
	return string(t[:n-1]) + "…"
}

// Quote is s in quotes, in ASCII, cut after 64 bytes: for strangers' text within
// a sentence, such as a refused name in an error.
func Quote(s string) string {
	const most = 64
	if len(s) <= most {
		return strconv.QuoteToASCII(s)
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.QuoteToASCII(s[:cut]), len(s))
}

// Key is a message's key as text: as it is where it is valid UTF-8, quoted
// otherwise. It may still hold what a terminal obeys: see Text.
func Key(key []byte) string {
	if utf8.Valid(key) {
		return string(key)
	}
	return strconv.Quote(string(key))
}

func clean(s string, lines bool) string {
	if fine(s, lines) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case harmless(r, lines):
			b.WriteString(s[i : i+size])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

func fine(s string, lines bool) bool {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || !harmless(r, lines) {
			return false
		}
		i += size
	}
	return true
}

// harmless tells what a terminal only draws. Format characters (Cf) turn text
// around or hide it; the line and paragraph separators break lines.
func harmless(r rune, lines bool) bool {
	if lines && (r == '\n' || r == '\t') {
		return true
	}
	return !unicode.IsControl(r) && !unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co)
}
