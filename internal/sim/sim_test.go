package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "run this seed alone")
	seedsFlag   = flag.Int("seeds", 0, "run so many seeds")
	fromFlag    = flag.Uint64("from", 1, "the first of them")
	nodesFlag   = flag.Int("nodes", 0, "so many nodes; 0: the seed says")
	liveFlag    = flag.Bool("live", false, "heal, and demand that all gets done")
	clusterFlag = flag.Bool("cluster", false, "replicas are where the cluster's metadata wants them")
	withoutFlag = flag.String("without", "", "kinds of faults that do not happen, with commas")
	eventsFlag  = flag.Int("events", 0, "end after so many events")
	plantFlag   = flag.String("plant", "", "put this fault into the runs")
	linesFlag   = flag.Bool("lines", false, "print every line of the trace")
)

// A run makes much that is soon garbage, and holds little.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800)
	}
}

func options(seed uint64) Options {
	o := Options{Seed: seed, Nodes: *nodesFlag, Cluster: *clusterFlag, Live: *liveFlag, Events: *eventsFlag, Plant: *plantFlag}
	if *withoutFlag != "" {
		o.Without = strings.Split(*withoutFlag, ",")
	}
	if *linesFlag {
		o.Log = os.Stdout
	}
	return o
}

// report tells what was found, and how to see it again.
func report(res Result) string {
	return fmt.Sprintf("%v\n\nsee it again with:\n  %s\n\nthe end of the trace:\n%s", res.Err, res.Options.Command(), strings.Join(res.Tail, "\n"))
}

// TestFlags: a flag that go test has, too, never gets here.
func TestFlags(t *testing.T) {
	flag.VisitAll(func(f *flag.Flag) {
		if flag.Lookup("test."+f.Name) != nil {
			t.Errorf("go test takes -%s for its own: name it otherwise", f.Name)
		}
	})
}

// TestSeed runs one seed, given with -seed; the first without.
func TestSeed(t *testing.T) {
	o := options(max(*seedFlag, 1))
	began := time.Now()
	res := Run(o)
	t.Logf("%s\n%v simulated, %d events in %v; trace %016x\n%v", res.Plan, res.Time, res.Events, time.Since(began), res.Trace, res.Count)
	if res.Err != nil {
		t.Fatal(report(res))
	}
}

