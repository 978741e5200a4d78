package broker

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// sums adds up each metric of a topic over the nodes that run. None is below 0.
func (c *three) sums(topic string) map[string]float64 {
	c.t.Helper()
	out := map[string]float64{}
	for _, n := range c.nodes {
		if n.stopped {
			continue
		}
		_, body := get(c.t, n.b.URL()+"/metrics")
		for line := range strings.Lines(body) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok || !strings.Contains(name, `topic="`+topic+`"`) {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || v < 0 {
				c.t.Fatalf("node %v: %s", n.b.cfg.Node, line)
			}
			name = partitionLabel.ReplaceAllString(name, "")
			for _, of := range []string{`,topic="` + topic + `"`, `topic="` + topic + `"`, `group="g"`} {
				name = strings.ReplaceAll(name, of, "")
			}
			name = strings.NewReplacer("{}", "", ",}", "}").Replace(name)
			out[name] += v
		}
	}
	return out
}

// won is how often somebody came to lead a partition.
func (c *three) won() (sum float64) {
	c.t.Helper()
	for _, n := range c.nodes {
		_, body := get(c.t, n.b.URL()+"/metrics")
		_, value, _ := strings.Cut(body, "\nstrandmq_elections_won_total ")
		value, _, _ = strings.Cut(value, "\n")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			c.t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// told counts what the traces of all messages of a topic tell, by what happened, and the
// messages themselves.
func (c *three) told(at int, topic string) map[string]float64 {
	c.t.Helper()
	out, a := map[string]float64{}, c.api(at)
	for i, p := range c.partitionsOf(at, topic) {
		ms, err := c.nodes[c.leaderOf(p.ID)].b.host.Read(p.ID, 0, 10_000, 1<<24)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, m := range ms {
			out["messages"]++
			var res *strandmqv1.TraceResponse
			inTime(c.t, "a trace", func() bool {
				place := &strandmqv1.MessagePlace{Partition: uint32(i), Offset: uint64(m.Offset)}
				res, err = a.trace.Trace(ctx(c.t), &strandmqv1.TraceRequest{Topic: topic, Which: &strandmqv1.TraceRequest_Place{Place: place}})
				return err == nil && res.GetBehind() == ""
			})
			for _, e := range res.GetMessages()[0].GetEvents() {
				out[e.GetWhat()]++
			}
			for _, s := range res.GetMessages()[0].GetStates() {
				out["is "+s.GetState()]++
			}
		}
	}
	return out
}

// What the nodes count, added up, is what the log has: after work of every kind, after
// leaderships have moved, and after a leader died in the middle of it.
func TestMetricsAddUp(t *testing.T) {
	t.Parallel()
	c := startThree(t, func(c *Config) { c.MetricsPerPartition = true })
	c.awaitVoters()
	c.api(0).topic(t, "orders", 3)
	c.api(0).group(t, "orders", "g", &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(2), BackoffMs: proto.Int64(1), BackoffMaxMs: proto.Int64(1), AckDeadlineMs: proto.Int64(1000), BreakerFailedPercent: proto.Uint32(0)})

	seen, kept := 0, map[[2]uint64]bool{}
	var acked []*strandmqv1.Settlement // what succeeded
	// work publishes, every fifth twice, and settles all of it in every way.
	work := func(through int, prefix string, n int) {
		t.Helper()
		c.publish(through, "orders", prefix, n)
		for k := 0; k < n; k += 5 {
			m := msg(fmt.Sprintf("k%d", k%8), fmt.Sprintf("%s-%d", prefix, k))
			m.Id = m.GetText()
			inTime(t, "a repeat", func() bool {
				res, err := c.api(through).publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "orders", Messages: []*strandmqv1.Message{m}})
				return err == nil && res.GetResults()[0].GetReceipt().GetDuplicate()
			})
		}
		inTime(t, "all to be settled or dead", func() bool {
			res, err := c.api(through).consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "orders", Group: "g", Member: "m", MaxMessages: 20, WaitMs: 50})
			if err != nil {
				return false
			}
			var list []*strandmqv1.Settlement
			for _, d := range res.GetDeliveries() {
				s := &strandmqv1.Settlement{Token: d.GetToken(), Action: ack, Reason: "as it comes"}
				at := [2]uint64{uint64(d.GetPartition()), d.GetFence()}
				if seen++; seen%7 == 4 && d.GetAttempt() == 1 {
					kept[at] = true // until it lapses
				}
				if kept[at] {
					continue
				}
				switch seen % 7 {
				case 1, 2:
					s.Action = nack
				case 3:
					s.Action = strandmqv1.SettleAction_SETTLE_ACTION_REJECT
				}
				list = append(list, s)
			}
			if len(list) > 0 {
				res, err := c.api(through).consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "orders", Group: "g", Settlements: list}) // what is lost lapses
				for i, r := range res.GetResults() {
					if err == nil && r.GetProblem() == nil && list[i].GetAction() == ack {
						acked = append(acked, list[i])
					}
				}
			}
			g, err := c.api(through).groups.DescribeGroup(ctx(t), &strandmqv1.DescribeGroupRequest{Topic: "orders", Group: "g"})
			return err == nil && len(g.GetLeftOut()) == 0 && g.GetCounts().GetLag() == 0 && g.GetCounts().GetInFlight() == 0
		})
	}
	// there is how many replicas the three partitions have together.
	addUp := func(through int, when string, there float64) {
		t.Helper()
		told := c.told(through, "orders")
		want := map[string]float64{
			"strandmq_log_messages": told["messages"], "strandmq_log_published_total": told["messages"], "strandmq_log_duplicates_total": told["duplicate"],
			"strandmq_group_handed_out_total": told["handed-out"], "strandmq_group_lag_messages": 0, "strandmq_messages_in_flight": 0,
			"strandmq_group_dead_messages":                                        told["is dead"],
			`strandmq_group_failed_attempts_by_cause_total{cause="nacked"}`:       told["nacked"],
			`strandmq_group_failed_attempts_by_cause_total{cause="rejected"}`:     told["rejected"],
			`strandmq_group_failed_attempts_by_cause_total{cause="lapsed"}`:       told["lapsed"],
			`strandmq_group_failed_attempts_by_cause_total{cause="session-lost"}`: told["session-lost"],
			"strandmq_partition_log_end_offset":                                   told["messages"], "strandmq_partition_log_start_offset": 0,
			"strandmq_group_partition_lag_messages": 0, "strandmq_group_partition_lag_seconds": 0,
			"strandmq_partition_replicas_in_sync": there, "strandmq_partition_under_replicated": 9 - there,
		}
		var got map[string]float64
		wrong := ""
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s\ntold %v\ngot %v", when, wrong, told, got)
			}
		}()
		inTime(t, "the sums are those of the log", func() bool { // a node hears of a new leader when it does
			got, wrong = c.sums("orders"), ""
			for name, n := range want {
				if v, ok := got[name]; !ok || v != n {
					wrong += fmt.Sprintf("%s is %v, and %v is right; ", name, v, n)
				}
			}
			return wrong == ""
		})
		for _, of := range []string{"duplicate", "nacked", "rejected", "lapsed", "is dead", "is acked"} {
			if told[of] == 0 {
				t.Errorf("%s: nothing was %s", when, of)
			}
		}
	}

	// once is what the nodes count themselves. That is never more than the log has, and all of
	// it while nobody else came to lead; of an ack that its caller gave up for lost the time
	// may be missing.
	once := func(through int, when string, all bool) map[string]float64 {
		t.Helper()
		told, got, counted := c.told(through, "orders"), c.sums("orders"), map[string]float64{}
		for name, most := range map[string]float64{
			"strandmq_messages_acked_total": told["acked"], "strandmq_messages_nacked_total": told["nacked"], "strandmq_messages_rejected_total": told["rejected"],
			"strandmq_ack_latency_seconds_count": told["acked"], "strandmq_message_hand_outs_count": told["is acked"] + told["is dead"], "strandmq_message_hand_outs_sum": told["handed-out"],
		} {
			counted[name] = got[name]
			if got[name] > most || all && got[name] != most && name != "strandmq_ack_latency_seconds_count" {
				t.Errorf("%s: %s is %v, and the log has %v", when, name, got[name], most)
			}
		}
		return counted
	}

	before := c.won()
	work(0, "a", 60)
	addUp(0, "at first", 9)
	counted := once(0, "at first", c.won() == before)

	began, moves := c.won(), 0.0
	for i, p := range c.partitionsOf(0, "orders") {
		if c.nodes[c.leaderOf(p.ID)] != c.nodes[i%3] {
			moves++
		}
		to := c.nodes[i%3].b.cfg.Node
		inTime(t, "a leadership moved", func() bool {
			at := c.leaderOf(p.ID)
			if c.nodes[at].b.cfg.Node == to {
				return true
			}
			r := slices.IndexFunc(p.Replicas, func(r partition.ReplicaID) bool { return r.Node() == to })
			_ = c.nodes[at].b.host.Transfer(ctx(t), p.ID, p.Replicas[r])
			return false
		})
	}
	addUp(1, "after leaderships moved", 9)
	for chunk := range slices.Chunk(acked, 100) { // to whoever leads now
		inTime(t, "acks again", func() bool {
			res, err := c.api(1).consume.Settle(ctx(t), &strandmqv1.SettleRequest{Topic: "orders", Group: "g", Settlements: chunk})
			return err == nil && !slices.ContainsFunc(res.GetResults(), func(r *strandmqv1.SettleResult) bool { return r.GetProblem() != nil })
		})
	}
	if counted["strandmq_ack_latency_seconds_count"] == 0 {
		t.Error("no acks are counted by their time")
	}
	if again := once(1, "after leaderships moved", false); !maps.Equal(again, counted) {
		t.Errorf("after leaderships moved, and acks that were repeated: %v; before: %v", again, counted)
	}
	work(2, "b", 30)

	if won := c.won(); won < began+moves {
		t.Errorf("%v times somebody came to lead, and then %v times, with %v moves between", began, won, moves)
	}

	dies := c.leaderOf(c.partitionsOf(0, "orders")[0].ID)
	lives := (dies + 1) % 3
	done := make(chan struct{})
	go func() { defer close(done); c.nodes[dies].crash() }()
	work(lives, "c", 30)
	<-done
	addUp(lives, "after a leader died", 6)
	once(lives, "after a leader died", false)
}
