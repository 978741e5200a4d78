package broker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// mostEvents is the most events of one answer: as many as are kept.
const mostEvents = 1000

// ListEvents gives the events that this node's copy of the metadata log has, or waits
// for one.
func (a clusterAPI) ListEvents(ctx context.Context, req *strandmqv1.ListEventsRequest) (*strandmqv1.ListEventsResponse, error) {
	if err := checkListEvents(req); err != nil {
		return nil, err
	}
	over := time.NewTimer(time.Duration(req.GetWaitMs()) * time.Millisecond)
	defer over.Stop()
	for waiting := req.GetWaitMs() > 0; ; {
		e, changed := a.b.coord.Events()
		res := listEvents(e, req)
		if len(res.Events) > 0 || !waiting {
			if len(a.b.missing(partition.Metadata)) > 0 {
				_, h := maybeBehind(ctx)
				h.note(partition.Metadata)
				res.Behind = h.words(a.b)
			}
			return res, nil
		}
		select {
		case <-changed:
		case <-over.C:
			waiting = false
		case <-a.b.serving.Done():
			waiting = false
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func checkListEvents(req *strandmqv1.ListEventsRequest) error {
	if r := checkWait(req.GetWaitMs()); r != nil {
		return r
	}
	if req.GetMax() > mostEvents {
		return refuse("BAD_VALUE", "max", "%d is not 0 to %d, which is all that is kept", req.GetMax(), mostEvents)
	}
	if strings.ContainsFunc(req.GetKind(), func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') }) {
		return refuse("BAD_VALUE", "kind", "%q is no kind of events: they are of capital letters and underscores, such as %s", req.GetKind(), coordinator.CircuitOpened)
	}
	if req.GetTopic() != "" {
		if err := names.Topic(req.GetTopic()); err != nil {
			return inField(err, "topic")
		}
	}
	if req.GetGroup() != "" {
		if err := names.Group(req.GetGroup()); err != nil {
			return inField(err, "group")
		}
	}
	if req.GetNode() != 0 {
		_, err := nodeID(req.GetNode())
		return err
	}
	return nil
}

// listEvents is what of the events was asked for.
func listEvents(e *coordinator.Events, req *strandmqv1.ListEventsRequest) *strandmqv1.ListEventsResponse {
	most := int(req.GetMax())
	if most == 0 {
		most = mostEvents
	}
	res := &strandmqv1.ListEventsResponse{Next: max(req.GetAfter(), e.Change()), Missed: req.GetAfter() > 0 && req.GetAfter() < e.Gone()}
	for _, x := range e.All() {
		switch {
		case x.Change <= req.GetAfter(),
			req.GetKind() != "" && string(x.Kind) != req.GetKind(),
			req.GetTopic() != "" && x.Topic != req.GetTopic(),
			req.GetGroup() != "" && x.Group != req.GetGroup(),
			req.GetNode() != 0 && uint64(x.Node) != req.GetNode():
			continue
		}
		if len(res.Events) == most {
			return res
		}
		res.Events = append(res.Events, eventProto(x))
		if len(res.Events) == most {
			res.Next = x.Change // there may be more
		}
	}
	return res
}

func eventProto(e *coordinator.Event) *strandmqv1.ClusterEvent {
	return &strandmqv1.ClusterEvent{
		Number: e.ID, Kind: string(e.Kind), Topic: e.Topic, Partition: e.Partition, Group: e.Group, Node: uint64(e.Node),
		Text: e.Text, Count: e.Count, First: timestamp(int64(e.First)), Last: timestamp(int64(e.Last)), Advice: adviceOn(e),
	}
}

// adviceOn is a command to go on with after an event; empty: there is nothing to do.
func adviceOn(e *coordinator.Event) string {
	ofGroup := func(command string) string {
		if e.Topic == "" || e.Group == "" {
			return "" // deleted since
		}
		return fmt.Sprintf("strandmq %s %s %s", command, e.Topic, e.Group)
	}
	switch e.Kind {
	case coordinator.ExpiredUnread, coordinator.LostUnread, coordinator.CircuitOpened, coordinator.HoldLimit,
		coordinator.DeferredLimit, coordinator.MemberAway, coordinator.MemberExpired:
		return ofGroup("group describe")
	case coordinator.KeyParked:
		return ofGroup("dead list")
	case coordinator.ReplicaDamaged, coordinator.NodeStopped, coordinator.NodeSilent, coordinator.NodeGivenUp, coordinator.LeadGiven:
		return "strandmq cluster status"
	case coordinator.ReplicaKept, coordinator.ReplicaStopped, coordinator.NodeUnfit, coordinator.DiskLow,
		coordinator.MemoryLimit, coordinator.EventsDropped:
		return "strandmq doctor"
	default: // it is over, or of a version to come
		return ""
	}
}
