package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/internal/table"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	// mostTraced is how many messages of a key are told of: the newest.
	mostTraced = 20
	// mostLooked is how many messages of a partition are looked through for a key.
	mostLooked = 1 << 20
	// lookPage is how many are read at once.
	lookPage = 1000
	// around is how far from --at a message may be.
	around = 30 * time.Second
)

// keySearch is what messages of a key are looked for, and where.
type keySearch struct {
	topic string
	key   []byte
	since time.Time // zero: as long as messages are kept
	until time.Time // not included; zero: until now
	most  int       // so many of the newest
	look  uint64    // so many messages are looked through at most

	events *strandmqv1.TraceRequest // which events of each are wanted
}

// keyFound is what a search found.
type keyFound struct {
	partition uint32
	offsets   []uint64 // the newest first
	looked    uint64
	first     uint64    // the first offset that was looked at
	back      time.Time // when that was published; zero: nothing was there
	kept      uint64    // the first offset that the partition keeps
	more      bool      // it stopped at most messages
	cut       bool      // it stopped at look
	expired   bool      // what was asked for begins before what is kept
}

// searchKey looks a partition through for a key, from its newest message back. A key is in
// the partition that owns its hash, whichever node has it; any node reads it. There is no
// index by key: what a search costs is what it reads.
func (a *app) searchKey(ctx context.Context, api *clients, s keySearch) (*keyFound, error) {
	route, err := ask(ctx, api.publish.Route, &strandmqv1.RouteRequest{Topic: s.topic})
	if err != nil {
		return nil, err
	}
	hash := keyspace.Hash(route.GetSeed(), s.key)
	i := slices.IndexFunc(route.GetPartitions(), func(p *strandmqv1.RoutePartition) bool {
		return p.GetHashFirst() <= hash && hash <= p.GetHashLast()
	})
	if i < 0 {
		return nil, errors.New("no partition of the topic owns the key: try again")
	}
	f := &keyFound{partition: route.GetPartitions()[i].GetPartition()}
	place := func(at *strandmqv1.StartPosition) (uint64, error) {
		return readFrom(ctx, api, s.topic, f.partition, at)
	}
	if f.kept, err = place(&strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}); err != nil {
		return nil, err
	}
	from, end := f.kept, uint64(0)
	if !s.since.IsZero() {
		if from, err = place(&strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(s.since)}}); err != nil {
			return nil, err
		}
	}
	to := &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}
	if !s.until.IsZero() {
		to = &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(s.until)}}
	}
	if end, err = place(to); err != nil {
		return nil, err
	}
	f.expired = from == f.kept && f.kept > 0
	f.first = end
	for end > from && !f.more && !f.cut {
		begin := max(from, end-min(end, lookPage))
		if s.look-f.looked < end-begin {
			if begin, f.cut = end-(s.look-f.looked), true; begin == end {
				break
			}
		}
		got, err := f.page(ctx, api, s, begin, end)
		if err != nil {
			return nil, err
		}
		slices.Reverse(got)
		f.offsets = append(f.offsets, got...)
		f.looked += end - begin
		f.first, end = begin, begin
		f.more = len(f.offsets) > s.most
	}
	f.offsets = f.offsets[:min(len(f.offsets), s.most)]
	return f, nil
}

// readFrom is the offset that a position is in a partition.
func readFrom(ctx context.Context, api *clients, topic string, partition uint32, at *strandmqv1.StartPosition) (uint64, error) {
	res, err := ask(ctx, api.read.Read, &strandmqv1.ReadRequest{Topic: topic, Partitions: []uint32{partition}, Start: at, MaxMessages: 1, MaxBytes: 1})
	if err != nil {
		return 0, err
	}
	if err := stopped(res); err != nil {
		return 0, err
	}
	if m := res.GetMessages(); len(m) > 0 {
		return m[0].GetOffset(), nil
	}
	return res.GetNext()[0].GetOffset(), nil
}

// stopped is why a partition was not read.
func stopped(res *strandmqv1.ReadResponse) error {
	if left := res.GetLeftOut(); len(left) > 0 {
		p := left[0].GetProblem()
		return &apiError{reason: p.GetReason(), text: p.GetMessage()}
	}
	return nil
}

