package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// raceList is the Makefile's list of what runs under the race detector.
var raceList = regexp.MustCompile(`(?m)^RACE\s*:= (.+)$`)

// TestGoroutinesAreWatched: a package that starts goroutines, be it in its tests
// only, runs under the race detector, and its tests fail when a goroutine is left
// behind.
func TestGoroutinesAreWatched(t *testing.T) {
	m := raceList.FindStringSubmatch(read(t, "Makefile"))
	if m == nil {
		t.Fatal("the Makefile has no list RACE")
	}
	var raced []string
	for _, p := range strings.Fields(m[1]) {
		p, rest := strings.CutSuffix(strings.TrimPrefix(p, "./"), "/...")
		if !rest {
			t.Errorf("RACE names %s: write ./%s/..., so that what comes below it is there too", p, p)
		}
		raced = append(raced, p)
	}
	starts := make(map[string]string) // package → where it starts one
	leaks := make(map[string]bool)    // packages whose TestMain looks for what is left
	for _, f := range tree(t) {
		if f.pkg == "internal/house" {
			continue // nothing but tests over the tree
		}
		if at := startsGoroutine(f); at != nil && starts[f.pkg] == "" {
			starts[f.pkg] = f.line(at)
		}
		if f.test && slices.Contains(f.imports(), "go.uber.org/goleak") && hasFunc(f, "TestMain") {
			leaks[f.pkg] = true
		}
	}
	if len(starts) < 5 {
		t.Errorf("only %d packages start goroutines: this test looks wrongly", len(starts))
	}
	for pkg, at := range starts {
		if !withinAny(pkg, raced) {
			t.Errorf("%s starts a goroutine, and RACE in the Makefile does not name ./%s/...: add it", at, pkg)
		}
		if !leaks[pkg] {
			t.Errorf("%s starts a goroutine, and no TestMain of %s looks for goroutines left behind: add func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }", at, pkg)
		}
	}
}

// startsGoroutine finds a go statement, a call of a group's Go, or an AfterFunc.
func startsGoroutine(f *goFile) (at ast.Node) {
	if f.generated {
		return nil
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = n
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Go" || s.Sel.Name == "AfterFunc") {
				at = n
			}
		}
		return at == nil
	})
	return at
}

func hasFunc(f *goFile, name string) bool {
	return slices.ContainsFunc(f.ast.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == name
	})
}
