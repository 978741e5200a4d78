package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A snippet is Go code on a page: a whole file, declarations, or statements. What it does
// not show, stands in assumed: packages by their names, and what a reader has by then. A …
// is code that is left out, and nil where a value is left out.
type snippet struct {
	page string
	line int
	code string
}

var (
	goBlock  = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	goInline = regexp.MustCompile("`((?:c|client|d|errors)\\.[^`\n]*\\))`")
	drawing  = regexp.MustCompile(`[─│►▼▲◄┌└├]`)
	columns  = regexp.MustCompile(`\S {3,}\S`)
	noValue  = regexp.MustCompile(`: …`)
)

// packagesOf are the packages that snippets name without importing them.
var packagesOf = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "os": "os", "testing": "testing", "time": "time",
	"client":       module + "/client",
	"strandmqtest": module + "/client/strandmqtest",
	"otelmetrics":  module + "/client/otelmetrics",
	"oteltracing":  module + "/client/oteltracing",
	"strandmqv1":   module + "/proto/strandmq/v1",
	"otel":         "go.opentelemetry.io/otel",
}

// assumed is what a reader has when a snippet begins.
const assumed = `package snippet

import (
	"context"

	"` + module + `/client"
)

var (
	ctx     context.Context
	err     error
	servers []string
	body    []byte
	c       *client.Client
	out     *client.Publisher
	d       *client.Delivery
	m       client.Observer
	bill    func(context.Context, *client.Delivery) error
)
`

// Every piece of Go on a page, and in the comments of the packages that users import,
// compiles against the tree as it is.
func TestSnippetsCompile(t *testing.T) {
	var all []snippet
	err := walk(".md", func(name string, content []byte) error {
		for _, at := range goBlock.FindAllSubmatchIndex(content, -1) {
			all = append(all, snippet{name, 1 + bytes.Count(content[:at[2]], []byte("\n")), string(content[at[2]:at[3]])})
		}
		if name == "docs/client.md" {
			for _, at := range goInline.FindAllSubmatchIndex(content, -1) {
				all = append(all, snippet{name, 1 + bytes.Count(content[:at[2]], []byte("\n")), string(content[at[2]:at[3]])})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pages := len(all)
	for _, f := range tree(t) {
		if !within(f.pkg, "client") || f.test {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, block := range new(comment.Parser).Parse(group.Text()).Content {
				if code, ok := block.(*comment.Code); ok {
					if text := onlyGo(code.Text); text != "" {
						all = append(all, snippet{f.path, f.fset.Position(group.Pos()).Line, text})
					}
				}
			}
		}
	}
	if comments := len(all) - pages; pages < 6 || comments < 4 {
		t.Fatalf("%d snippets were found on pages, and %d in comments: the test does not read them any more", pages, comments)
	}
	from := exported(t)
	for _, s := range all {
		for _, why := range s.check(from) {
			t.Errorf("%v\n\tof this snippet, which begins at %s:%d; what it may leave out stands in internal/house/snippets_test.go:\n%s", why, s.page, s.line, s.code)
		}
	}
}

// onlyGo leaves out the drawings and tables of a comment's block.
func onlyGo(text string) string {
	parts := strings.Split(text, "\n\n")
	return strings.TrimSpace(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return drawing.MatchString(s) || columns.MatchString(s) }), "\n\n"))
}

// check type-checks a snippet.
func (s snippet) check(from *imports) (wrong []error) {
	fset := token.NewFileSet()
	code := strings.ReplaceAll(noValue.ReplaceAllString(s.code, ": nil"), "…", "")
	at := fmt.Sprintf("//line %s:%d\n", s.page, s.line)
	file, err := parser.ParseFile(fset, "", at+code, parser.SkipObjectResolution)
	files := []*ast.File{file}
	if err != nil {
		head, tail := "package snippet\n", ""
		if file, err = parser.ParseFile(fset, "", head+at+code, 0); err != nil {
			head, tail = head+"func _() {\n", "\n}\n"
			if file, err = parser.ParseFile(fset, "", head+at+code+tail, 0); err != nil {
				return []error{err}
			}
		}
		var names []string
		for _, id := range file.Unresolved {
			if packagesOf[id.Name] != "" && !slices.Contains(names, id.Name) {
				names = append(names, id.Name)
			}
		}
		imports := ""
		for _, name := range names {
			imports += fmt.Sprintf("import %s %q\n", name, packagesOf[name])
		}
		head = strings.Replace(head, "package snippet\n", "package snippet\n"+imports, 1)
		if file, err = parser.ParseFile(fset, "", head+at+code+tail, 0); err != nil {
			return []error{err}
		}
		given, err := parser.ParseFile(fset, "assumed", assumed, 0)
		if err != nil {
			return []error{err}
		}
		files = []*ast.File{given, file}
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", from.open), Error: func(err error) {
		// A snippet shows how a value is had, and not always what becomes of it.
		if len(files) == 1 || !strings.Contains(err.Error(), "declared and not used") {
			wrong = append(wrong, err)
		}
	}}
	_, _ = conf.Check("snippet", fset, files, nil) // Error has them all
	return wrong
}

// imports is what the compiler exported of each package.
type imports struct{ file map[string]string }

func exported(t *testing.T) *imports {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}", "log", "log/slog", "net/http", "os/signal"}
	for _, path := range packagesOf {
		args = append(args, path)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, words.Bytes())
	}
	from := &imports{map[string]string{}}
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			from.file[path] = file
		}
	}
	return from
}

// open implements what importer.ForCompiler looks packages up with.
func (i *imports) open(path string) (io.ReadCloser, error) {
	file := i.file[path]
	if file == "" {
		return nil, fmt.Errorf("%s is not among packagesOf, of internal/house/snippets_test.go", path)
	}
	return os.Open(file)
}
