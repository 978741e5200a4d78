package house

import (
	"bytes"
	"go/ast"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// pageLength is the least that a package's comment has to say, in characters:
// a page for a noun of the domain, a paragraph for a small job.
func pageLength(pkg string) int {
	if pkg != "internal/broker" && pkg != "internal/sim" && (within(pkg, "internal") || within(pkg, "cmd") || within(pkg, "examples")) {
		return 300
	}
	return 700
}

func TestEveryPackageHasAPage(t *testing.T) {
	longest := make(map[string]string)
	handwritten := make(map[string]bool)
	for _, f := range tree(t) {
		if f.test || f.generated {
			continue
		}
		handwritten[f.pkg] = true
		if f.ast.Doc != nil {
			if text := f.ast.Doc.Text(); len(text) > len(longest[f.pkg]) {
				longest[f.pkg] = text
			}
		}
	}
	for pkg := range handwritten {
		text := longest[pkg]
		if least := pageLength(pkg); len(text) < least {
			t.Errorf("package %s explains itself in %d characters, and needs more (%d): in its package comment, say what it owns, what it promises, what it refuses, and draw one diagram", pkg, len(text), least)
			continue
		}
		// A diagram is an indented block.
		if pageLength(pkg) > 300 && !strings.Contains(text, "\n\t") {
			t.Errorf("the page of package %s has no diagram: draw in its package comment, as an indented block, what goes in and what comes out", pkg)
		}
	}
}

func TestFormatted(t *testing.T) {
	for _, f := range tree(t) {
		want, err := format.Source(f.source)
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
			continue
		}
		if !bytes.Equal(want, f.source) {
			t.Errorf("%s is not formatted: run make fmt", f.path)
		}
	}
}

func TestNothingLeftToDo(t *testing.T) {
	word := regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	for _, f := range tree(t) {
		if f.generated || within(f.pkg, "internal/house") {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if m := word.FindString(c.Text); m != "" {
					t.Errorf("%s says %s: do it, or say in docs what does not work yet", f.line(c), m)
				}
			}
		}
	}
}

// Links of a Markdown page: [text](target), code spans and fences left out.
var (
	fenceBlock = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	codeSpan   = regexp.MustCompile("`[^`\n]*`")
	link       = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6}[ \t]+(.+?)[ \t]*$`)
	// A page of ours named in running text, as code comments do.
	mention = regexp.MustCompile(`\bdocs/[A-Za-z0-9_./-]+\.md\b`)
)

// anchors are the fragments that a page's headings make.
func anchors(page string) map[string]bool {
	out := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fenceBlock.ReplaceAllString(page, ""), -1) {
		out[anchor(m[1])] = true
	}
	return out
}

// anchor is a heading's fragment: lower case, spaces to dashes, and of the rest
// letters, digits, dashes and underscores only.
func anchor(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.ReplaceAll(text, "`", "")) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestLinksLeadSomewhere(t *testing.T) {
	pages := 0
	err := walk(".md", func(name string, content []byte) error {
		pages++
		text := codeSpan.ReplaceAllString(fenceBlock.ReplaceAllString(string(content), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(target, "#")
			where := name
			if file != "" {
				where = path.Join(path.Dir(name), file)
			}
			info, err := os.Stat(filepath.Join(root, filepath.FromSlash(where)))
			if err != nil {
				t.Errorf("%s links to %s, which is not there: correct the link or write the page", name, target)
				continue
			}
			if fragment == "" || info.IsDir() || !strings.HasSuffix(where, ".md") {
				continue
			}
			if !anchors(read(t, where))[fragment] {
				t.Errorf("%s links to %s, but %s has no heading of that name", name, target, where)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Fatal("no documentation found")
	}
}

func TestPagesNamedInTextExist(t *testing.T) {
	for _, ext := range []string{".go", ".md", ".proto"} {
		err := walk(ext, func(name string, content []byte) error {
			if within(name, "internal/house") {
				return nil
			}
			for _, page := range mention.FindAllString(string(content), -1) {
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(page))); err != nil {
					t.Errorf("%s names %s, which is not there: write the page or correct the name", name, page)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryDecisionIsListed keeps the index of decisions whole.
func TestEveryDecisionIsListed(t *testing.T) {
	index := read(t, "docs/decisions/README.md")
	files, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		if name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/decisions/%s is not listed in docs/decisions/README.md: add a line", name)
		}
		if page := read(t, "docs/decisions/"+name); name != "README.md" && !regexp.MustCompile(`(?m)^## Roads not taken$`).MatchString(page) && name != "dependencies.md" {
			t.Errorf("docs/decisions/%s has no section \"Roads not taken\": a decision without its alternatives cannot be judged later", name)
		}
	}
}

// testFunctions are the Test, Fuzz and Benchmark functions of the tree, as
// folder.Name.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	for _, f := range tree(t) {
		if !f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				out[f.pkg+"."+fn.Name.Name] = true
			}
		}
	}
	return out
}

var (
	promise   = regexp.MustCompile(`(?m)^## (P\d+) `)
	namedTest = regexp.MustCompile("`([a-z][A-Za-z0-9_/-]*\\.(?:Test|Fuzz|Benchmark)[A-Za-z0-9_]*)(/[^`]*)?`")
)

const noTest = "No test yet"

func TestPromisesAreBorne(t *testing.T) {
	page := read(t, "docs/promises.md")
	functions := testFunctions(t)
	starts := promise.FindAllStringSubmatchIndex(page, -1)
	sections := make(map[string]string)
	for i, at := range starts {
		end := len(page)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		sections[page[at[2]:at[3]]] = page[at[0]:end]
	}
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11"} {
		section, ok := sections[p]
		if !ok {
			t.Errorf("docs/promises.md has no section for %s: promises are kept for good", p)
			continue
		}
		named := namedTest.FindAllStringSubmatch(section, -1)
		if len(named) == 0 && !strings.Contains(section, noTest) {
			t.Errorf("docs/promises.md: %s names no test; name one as `folder.TestName`, or say %q", p, noTest)
		}
	}
	namesExist(t, "docs/promises.md", functions)
}

