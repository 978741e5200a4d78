//go:build unix

package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// clusterWorld is a world of several brokers, a squadron. A node that is ended comes back as soon
// as others lead, while the case goes on; the next change waits until the cluster is whole,
// so that there is always a majority.
type clusterWorld struct {
	t     *testing.T // of the case
	f     *squadron
	door  string
	turns int                 // of how leads are handed over
	since map[*ship]time.Time // when each was started last; not in it: with the cluster
	moved map[string]int      // topic → which of its partitions is meant next
}

func newClusterWorld(t *testing.T, f *squadron) *clusterWorld {
	f.t = t
	f.whole()
	return &clusterWorld{t: t, f: f, door: f.door(f.nodes...), since: map[*ship]time.Time{}, moved: map[string]int{}}
}

func (w *clusterWorld) url() string { return w.door }
func (w *clusterWorld) nodes() int  { return len(w.f.nodes) }
func (w *clusterWorld) showLogs()   { w.f.showLogs() }

// led is one partition and who leads it.
type led struct {
	topic     string
	partition uint32
	by        *ship
}

func (l led) String() string { return fmt.Sprintf("%s/%d", l.topic, l.partition) }

// leader is the node that leads a partition, as a node sees it; nil: it knows of none.
func (w *clusterWorld) leader(as *ship, topic string, number uint32) (*ship, error) {
	res, err := look(w.t.Context(), as.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic})
	if err != nil {
		return nil, err
	}
	// The numbers of nodes are in the order in which they joined.
	n := int(res.GetPartitions()[number].GetLeader())
	if n < 1 || n > len(w.f.nodes) {
		return nil, nil
	}
	return w.f.nodes[n-1], nil
}

// means finds which partition of a topic the next change is of, and who leads it. All nodes
// have to agree, so that nobody is meant who led until just now.
func (w *clusterWorld) means(topic string) (l led) {
	w.t.Helper()
	w.f.whole()
	l.topic = topic
	w.f.until("a topic is there", func() error {
		res, err := look(w.t.Context(), w.f.any.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic})
		if err == nil {
			l.partition = uint32(w.moved[topic] % len(res.GetPartitions()))
		}
		return err
	})
	w.moved[topic]++
	l.by = w.agreed(l)
	return l
}

// agreed waits until all nodes say the same of who leads a partition.
func (w *clusterWorld) agreed(l led) (leader *ship) {
	w.t.Helper()
	w.f.until("all agree who leads "+l.topic, func() error {
		leader = nil
		return w.agree(l, func(by *ship) error {
			if leader != nil && leader != by {
				return errors.New("not the same one")
			}
			leader = by
			return nil
		}, w.f.nodes...)
	})
	return leader
}

// agree asks nodes who leads a partition.
func (w *clusterWorld) agree(l led, judge func(by *ship) error, nodes ...*ship) error {
	for _, as := range nodes {
		by, err := w.leader(as, l.topic, l.partition)
		if err == nil && by == nil {
			err = errors.New("nobody")
		}
		if err == nil {
			err = judge(by)
		}
		if err != nil {
			return fmt.Errorf("who leads %v as node %d sees it: %w", l, as.number+1, err)
		}
	}
	return nil
}

// others are the nodes beside one.
func (w *clusterWorld) others(than *ship) []*ship {
	return slices.DeleteFunc(slices.Clone(w.f.nodes), func(s *ship) bool { return s == than })
}

// passesOn waits until another node leads, as some nodes see it.
func (w *clusterWorld) passesOn(l led, nodes ...*ship) {
	w.t.Helper()
	w.f.until(l.String()+" is led by another node", func() error {
		return w.agree(l, func(by *ship) error {
			if by == l.by {
				return errors.New("still the same one")
			}
			return nil
		}, nodes...)
	})
}

// comes starts a node again and does not wait for it.
func (w *clusterWorld) comes(s *ship) {
	w.f.start(s, "")
	w.since[s] = time.Now()
}

// each has a change happen to every topic, to some at once if one node leads them.
func (w *clusterWorld) each(topics []string, do func(list []led)) {
	w.t.Helper()
	for len(topics) > 0 {
		list := []led{w.means(topics[0])}
		var rest []string
		for _, topic := range topics[1:] {
			if l := w.means(topic); l.by == list[0].by {
				list = append(list, l)
			} else {
				w.moved[topic]--
				rest = append(rest, topic)
			}
		}
		w.t.Logf("node %d leads %v", list[0].by.number+1, list)
		do(list)
		topics = rest
	}
}

