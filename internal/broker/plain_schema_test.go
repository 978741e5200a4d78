package broker

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// An openapi page, as far as answers are held against it.
type openapiPage struct {
	Paths map[string]map[string]struct {
		Responses map[string]struct {
			Content map[string]struct{ Schema schema }
		}
	}
	Components struct{ Schemas map[string]schema }
}

// schema is the part of JSON Schema that the page uses.
type schema struct {
	Ref                  string `json:"$ref"`
	Type                 string
	Properties           map[string]schema
	Required, Enum       []string
	Items                *schema
	OneOf                []schema
	AdditionalProperties *bool
	Minimum              *float64
	Description          string
}

var readOpenAPI = sync.OnceValues(func() (p openapiPage, err error) { //nolint:gochecknoglobals // of tests
	b, err := os.ReadFile("../httpapi/openapi.json")
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p, err
})

// described holds an answer of the plain HTTP API against the page that describes it.
func described(t testing.TB, method, path string, e echo) {
	t.Helper()
	page, err := readOpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	path, _, _ = strings.Cut(path, "?")
	kind, _, _ := mime.ParseMediaType(e.header.Get("Content-Type"))
	want := schema{Ref: "#/components/schemas/Problem"}
	if e.status < 400 {
		if method == http.MethodHead {
			return
		}
		pattern, ok := page.pattern(path)
		if !ok {
			t.Fatalf("%s is not in openapi.json", path)
		}
		answer, ok := page.Paths[pattern][strings.ToLower(method)].Responses[fmt.Sprint(e.status)]
		if !ok {
			t.Fatalf("%s %s: openapi.json has no status %d", method, pattern, e.status)
		}
		content, ok := answer.Content[kind]
		if ok != (len(e.body) > 0) {
			t.Fatalf("%s %s: openapi.json has no answer of content type %q with %d bytes", method, pattern, kind, len(e.body))
		}
		want = content.Schema
	}
	var texts []string
	switch kind {
	case "application/json", "application/problem+json":
		texts = []string{string(e.body)}
	case "application/x-ndjson":
		texts = slices.Collect(strings.Lines(string(e.body)))
	}
	for _, text := range texts {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%s %s: %q: %v", method, path, text, err)
		}
		if why := page.fits(want, v, "it"); why != "" {
			t.Fatalf("%s %s: the answer is not as openapi.json describes it: %s\n%s", method, path, why, text)
		}
	}
}

// pattern finds the path of the page that a request's path is one of.
func (p openapiPage) pattern(path string) (string, bool) {
	hole := regexp.MustCompile(`\\\{[a-z]+\\\}`)
	for _, pattern := range slices.Sorted(maps.Keys(p.Paths)) {
		re := regexp.MustCompile("^" + hole.ReplaceAllString(regexp.QuoteMeta(pattern), "[^/]+") + "$")
		if re.MatchString(path) {
			return pattern, true
		}
	}
	return "", false
}

// fits says why a value is not as a schema has it.
func (p openapiPage) fits(s schema, v any, where string) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		s, ok = p.Components.Schemas[name]
		if !ok {
			return where + ": there is no schema " + name
		}
	}
	if len(s.OneOf) > 0 {
		var whys []string
		for _, one := range s.OneOf {
			why := p.fits(one, v, where)
			if why == "" {
				return ""
			}
			whys = append(whys, why)
		}
		return strings.Join(whys, "; or ")
	}
	switch s.Type {
	case "":
		return "" // any value
	case "string":
		text, ok := v.(string)
		if !ok || len(s.Enum) > 0 && !slices.Contains(s.Enum, text) {
			return fmt.Sprintf("%s is %v, not a string of %v", where, v, s.Enum)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Sprintf("%s is %v, not a boolean", where, v)
		}
	case "integer":
		if n, ok := v.(float64); !ok || n != math.Trunc(n) || s.Minimum != nil && n < *s.Minimum {
			return fmt.Sprintf("%s is %v, not an integer", where, v)
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			return fmt.Sprintf("%s is %v, not a list", where, v)
		}
		for i, one := range list {
			if why := p.fits(*s.Items, one, fmt.Sprintf("%s[%d]", where, i)); why != "" {
				return why
			}
		}
	case "object":
		of, ok := v.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is %v, not an object", where, v)
		}
		for _, name := range s.Required {
			if _, ok := of[name]; !ok {
				return where + " has no " + name
			}
		}
		for name, one := range of {
			field, ok := s.Properties[name]
			switch {
			case !ok && s.AdditionalProperties != nil && !*s.AdditionalProperties:
				return where + " has " + name
			case ok:
				if why := p.fits(field, one, where+"."+name); why != "" {
					return why
				}
			}
		}
	default:
		return "the schema of " + where + " has type " + s.Type
	}
	return ""
}

// The page is served, and the check above finds what does not fit.
func TestPlainIsDescribed(t *testing.T) {
	b := startAlone(t, t.TempDir())
	p := newPlainly(t, b)
	served := p.do("GET", "/v1/openapi.json", "", "")
	served.ok(200, nil)
	own, err := os.ReadFile("../httpapi/openapi.json")
	if err != nil || string(own) != string(served.body) {
		t.Fatalf("the page that is served is another one: %v", err)
	}
	front, err := io.ReadAll(browse(t, "GET", b.URL()+"/", "", nil).Body)
	if err != nil || !strings.Contains(string(front), " /v1/openapi.json\n") {
		t.Fatalf("the front page does not name it: %v %s", err, front)
	}
	page, err := readOpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		`{"partition":0,"offset":1}`, `{"partition":0,"offset":1,"duplicate":"no"}`, `{"partition":0,"offset":-1,"duplicate":false}`,
		`{"partition":0,"offset":1.5,"duplicate":false}`, `{"partition":0,"offset":1,"duplicate":false,"more":1}`, `[]`,
	} {
		var v any
		if err := json.Unmarshal([]byte(bad), &v); err != nil {
			t.Fatal(err)
		}
		if page.fits(schema{Ref: "#/components/schemas/Receipt"}, v, "it") == "" {
			t.Errorf("%s fits a receipt", bad)
		}
	}
}
