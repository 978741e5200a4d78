//go:build unix

package main

import (
	"errors"
	"slices"
	"sync"

	"github.com/strandmq/strandmq/internal/check"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// unseen asks the broker for the hand-outs of messages of which an attempt came to no
// member. A trace reads the log from its message on, so it is asked soon after: at the end
// of a long run the log behind each of them is that of the whole run. An attempt that was
// seen is in the log by then, and so is every one before it. A node that has not heard yet
// that another leads may answer without it: such an answer does not count.
//
// All methods may be called from any goroutine.
type unseen struct {
	mu     sync.Mutex
	latest map[inGroup]uint32          // the highest attempt that came
	open   map[inGroup]bool            // an attempt is missing, and nobody has asked since
	told   map[inGroup][]check.HandOut // what the log said
}

// inGroup is one message in one group.
type inGroup struct {
	group string
	at    check.Place
}

// came notes deliveries to a group.
func (u *unseen) came(group string, list []check.Delivery) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest == nil {
		u.latest, u.open, u.told = map[inGroup]uint32{}, map[inGroup]bool{}, map[inGroup][]check.HandOut{}
	}
	for _, d := range list {
		m := inGroup{group, d.Place}
		if d.Replayed || d.Attempt <= u.latest[m] {
			continue
		}
		if d.Attempt > u.latest[m]+1 {
			u.open[m] = true
			delete(u.told, m)
		}
		u.latest[m] = d.Attempt
	}
}

// ask asks for each that is open, a few at once. What fails stays open, and is counted.
func (u *unseen) ask(trace func(inGroup) ([]check.HandOut, error)) (failed int) {
	u.mu.Lock()
	list := map[inGroup]uint32{}
	for m := range u.open {
		list[m] = u.latest[m]
	}
	clear(u.open) // one that opens again from here on is asked for again
	u.mu.Unlock()
	turns := make(chan struct{}, 4)
	var asking sync.WaitGroup
	for m, came := range list {
		turns <- struct{}{}
		asking.Go(func() {
			defer func() { <-turns }()
			out, err := trace(m)
			there := slices.ContainsFunc(out, func(h check.HandOut) bool { return h.Attempt == came })
			u.mu.Lock()
			defer u.mu.Unlock()
			if err != nil || !there {
				u.open[m] = true
				failed++
			} else if !u.open[m] {
				u.told[m] = out
			}
		})
	}
	asking.Wait()
	return failed
}

// known are the hand-outs of a message if the log was asked for them.
func (u *unseen) known(m inGroup) ([]check.HandOut, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	out, ok := u.told[m]
	return out, ok
}

// handOuts reads a message's hand-outs to a group back from the log.
func (s *storm) handOuts(m inGroup) (list []check.HandOut, err error) {
	res, err := ask(s.ctx, s.api.trace.Trace, &strandmqv1.TraceRequest{
		Topic: stormTopic, Which: &strandmqv1.TraceRequest_Place{Place: &strandmqv1.MessagePlace{Partition: m.at.Partition, Offset: m.at.Offset}},
	})
	if err != nil {
		return nil, err
	}
	if res.GetBehind() != "" {
		return nil, errors.New(res.GetBehind())
	}
	for _, x := range res.GetMessages() {
		if x.GetTruncated() {
			return nil, errors.New("more happened than a trace tells")
		}
		for _, e := range x.GetEvents() {
			if e.GetGroup() == m.group && e.GetWhat() == "handed-out" {
				list = append(list, check.HandOut{Attempt: e.GetAttempt(), Member: e.GetMember()})
			}
		}
	}
	return list, nil
}

// logged is what the judge asks for an attempt that no member saw.
func (s *storm) logged(group string, at check.Place) []check.HandOut {
	m := inGroup{group, at}
	if list, ok := s.unseen.known(m); ok {
		return list
	}
	list, err := s.handOuts(m)
	if err != nil {
		s.t.Errorf("trace of %v: %v", at, err)
	}
	return list
}
