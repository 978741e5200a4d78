package house

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// required are the module paths of go.mod, direct or not, and the import paths
// of its tools.
func required(t *testing.T) (modules, tools []string) {
	t.Helper()
	block := ""
	for line := range strings.Lines(read(t, "go.mod")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "//")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case len(fields) == 2 && fields[1] == "(":
			block = fields[0]
		case fields[0] == ")":
			block = ""
		case block == "require":
			modules = append(modules, fields[0])
		case block == "tool":
			tools = append(tools, fields[0])
		case fields[0] == "require" && len(fields) == 3:
			modules = append(modules, fields[1])
		case fields[0] == "tool" && len(fields) == 2:
			tools = append(tools, fields[1])
		}
	}
	if len(modules) == 0 {
		t.Fatal("go.mod requires nothing: it was not read as it should be")
	}
	return modules, tools
}

// moduleOf finds the module that an import path belongs to: the longest path.
func moduleOf(modules []string, imp string) string {
	best := ""
	for _, m := range modules {
		if within(imp, m) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

// dependencyRow is a line of the table: | `module` | reason |.
var dependencyRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+?) \\|$")

func TestDependenciesHaveReasons(t *testing.T) {
	modules, tools := required(t)
	users := make(map[string]string)
	use := func(imp, user string) {
		first, _, _ := strings.Cut(imp, "/")
		if !strings.Contains(first, ".") || within(imp, module) {
			return // the standard library, or ours
		}
		m := moduleOf(modules, imp)
		if m == "" {
			t.Errorf("%s imports %s, which go.mod does not require", user, imp)
			return
		}
		if users[m] == "" {
			users[m] = user
		}
	}
	for _, f := range tree(t) {
		for _, imp := range f.imports() {
			use(imp, f.path)
		}
	}
	for _, tool := range tools {
		use(tool, "go.mod (tool)")
	}

	reasons := make(map[string]string)
	var order []string
	for _, m := range dependencyRow.FindAllStringSubmatch(read(t, "docs/decisions/dependencies.md"), -1) {
		if _, twice := reasons[m[1]]; twice {
			t.Errorf("docs/decisions/dependencies.md lists %s twice", m[1])
		}
		reasons[m[1]] = m[2]
		order = append(order, m[1])
	}
	for m, user := range users {
		if reasons[m] == "" {
			t.Errorf("%s uses %s, which docs/decisions/dependencies.md does not list: do without it, or add a line with the reason", user, m)
		}
	}
	for m, reason := range reasons {
		if users[m] == "" {
			t.Errorf("docs/decisions/dependencies.md lists %s, which nothing imports: take the line out, and run make tidy", m)
		}
		if len(reason) < 20 {
			t.Errorf("docs/decisions/dependencies.md gives %s the reason %q: say what it does for us and why not another", m, reason)
		}
	}
	if !slices.IsSorted(order) {
		t.Errorf("docs/decisions/dependencies.md is not in order of module paths")
	}
}

// TestGoModIsTidy holds go.mod's marks of what is direct against what is
// imported, which is the part of tidiness that can be seen without a network.
func TestGoModIsTidy(t *testing.T) {
	modules, tools := required(t)
	direct := make(map[string]bool)
	for _, f := range tree(t) {
		for _, imp := range f.imports() {
			direct[moduleOf(modules, imp)] = true
		}
	}
	for _, tool := range tools {
		direct[moduleOf(modules, tool)] = true
	}
	for line := range strings.Lines(read(t, "go.mod")) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) < 2 || !slices.Contains(modules, fields[0]) {
			continue
		}
		marked := !strings.HasSuffix(strings.TrimSpace(line), "// indirect")
		if marked != direct[fields[0]] {
			t.Errorf("go.mod has %s as direct: %t, and imported by us: %t: run make tidy", fields[0], marked, direct[fields[0]])
		}
	}
}
