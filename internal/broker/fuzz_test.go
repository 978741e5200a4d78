package broker

import (
	"errors"
	"testing"
)

// What callers send back to us, a page token or a session, is what we gave them
// or is refused: nothing else has the same meaning.
func FuzzParsePage(f *testing.F) {
	f.Add("")
	f.Add(pageToken(0, 0))
	f.Add(pageToken(3, 1<<40))
	f.Add(pageToken(8, 1))
	f.Add("MC8w=")
	f.Fuzz(func(t *testing.T, token string) {
		const partitions = 8
		at, o, err := parsePage(token, partitions)
		switch {
		case err != nil:
			if !errors.As(err, new(*refusal)) {
				t.Fatalf("%q gives %v, which has no reason", token, err)
			}
		case at < 0 || at >= partitions:
			t.Fatalf("%q names partition %d of %d", token, at, partitions)
		default:
			if at2, o2, err := parsePage(pageToken(at, o), partitions); err != nil || at2 != at || o2 != o {
				t.Fatalf("%q is %d/%d, and written again %d/%d, %v", token, at, o, at2, o2, err)
			}
		}
	})
}

func FuzzParseSession(f *testing.F) {
	for _, s := range []string{"", "0", "1", "01", "+1", "18446744073709551615", "18446744073709551616", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSession(text)
		if err != nil {
			if !errors.As(err, new(*refusal)) {
				t.Fatalf("%q gives %v, which has no reason", text, err)
			}
			return
		}
		if n == 0 || sessionText(n) != text {
			t.Fatalf("%q is taken for session %d", text, n)
		}
	})
}
