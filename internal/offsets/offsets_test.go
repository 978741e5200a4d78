package offsets

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for text, want := range map[string]Position{
		"earliest":                   {Kind: Earliest},
		"latest":                     {Kind: Latest},
		"0":                          {Kind: Offset},
		"42":                         {Kind: Offset, N: 42},
		"9223372036854775807":        {Kind: Offset, N: 1<<63 - 1},
		"-1":                         {Kind: FromEnd, N: 1},
		"@2026-11-29T08:00:00Z":      {Kind: Time, Time: at},
		"@2026-11-29T09:00:00+01:00": {Kind: Time, Time: at},
		"@-15m":                      {Kind: Ago, Ago: 15 * time.Minute},
		"@-7d":                       {Kind: Ago, Ago: 7 * 24 * time.Hour},
		"@-1h30m":                    {Kind: Ago, Ago: 90 * time.Minute},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
		back, err := Parse(got.String())
		if err != nil || back != got {
			t.Errorf("Parse(%q.String()) = %+v, %v; want %+v", text, back, err, got)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, text := range []string{
		"", " ", "first", "Earliest", "+1", "-", "--1", "-0", "1.5", "1e3", "0x10", " 1", "1 ", "١",
		"9223372036854775808", "99999999999999999999999", "@", "@-", "@-0s", "@--1m", "@15m", "@-15",
		"@yesterday", "@2026-11-29", "@2026-13-01T00:00:00Z", "@-999999999h", "1..2",
	} {
		_, err := Parse(text)
		var typed *Error
		if !errors.As(err, &typed) {
			t.Errorf("Parse(%q): error %v; want *Error", text, err)
			continue
		}
		if !strings.Contains(err.Error(), Grammar) {
			t.Errorf("Parse(%q): the refusal does not name the grammar: %v", text, err)
		}
	}
}

func TestAt(t *testing.T) {
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	p := Position{Kind: Ago, Ago: time.Hour}.At(now)
	if p.Kind != Time || !p.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("an hour ago is %v", p)
	}
	if p := (Position{Kind: Latest}).At(now); p.Kind != Latest {
		t.Errorf("latest became %v", p)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"earliest", "latest", "7", "-7", "@-15m", "@2026-11-29T08:00:00Z", "@-", "-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(p.String())
		if err != nil || back != p {
			t.Fatalf("%q parsed as %v and came back as %v, %v", s, p, back, err)
		}
	})
}
