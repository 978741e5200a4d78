package broker

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var partitionLabel = regexp.MustCompile(`partition="\d+",?`)

// added is a scrape with the samples of single partitions added up, the largest of them
// under "max ", and how many there are under "n ".
func added(t testing.TB, body string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(body) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		name := partitionLabel.ReplaceAllString(line[:at], "")
		out[name] += v
		out["n "+name]++
		out["max "+name] = max(out["max "+name], v)
	}
	return out
}

// What single partitions tell adds up to what their topic and its groups tell in the same
// scrape, and there is as much of it as is written down.
func TestPartitionSeriesAddUp(t *testing.T) {
	t.Parallel()
	b := start(t, t.TempDir(), func(c *Config) { c.MetricsPerPartition = true })
	a := newAPI(t, b.URL())
	for topic, partitions := range map[string]uint32{"three": 3, "five": 5} {
		a.topic(t, topic, partitions)
		for _, g := range []string{"g", "h"} {
			a.group(t, topic, g, nil)
		}
		for i := range 40 {
			a.store(t, topic, msg(fmt.Sprint("k", i), "x"))
		}
		for _, d := range a.receive(t, topic, "g", "m", 9) {
			a.done(t, topic, "g", d, ack, "")
		}
	}
	code, body := get(t, b.URL()+"/metrics")
	if code != 200 {
		t.Fatal(code, body)
	}
	got := added(t, body)
	for topic, n := range map[string]float64{"three": 3, "five": 5} {
		of := `{topic="` + topic + `"}`
		if end, start := got["strandmq_partition_log_end_offset"+of], got["strandmq_partition_log_start_offset"+of]; end != 40 || end != got["strandmq_log_published_total"+of] || end-start != got["strandmq_log_messages"+of] {
			t.Errorf("%s: partitions from %v to %v", topic, start, end)
		}
		for name, want := range map[string]float64{"leader": n * float64(b.cfg.Node), "replicas_in_sync": n, "under_replicated": 0, "log_end_offset": 40} {
			if name = "strandmq_partition_" + name + of; got[name] != want || got["n "+name] != n {
				t.Errorf("%s adds up to %v over %v partitions; %v and %v are right", name, got[name], got["n "+name], want, n)
			}
		}
		for _, g := range []string{"g", "h"} {
			of := `{group="` + g + `",topic="` + topic + `"}`
			lag, age := "strandmq_group_partition_lag_messages"+of, "strandmq_group_partition_lag_seconds"+of
			if got[lag] == 0 || got[lag] != got["strandmq_group_lag_messages"+of] || got["n "+lag] != n {
				t.Errorf("%s is %v over %v partitions, and the group's is %v", lag, got[lag], got["n "+lag], got["strandmq_group_lag_messages"+of])
			}
			if got["max "+age] != got["strandmq_group_lag_seconds"+of] || got["n "+age] != n {
				t.Errorf("%s is %v at most, over %v partitions, and the group's is %v", age, got["max "+age], got["n "+age], got["strandmq_group_lag_seconds"+of])
			}
		}
	}
	if n := strings.Count(body, `partition="`); n != 5*(3+5)+2*2*(3+5) {
		t.Errorf("%d series are of single partitions", n)
	}

	// A reset is seen where it was.
	if _, err := a.groups.ResetGroup(ctx(t), &strandmqv1.ResetGroupRequest{Topic: "five", Group: "h", To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}}); err != nil {
		t.Fatal(err)
	}
	_, body = get(t, b.URL()+"/metrics")
	if lag := `strandmq_group_partition_lag_messages{group="h",topic="five"}`; added(t, body)[lag] != 0 {
		t.Errorf("after a reset to the end %s is not 0", lag)
	}
}

// Nobody gets them without asking.
func TestPartitionSeriesAreAskedFor(t *testing.T) {
	t.Parallel()
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 3)
	a.group(t, "t", "g", nil)
	if _, body := get(t, b.URL()+"/metrics"); strings.Contains(body, `partition="`) || !strings.Contains(body, "strandmq_scrape_truncated 0\n") {
		t.Error("there are series of single partitions")
	}
}

// A topic or a group that has no room has no series of single partitions, rather than some.
func TestPartitionSeriesAreBounded(t *testing.T) {
	s := &partitionSeries{b: &Broker{cfg: Config{MetricsPerPartition: true}}}
	for range maxPartitionLabels/1000 - 1 {
		if !s.room(1000) {
			t.Fatalf("no room after %d", s.taken)
		}
	}
	if s.room(1001) || !s.left {
		t.Error("there are more than there may be")
	}
	if !s.room(1000) || s.room(1) || s.taken != maxPartitionLabels {
		t.Errorf("%d are taken", s.taken)
	}
}
