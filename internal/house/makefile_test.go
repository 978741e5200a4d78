package house

import (
	"regexp"
	"strings"
	"testing"
)

var (
	target     = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	helped     = regexp.MustCompile(`(?m)^([a-z][a-z-]*):.*## \S`)
	phony      = regexp.MustCompile(`(?m)^\.PHONY: (.+)$`)
	makeTarget = regexp.MustCompile("(?:^|[`\\s])make ([a-z][a-z-]*)")
	code       = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```|^(?:    |\t).*?$|`[^`\n]+`")
)

func TestMakefileExplainsItself(t *testing.T) {
	text := read(t, "Makefile")
	explained := make(map[string]bool)
	for _, m := range helped.FindAllStringSubmatch(text, -1) {
		explained[m[1]] = true
	}
	known := make(map[string]bool)
	for _, m := range target.FindAllStringSubmatch(text, -1) {
		known[m[1]] = true
		if !explained[m[1]] {
			t.Errorf("Makefile: target %s has no ## text, so make help does not show it", m[1])
		}
	}
	m := phony.FindStringSubmatch(text)
	if m == nil {
		t.Fatal("Makefile has no .PHONY line")
	}
	declared := strings.Fields(m[1])
	for _, name := range declared {
		if !known[name] {
			t.Errorf("Makefile: .PHONY names %s, which is not a target", name)
		}
	}
	if len(declared) != len(known) {
		t.Errorf("Makefile: .PHONY names %d targets of %d: none of them makes a file of its name", len(declared), len(known))
	}

	// What pages tell the reader to make has to be there.
	err := walk(".md", func(name string, content []byte) error {
		for _, span := range code.FindAllString(string(content), -1) {
			for _, m := range makeTarget.FindAllStringSubmatch(span, -1) {
				if !known[m[1]] {
					t.Errorf("%s says make %s, which the Makefile does not have", name, m[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	if run := read(t, ".ci/run"); !strings.Contains(run, "make test") {
		t.Error(".ci/run does not run make test: what CI runs has to be what people run")
	}
}
