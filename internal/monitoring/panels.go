package monitoring

// A panel is one chart of the dashboard.
type panel struct {
	title string
	unit  string // Grafana's name of it
	help  string
	none  string // what it says when there is nothing; empty: Grafana's own words
	wide  bool
	show  []query
}

// A query is one set of curves.
type query struct{ expr, legend string }

// A row is panels under one title.
type row struct {
	title  string
	panels []panel
}

const (
	inJob   = `{job=~"$job"}`
	inTopic = `{job=~"$job",topic=~"$topic"}`
	inGroup = `{job=~"$job",topic=~"$topic",group=~"$group"}`
	every   = "[$__rate_interval]"
	group   = "{{topic}} {{group}}"
	one     = "{{topic}}/{{partition}}"

	// Of a broker's default there are no series of single partitions.
	bySwitch = "Only of nodes that run with --metrics-per-partition."
	noSwitch = "Nothing: are the nodes started with --metrics-per-partition?"
)

// slowest are the 99th percentile of a histogram's seconds.
func slowest(name, by, in string) string {
	return "histogram_quantile(0.99, sum by (" + by + ", le) (rate(" + name + "_bucket" + in + every + ")))"
}

// grown is how fast a count grew that the leaders of partitions tell: their sum is right, and
// each node's own falls when it gives a partition away, which rate takes for a count that began
// anew. While nobody leads a partition the sum dips; the highest of a minute does not.
func grown(name, by, in string) string {
	sum := "(sum by (" + by + ") (" + name + in + "))[1m:15s]"
	return "clamp_min(max_over_time(" + sum + ") - max_over_time(" + sum + " offset 5m), 0) / 300"
}

