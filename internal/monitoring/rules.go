package monitoring

import "fmt"

// Severity is how soon somebody should look.
type Severity string

// The severities, as alerts are labelled with.
const (
	Warning  Severity = "warning"  // within the day
	Critical Severity = "critical" // now
)

// Rule is one alert.
type Rule struct {
	Name     string
	Expr     string
	For      string // how long it has to be so
	Severity Severity
	Summary  string // one line, with Prometheus' templates
	Advice   string // what it means and where to begin
	Runbook  string // heading of docs/troubleshooting.md, as a fragment
}

// What a group or a topic has is told by whoever leads the partition, so it is a sum over
// nodes; what a node sees is judged by each.
const (
	perGroup = "by (job, topic, group)"
	perNode  = "by (job, node)"
	perJob   = "by (job)"
)

// grew is true for a quarter of an hour after a sum has grown. It compares the highest of
// two quarters: while a leader changes its samples are missing, and a sum that comes back
// has not grown. What was there when Prometheus first looked counts as grown.
func grew(sum string) string {
	now := "max_over_time((" + sum + ")[15m:1m])"
	return now + "\n  > (max_over_time((" + sum + ")[15m:1m] offset 15m) or 0 * " + now + ")"
}

// roomEnough is what is room enough on a disk of any size, in bytes. Doctor goes by the same.
const roomEnough = 16 << 30

const (
	falls   = "a-group-falls-behind"
	missing = "a-message-is-missing"
	slow    = "publishing-is-slow-or-refused"
	fills   = "the-disk-fills"
	stuck   = "a-node-or-all-of-it-is-stuck"
)

const ofGroup = "group {{ $labels.group }} of topic {{ $labels.topic }}"

