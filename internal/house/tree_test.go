package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the repository's root.
const module = "github.com/strandmq/strandmq"

// root is the repository's root as seen from this package's tests.
var root = filepath.Join("..", "..")

// A goFile is one parsed source file. All of them are read, whatever their
// build tags: a rule that a tag can switch off is no rule.
type goFile struct {
	path      string // from the root, with slashes: partition/host.go
	pkg       string // its folder: partition
	name      string // its base name: host.go
	test      bool
	generated bool
	fset      *token.FileSet
	ast       *ast.File
	source    []byte
}

// imports are the import paths of the file.
func (f *goFile) imports() []string {
	var out []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			out = append(out, p)
		}
	}
	return out
}

// line is where a node of the file begins, as path:line.
func (f *goFile) line(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(n.Pos()).Line)
}

// readTree parses every Go file of the main module once.
var readTree = sync.OnceValues(func() ([]*goFile, error) {
	var files []*goFile
	err := walk(".go", func(name string, source []byte) error {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &goFile{
			path:      name,
			pkg:       path.Dir(name),
			name:      path.Base(name),
			test:      strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(parsed),
			fset:      fset,
			ast:       parsed,
			source:    source,
		})
		return nil
	})
	return files, err
})

// tree is readTree for tests.
func tree(t *testing.T) []*goFile {
	t.Helper()
	files, err := readTree()
	if err != nil {
		t.Fatalf("a source file does not parse: %v", err)
	}
	if len(files) == 0 {
		t.Fatal("no source files found: these tests have to run inside the repository")
	}
	return files
}

// walk calls fn with every file of the repository that ends in ext, in order,
// leaving out what is not source: hidden folders, what was built, data folders,
// test data, and modules of their own.
func walk(ext string, fn func(name string, content []byte) error) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			base := d.Name()
			skip := rel != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
				base == "testdata" || base == "node_modules" || base == "venv" || rel == "bin" || rel == "strandmq-data")
			if skip {
				return fs.SkipDir
			}
			if rel != "." {
				if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
					return fs.SkipDir
				}
			}
			return nil
		}
		if !strings.HasSuffix(rel, ext) {
			return nil
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return fn(rel, content)
	})
}

// read gives a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatalf("%s has to be there: %v", name, err)
	}
	return string(content)
}

// within tells whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// withinAny tells whether p is one of the folders or below one.
func withinAny(p string, dirs []string) bool {
	for _, dir := range dirs {
		if within(p, dir) {
			return true
		}
	}
	return false
}