func panels() []row {
	return []row{
		{"Groups", []panel{
			{title: "How far behind", unit: "s", wide: true, help: "Age of the oldest message that is not settled.",
				show: []query{{"max by (topic, group) (strandmq_group_lag_seconds" + inGroup + ")", group}}},
			{title: "Lag", unit: "short", help: "Messages neither settled nor dead.",
				show: []query{{"sum by (topic, group) (strandmq_group_lag_messages" + inGroup + ")", group}}},
			{title: "Handed out and not settled", unit: "short",
				show: []query{{"sum by (topic, group) (strandmq_messages_in_flight" + inGroup + ")", group}}},
			{title: "Waiting behind their key", unit: "short", help: "Messages behind an earlier one of their key, and those that back off.",
				show: []query{
					{"sum by (topic, group) (strandmq_group_blocked_messages" + inGroup + ")", group + " blocked"},
					{"sum by (topic, group) (strandmq_group_backing_off_messages" + inGroup + ")", group + " backing off"},
				}},
			{title: "Members", unit: "short",
				show: []query{{"sum by (topic, group) (strandmq_group_members" + inGroup + ")", group}}},
		}},
		{"Failures", []panel{
			{title: "Failed attempts", unit: "ops", help: "By how they ended, over five minutes.",
				show: []query{{grown("strandmq_group_failed_attempts_by_cause_total", "topic, group, cause", inGroup), group + " {{cause}}"}}},
			{title: "Dead letters", unit: "short",
				show: []query{{"sum by (topic, group) (strandmq_group_dead_messages" + inGroup + ")", group}}},
			{title: "Lost to retention", unit: "short", help: "Messages that retention took before the group had settled them.",
				show: []query{{"sum by (topic, group) (strandmq_group_expired_total" + inGroup + ")", group}}},
			{title: "Open circuits", unit: "short", help: "Partitions in which nearly everything fails.",
				show: []query{{"sum by (topic, group) (strandmq_group_open_circuits" + inGroup + ")", group}}},
			{title: "Refused calls and messages", unit: "ops", help: "By reason of docs/errors.md.",
				show: []query{
					{"sum by (reason) (rate(strandmq_rejected_total" + inJob + every + "))", "calls {{reason}}"},
					{"sum by (reason) (rate(strandmq_messages_refused_total" + inTopic + every + "))", "messages {{reason}}"},
				}},
			{title: "Stale settlements", unit: "ops", help: "Their token was not current: the deadline had passed.",
				show: []query{{"sum by (topic, group) (rate(strandmq_messages_stale_total" + inGroup + every + "))", group}}},
		}},
		{"Traffic", []panel{
			{title: "Published", unit: "ops", show: []query{
				{"sum by (topic) (rate(strandmq_messages_published_total" + inTopic + every + "))", "{{topic}}"},
				{"sum by (topic) (rate(strandmq_messages_duplicate_total" + inTopic + every + "))", "{{topic}} duplicates"},
			}},
			{title: "Delivered and acked", unit: "ops", show: []query{
				{"sum by (topic, group) (rate(strandmq_messages_delivered_total" + inGroup + every + "))", group + " delivered"},
				{"sum by (topic, group) (rate(strandmq_messages_acked_total" + inGroup + every + "))", group + " acked"},
			}},
			{title: "Bytes published", unit: "Bps",
				show: []query{{"sum by (topic) (rate(strandmq_bytes_published_total" + inTopic + every + "))", "{{topic}}"}}},
			{title: "From publish to delivery, 99 %", unit: "s",
				show: []query{{slowest("strandmq_delivery_latency_seconds", "topic, group", inGroup), group}}},
			{title: "From publish to ack, 99 %", unit: "s", help: "Of the messages that are acked now, whatever they went through.",
				show: []query{{slowest("strandmq_ack_latency_seconds", "topic, group", inGroup), group}}},
			{title: "Hand-outs of a message", unit: "short", help: "Until it is acked or dead; 1: nothing is handed out again.", show: []query{
				{"sum by (topic, group) (rate(strandmq_message_hand_outs_sum" + inGroup + every + ")) / sum by (topic, group) (rate(strandmq_message_hand_outs_count" + inGroup + every + "))", group + " on average"},
				{slowest("strandmq_message_hand_outs", "topic, group", inGroup), group + " 99 %"},
			}},
			{title: "Publish calls, 99 %", unit: "s",
				show: []query{{slowest("strandmq_publish_duration_seconds", "topic", inTopic), "{{topic}}"}}},
			{title: "Calls", unit: "ops",
				show: []query{{"sum by (rpc_method, rpc_response_status_code) (rate(strandmq_rpc_server_call_duration_seconds_count" + inJob + every + "))", "{{rpc_method}} {{rpc_response_status_code}}"}}},
		}},
		{"Storage", []panel{
			{title: "Kept", unit: "bytes", show: []query{
				{"sum by (topic) (strandmq_log_size_bytes" + inTopic + ")", "{{topic}}"},
				{"sum by (topic, group) (strandmq_group_held_bytes" + inGroup + ")", "held for " + group},
			}},
			{title: "Disk", unit: "bytes", show: []query{
				{"strandmq_disk_free_bytes" + inJob, "{{instance}} free"},
				{"strandmq_disk_reserve_bytes" + inJob, "{{instance}} reserve"},
			}},
			{title: "Fsyncs, 99 %", unit: "s",
				show: []query{{slowest("strandmq_fsync_duration_seconds", "instance", inJob), "{{instance}}"}}},
			{title: "Commits, 99 %", unit: "s", help: "From an entry being given to Raft until a majority had it on disk and it was applied, by who led.",
				show: []query{{slowest("strandmq_commit_duration_seconds", "instance", inJob), "{{instance}}"}}},
			{title: "Waiting to be written", unit: "bytes", show: []query{{"strandmq_queued_bytes" + inJob, "{{instance}}"}}},
			{title: "Slow writes", unit: "ops", help: "A second or more, and times that all writes waited.", show: []query{
				{"rate(strandmq_store_slow_writes_total" + inJob + every + ")", "{{instance}} slow"},
				{"rate(strandmq_store_write_stalls_total" + inJob + every + ")", "{{instance}} stalls"},
			}},
		}},
		{"Nodes", []panel{
			{title: "Who hears of whom", unit: "short", help: "1: yes.",
				show: []query{{"strandmq_node_up" + inJob, "{{instance}} of {{node}}"}}},
			{title: "Partitions in need", unit: "short", show: []query{
				{"max by (job) (strandmq_partitions_without_leader" + inJob + ")", "without leader"},
				{"sum by (job) (strandmq_under_replicated_partitions" + inJob + ")", "under-replicated"},
				{"max by (topic) (strandmq_partitions_damaged" + inTopic + ")", "damaged, {{topic}}"},
			}},
			{title: "Leaders", unit: "short", help: "Partitions that a node leads.",
				show: []query{{"strandmq_partitions_led" + inJob, "{{instance}}"}}},
			{title: "Clocks", unit: "s", help: "How far another node's is ahead.",
				show: []query{{"strandmq_node_clock_skew_seconds" + inJob, "{{node}} by {{instance}}"}}},
			{title: "Memory", unit: "bytes", show: []query{
				{"process_resident_memory_bytes" + inJob, "{{instance}} resident"},
				{"strandmq_stream_memory_bytes" + inJob, "{{instance}} streams"},
				{"strandmq_store_cache_bytes" + inJob, "{{instance}} cache"},
			}},
			{title: "Processor", unit: "short", show: []query{{"rate(process_cpu_seconds_total" + inJob + every + ")", "{{instance}}"}}},
			{title: "Came to lead", unit: "ops", help: "Partitions that a node came to lead, by an election or since they were handed over.",
				show: []query{{"rate(strandmq_elections_won_total" + inJob + every + ")", "{{instance}}"}}},
			{title: "Versions", unit: "short", show: []query{{"count by (version) (strandmq_build_info" + inJob + ")", "{{version}}"}}},
		}},
		{"Single partitions", []panel{
			{title: "How far behind, by partition", unit: "s", help: "Age of the oldest message that is not settled. " + bySwitch, none: noSwitch,
				show: []query{{"max by (topic, group, partition) (strandmq_group_partition_lag_seconds" + inGroup + ")", one + " {{group}}"}}},
			{title: "Lag, by partition", unit: "short", help: bySwitch, none: noSwitch,
				show: []query{{"max by (topic, group, partition) (strandmq_group_partition_lag_messages" + inGroup + ")", one + " {{group}}"}}},
			{title: "Published, by partition", unit: "ops", help: "As the end of the log moves. " + bySwitch, none: noSwitch,
				show: []query{{"max by (topic, partition) (deriv(strandmq_partition_log_end_offset" + inTopic + every + "))", one}}},
			{title: "Kept, by partition", unit: "short", help: "Messages. " + bySwitch, none: noSwitch,
				show: []query{{"max by (topic, partition) (strandmq_partition_log_end_offset" + inTopic + " - strandmq_partition_log_start_offset" + inTopic + ")", one}}},
			{title: "Who leads", unit: "short", help: "Number of the node. " + bySwitch, none: noSwitch,
				show: []query{{"max by (topic, partition) (strandmq_partition_leader" + inTopic + ")", one}}},
			{title: "Replicas in sync", unit: "short", help: "Those that vote, are there, and need no snapshot. " + bySwitch, none: noSwitch,
				show: []query{{"max by (topic, partition) (strandmq_partition_replicas_in_sync" + inTopic + ")", one}}},
		}},
	}
}

// Queries are all expressions of the dashboard, as Grafana has them.
func Queries() (out []string) {
	for _, r := range panels() {
		for _, p := range r.panels {
			for _, q := range p.show {
				out = append(out, q.expr)
			}
		}
	}
	return out
}
