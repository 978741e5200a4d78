// Command alerts says which of Prometheus' alert rules fire, by Prometheus' own engine, when
// a cluster goes from one state to another.
//
//	alerts RULES BEFORE AFTER
//
// BEFORE and AFTER are folders with what /metrics of each node said, one file for each node.
// Time is made up: the first state is held for an hour, then the second for another, with a
// scrape every 30 s. What counts goes on counting in the second hour as fast as it did
// between the two looks, and ages grow. A node without a file in AFTER is not scraped.
//
// It prints a line for each alert that fires in one of the hours: "before" or "after", its
// name and its labels.
//
//	alerts - < EXPRESSIONS
//
// only has the engine parse them, one a line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

const (
	step = 30 * time.Second
	held = time.Hour
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "alerts:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	parse := parser.NewParser(parser.Options{})
	if len(args) == 1 && args[0] == "-" {
		in := bufio.NewScanner(os.Stdin)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			if _, err := parse.ParseExpr(in.Text()); err != nil {
				return fmt.Errorf("%s: %w", in.Text(), err)
			}
		}
		return in.Err()
	}
	if len(args) != 3 {
		return errors.New("usage: alerts RULES BEFORE AFTER, or alerts - < EXPRESSIONS")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	groups, faults := rulefmt.Parse(text, false, model.UTF8Validation, parse, slog.New(slog.DiscardHandler))
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	before, err := read(args[1])
	if err != nil {
		return err
	}
	after, err := read(args[2])
	if err != nil {
		return err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parse})
	change := time.Now().Truncate(step)
	q := &store{series: timeline(before, after, change)}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if err := watch(engine, q, r, change); err != nil {
				return fmt.Errorf("%s: %w", r.Alert, err)
			}
		}
	}
	return nil
}

// watch evaluates one rule at each step and prints where it fires.
func watch(engine *promql.Engine, q storage.Queryable, r rulefmt.Rule, change time.Time) error {
	// The first half hour is history for those that look back.
	query, err := engine.NewRangeQuery(context.Background(), q, nil, r.Expr, change.Add(-held/2), change.Add(held-step), step)
	if err != nil {
		return err
	}
	defer query.Close()
	found, err := query.Exec(context.Background()).Matrix()
	if err != nil {
		return err
	}
	fires := map[string]bool{}
	for _, s := range found {
		var since, last int64
		for _, p := range s.Floats {
			if p.T-last > step.Milliseconds() {
				since = p.T
			}
			last = p.T
			if time.Duration(p.T-since)*time.Millisecond < time.Duration(r.For) {
				continue
			}
			word := "before"
			if p.T >= change.UnixMilli() {
				word = "after"
			}
			fires[word+" "+r.Alert+" "+s.Metric.String()] = true
		}
	}
	lines := make([]string, 0, len(fires))
	for l := range fires {
		lines = append(lines, l)
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Println(l)
	}
	return nil
}

// A sample is what one series of one node said.
type sample struct {
	labels labels.Labels
	value  float64
	counts bool
}

// read reads a folder of scrapes.
func read(dir string) (map[string]sample, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no scrapes in %s: %w", dir, err)
	}
	out := map[string]sample{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		p, err := textparse.New(text, "text/plain", labels.NewSymbolTable(), textparse.ParserOptions{})
		if err != nil {
			return nil, err
		}
		counts := false
		for {
			entry, err := p.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
			switch entry {
			case textparse.EntryType:
				_, kind := p.Type()
				counts = kind == model.MetricTypeCounter || kind == model.MetricTypeHistogram || kind == model.MetricTypeSummary
			case textparse.EntrySeries:
				_, _, v := p.Series()
				var ls labels.Labels
				p.Labels(&ls)
				b := labels.NewBuilder(ls)
				b.Set("job", "strandmq").Set("instance", filepath.Base(f))
				all := b.Labels()
				out[all.String()] = sample{all, v, counts}
			}
		}
	}
	return out, nil
}

// ages are gauges that grow with time while they are not 0.
func ages(name string) bool {
	return strings.HasSuffix(name, "_lag_seconds") || strings.HasSuffix(name, "_stuck_seconds")
}

// timeline makes the series of both hours.
func timeline(before, after map[string]sample, change time.Time) (out []storage.Series) {
	all := map[string]labels.Labels{}
	for k, s := range before {
		all[k] = s.labels
	}
	for k, s := range after {
		all[k] = s.labels
	}
	for k, ls := range all {
		was, had := before[k]
		is, has := after[k]
		one := promql.Series{Metric: ls}
		n := int64(held / step)
		for i := -n; i < n; i++ {
			v := was.value
			if i >= 0 {
				switch v = is.value; {
				case !has && had && i == 0:
					v = math.Float64frombits(0x7ff0000000000002) // Prometheus' mark of an end
				case !has:
					continue
				case is.counts:
					v += float64(i) * max(0, is.value-was.value)
				case ages(ls.Get(labels.MetricName)) && v > 0:
					v += float64(i) * step.Seconds()
				}
			} else if !had {
				continue
			}
			one.Floats = append(one.Floats, promql.FPoint{T: change.UnixMilli() + i*step.Milliseconds(), F: v})
		}
		if len(one.Floats) > 0 {
			out = append(out, promql.NewStorageSeries(one))
		}
	}
	return out
}

// store is the series as Prometheus' engine reads them.
type store struct{ series []storage.Series }

func (s *store) Querier(int64, int64) (storage.Querier, error) { return s, nil }
func (s *store) Close() error                                  { return nil }

func (s *store) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s *store) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s *store) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &set{}
	for _, one := range s.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Labels().Get(m.Name)) }) {
			set.series = append(set.series, one)
		}
	}
	return set
}

// set walks over what was selected.
type set struct {
	series []storage.Series
	at     storage.Series
}

func (s *set) Next() bool {
	if len(s.series) == 0 {
		return false
	}
	s.at, s.series = s.series[0], s.series[1:]
	return true
}
func (s *set) At() storage.Series                { return s.at }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
