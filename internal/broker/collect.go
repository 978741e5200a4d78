package broker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// maxSeries bounds the groups and topics that one scrape reads from the log.
// Beyond it strandmq_scrape_truncated says that some are missing.
const maxSeries = 2000

// collect reads from the log what the log knows best: lag, what is in flight,
// dead letters. The counts of a group are taken at one log position of each
// partition.
func (b *Broker) collect(ctx context.Context, ch chan<- prometheus.Metric) {
	to := b.sampler(ch)
	gauge, counter := to.gauge, to.counter
	up := 0.0
	if b.takesCalls() {
		up = 1
	}
	gauge("ready", "1 while the node takes calls.", nil, up)
	gauge("uptime_seconds", "Since the broker started.", nil, time.Since(b.startedAt).Seconds())
	if !b.started.Load() {
		return
	}
	b.collectStore(to)
	b.collectCluster(to)
	b.collectGroups(to)
	if b.far == nil || b.far.here(partition.Metadata) {
		events, _ := b.coord.Events()
		for _, t := range events.Totals() {
			counter("events_total", "What the cluster did by itself since it began, by the kinds of docs/events.md, each with its count. Who leads the cluster's metadata tells it.", []string{"kind"}, float64(t.Count), string(t.Kind))
		}
	}
	gauge("stream_memory_bytes", "What all streams hold: batches and answers that wait, deliveries on their way, and what is set aside.", nil, float64(b.memory.inUse()))
	gauge("stream_memory_limit_bytes", "What all streams may hold: --stream-memory.", nil, float64(b.cfg.StreamMemory))
	if room, low := b.disk.state(); room.Total > 0 {
		full := 0.0
		if low {
			full = 1
		}
		gauge("disk_size_bytes", "Size of the data folder's file system.", nil, float64(room.Total))
		gauge("disk_free_bytes", "Room left on the data folder's file system.", nil, float64(room.Free))
		gauge("disk_reserve_bytes", "Room below which publishes are refused.", nil, float64(b.disk.reserve))
		gauge("disk_low", "1 while publishes are refused for want of room.", nil, full)
	}
	topicLabel, groupLabels := []string{"topic"}, []string{"topic", "group"}
	series, truncated, now := 0, 0.0, time.Now()
	each := b.eachPartition(to, now)
	for t := range b.coord.View().Topics() {
		if t.Phase != coordinator.Ready {
			continue
		}
		if series++; series > maxSeries || ctx.Err() != nil {
			truncated = 1
			break
		}
		// Among others each node tells of what it leads: of the same partitions in each of
		// the topic's samples, though leaderships move meanwhile.
		mine := map[partition.PartitionID]bool{}
		for _, p := range t.Partitions {
			if b.far == nil || b.far.here(p.ID) {
				mine[p.ID] = true
			}
		}
		leads := func(p coordinator.Partition) bool { return mine[p.ID] }
		some := len(mine) > 0
		detailed := each.room(len(mine))
		var bytes, messages, published, repeated, faults float64
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if !leads(*p) {
				continue
			}
			info, err := b.parts.Info(ctx, p.ID)
			if err != nil || info.Fault != "" {
				faults++
				continue
			}
			bytes += float64(info.Bytes)
			messages += float64(info.Position.End - info.Position.Start)
			published, repeated = published+float64(info.Position.End), repeated+float64(info.Duplicates)
			if detailed {
				each.partition(t, i, info.Info)
			}
		}
		// A sum without the partitions that stopped would fall when data is
		// damaged: there is none then.
		if faults == 0 && some {
			gauge("log_size_bytes", "Bytes of record batches kept. No sample while a partition of the topic is damaged.", topicLabel, bytes, t.Name)
			gauge("log_messages", "Messages kept. No sample while a partition of the topic is damaged.", topicLabel, messages, t.Name)
			counter("log_published_total", "Messages stored since the topic was created, duplicates not counted. No sample while a partition of the topic is damaged.", topicLabel, published, t.Name)
			counter("log_duplicates_total", "Messages that were suppressed as duplicates since the topic was created. No sample while a partition of the topic is damaged.", topicLabel, repeated, t.Name)
		}
		if some {
			gauge("partitions_damaged", "Partitions that stopped because they cannot be trusted.", topicLabel, faults, t.Name)
		}
		for g := range t.Groups() {
			if g.Phase != coordinator.Ready {
				continue
			}
			if series++; series > maxSeries {
				truncated = 1
				break
			}
			if b.far == nil || b.far.here(partition.Metadata) {
				gauge("group_members", "Members with a session.", groupLabels, float64(len(g.Members)), t.Name, g.Name)
			}
			if !some {
				continue
			}
			states, r, err := b.statesWhere(ctx, t, g, leads)
			if err == nil && each.room(len(mine)) {
				each.group(t, g, states, func(i int) bool { return leads(t.Partitions[i]) && !r.has(i) })
			}
			if err != nil || len(r.out) > 0 {
				continue // partitions_damaged says so; a wrong sum would not
			}
			c := sum(states, r)
			gauge("group_lag_messages", "Messages neither settled nor dead. No sample, as of all that the log says of a group, while a partition of the topic is damaged.", groupLabels, float64(c.GetLag()), t.Name, g.Name)
			gauge("group_lag_seconds", "Age of the oldest message that is neither settled nor dead; 0: there is none.", groupLabels, age(now, oldestOf(states)), t.Name, g.Name)
			gauge("messages_in_flight", "Handed out and not settled.", groupLabels, float64(c.GetInFlight()), t.Name, g.Name)
			gauge("group_blocked_messages", "Messages that wait behind an earlier one of their key.", groupLabels, float64(c.GetBlocked()+c.GetParked()), t.Name, g.Name)
			gauge("group_parked_messages", "Of those, messages that wait behind a dead letter of their key.", groupLabels, float64(c.GetParked()), t.Name, g.Name)
			gauge("group_backing_off_messages", "Messages that failed and wait for their next attempt.", groupLabels, float64(c.GetBackingOff()), t.Name, g.Name)
			gauge("group_dead_messages", "Dead letters neither replayed nor discarded.", groupLabels, float64(c.GetDead()), t.Name, g.Name)
			counter("group_handed_out_total", "Hand-outs since the group was created, redeliveries included.", groupLabels, float64(c.GetHandedOut()), t.Name, g.Name)
			counter("group_failed_attempts_total", "Attempts that failed since the group was created: nacks, lapses, lost sessions.", groupLabels, float64(c.GetRetried()), t.Name, g.Name)
			for cause, n := range map[string]uint64{"nacked": c.GetNacked(), "rejected": c.GetRejected(), "lapsed": c.GetLapsed(), "session-lost": c.GetSessionsLost()} {
				counter("group_failed_attempts_by_cause_total", "The same by how they ended.", []string{"topic", "group", "cause"}, float64(n), t.Name, g.Name, cause)
			}
			counter("group_expired_total", "Messages that retention took before the group had settled them, since it was created.", groupLabels, float64(c.GetExpired()), t.Name, g.Name)
			var held, part, copies, copied, open, opened float64
			for _, s := range states {
				opened += float64(s.Circuit.Opened)
				if s.Circuit.Open {
					open++
				}
				held, part = held+float64(s.held.bytes), max(part, s.held.part)
				copies, copied = copies+float64(s.Kept.Copies), copied+float64(s.Kept.CopyBytes)
			}
			gauge("group_held_bytes", "Bytes that are kept for the group beyond the topic's limits.", groupLabels, held, t.Name, g.Name)
			gauge("group_hold_limit_ratio", "The fullest partition's part of what the group may hold; 1 is the limit.", groupLabels, part, t.Name, g.Name)
			gauge("group_dead_copies", "Dead letters whose message retention has passed: the group has copies.", groupLabels, copies, t.Name, g.Name)
			gauge("group_dead_copies_bytes", "Bytes of those copies.", groupLabels, copied, t.Name, g.Name)
			gauge("group_open_circuits", "Partitions in which the group's circuit is open: nearly everything failed, and one message at a time is tried. 0: closed.", groupLabels, open, t.Name, g.Name)
			counter("group_circuit_opened_total", "Times that the group's circuit opened since the group was created.", groupLabels, opened, t.Name, g.Name)
		}
	}
	if each.left || ctx.Err() != nil {
		truncated = 1
	}
	gauge("scrape_truncated", "1 if there were more topics, groups and partitions than one scrape tells, or than it had time for.", nil, truncated)
}

// age is how many seconds ago something was; 0 for nothing, and for what is to come by
// this node's clock.
func age(now time.Time, at partition.Millis) float64 {
	if at == 0 {
		return 0
	}
	return max(0, float64(now.UnixMilli()-int64(at))/1000)
}
