package monitoring

import (
	"encoding/json"
	"fmt"
	"strings"
)

// DefaultRunbooks is the page that explains what the alerts are about, in the repository.
const DefaultRunbooks = "docs/troubleshooting.md"

// Prometheus writes the alert rules as a rule file. runbooks is where the page of runbooks
// is: a path, or a URL.
func Prometheus(runbooks string) string {
	var b strings.Builder
	b.WriteString("# Alert rules for StrandMQ, from 'strandmq generate prometheus'.\ngroups:\n  - name: strandmq\n    rules:\n")
	for _, r := range Rules() {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: |-\n", r.Name)
		for line := range strings.Lines(r.Expr) {
			b.WriteString("          " + line)
		}
		b.WriteByte('\n')
		if r.For != "" {
			fmt.Fprintf(&b, "        for: %s\n", r.For)
		}
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n        annotations:\n          summary: %s\n          description: %s\n          runbook_url: %s\n",
			r.Severity, quoted(r.Summary), quoted(r.Advice), quoted(runbooks+"#"+r.Runbook))
	}
	return b.String()
}

// quoted is a string of JSON, which YAML reads the same.
func quoted(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always can be
	return strings.TrimSuffix(b.String(), "\n")
}