// TestSeeds runs many seeds, given with -seeds, or a sample. Every fifth heals, and has
// to get done. One of a hundred runs twice and has to be the same.
func TestSeeds(t *testing.T) {
	n := uint64(*seedsFlag)
	first, quiet := *fromFlag, n == 0
	if quiet {
		first, n = 12, 8
	}
	var sum Count
	var simulated time.Duration
	began, said := time.Now(), time.Now()
	for i := range n {
		o := options(first + i)
		o.Live = o.Live || o.Seed%5 == 0
		res := Run(o)
		if i%100 == 0 && res.Err == nil {
			if again := Run(o); again.Trace != res.Trace {
				t.Errorf("seed %d: two runs are not the same: %016x after %d events, %016x after %d", o.Seed, res.Trace, res.Events, again.Trace, again.Events)
			}
		}
		sum.add(res.Count)
		simulated += res.Time
		if res.Err != nil {
			if testing.Short() {
				t.Errorf("seed %d: %s", o.Seed, report(res))
				continue
			}
			t.Errorf("seed %d: %v\nit began as: %s\nand cut short: %s", o.Seed, res.Err, res.Options.Command(), report(Shrink(res)))
		}
		if !quiet && time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Printf("%d of %d seeds, %v simulated in %v\n", i+1, n, simulated.Round(time.Second), time.Since(began).Round(time.Second))
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds, %v simulated in %v: %.0f times real time\n%v", n, simulated.Round(time.Second), took.Round(time.Millisecond), simulated.Seconds()/took.Seconds(), sum)
}

// TestSameSeedSameHistory: a seed is a history.
func TestSameSeedSameHistory(t *testing.T) {
	for _, o := range []Options{{Seed: 12, Nodes: 1}, {Seed: 6, Nodes: 3}, {Seed: 10, Nodes: 3, Live: true}} {
		a, b := Run(o), Run(o)
		if a.Trace != b.Trace || a.Events != b.Events || a.Time != b.Time {
			t.Errorf("%s: %d events and %016x, then %d events and %016x", o.Command(), a.Events, a.Trace, b.Events, b.Trace)
		}
		if a.Events < 1000 || a.Count.deliveries == 0 || a.Count.receipts == 0 {
			t.Errorf("%s: hardly anything happened: %v", o.Command(), a.Count)
		}
	}
	if a, b := Run(Options{Seed: 3}), Run(Options{Seed: 4}); a.Trace == b.Trace {
		t.Error("two seeds have one history")
	}
}

// TestCluster: nodes come and go, and replicas are where the metadata wants them, while
// there are faults; and when they end all is as it should be.
func TestCluster(t *testing.T) {
	var sum Count
	for _, o := range []Options{{Seed: 1, Nodes: 3, Cluster: true}, {Seed: 2022, Nodes: 3, Cluster: true, Live: true}, {Seed: 5, Nodes: 3, Cluster: true, Live: true}} {
		res := Run(o)
		if res.Err != nil {
			t.Fatal(report(res))
		}
		sum.add(res.Count)
	}
	for _, what := range []string{"node joined", "node removed", "drain", "move", "join", "add", "promote", "demote", "erase"} {
		if sum.placed[what] == 0 {
			t.Errorf("of what a cluster goes through %q did not happen: %v", what, sum)
		}
	}
}

// TestSnapshots: nodes that are away while a log is cut get snapshots, and the judge
// finds nothing wrong with what they are then. A seed is a history with them, too.
func TestSnapshots(t *testing.T) {
	sent := 0
	// The first few do; it may be others when the broker changes.
	for seed := uint64(302); sent < 4; seed++ {
		if seed == 342 {
			t.Fatalf("%d snapshots in 40 seeds: hardly any", sent)
		}
		o := Options{Seed: seed, Nodes: 3}
		res := Run(o)
		if res.Err != nil {
			t.Fatal(report(res))
		}
		if sent == 0 && res.Count.snapshots > 0 {
			if again := Run(o); again.Trace != res.Trace {
				t.Fatalf("seed %d: two runs are not the same: %016x after %d events, %016x after %d", seed, res.Trace, res.Events, again.Trace, again.Events)
			}
		}
		sent += res.Count.snapshots
	}
}

// TestTeeth plants faults and looks whether they are found, and that the same seeds
// are fine without them.
func TestTeeth(t *testing.T) {
	for _, p := range Plants {
		t.Run(p.Name, func(t *testing.T) {
			// The first of them finds it; it may be another one when the broker changes.
			for seed := p.Seed; seed < p.Seed+30; seed++ {
				o := Options{Seed: seed, Plant: p.Name, Nodes: p.Nodes, Live: p.Live, Cluster: p.Cluster}
				if !p.Cluster {
					o.Without = []string{"cluster"}
				}
				res := Run(o)
				if res.Err == nil {
					continue
				}
				t.Logf("%s: seed %d: %v", p.Text, o.Seed, res.Err)
				o.Plant = ""
				if res = Run(o); res.Err != nil {
					t.Fatalf("without it: %s", report(res))
				}
				return
			}
			t.Fatalf("not found: %s", p.Text)
		})
	}
}

// TestShrink: what fails is cut short, and still fails by the line that it prints.
func TestShrink(t *testing.T) {
	res := Run(Options{Seed: 12, Plant: "short-replay"})
	if res.Err == nil {
		t.Fatal("nothing to cut short")
	}
	short := Shrink(res)
	if short.Err == nil || len(short.Options.Without) == 0 {
		t.Fatalf("cut short to %+v: %v", short.Options, short.Err)
	}
	if want := "go test ./internal/sim -run TestSeed$ -seed 12 -without "; !strings.HasPrefix(short.Options.Command(), want) {
		t.Fatalf("see it again with %q", short.Options.Command())
	}
	if again := Run(short.Options); again.Err == nil || again.Err.Error() != short.Err.Error() {
		t.Fatalf("again it gives %v, and gave %v", again.Err, short.Err)
	}
}
