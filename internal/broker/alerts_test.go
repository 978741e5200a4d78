package broker

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/monitoring"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// alerts has Prometheus' engine say which alerts fire when the nodes go from one state to
// another, "NAME label".
type alerts struct {
	t           *testing.T
	tool, rules string
	was         map[string]string // by node: when all was well
}

func newAlerts(t *testing.T) *alerts {
	t.Helper()
	a := &alerts{t: t, rules: filepath.Join(t.TempDir(), "rules.yml")}
	var err error
	if a.tool, err = filepath.Abs("../../bin/alerts"); err == nil {
		_, err = os.Stat(a.tool)
	}
	if err != nil {
		t.Skip("Prometheus' engine is not here: 'make bin/alerts' builds it, and 'make test' does that by itself")
	}
	if err := os.WriteFile(a.rules, []byte(monitoring.Prometheus("runbooks")), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// What the machine's disk is like is left out.
var (
	ofDisk     = regexp.MustCompile(`(?m)^strandmq_(fsync_duration_seconds|disk|store_stuck_seconds).*\n`)
	fewer      = regexp.MustCompile(`(?m)^strandmq_under_replicated_partitions [1-9]`)
	lagSeconds = regexp.MustCompile(`(?m)^strandmq_group_lag_seconds.*\n`)
	firingNode = regexp.MustCompile(`\b(node|topic|instance)="([^"]*)"`)
)

// look scrapes the nodes that run.
func (a *alerts) look(c *three) map[string]string {
	a.t.Helper()
	out := map[string]string{}
	for _, n := range c.nodes {
		if !n.stopped {
			_, body := get(a.t, n.b.URL()+"/metrics")
			out[n.b.cfg.Node.String()] = ofDisk.ReplaceAllString(body, "")
		}
	}
	return out
}

func (a *alerts) firing(before, after map[string]string) string {
	a.t.Helper()
	dir := a.t.TempDir()
	for state, nodes := range map[string]map[string]string{"before": before, "after": after} {
		if err := os.Mkdir(filepath.Join(dir, state), 0o700); err != nil {
			a.t.Fatal(err)
		}
		for name, text := range nodes {
			if err := os.WriteFile(filepath.Join(dir, state, name), []byte(text), 0o600); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	out, err := exec.CommandContext(a.t.Context(), a.tool, a.rules, filepath.Join(dir, "before"), filepath.Join(dir, "after")).CombinedOutput()
	if err != nil {
		a.t.Fatalf("%v\n%s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if words[0] == "before" {
			a.t.Errorf("it fires while all is well: %s", line)
		}
		about := strings.TrimPrefix(words[1], "StrandMQ")
		if m := firingNode.FindStringSubmatch(words[2]); m != nil {
			about += " " + m[2]
		}
		lines = append(lines, about)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), ", ")
}

// await waits until these fire, and no other.
func (a *alerts) await(c *three, want string) {
	a.t.Helper()
	got := ""
	defer func() {
		if a.t.Failed() {
			a.t.Logf("these fire: %s; these should: %s", got, want)
		}
	}()
	inTime(a.t, "alerts: "+want, func() bool {
		got = a.firing(a.was, a.look(c))
		return got == want
	})
}

// A cluster at work has no alert. Then a clock is off, a certificate is about to end, two
// nodes do not hear of each other, and one is gone: each has its alert, about the right
// node, and no other fires.
func TestAlertsSeeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("a dozen runs of Prometheus' engine")
	}
	t.Parallel()
	a := newAlerts(t)
	var ahead atomic.Int64 // the third node's clock
	made := 0
	c := startThree(t, func(cfg *Config) {
		if made++; made == 3 {
			cfg.Cluster.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		}
	})
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.api(0).group(t, "orders", "g", nil)
	c.publish(0, "orders", "a", 8)
	c.consume(0, "orders", "g", 8)
	inTime(t, "a look at a whole cluster", func() bool {
		a.was = a.look(c)
		return a.firing(a.was, a.was) == ""
	})
	before := a.was
	inTime(t, "nothing to fire under load", func() bool {
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			api := c.api(1)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = api.publish.Publish(t.Context(), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{msg(fmt.Sprint("k", i%8), "x")}})
				res, err := api.consume.Receive(t.Context(), &strandmqv1.ReceiveRequest{Topic: "orders", Group: "g", Member: "m", MaxMessages: 10})
				if err != nil {
					continue
				}
				var list []*strandmqv1.Settlement
				for _, d := range res.GetDeliveries() {
					list = append(list, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
				}
				_, _ = api.consume.Settle(t.Context(), &strandmqv1.SettleRequest{Topic: "orders", Group: "g", Settlements: list})
			}
		}()
		first := a.look(c)
		inTime(t, "a hundred more messages", func() bool {
			then := a.look(c)
			a.was = then
			return publishedIn(then) >= publishedIn(first)+100
		})
		close(stop)
		<-done
		// The engine's hour is one look: what waited for a moment would wait through it.
		for node, text := range a.was {
			a.was[node] = lagSeconds.ReplaceAllString(text, "")
		}
		return a.firing(first, a.was) == ""
	})
	c.consumeRest(t, "orders", "g")
	a.was = before

	ahead.Store(int64(time.Minute))
	a.await(c, "ClockDiffers n1, ClockDiffers n2, ClockDiffers n3") // two of them by the third
	ahead.Store(0)
	a.await(c, "")

	expires(t, c.nodes[1].b, 20*24*time.Hour)
	a.await(c, "CertificateExpires n2")
	expires(t, c.nodes[1].b, 300*24*time.Hour)
	a.await(c, "")

	apart := func(a, b *clusterNode) {
		members := map[uint64]peer.Member{}
		for m := range a.b.coord.View().Nodes() {
			one := peer.Member{Address: m.Peer, Store: storeID(m.Store), Boot: m.Boot, Life: m.Life}
			if m.ID == b.b.cfg.Node {
				one.Address = "127.0.0.1:1" // where nobody is
			}
			members[uint64(m.ID)] = one
		}
		a.b.agent.transport.SetNodes(members)
	}
	got, want := "", ""
	defer func() {
		if t.Failed() {
			t.Logf("these fired last, of nodes that were cut off: %s; these should: %s", got, want)
		}
	}()
	inTime(t, "alerts of nodes that are cut off", func() bool {
		apart(c.nodes[0], c.nodes[2]) // again, as a change of the map would bring them together
		apart(c.nodes[2], c.nodes[0])
		now := a.look(c)
		want = "NodesCutOff n1, NodesCutOff n3"
		// Whoever of the two leads the cluster's metadata, the other soon knows no leader.
		for _, i := range []int{2, 0} {
			if info, err := c.nodes[i].b.host.Info(partition.Metadata); err == nil && info.Leader == 0 {
				want = fmt.Sprintf("NodeNotReady n%d, %s", i+1, want)
			}
		}
		// All have a leader, though not all nodes hear of it. Whoever of the two leads
		// misses a replica.
		if fewer.MatchString(strings.Join(slices.Collect(maps.Values(now)), "")) {
			want += ", UnderReplicated"
		}
		got = a.firing(a.was, now)
		return got == want
	})
	c.nodes[2].crash()
	a.await(c, "NodeDown n3, UnderReplicated")
}