// TestPagesNameWhatExists holds the other pages that name tests and benchmarks.
func TestPagesNameWhatExists(t *testing.T) {
	functions := testFunctions(t)
	for _, page := range []string{"docs/benchmarks.md", "docs/cases.md"} {
		namesExist(t, page, functions)
	}
}

// namesExist looks for every test and benchmark that a page names.
func namesExist(t *testing.T, page string, functions map[string]bool) {
	t.Helper()
	for _, m := range namedTest.FindAllStringSubmatch(read(t, page), -1) {
		if !functions[m[1]] {
			t.Errorf("%s names %s, which does not exist: correct the name, or say %q", page, m[1], noTest)
			continue
		}
		if sub := strings.TrimPrefix(m[2], "/"); sub != "" && !subtestExists(t, path.Dir(m[1])+"/"+strings.SplitN(path.Base(m[1]), ".", 2)[0], sub) {
			t.Errorf("%s names %s%s, but no test data and no test of that package has the name %s", page, m[1], m[2], sub)
		}
	}
}

// subtestExists looks for a part of a test by its name: a file of the package's
// test data, or a string in its test files.
func subtestExists(t *testing.T, pkg, name string) bool {
	t.Helper()
	pkg = strings.TrimPrefix(pkg, "./")
	for _, f := range tree(t) {
		if f.test && f.pkg == pkg && strings.Contains(string(f.source), `"`+name+`"`) {
			return true
		}
	}
	found := false
	_ = filepath.WalkDir(filepath.Join(root, filepath.FromSlash(pkg), "testdata"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.TrimSuffix(d.Name(), filepath.Ext(d.Name())) == strings.TrimSuffix(name, filepath.Ext(name)) {
			found = true
		}
		return nil // no folder is no test data
	})
	return found
}

// TestEveryPageIsReachable follows the links from README.md: a page that nobody
// links to is not read.
func TestEveryPageIsReachable(t *testing.T) {
	links := make(map[string][]string)
	err := walk(".md", func(name string, content []byte) error {
		text := codeSpan.ReplaceAllString(fenceBlock.ReplaceAllString(string(content), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, _, _ := strings.Cut(m[1], "#")
			if file != "" && !strings.Contains(file, "://") {
				links[name] = append(links[name], path.Join(path.Dir(name), file))
			}
		}
		if _, ok := links[name]; !ok {
			links[name] = nil
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		for _, to := range links[next] {
			if !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	for name := range links {
		if !reached[name] {
			t.Errorf("%s is linked from nowhere: link it from README.md, docs/README.md or a page that these lead to", name)
		}
	}
}
