package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/table"
	"github.com/strandmq/strandmq/loadtest"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var (
	metricsPairs = flag.Int("metrics.pairs", 6, "how many pairs of runs, with scrapes and without, BenchmarkMetrics compares")
	metricsKeep  = flag.String("metrics.keep", "", "keep the profiles in this folder, as metrics-SHAPE.pprof")
	metricsTime  = flag.Duration("metrics.time", 5*time.Second, "how long each of them is measured")
)

// What a broker has beside the load: a scrape tells of all of it.
const (
	scrapedTopics     = 20
	scrapedPartitions = 8
	scrapedGroups     = 3 // of each topic
)

// metricsLoad is a load on a broker, and what it took.
type metricsLoad struct {
	rate    float64 // messages a second
	cpu     float64 // the broker's seconds a million
	scrapes int
	took    time.Duration // of all scrapes
	bytes   int64         // of the last one
}

// BenchmarkMetrics measures what all metrics cost under full load, by two ways. Runs with
// a scrape every second and runs without any take turns, and are compared; a machine's own
// changes are larger than what is looked for, so that tells only that it is not much. And
// a profile of the broker's processor time tells which part of it is counting, and which is
// scrapes. `make bench-metrics` prints both.
func BenchmarkMetrics(b *testing.B) {
	b.Run("pairs", benchScrapes)
	b.Run("profile", benchCounting)
}

func benchScrapes(b *testing.B) {
	binary := buildMeasured(b)
	var without, with []metricsLoad
	for i := range *metricsPairs {
		// Each is first as often as the other.
		for _, scraped := range []bool{i%2 == 1, i%2 == 0} {
			p := startMeasured(b, binary, filepath.Join(b.TempDir(), "data"), "--"+metricsPerPartition)
			l := underLoad(b, p, "w1", scraped, func() {})
			p.stop()
			if scraped {
				with = append(with, l)
			} else {
				without = append(without, l)
			}
		}
	}
	t := table.Table{Head: []string{"SCRAPES", "MSG/S", "SERVER S/M", "OF A SCRAPE", "SIZE"}, Right: []int{1, 2, 3, 4}}
	rate, cpu := median(without, func(l metricsLoad) float64 { return l.rate }), median(without, func(l metricsLoad) float64 { return l.cpu })
	t.Add("none", whole(rate), fmt.Sprintf("%.3f", cpu), "", "")
	last := with[len(with)-1]
	took := median(with, func(l metricsLoad) float64 { return l.took.Seconds() / float64(l.scrapes) })
	rates, cpus := median(with, func(l metricsLoad) float64 { return l.rate }), median(with, func(l metricsLoad) float64 { return l.cpu })
	t.Add("every second", whole(rates), fmt.Sprintf("%.3f", cpus), fmt.Sprintf("%.1f ms", took*1000), fmt.Sprintf("%d kB", last.bytes/1000))
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
	var pairs []float64
	for i := range with {
		pairs = append(pairs, 100*(with[i].rate/without[i].rate-1))
	}
	slices.Sort(pairs)
	fmt.Printf("rate: %+.1f %%, processor: %+.1f %%; the rates of the pairs: %+.1f\n", 100*(rates/rate-1), 100*(cpus/cpu-1), pairs)
}

func median(of []metricsLoad, value func(metricsLoad) float64) float64 {
	var all []float64
	for _, l := range of {
		all = append(all, value(l))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// Functions of a profile: whoever counts, and whoever answers a scrape.
const (
	countingOf = `client_golang|internal/histogram|broker\.\(\*metrics\)|broker\.\(?\*?(deliveryMeter|publishMeter|groupMeter)|countRefused` +
		`|broker\.\(\*Broker\)\.(settled|finished|acked)Here|consumer\.\(\*(Shell\)\.(tellAcked|findPublished)|acks\)|group\)\.(countSettled|finish)$|App\)\.tellCounted)|partition\.\(\*core\)\.committed`
	scrapingOf = `promhttp|broker\.\(\*Broker\)\.collect|broker\.collector|broker\.\(\*histograms\)\.Collect|consumer\.\(\*(Shell\)\.(Stats|view)|group\)\.(state|keptState))`
)

func benchCounting(b *testing.B) {
	t := table.Table{Head: []string{"SHAPE", "SAMPLES", "COUNTING", "A SCRAPE EVERY SECOND"}, Right: []int{1, 2, 3}}
	for _, shape := range []string{"w1", "w3max", "w2x64"} {
		folder := b.TempDir()
		profile := filepath.Join(folder, "profile")
		if *metricsKeep != "" {
			profile = filepath.Join(*metricsKeep, "metrics-"+shape+".pprof")
			if err := os.Remove(profile); err != nil && !errors.Is(err, os.ErrNotExist) {
				b.Fatal(err)
			}
		}
		b.Setenv(profileName, profile)
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		link := filepath.Join(folder, profiledBroker)
		if err := os.Symlink(self, link); err != nil {
			b.Fatal(err)
		}
		p := startMeasured(b, link, filepath.Join(folder, "data"), "--"+metricsPerPartition)
		underLoad(b, p, shape, true, func() {
			if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				b.Fatal(err)
			}
		})
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // between two looks
			if _, err := os.Stat(profile); err == nil {
				break
			}
			if time.Now().After(deadline) {
				b.Fatal("there is no profile")
			}
		}
		p.stop()
		counting, samples := shareOf(b, profile, "-focus="+countingOf, "-ignore="+scrapingOf)
		scraping, _ := shareOf(b, profile, "-focus="+scrapingOf)
		t.Add(shape, samples, counting, scraping)
	}
	fmt.Println()
	if err := t.Write(os.Stdout, false); err != nil {
		b.Error(err)
	}
}

