package quantity

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "30s": 30 * time.Second, "7d": 168 * time.Hour,
		"1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute,
	} {
		got, err := ParseSpan(text)
		if err != nil || got != want {
			t.Errorf("ParseSpan(%q) = %v, %v; want %v", text, got, err, want)
		}
		if back, err := ParseSpan(FormatSpan(got)); err != nil || back != got {
			t.Errorf("%v prints as %q and comes back as %v, %v", got, FormatSpan(got), back, err)
		}
	}
	for _, text := range []string{"", "5", "-5s", "+5s", "d", "-1d", "1d-1h", "999999999d", "9999999999h", "soon", "1w"} {
		if d, err := ParseSpan(text); err == nil {
			t.Errorf("ParseSpan(%q) = %v; want an error", text, d)
		}
	}
}

// TestTooLarge: what has the right form and is too large is told as that.
func TestTooLarge(t *testing.T) {
	span := func(s string) error { _, err := ParseSpan(s); return err }
	size := func(s string) error { _, err := ParseSize(s); return err }
	for _, c := range []struct {
		parse func(string) error
		texts []string
		says  string
	}{
		{span, []string{"5000000h", "9999999999h", "999999999d", "99999999999999999999d", "106751d24h", "106752d", "2562047h48m"}, "is out of range: the longest span of time is 106751d"},
		{span, []string{"", "soon", "5", "d", "-5s", "-5000000h", "1w", "5000000hours", "1d-1h", "1h1d"}, "is no span of time such as"},
		{size, []string{"9223372036854775808", "8388608TiB", "99999999999999999999B"}, "is out of range: sizes are below 8388608TiB"},
		{size, []string{"", "-1", "99999999999999999999MB", "1.5MiB"}, "is no size such as"},
	} {
		for _, text := range c.texts {
			if err := c.parse(text); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v; want: %s", text, err, c.says)
			}
		}
	}
	for _, text := range []string{"106751d", "2562047h47m"} {
		if err := span(text); err != nil {
			t.Error(err)
		}
	}
	if err := size("8388607TiB"); err != nil {
		t.Error(err)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "512B": 512, "64KiB": 65536, "10MiB": 10 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40,
	} {
		got, err := ParseSize(text)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %v, %v; want %v", text, got, err, want)
		}
		if back, err := ParseSize(FormatSize(got)); err != nil || back != got {
			t.Errorf("%v prints as %q and comes back as %v, %v", got, FormatSize(got), back, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", "1.5MiB", "1MB", "1kb", "MiB", "9223372036854775808", "99999999TiB"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %v; want an error", text, n)
		}
	}
}

func TestPrinting(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(20000), "20,000"}, {Count(uint64(1234567)), "1,234,567"},
		{Count(-1000), "-1,000"}, {RoughSize(0), "0 B"}, {RoughSize(1 << 20), "1.0 MiB"}, {RoughSize(1800), "1.8 KiB"},
		{FormatSpan(2 * time.Hour), "2h"}, {FormatSpan(10 * time.Minute), "10m"}, {FormatSpan(36 * time.Hour), "36h"},
		{FormatMillis(int64(90_000)), "1m30s"}, {FormatMillis(int64(-5)), "-5 ms"}, {FormatMillis(int64(math.MaxInt64)), "9223372036854775807 ms"},
	} {
		if c.got != c.want {
			t.Errorf("printed %q, want %q", c.got, c.want)
		}
	}
}

// Words have the form that their number wants.
func TestWords(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"0 messages":        Some(0, "message"),
		"1 delivery":        Some(uint64(1), "delivery"),
		"2,000 deliveries":  Some(uint32(2000), "delivery"),
		"1 message waits":   Many(1, "message waits", "messages wait"),
		"12 messages wait":  Many(int64(12), "message waits", "messages wait"),
		"1,000,000 passes ": Many(1_000_000, "pass", "passes "),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"7d", "1d2h", "10MiB", "0", "1h30m", "200ms"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseSpan(s); err == nil {
			if back, err := ParseSpan(FormatSpan(d)); err != nil || back != d {
				t.Fatalf("span %q: %v came back as %v, %v", s, d, back, err)
			}
		}
		if n, err := ParseSize(s); err == nil {
			if back, err := ParseSize(FormatSize(n)); err != nil || back != n {
				t.Fatalf("size %q: %v came back as %v, %v", s, n, back, err)
			}
		}
	})
}
