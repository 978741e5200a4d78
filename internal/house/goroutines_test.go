package house

import (
	"fmt"
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
		if f.test && hasFunc(f, "TestMain") {
			if err := looksForLeaks(f); err != nil {
				t.Errorf("%s: %v", f.path, err)
			} else {
				leaks[f.pkg] = true
			}
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
			t.Errorf("%s starts a goroutine, and no TestMain of %s looks for goroutines left behind: add %s", at, pkg, verified)
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

// verified is the one form of a TestMain.
const verified = "func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }"

// ownMains are the TestMains that have a form of their own, with the reason. Each
// has to be tried by leaving a goroutine behind.
var ownMains = map[string]string{
	"cmd/strandmq/script_test.go": "testscript.Main ends the process, so goleak.Find runs before it",
}

// looksForLeaks tells whether a file's TestMain fails when a goroutine is left
// behind. Options are refused: goleak.Cleanup takes the place of os.Exit, so one
// that forgets the code lets every leak, and every failed test, pass; and
// goleak.Ignore… hides leaks of the code that is tested.
func looksForLeaks(f *goFile) error {
	if _, ok := ownMains[f.path]; ok {
		if !strings.Contains(string(f.source), "goleak.Find()") {
			return fmt.Errorf("it no longer calls goleak.Find: take the form %s", verified)
		}
		return nil
	}
	if !strings.Contains(string(f.source), "\n"+verified+"\n") {
		return fmt.Errorf("its TestMain has another form than %s: what is to be closed at the end belongs into t.Cleanup of the test that opened it", verified)
	}
	return nil
}

func TestLooksForLeaks(t *testing.T) {
	for source, ok := range map[string]bool{
		"package a\n" + verified + "\n": true,
		"package a\nfunc TestMain(m *testing.M) {\n\tgoleak.VerifyTestMain(m, goleak.Cleanup(func(int) {}))\n}\n": false,
		"package a\nfunc TestMain(m *testing.M) { os.Exit(m.Run()) }\n":                                           false,
	} {
		if err := looksForLeaks(&goFile{path: "a/a_test.go", source: []byte(source)}); (err == nil) != ok {
			t.Errorf("%s\n%v", source, err)
		}
	}
}

func hasFunc(f *goFile, name string) bool {
	return slices.ContainsFunc(f.ast.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == name
	})
}
