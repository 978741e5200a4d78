package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// nodeAPI is strandmq.v1.NodeService.
type nodeAPI struct{ b *Broker }

// NodeInfo says what is running, and how its disk does.
func (a nodeAPI) NodeInfo(context.Context, *strandmqv1.NodeInfoRequest) (*strandmqv1.NodeInfoResponse, error) {
	b := a.b
	res := &strandmqv1.NodeInfoResponse{
		Version: b.cfg.Version, Started: timestamppb.New(b.startedAt), Faults: b.faults(), Now: timestamppb.Now(),
	}
	if !b.started.Load() {
		return res, nil
	}
	res.Node, res.Cluster, res.Leaderless = uint64(b.cfg.Node), b.cluster.ID, b.leaderless()
	res.Disk, res.Scrub = b.diskInfo(), scrubInfo(b.store.Scrub())
	for _, d := range b.store.Damage() {
		res.Damage = append(res.Damage, b.damageInfo(d))
	}
	for _, s := range b.stoppedPartitions() {
		res.Stopped = append(res.Stopped, &strandmqv1.StoppedPartition{Topic: s.topic, Partition: uint32(s.number), Why: s.why, Reason: s.reason})
	}
	if b.agent != nil {
		for _, n := range b.agent.transport.Nodes() {
			res.Peers = append(res.Peers, &strandmqv1.NodePeer{
				Node: n.Node, Up: n.Up, SinceMs: n.Since.Milliseconds(), SkewMs: n.Skew.Milliseconds(), RoundTripUs: n.RoundTrip.Microseconds(), ClockOff: clockOff(n),
			})
		}
		slices.SortFunc(res.Peers, func(a, b *strandmqv1.NodePeer) int { return cmp.Compare(a.GetNode(), b.GetNode()) })
	}
	return res, nil
}

func (b *Broker) diskInfo() *strandmqv1.NodeDisk {
	room, low := b.disk.state()
	m := b.store.Metrics()
	return &strandmqv1.NodeDisk{
		TotalBytes: room.Total, FreeBytes: room.Free, ReserveBytes: b.disk.reserve, StoreBytes: m.DiskBytes, Low: low,
		WriteStalls: uint64(m.WriteStalls), WriteStallMs: m.WriteStallFor.Milliseconds(),
		SlowWrites: uint64(m.SlowWrites), StuckMs: m.StuckFor.Milliseconds(),
	}
}

func scrubInfo(st logstore.ScrubState) *strandmqv1.NodeScrub {
	return &strandmqv1.NodeScrub{
		Disabled: st.Disabled, Passes: st.Passes, LastPass: timeOrNone(st.Last), Began: timeOrNone(st.Began),
		Bytes: st.Bytes, Paused: st.Paused,
	}
}

func (b *Broker) damageInfo(d logstore.Damage) *strandmqv1.NodeDamage {
	out := &strandmqv1.NodeDamage{File: d.File, What: d.What, Found: timestamppb.New(d.Found)}
	for _, r := range d.Ranges {
		id := partition.PartitionID(r.Partition)
		at := &strandmqv1.DamagedRange{FirstEntry: r.Low, LastEntry: r.High, Metadata: id == partition.Metadata}
		if place, ok := b.coord.View().Place(id); ok {
			at.Topic, at.Partition = place.Topic.Name, uint32(place.Number)
		}
		out.Ranges = append(out.Ranges, at)
	}
	return out
}

func timeOrNone(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