// publishedIn is how many messages nodes took.
func publishedIn(scrapes map[string]string) (n int) {
	for _, text := range scrapes {
		if m := regexp.MustCompile(`(?m)^strandmq_messages_published_total\{topic="orders"\} (\d+)$`).FindStringSubmatch(text); m != nil {
			var one int
			_, _ = fmt.Sscan(m[1], &one)
			n += one
		}
	}
	return n
}

// consumeRest acks whatever a group has left.
func (c *three) consumeRest(t *testing.T, topic, group string) {
	t.Helper()
	inTime(t, "the rest", func() bool {
		res, err := c.api(0).consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: topic, Group: group, Member: "m", MaxMessages: 100, WaitMs: 50})
		if err != nil {
			return false
		}
		var list []*strandmqv1.Settlement
		for _, d := range res.GetDeliveries() {
			list = append(list, &strandmqv1.Settlement{Token: d.GetToken(), Action: ack})
		}
		if len(list) > 0 {
			_, _ = c.api(0).consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: topic, Group: group, Settlements: list}) // what is lost comes again
		}
		g, err := c.api(0).groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: topic, Group: group})
		return err == nil && len(g.GetLeftOut()) == 0 && g.GetCounts().GetLag() == 0
	})
}

// expires gives a node a certificate of its cluster that ends so soon.
func expires(t *testing.T, b *Broker, in time.Duration) {
	t.Helper()
	own := b.coord.View().Cluster.Authority
	dir := identityDir(b.cfg.DataDir)
	request, err := peer.Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := peer.ParseAuthority(own.Certificate, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := authority.Sign(request, uint64(b.cfg.Node))
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text []byte) *x509.Certificate {
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	cert := parse(whole)
	cert.NotAfter = time.Now().Add(in)
	block, _ := pem.Decode(own.Key)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parse(own.Certificate), cert.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Install(dir, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), own.Certificate); err != nil {
		t.Fatal(err)
	}
	if _, err := b.agent.identity.Reload(); err != nil {
		t.Fatal(err)
	}
}
