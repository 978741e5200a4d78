package main

import (
	"bytes"
	"strings"
	"testing"
)

// Wrong flags are told in the words of who types, and nothing is asked.
func TestFlagFaults(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"dev --nodes abc":                    "--nodes\" flag: it is no number of its kind",
		"dev --nodes 99999999999999999999":   "--nodes\" flag: the number is too large or too small",
		"cluster drain 1 --dry-run=perhaps":  "--dry-run\" flag: use true or false",
		"cluster token --valid 0":            "--valid 0: use 1s to 7d",
		"cluster token --valid 8d":           "--valid 8d: use 1s to 7d",
		"cluster move orders 0 --to a":       `"a" is no node`,
		"cluster token --valid soon":         "--valid",
		"topic create orders --partitions x": "--partitions",
	} {
		var out bytes.Buffer
		code := run(&app{in: strings.NewReader(""), out: &out, err: &out}, append(strings.Fields(args), "--server", "127.0.0.1:1"))
		if code != exitUsage || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "strconv") {
			t.Errorf("%s: exit code %d, %s", args, code, out.String())
		}
	}
}
