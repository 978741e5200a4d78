package broker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// However many ask while one gathers, there is one gathering more, and all of them have it.
func TestCrowdGathersOnce(t *testing.T) {
	t.Parallel()
	var begun atomic.Int64
	first := make(chan struct{})
	s := share(func() ([]struct{}, error) {
		n := begun.Add(1)
		if n == 1 {
			<-first
		}
		return make([]struct{}, n), nil
	})
	var all sync.WaitGroup
	all.Go(func() {
		if got, _ := s.Gather(); len(got) != 1 {
			t.Errorf("the first has gathering %d", len(got))
		}
	})
	inTime(t, "the first gathers", func() bool { return begun.Load() == 1 })
	const crowd = 300
	for range crowd {
		all.Go(func() {
			if got, _ := s.Gather(); len(got) != 2 {
				t.Errorf("one that came later has gathering %d", len(got))
			}
		})
	}
	inTime(t, "all wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next != nil && s.next.waiting == crowd
	})
	close(first)
	all.Wait()
	if begun.Load() != 2 {
		t.Errorf("%d gathered", begun.Load())
	}
}

// overlapping counts how many gather at once.
type overlapping struct{ now, most atomic.Int64 }

func (o *overlapping) Describe(chan<- *prometheus.Desc) {}

func (o *overlapping) Collect(chan<- prometheus.Metric) {
	n := o.now.Add(1)
	defer o.now.Add(-1)
	for was := o.most.Load(); n > was && !o.most.CompareAndSwap(was, n); was = o.most.Load() {
	}
}

var wellFormed = regexp.MustCompile(`^(# (HELP|TYPE|UNIT) \S+ .*|# EOF|[a-z0-9_]+(\{([a-z_]+="[^"]*",?)+\})? \S+)$`)

// Hundreds scrape a broker at once, again and again: each has a whole answer, one gathers at
// a time, so that no more than that is in memory, and publishing goes on.
func TestScrapesOfACrowd(t *testing.T) {
	t.Parallel()
	b := start(t, t.TempDir(), func(c *Config) { c.MetricsPerPartition = true })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 8)
	a.group(t, "t", "g", nil)
	o := &overlapping{}
	b.metrics.registry.MustRegister(o)
	stop, published := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { published <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			res, err := a.publish.Publish(context.Background(), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg(fmt.Sprint("k", n), "x")}})
			if err != nil || res.GetResults()[0].GetProblem() != nil {
				t.Errorf("a publish beside the crowd: %v, %v", err, res)
				return
			}
			n++
		}
	}()
	var crowd sync.WaitGroup
	for range 300 {
		crowd.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for range 2 {
				req, err := http.NewRequestWithContext(ctx(t), http.MethodGet, b.URL()+"/metrics", http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
				res, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				text := string(body)
				if err != nil || res.StatusCode != http.StatusOK || !strings.HasSuffix(text, "\n# EOF\n") || !strings.Contains(text, "\nstrandmq_scrape_truncated ") {
					t.Errorf("a scrape: %s, %v, %d bytes", res.Status, err, len(text))
					return
				}
				for line := range strings.Lines(text) {
					if !wellFormed.MatchString(strings.TrimSuffix(line, "\n")) {
						t.Errorf("a line of a scrape is %q", line)
						return
					}
				}
			}
		})
	}
	crowd.Wait()
	close(stop)
	if n := <-published; n == 0 {
		t.Error("nothing was published beside them")
	}
	if o.most.Load() != 1 {
		t.Errorf("%d gathered at once", o.most.Load())
	}
}