var profileTotal = regexp.MustCompile(`Showing nodes accounting for \S+, (\S+%) of (\S+) total`)

// shareOf is the part of a profile's samples that flags of pprof leave.
func shareOf(b *testing.B, profile string, flags ...string) (share, total string) {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), "go", append(append([]string{"tool", "pprof", "-top", "-nodefraction=0"}, flags...), profile)...).CombinedOutput()
	if m := profileTotal.FindStringSubmatch(string(out)); err == nil && m != nil {
		return m[1], m[2]
	}
	b.Fatalf("%v\n%s", err, out)
	return "", ""
}

// underLoad puts a load on a broker that has topics and groups beside it. bounds is called
// where measuring begins and where it ends.
func underLoad(b *testing.B, p *measured, shape string, scraped bool, bounds func()) (l metricsLoad) {
	b.Helper()
	for i := range scrapedTopics {
		topic := fmt.Sprint("beside-", i)
		if _, err := p.dial().topics.CreateTopic(b.Context(), &strandmqv1.CreateTopicRequest{Topic: topic, Partitions: scrapedPartitions}); err != nil {
			b.Fatal(err)
		}
		for g := range scrapedGroups {
			if _, err := p.dial().groups.CreateGroup(b.Context(), &strandmqv1.CreateGroupRequest{Topic: topic, Group: fmt.Sprint("g", g)}); err != nil {
				b.Fatal(err)
			}
		}
	}
	s, ok := loadtest.ShapeOf(shape)
	if !ok {
		b.Fatal(shape)
	}
	s.Time = *metricsTime
	var from, to counters
	done, over := make(chan struct{}), make(chan struct{})
	rep, err := loadtest.RunShape(b.Context(), p.url, s, loadtest.Config{NoIDs: true}, func(begins bool) {
		if !begins {
			to = p.count(b)
			bounds()
			close(done)
			<-over
			return
		}
		from = p.count(b)
		bounds()
		go func() {
			defer close(over)
			for tick := time.NewTicker(time.Second); scraped; {
				began := time.Now()
				n, err := p.look()
				if err != nil {
					b.Error(err)
					return
				}
				l.scrapes, l.bytes, l.took = l.scrapes+1, n, l.took+time.Since(began)
				select {
				case <-done:
					tick.Stop()
					return
				case <-tick.C:
				}
			}
		}()
	})
	if err != nil {
		b.Fatal(err)
	}
	l.rate = rep.Publish.Rate
	if len(rep.Groups) > 0 {
		l.rate = rep.Groups[0].Rate
	}
	l.cpu = (to.server - from.server) / (l.rate * s.Time.Seconds() / 1e6)
	return l
}

// look is one scrape, and how long it is.
func (p *measured) look() (int64, error) {
	res, err := http.Get(p.url + "/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("a scrape: %s", res.Status)
	}
	return n, err
}

const (
	profiledBroker = "profiled-broker"
	profileName    = "STRANDMQ_TEST_PROFILE"
)

// brokerWithProfile is strandmq, with a profile of its processor time from one SIGUSR1 to
// the next.
func brokerWithProfile() {
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		<-asked
		f, err := os.Create(os.Getenv(profileName) + ".part")
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		<-asked
		pprof.StopCPUProfile()
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = os.Rename(f.Name(), os.Getenv(profileName))
		}
		if err != nil {
			panic(err)
		}
	}()
	main()
}

func init() { programs[profiledBroker] = brokerWithProfile }