func (w *clusterWorld) crash(topics ...string) {
	w.t.Helper()
	w.each(topics, func(list []led) {
		s := list[0].by
		s.kill()
		for _, l := range list {
			w.passesOn(l, w.others(s)...)
		}
		w.comes(s)
	})
}

// handOver moves the lead by a call, and every other time stops who leads.
func (w *clusterWorld) handOver(topics ...string) {
	w.t.Helper()
	w.each(topics, func(list []led) {
		w.turns++
		if w.turns%2 == 1 {
			for _, l := range list {
				w.move(l)
			}
			return
		}
		s := list[0].by
		if err := s.stop(); err != nil {
			w.t.Errorf("node %d: %v", s.number+1, err)
		}
		for _, l := range list {
			w.passesOn(l, w.others(s)...)
		}
		w.comes(s)
	})
}

// move asks that another node lead, the one that is to lead the fewest and of several the
// one that is there for longest: a lead goes to nobody who has just come.
func (w *clusterWorld) move(l led) {
	w.t.Helper()
	w.f.until(l.String()+" is moved", func() error {
		err := w.agree(l, func(by *ship) error {
			if by == l.by {
				return errors.New("still the same one")
			}
			return nil
		}, w.f.nodes...)
		if err == nil {
			return nil
		}
		return errors.Join(err, w.wish(l)) // once more: the cluster evens out what its nodes lead
	})
}

func (w *clusterWorld) wish(l led) error {
	ctx := w.t.Context()
	cluster, err := look(ctx, l.by.api.cluster.DescribeCluster, &strandmqv1.DescribeClusterRequest{})
	if err != nil {
		return err
	}
	res, err := look(ctx, l.by.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: l.topic})
	if err != nil {
		return err
	}
	nodes := res.GetPartitions()[l.partition].GetNodes()
	if nodes[0] != uint64(l.by.number+1) {
		return nil // another is to lead already
	}
	leads := map[uint64]uint32{}
	for _, n := range cluster.GetNodes() {
		leads[n.GetNode()] = n.GetLeads()
	}
	slices.SortStableFunc(nodes[1:], func(a, b uint64) int {
		if leads[a] != leads[b] {
			return int(leads[a]) - int(leads[b])
		}
		return w.since[w.f.nodes[a-1]].Compare(w.since[w.f.nodes[b-1]])
	})
	nodes[0], nodes[1] = nodes[1], nodes[0]
	_, err = look(ctx, l.by.api.cluster.MovePartition, &strandmqv1.MovePartitionRequest{Topic: l.topic, Partition: l.partition, Nodes: nodes})
	return err
}

func (w *clusterWorld) pause(topic string, do func(still, other *clients)) {
	w.t.Helper()
	w.each([]string{topic}, func(list []led) {
		s := list[0].by
		s.signal(syscall.SIGSTOP)
		// Whatever fails meanwhile: a process that stands still is not ended by the test's end.
		defer s.signal(syscall.SIGCONT)
		w.passesOn(list[0], w.others(s)...)
		if do != nil {
			do(s.api, w.others(s)[0].api)
		}
		s.signal(syscall.SIGCONT)
		w.agreed(list[0]) // it may take a while to hear of it
	})
}

func (w *clusterWorld) alone(topic string, do func(leader *clients)) {
	w.t.Helper()
	w.each([]string{topic}, func(list []led) {
		s := list[0].by
		for _, o := range w.others(s) {
			o.signal(syscall.SIGSTOP)
			defer o.signal(syscall.SIGCONT)
		}
		do(s.api)
		s.kill()
		for _, o := range w.others(s) {
			o.signal(syscall.SIGCONT)
		}
		w.passesOn(list[0], w.others(s)...)
		w.comes(s)
	})
}

func (w *clusterWorld) dark(topics ...string) {
	w.t.Helper()
	w.f.whole()
	for _, s := range w.f.nodes {
		s.signal(syscall.SIGKILL)
	}
	for _, s := range w.f.nodes {
		s.kill()
	}
	for _, s := range w.f.nodes {
		w.comes(s)
	}
	for _, topic := range topics {
		w.means(topic)
	}
}
