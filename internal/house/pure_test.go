package house

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// pure lists the files that decide, by pattern: they take values and return
// values. Tests are free.
var pure = []string{
	"*/machine*.go",
	"*/*/machine*.go",
	"partition/app.go",
	"partition/partition.go",
	"partition/format_*.go",
	"coordinator/assign*.go",
	"coordinator/placement/*.go",
	"coordinator/duty/*.go",
	"consumer/policy*.go",
	"consumer/token.go",
	"consumer/delivery.go",
	"router/table*.go",
	"internal/record/*.go",
	"internal/names/*.go",
	"internal/keyspace/*.go",
	"internal/check/*.go",
	"internal/doctor/*.go",
	"loadtest/schedule.go",
	"loadtest/keys.go",
	"loadtest/sweep.go",
	"loadtest/body.go",
}

// unclean is what a pure file must not import, with all below it, and how to do
// without.
var unclean = map[string]string{
	"os":            "let the shell read and write, and pass in what was read",
	"net":           "let the shell speak, and return what to say",
	"sync":          "one goroutine owns a pure value; locks belong in the shell",
	"math/rand":     "take the number as an argument, or derive it from a hash of the input so that every replica gets the same",
	"crypto/rand":   "take the bytes as an argument",
	"context":       "a pure call returns at once and cannot be cancelled; contexts belong in the shell",
	"runtime":       "what a pure file decides must not depend on the machine",
	"log":           "return what there is to say",
	"log/slog":      "return what there is to say",
	"path/filepath": "let the shell read and write, and pass in what was read",
	"io/ioutil":     "let the shell read and write, and pass in what was read",
}

// durations is what a pure file may use of package time.
var durations = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

func isPure(name string) bool {
	for _, pattern := range pure {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

func TestPureFiles(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range tree(t) {
		if f.test || !isPure(f.path) {
			continue
		}
		seen[f.pkg] = true
		for _, imp := range f.imports() {
			for bad, instead := range unclean {
				if within(imp, bad) {
					t.Errorf("%s decides and so must not import %s: %s", f.path, imp, instead)
				}
			}
			if imp == "time" {
				onlyDurations(t, f)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine in a file that decides: return the work and let the shell do it", f.line(n))
			case *ast.SelectStmt:
				t.Errorf("%s selects in a file that decides: which case wins is not the same twice", f.line(n))
			}
			return true
		})
	}
	// A pattern that matches nothing holds nothing.
	for _, pkg := range []string{"partition", "consumer", "coordinator", "router", "internal/record"} {
		if !seen[pkg] {
			t.Errorf("no file of %s is on the list of pure files in internal/house/pure_test.go: name the ones that decide machine*.go, or list them", pkg)
		}
	}
}

// onlyDurations complains of anything that a file uses of package time but
// spans. A clock read in a machine is a replica that disagrees.
func onlyDurations(t *testing.T, f *goFile) {
	t.Helper()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == "time" && id.Obj == nil && !slices.Contains(durations, sel.Sel.Name) {
			t.Errorf("%s uses time.%s in a file that decides: take the time as an argument (partition.Millis)", f.line(sel), sel.Sel.Name)
		}
		return true
	})
}

func TestNothingHappensAtImportTime(t *testing.T) {
	for _, f := range tree(t) {
		if f.generated || f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: do it in a constructor, where a caller can see and test it", f.line(fn))
			}
		}
	}
}

func TestNoNaps(t *testing.T) {
	for _, f := range tree(t) {
		if !f.test {
			continue
		}
		commented := make(map[int]bool)
		for _, group := range f.ast.Comments {
			for line := f.fset.Position(group.Pos()).Line; line <= f.fset.Position(group.End()).Line; line++ {
				commented[line] = true
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" {
				return true
			}
			id, ok := sel.X.(*ast.Ident)
			if !ok || id.Name != "time" {
				return true
			}
			line := f.fset.Position(call.Pos()).Line
			if !commented[line] && !commented[line-1] {
				t.Errorf("%s sleeps: wait on a condition, or write beside it why a nap is right", f.line(call))
			}
			return true
		})
	}
}

// vague are package names that say nothing about what a package owns.
var vague = []string{"common", "util", "utils", "types", "helpers", "helper", "manager", "misc", "shared", "constant", "constants", "object", "objects"}

func TestPackageNamesAreNouns(t *testing.T) {
	for _, f := range tree(t) {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		if slices.Contains(vague, name) || slices.Contains(vague, path.Base(f.pkg)) {
			t.Errorf("%s: package %s could hold anything: name it after the one thing that it owns", f.path, name)
		}
	}
}