// Rules are the alerts, by what they are of: groups, nodes and their disks, the cluster.
func Rules() []Rule {
	return []Rule{
		{
			Name: "StrandMQGroupBehind", For: "5m", Severity: Warning, Runbook: falls,
			Expr:    "max " + perGroup + " (strandmq_group_lag_seconds) > 600",
			Summary: ofGroup + " is {{ $value | humanizeDuration }} behind",
			Advice:  "Its oldest message that is not settled was published so long ago. strandmq doctor --topic {{ $labels.topic }} --group {{ $labels.group }} says why.",
		},
		{
			Name: "StrandMQGroupWithoutMembers", For: "5m", Severity: Warning, Runbook: falls,
			// What is parked goes to no member before somebody decides on the dead letter.
			Expr: "sum " + perGroup + " (strandmq_group_lag_messages) > sum " + perGroup + " (strandmq_group_parked_messages)\n" +
				"  and sum " + perGroup + " (strandmq_group_members) == 0",
			Summary: ofGroup + " has {{ $value }} messages and nobody who takes them",
			Advice:  "Start its consumers, and see why they ended.",
		},
		{
			Name: "StrandMQGroupCircuitOpen", For: "2m", Severity: Warning, Runbook: falls,
			Expr:    "sum " + perGroup + " (strandmq_group_open_circuits) > 0",
			Summary: "nearly everything fails in " + ofGroup,
			Advice:  "One message at a time is tried until they succeed again. Mend what all handlers need; strandmq doctor has the reasons they gave.",
		},
		{
			Name: "StrandMQDeadLettersRise", Severity: Warning, Runbook: missing,
			Expr:    grew("sum " + perGroup + " (strandmq_group_dead_messages)"),
			Summary: ofGroup + " has more dead letters: {{ $value }}",
			Advice:  "Messages used up their attempts. strandmq dead list {{ $labels.topic }} {{ $labels.group }} has the reasons; replay them when the cause is gone.",
		},
		{
			Name: "StrandMQMessagesExpired", Severity: Critical, Runbook: missing,
			Expr:    grew("sum " + perGroup + " (strandmq_group_expired_total)"),
			Summary: "retention took messages that " + ofGroup + " had not settled",
			Advice:  "They are lost to this group; strandmq group describe {{ $labels.topic }} {{ $labels.group }} has the loss records. Keep more, or have the group hold.",
		},
		{
			Name: "StrandMQGroupNearHoldLimit", For: "5m", Severity: Warning, Runbook: falls,
			Expr:    "max " + perGroup + " (strandmq_group_hold_limit_ratio) > 0.8",
			Summary: ofGroup + " holds {{ $value | humanizePercentage }} of what it may",
			Advice:  "At the limit its oldest messages expire or, where the topic says so, publishes are refused. Let it catch up, or raise the limit.",
		},
		{
			Name: "StrandMQHoldLimitRefuses", Severity: Critical, Runbook: slow,
			Expr: "sum " + perJob + " (rate(strandmq_rejected_total{reason=\"HOLD_LIMIT\"}[5m])) > 0\n" +
				"  or sum " + perJob + " (rate(strandmq_messages_refused_total{reason=\"HOLD_LIMIT\"}[5m])) > 0",
			Summary: "publishes are refused, since a group holds as much as it may",
			Advice:  "strandmq doctor names the topic and the group. Let it catch up, raise its limit, or have the topic lose messages rather than refuse them.",
		},
		{
			Name: "StrandMQPublishesRefused", For: "1m", Severity: Critical, Runbook: fills,
			Expr:    "strandmq_disk_low == 1",
			Summary: "{{ $labels.instance }} takes no publishes: less of its disk is free than the reserve",
			Advice:  "Consuming and deleting go on, and other nodes lead what they can. Make room: strandmq doctor names the topics and groups that take most.",
		},
		{
			Name: "StrandMQDiskFilling", For: "10m", Severity: Warning, Runbook: fills,
			Expr: fmt.Sprintf("strandmq_disk_free_bytes < clamp_max(0.1 * strandmq_disk_size_bytes, %d)\n", roomEnough) +
				"  or strandmq_disk_free_bytes < 2 * strandmq_disk_reserve_bytes",
			Summary: "the disk of {{ $labels.instance }} has {{ $value | humanize1024 }}B free",
			Advice:  "At the reserve publishes are refused. Shorten retention, let groups that hold catch up, or give it a larger disk.",
		},
		{
			Name: "StrandMQFsyncSlow", For: "10m", Severity: Warning, Runbook: slow,
			Expr:    "histogram_quantile(0.99, sum by (job, instance, le) (rate(strandmq_fsync_duration_seconds_bucket[5m]))) > 0.1",
			Summary: "fsyncs of {{ $labels.instance }} take {{ $value | humanizeDuration }} (99 of 100 take less)",
			Advice:  "Every publish and every settlement waits for one. A faster disk, or fewer others on it.",
		},
		{
			Name: "StrandMQDiskStuck", Severity: Critical, Runbook: slow,
			Expr:    "strandmq_store_stuck_seconds > 0",
			Summary: "the disk of {{ $labels.instance }} has not come back from a write for {{ $value | humanizeDuration }}",
			Advice:  "Publishes are refused there; after 20 s the node stops, and others take over what it led.",
		},
		{
			Name: "StrandMQDamaged", Severity: Critical, Runbook: stuck,
			Expr:    "strandmq_store_damaged_places > 0",
			Summary: "stored data of {{ $labels.instance }} is damaged in {{ $value }} places",
			Advice:  "It is not served. In a cluster the replica is made anew from the others; with a single one, restore the folder. strandmq node --server says where.",
		},
		{
			Name: "StrandMQNodeNotReady", For: "5m", Severity: Warning, Runbook: stuck,
			Expr:    "strandmq_ready == 0",
			Summary: "{{ $labels.instance }} takes no calls",
			Advice:  "It starts, stops, its disk failed, or too few nodes are there: /readyz?verbose of the node says which.",
		},
		{
			Name: "StrandMQNodeDown", For: "1m", Severity: Critical, Runbook: stuck,
			Expr:    "max " + perNode + " (strandmq_node_up) == 0",
			Summary: "nobody hears of node {{ $labels.node }}",
			Advice:  "What it led is led by others. Start it; if its disk is lost, strandmq cluster replace. After ten minutes what it held is made anew elsewhere.",
		},
		{
			Name: "StrandMQNodesCutOff", For: "5m", Severity: Warning, Runbook: stuck,
			Expr:    "min " + perNode + " (strandmq_node_up) == 0 and max " + perNode + " (strandmq_node_up) == 1",
			Summary: "some nodes hear of node {{ $labels.node }}, and some do not",
			Advice:  "The network between nodes is cut in part.",
		},
		{
			Name: "StrandMQNoLeader", For: "1m", Severity: Critical, Runbook: stuck,
			// A node that is cut off in part does not hear of every leader; that is no alert
			// as long as each partition is led by somebody.
			Expr: "max " + perJob + " (strandmq_partitions_without_leader) > 0\n" +
				"  and max " + perJob + " (strandmq_partitions) > sum " + perJob + " (strandmq_partitions_led)",
			Summary: "{{ $value }} partitions have no leader",
			Advice:  "Nothing is published to or consumed from them until a majority of their replicas is back. strandmq doctor names the nodes; nothing is lost.",
		},
		{
			Name: "StrandMQUnderReplicated", For: "15m", Severity: Warning, Runbook: stuck,
			Expr:    "sum " + perJob + " (strandmq_under_replicated_partitions) > 0",
			Summary: "{{ $value }} partitions have fewer replicas than wanted",
			Advice:  "They work, and stand fewer failures. Bring nodes back, or add one: strandmq cluster status says what is needed.",
		},
		{
			Name: "StrandMQClockDiffers", For: "5m", Severity: Warning, Runbook: stuck,
			Expr:    "max " + perNode + " (abs(strandmq_node_clock_skew_seconds)) > 0.5",
			Summary: "the clock of node {{ $labels.node }} and another one differ by {{ $value | humanizeDuration }}",
			Advice:  "Messages are stamped, and retention and deadlines go, by the clock of whoever leads. Set them right.",
		},
		{
			Name: "StrandMQCertificateExpires", For: "30m", Severity: Warning, Runbook: stuck,
			Expr:    "strandmq_certificate_expires_timestamp_seconds - time() < 30 * 86400",
			Summary: "the certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
			Advice:  "A new one is made when half of the time is over, so that does not work; the node's log says why. When it has ended, the others do not let the node in.",
		},
	}
}
