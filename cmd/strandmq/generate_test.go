//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/monitoring"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// scrape is what /metrics of a node says.
func scrape(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	return string(text)
}

var (
	metricLine  = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? (\S+)$`)
	labelOf     = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
	metricInUse = regexp.MustCompile(`\b((?:strandmq|process|go)_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher     = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	byLabels    = regexp.MustCompile(`by \(([^)]*)\)`)
)

// told are the labels of every metric of some scrapes.
func told(scrapes ...string) map[string][]string {
	out := map[string][]string{}
	for _, m := range metricLine.FindAllStringSubmatch(strings.Join(scrapes, "\n"), -1) {
		// Prometheus adds these.
		out[m[1]] = append(out[m[1]], "job", "instance")
		for _, l := range labelOf.FindAllStringSubmatch(m[2], -1) {
			out[m[1]] = append(out[m[1]], l[1])
		}
	}
	return out
}

// generatedNamesExist holds that every metric and every label that rules and panels name
// is in the scrapes.
func generatedNamesExist(t *testing.T, have map[string][]string, except ...string) {
	t.Helper()
	exprs := monitoring.Queries()
	for _, r := range monitoring.Rules() {
		exprs = append(exprs, r.Expr)
	}
	for _, e := range exprs {
		used := metricInUse.FindAllStringSubmatch(e, -1)
		if len(used) == 0 {
			t.Errorf("no metric is read from %s", e)
		}
		var labels []string
		known := true
		for _, m := range used {
			if slices.Contains(except, m[1]) {
				known = false
				continue
			}
			if have[m[1]] == nil {
				t.Errorf("there is no metric %s, which is in %s", m[1], e)
			}
			labels = append(labels, have[m[1]]...)
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(have[m[1]], l[1]) {
					t.Errorf("%s has no label %s, which is in %s", m[1], l[1], e)
				}
			}
		}
		for _, by := range byLabels.FindAllStringSubmatch(e, -1) {
			for _, l := range strings.Split(by[1], ",") {
				if l = strings.TrimSpace(l); known && !slices.Contains(labels, l) {
					t.Errorf("nothing has a label %s, which is in %s", l, e)
				}
			}
		}
	}
}

// ofClusters are metrics that a node alone has not.
var ofClusters = []string{"strandmq_node_up", "strandmq_node_clock_skew_seconds", "strandmq_certificate_expires_timestamp_seconds"}

// alertsTool is Prometheus' engine, where it was built.
func alertsTool(t *testing.T) string {
	t.Helper()
	tool, err := filepath.Abs("../../bin/alerts")
	if err == nil {
		_, err = os.Stat(tool)
	}
	if err != nil {
		t.Skip("Prometheus' engine is not here: 'make bin/alerts' builds it, and 'make test' does that by itself")
	}
	return tool
}