// page gives the offsets of the key from begin to before end. What retention removes
// meanwhile is passed over.
func (f *keyFound) page(ctx context.Context, api *clients, s keySearch, begin, end uint64) (got []uint64, err error) {
	for at := begin; at < end; {
		res, err := ask(ctx, api.read.Read, &strandmqv1.ReadRequest{
			Topic: s.topic, Places: []*strandmqv1.ReadPlace{{Partition: f.partition, Offset: at}}, MaxMessages: uint32(end - at),
			BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		})
		if err != nil {
			return nil, err
		}
		if err := stopped(res); err != nil {
			return nil, err
		}
		for i, m := range res.GetMessages() {
			if key, ok := messageKey(m.GetMessage()); ok && string(key) == string(s.key) && m.GetOffset() < end {
				got = append(got, m.GetOffset())
			}
			if at == begin && i == 0 {
				f.back = m.GetMessage().GetPublishTime().AsTime()
			}
		}
		next := res.GetNext()[0].GetOffset()
		if next <= at {
			return nil, errors.New("the partition lost what it kept: look again")
		}
		at = next
	}
	return got, nil
}

// bounds says in words when was looked.
func (s *keySearch) bounds() string {
	out := ""
	if !s.since.IsZero() {
		out += " since " + s.since.Format(stampForm)
	}
	if !s.until.IsZero() {
		out += " before " + s.until.Format(stampForm)
	}
	return out
}

// traceKey finds the messages of a key and traces them, the newest first. It says what it
// did not look at.
func (a *app) traceKey(ctx context.Context, api *clients, s keySearch) (*strandmqv1.TraceResponse, *keyFound, error) {
	f, err := a.searchKey(ctx, api, s)
	if err != nil {
		return nil, nil, err
	}
	res := &strandmqv1.TraceResponse{}
	for _, o := range f.offsets {
		one, err := ask(ctx, api.trace.Trace, &strandmqv1.TraceRequest{
			Topic: s.topic, Limit: s.events.GetLimit(), Before: s.events.GetBefore(),
			Which: &strandmqv1.TraceRequest_Place{Place: &strandmqv1.MessagePlace{Partition: f.partition, Offset: o}},
		})
		if isReason(err, "UNKNOWN_MESSAGE") {
			continue // retention removed it meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		res.Messages = append(res.Messages, one.GetMessages()...)
		res.Behind = one.GetBehind()
	}
	if len(res.GetMessages()) == 0 {
		text := fmt.Sprintf("topic %s keeps no message of key %s in partition %d%s", s.topic, plain.Short(plain.Key(s.key), 60), f.partition, s.bounds())
		if beyond := f.beyond(); beyond != "" {
			text += ": " + beyond
		}
		return nil, nil, &apiError{reason: "UNKNOWN_MESSAGE", text: text}
	}
	return res, f, nil
}

// beyond says what was not looked at; empty: nothing.
func (f *keyFound) beyond() string {
	switch {
	case f.cut:
		return fmt.Sprintf("the last %s messages before that were looked through, back to offset %d of %s: look at earlier ones with --until", quantity.Count(f.looked), f.first, f.back.Format(stampForm))
	case f.expired:
		return fmt.Sprintf("retention removed what was before offset %d of partition %d", f.kept, f.partition)
	}
	return ""
}

// printFound lists the messages of a key, with where they stand in each group.
func (a *app) printFound(res *strandmqv1.TraceResponse) error {
	var groups []string
	for _, m := range res.GetMessages() {
		for _, s := range m.GetStates() {
			if !slices.Contains(groups, s.GetGroup()) {
				groups = append(groups, s.GetGroup())
			}
		}
	}
	slices.Sort(groups)
	beside := groups[:min(len(groups), mostColumns)]
	t := table.Table{Head: append([]string{"PARTITION", "OFFSET", "ID", "PUBLISHED"}, beside...), Right: []int{0, 1}}
	for _, m := range res.GetMessages() {
		row := []any{m.GetPartition(), m.GetOffset(), orDash(m.GetMessage().GetId()), stamp(m.GetMessage().GetPublishTime())}
		for _, g := range beside {
			state := "-"
			for _, s := range m.GetStates() {
				if s.GetGroup() == g {
					state = s.GetState()
				}
			}
			row = append(row, state)
		}
		t.Add(row...)
	}
	if err := a.printTable(&t, ""); err != nil {
		return err
	}
	if n := len(groups) - len(beside); n > 0 {
		a.talk("%s more: --all or --output json has them", quantity.Some(n, "group"))
	}
	return nil
}

// mostColumns is how many groups are shown beside each other.
const mostColumns = 8
