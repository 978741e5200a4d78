package house

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// decoder matches the names of what takes bytes or text apart.
var decoder = regexp.MustCompile(`^(?i:decode|parse|unmarshal)`)

// alsoDecoders have other names; the rest of the line is the fuzz target.
var alsoDecoders = map[string]string{
	"consumer.NewApp":                    "FuzzRows",
	"coordinator.restore":                "FuzzRestore",
	"internal/broker.hostAllowed":        "FuzzHost",
	"internal/broker.contentTypeAllowed": "FuzzContentType",
	"internal/ndjson.NewReader":          "FuzzReader",
	"internal/record.View":               "FuzzParse",
	"loadtest.readBody":                  "FuzzReadBody",
	"partition.itemAt":                   "FuzzEntry",
	"partition.openEntry":                "FuzzEntry",
	"partition/logstore.scanRecords":     "FuzzScanRecords",
}

// fuzzedThrough are decoders that a target reaches by calling something else.
var fuzzedThrough = map[string]string{
	"internal/record.Parse":          "FuzzParse", // and View: its helper try calls them
	"internal/record.ParseEach":      "FuzzParse",
	"internal/record.View":           "FuzzParse",
	"partition/logstore.decodeBound": "FuzzDecodeKey", // rangesBetween calls it
	"consumer.decode":                "FuzzRows",      // and the two below: NewApp calls them
	"consumer.decodeEntry":           "FuzzRows",
	"consumer.decodeDead":            "FuzzRows",
	"internal/broker.unmarshalJSON":  "FuzzJSONValue", // decodeJSON calls it
}

// noDecoders have such a name and take nothing apart.
var noDecoders = map[string]string{
	"internal/broker.decodeFailure": "says why a request did not decode",
	"internal/broker.Unmarshal":     "hands to decodeJSON, which is fuzzed, or to the protobuf library",
}

// TestDecodersAreFuzzed: whatever takes apart what came from outside or from the
// disk has a fuzz target with seeds, which goes on to run with every go test.
func TestDecodersAreFuzzed(t *testing.T) {
	decoders := make(map[string]string)       // package.name → where
	calls := make(map[string]map[string]bool) // package.FuzzName → what it calls
	for _, f := range tree(t) {
		if f.generated || f.pkg == "internal/house" {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := f.pkg + "." + fn.Name.Name
			_, also := alsoDecoders[name]
			if !f.test && (also || decoder.MatchString(fn.Name.Name)) {
				decoders[name] = f.line(fn)
			}
			if f.test && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				calls[name] = identifiers(fn)
			}
		}
	}
	if len(decoders) < 25 {
		t.Errorf("only %d decoders were found: this test looks wrongly", len(decoders))
	}
	for name, at := range decoders {
		if noDecoders[name] != "" {
			continue
		}
		dot := strings.LastIndexByte(name, '.')
		pkg, fn := name[:dot], name[dot+1:]
		if target := fuzzedThrough[name]; target != "" {
			if calls[pkg+"."+target] == nil {
				t.Errorf("%s: %s has no %s any more, which fuzzed %s", at, pkg, target, fn)
			}
			continue
		}
		fuzzed := false
		for target, called := range calls {
			if !strings.HasPrefix(target, pkg+".Fuzz") || alsoDecoders[name] != "" && target != pkg+"."+alsoDecoders[name] {
				continue
			}
			if called[fn] {
				fuzzed = true
				if !called["Add"] {
					t.Errorf("%s has no seeds: f.Add some that are taken and some that are not", target)
				}
			}
		}
		if !fuzzed {
			t.Errorf("%s: no Fuzz function of %s calls %s: add one with seeds, or say in %s how it is fuzzed", at, pkg, fn, "internal/house/decoders_test.go")
		}
	}
	for _, list := range []map[string]string{alsoDecoders, fuzzedThrough, noDecoders} {
		for name := range list {
			if decoders[name] == "" {
				t.Errorf("internal/house/decoders_test.go names %s, which is not there any more: take it out", name)
			}
		}
	}
}

// identifiers are the names that stand anywhere in a function.
func identifiers(fn *ast.FuncDecl) map[string]bool {
	out := make(map[string]bool)
	ast.Inspect(fn, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			out[id.Name] = true
		}
		return true
	})
	return out
}
