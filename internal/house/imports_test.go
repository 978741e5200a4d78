package house

import (
	"strings"
	"testing"
)

// A row of the import table: what the packages under a folder may import of
// ours, themselves aside. Nothing points up. The most specific row counts.
type row struct {
	pkg    string   // the folder, and all below it
	may    []string // what it may import, each with all below it, the exceptions aside
	except []string // what it may not import all the same
	tests  []string // what its tests may import besides
	why    string   // what to do instead
}

// assembled are the two packages of internal that may import every domain
// package; nothing that they are put together from may import them.
var assembled = []string{"internal/broker", "internal/sim"}

var table = []row{
	{
		pkg: "proto",
		why: "generated code stands on its own; put hand-written code where it is used",
	},
	{
		pkg: "internal", may: []string{"internal"}, except: assembled,
		why: "a package of internal does one small job and knows no domain package; move the code up to the package that needs both, or pass in a function",
	},
	{
		pkg: "internal/broker", may: []string{"proto", "internal", "router", "partition", "consumer", "coordinator", "console"},
		except: []string{"internal/sim"}, tests: []string{"client", "internal/sim"},
		why: "the broker puts one node together; what it needs of a command belongs below it",
	},
	{
		pkg: "internal/httpapi", may: []string{"proto", "internal"}, except: assembled,
		why: "the plain HTTP API is a client of the API, without a connection between: what it needs of the broker is a method there",
	},
	{
		pkg: "internal/sim", may: []string{"proto", "internal", "router", "partition", "consumer", "coordinator", "client"},
		why: "the simulator drives everything but the command",
	},
	{
		pkg: "console", may: []string{"proto"},
		why: "the console is a client like any other: speak to the broker through the API",
	},
	{
		pkg: "router", may: []string{"proto", "internal"}, except: assembled,
		why: "the router runs in the client too: what it needs of a partition comes in as a small interface of its own",
	},
	{
		pkg: "partition", may: []string{"proto", "internal"}, except: assembled,
		why: "a log knows nothing of what it drives: use the App seam in partition/app.go",
	},
	{
		pkg: "partition/logstore", may: []string{"proto", "internal"}, except: assembled,
		why: "the store knows neither Raft nor the host: give it bytes and plain types of its own",
	},
	{
		pkg: "consumer", may: []string{"partition", "proto", "internal"},
		except: append([]string{"partition/logstore"}, assembled...), tests: []string{"partition/logstore"},
		why: "a group's state knows its partition's log by partition.App and partition.Host only",
	},
	{
		pkg: "coordinator", may: []string{"partition", "proto", "internal"},
		except: append([]string{"partition/logstore"}, assembled...), tests: []string{"partition/logstore"},
		why: "the coordinator decides who gets work and must not be able to touch a delivery: never import consumer",
	},
	{
		pkg: "client", may: []string{"router", "proto", "internal"}, except: assembled, tests: []string{"client/strandmqtest"},
		why: "users import the client: it knows what goes over the wire and nothing else",
	},
	{
		pkg: "client/strandmqtest", may: []string{"internal/broker", "client", "proto"},
		why: "an in-process broker for users' tests is the broker, the client and the API that they speak, nothing else",
	},
	{
		pkg: "loadtest", may: []string{"client", "proto", "internal"},
		except: append([]string{"client/strandmqtest"}, assembled...),
		why:    "the load test knows only what a client knows, or it would prove nothing",
	},
	{
		pkg: "examples", may: []string{"client", "proto"},
		why: "an example knows only what a user's program knows",
	},
	{
		pkg: "cmd", may: []string{"client", "consumer", "coordinator", "internal", "loadtest", "partition", "proto", "router", "console"},
		why: "commands are wiring; nothing imports them",
	},
}

// rowOf finds the most specific row for a package.
func rowOf(pkg string) (row, bool) {
	var best row
	found := false
	for _, r := range table {
		if within(pkg, r.pkg) && len(r.pkg) >= len(best.pkg) {
			best, found = r, true
		}
	}
	return best, found
}

// mayImport says whether a row lets its packages import dep.
func (r row) mayImport(dep string, test bool) bool {
	if test && withinAny(dep, r.tests) {
		return true
	}
	if withinAny(dep, r.except) {
		return false
	}
	return withinAny(dep, r.may)
}

func TestImportTable(t *testing.T) {
	for _, f := range tree(t) {
		r, ok := rowOf(f.pkg)
		if !ok {
			t.Errorf("%s: package %s has no row in the import table of internal/house/imports_test.go; the layout is part of the design: add a row, and a page in docs/decisions that says why the package is there", f.path, f.pkg)
			continue
		}
		for _, imp := range f.imports() {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				if imp == module {
					t.Errorf("%s imports the root, which holds no code", f.path)
				}
				continue
			}
			// A package and what lies below the same row know each other; a
			// package's test may import the package.
			if dep == f.pkg {
				continue
			}
			if other, ok := rowOf(dep); ok && other.pkg == r.pkg && !isAssembledSibling(f.pkg, dep) {
				continue
			}
			// partition alone opens its store.
			if f.pkg == "partition" && dep == "partition/logstore" {
				continue
			}
			if !r.mayImport(dep, f.test) {
				t.Errorf("%s imports %s, which %s may not: %s", f.path, dep, r.pkg, r.why)
			}
		}
	}
}