// firing are the alerts that fire when a cluster goes from one state to another, by
// node's name: "before ALERT topic" and "after ALERT topic", of what is not of a topic
// with its node, if there is one.
func firing(t *testing.T, tool string, before, after map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yml")
	if err := os.WriteFile(rules, []byte(printed(t, "generate", "prometheus")), 0o600); err != nil {
		t.Fatal(err)
	}
	for state, nodes := range map[string]map[string]string{"before": before, "after": after} {
		if err := os.Mkdir(filepath.Join(dir, state), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range nodes {
			if err := os.WriteFile(filepath.Join(dir, state, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), tool, rules, filepath.Join(dir, "before"), filepath.Join(dir, "after")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		about := ""
		for _, l := range []string{"node", "topic"} {
			if m := regexp.MustCompile(`\b` + l + `="([^"]*)"`).FindStringSubmatch(words[2]); m != nil {
				about = " " + m[1]
			}
		}
		lines = append(lines, words[0]+" "+words[1]+about)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// printed is what a command prints.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, talk bytes.Buffer
	if code := run(&app{in: strings.NewReader(""), out: &out, err: &talk}, args); code != exitDone {
		t.Fatalf("%v: exit code %d: %s", args, code, talk.String())
	}
	return out.String()
}

// changed sets all samples of a gauge, or adds it.
func changed(text, metric, labels string, value float64) string {
	line := metric + labels + " " + strconv.FormatFloat(value, 'g', -1, 64)
	of := regexp.MustCompile(`(?m)^` + metric + `(\{.*\})? .*$`)
	if of.MatchString(text) {
		return of.ReplaceAllLiteralString(text, line)
	}
	return text + "# TYPE " + metric + " gauge\n" + line + "\n"
}

// calm takes out what the machine that tests run on may have wrong itself.
func calm(text string) string {
	return changed(smooth(roomy(text)), "strandmq_store_stuck_seconds", "", 0)
}

// roomy takes out how full the machine's disk is, and smooth how slow.
func roomy(text string) string {
	return changed(changed(text, "strandmq_disk_free_bytes", "", 1<<42), "strandmq_disk_size_bytes", "", 1<<42)
}

func smooth(text string) string {
	return regexp.MustCompile(`(?m)^strandmq_fsync_duration_seconds_.*\n`).ReplaceAllString(text, "")
}

// What rules and panels name is what a broker tells, and the rules fire for what is
// planted on it: each on a topic of its own, and on no other.
func TestAlertsSeeGroups(t *testing.T) {
	t.Parallel()
	url := ward(t, t.TempDir(), func(c *broker.Config) { c.RetentionEvery, c.MetricsPerPartition = 10*time.Millisecond, true }).URL()
	hour := proto.Int64((time.Hour).Milliseconds())
	once := &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(1)}
	short := &strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1)}
	well := at(t, url, "well", nil)
	alone := at(t, url, "alone", nil)
	dead := at(t, url, "dead", once)
	lost := at(t, url, "lost", nil, short)
	broken := at(t, url, "broken", &strandmqv1.GroupPolicy{BreakerKeys: proto.Uint32(5), BackoffMs: hour, BackoffMaxMs: hour, BreakerWindowMs: hour})
	holds := at(t, url, "holds", &strandmqv1.GroupPolicy{Retention: strandmqv1.GroupRetention_GROUP_RETENTION_HOLD, HoldLimitBytes: proto.Uint64(1)},
		&strandmqv1.TopicConfig{RetentionBytes: proto.Int64(1), RefusePublishesAtHoldLimit: proto.Bool(true)})
	refusal := func() bool {
		_, err := holds.api.publish.Publish(t.Context(), &strandmqv1.PublishRequest{Topic: "holds", Messages: []*strandmqv1.Message{named("a")}})
		return isReason(err, "HOLD_LIMIT")
	}
	for _, p := range []*patient{well, dead, lost, broken, holds} {
		p.join("m")
	}
	well.store(1, "a")
	well.settle(ack, 0, "", well.take("m", 1)...)
	lost.store(1, "a")
	lost.settle(ack, 0, "", lost.take("m", 1)...)
	until(t, "the counter of refusals", refusal)
	before := calm(scrape(t, url))

	well.store(1, "b")
	well.settle(ack, 0, "", well.take("m", 1)...)
	alone.store(2, "a")
	for _, body := range []string{"x", "y"} { // the second is refused
		granted(t, alone.api.publish.Publish, &strandmqv1.PublishRequest{Topic: "alone", Messages: []*strandmqv1.Message{
			{KeyKind: &strandmqv1.Message_Key{Key: "a"}, Id: "a-1", Body: &strandmqv1.Message_Text{Text: body}},
		}})
	}
	dead.store(1, "a")
	taken := dead.take("m", 1)
	dead.settle(nack, 0, "no funds", taken...)
	dead.settle(ack, 0, "", taken...) // which is too late, and refused
	until(t, "the loss", func() bool { lost.store(1, "a"); return lost.counts().GetExpired() > 0 })
	for n := lost.counts(); n.GetLag() > 0; n = lost.counts() {
		lost.settle(ack, 0, "", lost.take("m", 1)...)
	}
	keys := make([]string, 10)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	broken.store(1, keys...)
	broken.settle(nack, 0, "the database is down", broken.take("m", 10)...)
	until(t, "another refusal", refusal)
	var after string
	until(t, "all of it is told", func() bool {
		after = calm(scrape(t, url))
		for _, topic := range []string{"alone", "broken", "holds"} {
			if regexp.MustCompile(`strandmq_group_lag_seconds\{group="g",topic="` + topic + `"\} 0\n`).MatchString(after) {
				return false
			}
		}
		for metric, topic := range map[string]string{
			"group_open_circuits": "broken", "group_dead_messages": "dead", "group_expired_total": "lost", "group_hold_limit_ratio": "holds",
		} {
			if !regexp.MustCompile(`strandmq_` + metric + `\{group="g",topic="` + topic + `"\} [1-9]`).MatchString(after) {
				return false
			}
		}
		return true
	})
	generatedNamesExist(t, told(before, scrape(t, url)), ofClusters...)

	tool := alertsTool(t)
	got := firing(t, tool, map[string]string{"n1": before}, map[string]string{"n1": after})
	got = slices.DeleteFunc(got, func(l string) bool { return l == "before StrandMQGroupNearHoldLimit holds" }) // which it is
	want := []string{
		"after StrandMQDeadLettersRise dead", "after StrandMQGroupBehind alone",
		"after StrandMQGroupBehind broken", // as nobody goes on with it
		"after StrandMQGroupBehind holds",
		"after StrandMQGroupCircuitOpen broken", "after StrandMQGroupNearHoldLimit holds", "after StrandMQGroupWithoutMembers alone",
		"after StrandMQHoldLimitRefuses", "after StrandMQMessagesExpired lost",
	}
	if !slices.Equal(got, want) {
		t.Errorf("these fire:\n%s\nand these should:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The limits of the rules, in what a real broker tells. TestAlertsSeeDisks, TestAlertsSeeDamage
// and TestAlertsSeeCluster of internal/broker have the faults themselves.
func TestAlertsSeeNodes(t *testing.T) {
	t.Parallel()
	tool := alertsTool(t)
	dir := t.TempDir()
	b := ward(t, dir)
	before := calm(scrape(t, b.URL()))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	full := ward(t, dir, func(c *broker.Config) { c.DiskReserve = 1 << 60 })
	var refuses string
	until(t, "the disk is low", func() bool {
		refuses = calm(scrape(t, full.URL()))
		return strings.Contains(refuses, "\nstrandmq_disk_low 1\n")
	})
	slow := "# TYPE strandmq_fsync_duration_seconds histogram\n"
	fsyncs := func(n int) string {
		return fmt.Sprintf("%sstrandmq_fsync_duration_seconds_bucket{le=\"0.1024\"} 0\nstrandmq_fsync_duration_seconds_bucket{le=\"0.2048\"} %d\n"+
			"strandmq_fsync_duration_seconds_bucket{le=\"+Inf\"} %d\nstrandmq_fsync_duration_seconds_sum %d\nstrandmq_fsync_duration_seconds_count %d\n", slow, n, n, n, n)
	}
	peers := func(text string, up, skew, left float64) string {
		text = changed(text, "strandmq_node_up", `{node="n3"}`, up)
		text = changed(text, "strandmq_node_clock_skew_seconds", `{node="n3"}`, skew)
		return changed(text, "strandmq_certificate_expires_timestamp_seconds", "", float64(time.Now().Unix())+left)
	}
	without := func(lag, parked float64) string {
		const of = `{group="g",topic="t"}`
		text := changed(before, "strandmq_group_lag_messages", of, lag)
		text = changed(text, "strandmq_group_parked_messages", of, parked)
		return changed(text, "strandmq_group_members", of, 0)
	}
	const day = 86400
	before = peers(before, 1, -.1, 300*day)
	for _, c := range []struct {
		alerts  string
		n1, was string
		n2      string // another node; empty: as n1 before
	}{
		{alerts: "StrandMQDiskFilling StrandMQPublishesRefused", n1: peers(refuses, 1, .1, 300*day)},
		{alerts: "StrandMQDiskFilling", n1: changed(before, "strandmq_disk_free_bytes", "", 1<<33)},
		{alerts: "", n1: changed(before, "strandmq_disk_free_bytes", "", 1<<35)}, // little of a large disk, and room enough
		{alerts: "StrandMQDiskStuck", n1: changed(before, "strandmq_store_stuck_seconds", "", 4)},
		{alerts: "StrandMQDamaged", n1: changed(before, "strandmq_store_damaged_places", "", 1)},
		{alerts: "StrandMQNodeNotReady", n1: changed(before, "strandmq_ready", "", 0)},
		{alerts: "StrandMQClockDiffers", n1: peers(before, 1, -.6, 300*day)},
		{alerts: "StrandMQCertificateExpires", n1: peers(before, 1, 0, 29*day)},
		{alerts: "StrandMQNodesCutOff", n1: peers(before, 0, 0, 300*day)},
		{alerts: "StrandMQNodeDown", n1: peers(before, 0, 0, 300*day), n2: peers(before, 0, 0, 300*day)},
		{alerts: "StrandMQUnderReplicated", n1: changed(before, "strandmq_under_replicated_partitions", "", 1)},
		{alerts: "StrandMQNoLeader", n1: changed(changed(before, "strandmq_partitions_without_leader", "", 1), "strandmq_partitions", "", 3)},
		{alerts: "StrandMQFsyncSlow", was: before + fsyncs(100), n1: before + fsyncs(200)},
		{alerts: "", n1: peers(before, 1, .4, 31*day)},
		{alerts: "", n1: without(3, 3)}, // all that waits is parked
		{alerts: "StrandMQGroupWithoutMembers", n1: without(4, 3)},
	} {
		was := map[string]string{"n1": before, "n2": before}
		if c.was != "" {
			was["n1"] = c.was
		}
		is := map[string]string{"n1": c.n1, "n2": before}
		if c.n2 != "" {
			is["n2"] = c.n2
		}
		var got []string
		for _, line := range firing(t, tool, was, is) {
			words := strings.Fields(line)
			got = append(got, words[1])
			if words[0] != "after" {
				t.Errorf("%s: it fires while all is well: %s", c.alerts, line)
			}
		}
		slices.Sort(got)
		want := strings.Fields(c.alerts)
		slices.Sort(want)
		// What a real scrape says of this machine's disk is left aside.
		got = slices.DeleteFunc(slices.Compact(got), func(a string) bool { return a == "StrandMQFsyncSlow" && !slices.Contains(want, a) })
		if !slices.Equal(got, want) {
			t.Errorf("%v fire, and %v should", got, want)
		}
	}
}

// On three nodes, one and then another of them killed.
func TestAlertsSeeThree(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes; TestAlertsSeeNodes has the same alerts without them")
	}
	t.Parallel()
	f := startSquadron(t, loopback(t, 3))
	granted(t, f.any.topics.CreateTopic, &strandmqv1.CreateTopicRequest{Topic: "orders", Partitions: 3})
	granted(t, f.any.groups.CreateGroup, &strandmqv1.CreateGroupRequest{Topic: "orders", Group: "g"})
	f.whole()
	scrapes := func(nodes ...*ship) map[string]string {
		out := map[string]string{}
		for _, s := range nodes {
			out[fmt.Sprint("n", s.number+1)] = calm(scrape(t, s.url))
		}
		return out
	}
	says := func(all map[string]string, pattern string) (n int) {
		for _, text := range all {
			n += len(regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllString(text, -1))
		}
		return n
	}
	var three, two, one map[string]string
	until(t, "all is well", func() bool {
		three = scrapes(f.nodes...)
		return says(three, `strandmq_node_up\{.*\} 1`) == 6 && says(three, `strandmq_partitions_without_leader 0`) == 3 && says(three, `strandmq_under_replicated_partitions 0`) == 3 &&
			says(three, `strandmq_ready 1`) == 3
	})
	have := told(three["n1"], three["n2"], three["n3"])
	for _, m := range ofClusters {
		if have[m] == nil {
			t.Errorf("no node tells %s", m)
		}
	}
	f.nodes[2].kill()
	until(t, "a node is away", func() bool {
		two = scrapes(f.nodes[:2]...)
		return says(two, `strandmq_node_up\{node="n3"\} 0`) == 2 && says(two, `strandmq_partitions_without_leader 0`) == 2 &&
			says(two, `strandmq_under_replicated_partitions [1-9]`) > 0 && says(two, `strandmq_ready 1`) == 2
	})
	f.nodes[1].kill()
	until(t, "two are", func() bool {
		one = scrapes(f.nodes[0])
		return says(one, `strandmq_partitions_without_leader 4`) == 1 && says(one, `strandmq_ready 0`) == 1 && says(one, `strandmq_node_up\{.*\} 0`) == 2
	})
	tool := alertsTool(t)
	for _, c := range []struct {
		was, is map[string]string
		want    string
	}{
		{three, three, ""},
		{three, two, "after StrandMQNodeDown n3, after StrandMQUnderReplicated"},
		{three, one, "after StrandMQNoLeader, after StrandMQNodeDown n2, after StrandMQNodeDown n3, after StrandMQNodeNotReady"},
	} {
		if got := strings.Join(firing(t, tool, c.was, c.is), ", "); got != c.want {
			t.Errorf("these fire: %s; these should: %s", got, c.want)
		}
	}
}

// toldByLeaders finds rates of what a node counts only while it leads a partition.
var toldByLeaders = regexp.MustCompile(`(rate|increase)\(strandmq_group_`)

// Prometheus' parser takes what Grafana sends.
func TestDashboardIsPrometheus(t *testing.T) {
	t.Parallel()
	var d struct {
		Panels []struct {
			Title, Type, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr string }
			FieldConfig              struct{ Defaults struct{ NoValue string } }
		}
	}
	if err := json.Unmarshal([]byte(printed(t, "generate", "grafana")), &d); err != nil {
		t.Fatal(err)
	}
	var exprs strings.Builder
	taken := map[[2]int]string{}
	single := 0 // queries of single partitions
	for _, p := range d.Panels {
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Fatalf("%s lies on %s, or beside the page", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		for _, q := range p.Targets {
			if strings.Contains(q.Expr, "partition)") {
				single++
				if !strings.Contains(p.Description, "--"+metricsPerPartition) || !strings.Contains(p.FieldConfig.Defaults.NoValue, "--"+metricsPerPartition) {
					t.Errorf("%s does not say why there may be nothing", p.Title)
				}
			}
			if toldByLeaders.MatchString(q.Expr) {
				t.Errorf("%s takes a change of leader for a count that began anew: %s", p.Title, q.Expr)
			}
			exprs.WriteString(strings.ReplaceAll(q.Expr, "$__rate_interval", "5m") + "\n")
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	if single == 0 {
		t.Error("nothing shows single partitions")
	}
	cmd := exec.CommandContext(t.Context(), alertsTool(t), "-")
	cmd.Stdin = strings.NewReader(exprs.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The alert of a disk that fills and doctor's finding go by the same room.
func TestAlertHasDoctorsRoom(t *testing.T) {
	t.Parallel()
	for _, r := range monitoring.Rules() {
		if r.Name == "StrandMQDiskFilling" && strings.Contains(r.Expr, fmt.Sprintf(", %d)", doctor.RoomEnough)) {
			return
		}
	}
	t.Errorf("no alert StrandMQDiskFilling goes by %d bytes", doctor.RoomEnough)
}

// Every alert is in the page of runbooks, and links to a heading that is there.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(monitoring.DefaultRunbooks)))
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		anchors[strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(m[1]), " ", "-"), ",", "")] = true
	}
	for _, r := range monitoring.Rules() {
		if !anchors[r.Runbook] {
			t.Errorf("%s links to #%s, and there is no such heading", r.Name, r.Runbook)
		}
		if !bytes.Contains(text, []byte("`"+r.Name+"`")) {
			t.Errorf("%s does not say what %s is", monitoring.DefaultRunbooks, r.Name)
		}
	}
	if got := printed(t, "generate", "prometheus", "--runbooks", "https://wiki.example.org/s"); strings.Count(got, `"https://wiki.example.org/s#`) != len(monitoring.Rules()) {
		t.Errorf("--runbooks is not where the alerts link to:\n%s", got)
	}
}