// isAssembledSibling tells whether an import within internal reaches one of the
// two packages that stand above all others there.
func isAssembledSibling(pkg, dep string) bool {
	return withinAny(dep, assembled) && !withinAny(pkg, assembled)
}

// A fence keeps a module of others inside one package of ours.
type fence struct {
	module string   // its import path, and all below it
	only   []string // the packages that may import it
	except []string // of those, the ones below that may not
	tests  []string // packages whose tests may
	why    string
}

var fences = []fence{
	{
		module: "go.etcd.io/raft", only: []string{"partition"}, except: []string{"partition/logstore"},
		why: "only package partition knows Raft; others see partition.Host and partition.App",
	},
	{
		// The simulator is a test all through: it stands under the store, as its disk.
		module: "github.com/cockroachdb/pebble", only: []string{"partition/logstore", "internal/sim"},
		tests: []string{"partition", "consumer", "coordinator", "internal/broker", "cmd/strandmq"},
		why:   "only partition/logstore knows Pebble; take its types, such as logstore.FS (tests may use Pebble's crashable and failing filesystems)",
	},
	{
		module: "go.opentelemetry.io", only: []string{"client/oteltracing", "client/otelmetrics"},
		why: "programs that import the client link OpenTelemetry only if they ask for it: use client.Observer",
	},
}

func TestFences(t *testing.T) {
	for _, f := range tree(t) {
		for _, imp := range f.imports() {
			for _, fc := range fences {
				if !within(imp, fc.module) {
					continue
				}
				if withinAny(f.pkg, fc.only) && !withinAny(f.pkg, fc.except) {
					continue
				}
				if f.test && withinAny(f.pkg, fc.tests) {
					continue
				}
				t.Errorf("%s imports %s: %s", f.path, imp, fc.why)
			}
		}
	}
}

// What exists for benchmarks alone is no part of a broker: only tests call it.
func TestYardstickIsForTests(t *testing.T) {
	called := false
	for _, f := range tree(t) {
		if f.path == "partition/logstore/yardstick.go" || !strings.Contains(read(t, f.path), "Yardstick(") {
			continue
		}
		called = true
		if !f.test {
			t.Errorf("%s calls logstore.Yardstick, which measures a bare store for benchmarks", f.path)
		}
	}
	if !called {
		t.Error("nothing calls logstore.Yardstick: remove it, and this test")
	}
}

func TestConnectStaysAtTheEdge(t *testing.T) {
	for _, f := range tree(t) {
		if f.generated || f.test || strings.HasSuffix(f.name, "_api.go") || strings.HasSuffix(f.name, "_client.go") {
			continue
		}
		for _, imp := range f.imports() {
			if within(imp, "connectrpc.com/connect") {
				t.Errorf("%s imports %s: only *_api.go (validate, call, translate the error) and *_client.go speak Connect; return a typed error here and let the table at the edge turn it into a code", f.path, imp)
			}
		}
	}
}

// TestTheTableBites holds the table against imports that it has to refuse, so
// that a slip in the rules above cannot make every import pass.
func TestTheTableBites(t *testing.T) {
	for _, c := range []struct {
		pkg, dep string
		test     bool
		want     bool
	}{
		{"consumer", "partition", false, true},
		{"consumer", "partition/logstore", false, false},
		{"consumer", "partition/logstore", true, true},
		{"consumer", "coordinator", true, false},
		{"coordinator", "consumer", false, false},
		{"partition", "consumer", false, false},
		{"partition/logstore", "partition", false, false},
		{"router", "partition", false, false},
		{"router", "internal/broker", false, false},
		{"client", "internal/broker", false, false},
		{"client/strandmqtest", "internal/broker", false, true},
		{"loadtest", "partition", false, false},
		{"internal/record", "proto/strandmq/v1", false, false},
		{"internal/record", "partition", false, false},
		{"internal/httpapi", "proto/strandmq/v1", false, true},
		{"internal/httpapi", "partition", false, false},
		{"internal/httpapi", "internal/broker", false, false},
		{"internal/broker", "consumer", false, true},
		{"internal/broker", "cmd/strandmq", false, false},
		{"cmd/strandmq", "internal/broker", false, true},
		{"proto/strandmq/v1", "internal/record", false, false},
	} {
		r, ok := rowOf(c.pkg)
		if !ok {
			t.Errorf("%s has no row", c.pkg)
			continue
		}
		if got := r.mayImport(c.dep, c.test); got != c.want {
			t.Errorf("%s imports %s (test file: %t): allowed is %t, want %t", c.pkg, c.dep, c.test, got, c.want)
		}
	}
}
