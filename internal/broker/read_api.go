package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// readAPI is strandmq.v1.ReadService.
type readAPI struct{ b *Broker }

// defaultRead is how many messages a Read answers that does not say.
const defaultRead = 100

// How long a Read that waits sleeps between two looks at the partitions.
const (
	firstRead = 5 * time.Millisecond
	lastRead  = 100 * time.Millisecond
)

// endPatience is how long a place beyond the end of a log is looked at again: a node
// that leads since a moment may not have applied all of it yet.
const endPatience = 2 * time.Second

// Read gives messages as they are stored.
func (a readAPI) Read(ctx context.Context, req *strandmqv1.ReadRequest) (*strandmqv1.ReadResponse, error) {
	if err := checkRead(req); err != nil {
		return nil, err
	}
	t, err := a.b.topic(req.GetTopic())
	if err != nil {
		return nil, err
	}
	if asked := req.GetIncarnation(); asked != 0 && asked != t.Seed {
		return nil, replaced()
	}
	r := &reading{b: a.b, t: t, req: req, res: &strandmqv1.ReadResponse{Incarnation: t.Seed}}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	wait := time.Duration(req.GetWaitMs()) * time.Millisecond
	for pause := firstRead; ; pause = min(2*pause, lastRead) {
		failed, err := r.round(ctx)
		if err != nil {
			return nil, err
		}
		left := wait - time.Since(began)
		if failed != nil { // a leader may be found soon
			left = max(left, leaderPatience-time.Since(began))
		}
		switch {
		case len(r.res.GetMessages()) > 0, len(r.res.GetGaps()) > 0, len(r.res.GetLeftOut()) == len(r.at), left <= 0 && failed == nil:
			return r.answer(), nil
		case left <= 0:
			return nil, failed
		}
		look := time.NewTimer(min(pause, left))
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return nil, ctx.Err()
		case <-a.b.serving.Done():
			look.Stop()
			return nil, a.b.stopping()
		}
		if now, err := a.b.topic(req.GetTopic()); err != nil {
			return nil, err
		} else if now.ID != t.ID {
			return nil, replaced()
		}
	}
}

// replaced is that a place is of a topic that is gone. Its seed, which is random, tells
// one from another.
func replaced() error {
	return refuse("TOPIC_REPLACED", "places", "the topic was deleted, and another one has its name: begin again without a place, with earliest or latest")
}

func checkRead(req *strandmqv1.ReadRequest) error {
	if n := req.GetMaxMessages(); n > maxReceive {
		return refuse("BAD_VALUE", "max_messages", "%d is too many: ask for 1 to %d", n, maxReceive)
	}
	if req.GetIncarnation() != 0 && len(req.GetPlaces()) == 0 {
		return refuse("BAD_VALUE", "incarnation", "an incarnation is of the places that it came with: give both, or leave it out")
	}
	if r := checkWait(req.GetWaitMs()); r != nil {
		return r
	}
	if n := req.GetMaxBytes(); n > record.MaxBatchBytes {
		return refuse("BAD_VALUE", "max_bytes", "%d is too many: ask for at most %d", n, record.MaxBatchBytes)
	}
	if len(req.GetPlaces()) > 0 && (req.GetStart() != nil || len(req.GetPartitions()) > 0) {
		return refuse("BAD_VALUE", "places", "there are places, and a start or partitions: give one of the two")
	}
	if r := checkFormat(req.GetBodyFormat()); r != nil {
		return r
	}
	return checkPosition(req.GetStart(), "start")
}

// A reading is one Read as it goes on.
type reading struct {
	b   *Broker
	t   *topic
	req *strandmqv1.ReadRequest
	res *strandmqv1.ReadResponse
	at  []reader
}

// A reader is a place in one partition.
type reader struct {
	number uint32
	id     partition.PartitionID
	next   partition.Offset
}

// start finds the places to begin at.
func (r *reading) start(ctx context.Context) error {
	seen := map[uint32]bool{}
	add := func(number uint32, field string) error {
		id, err := r.t.number(number)
		if err == nil && seen[number] {
			err = refuse("BAD_VALUE", field, "partition %d is there twice: name each once", number)
		}
		seen[number] = true
		r.at = append(r.at, reader{number: number, id: id})
		return err
	}
	for i, p := range r.req.GetPlaces() {
		if err := add(p.GetPartition(), "places"); err != nil {
			return err
		}
		if p.GetOffset() > maxNumber {
			return refuse("BAD_VALUE", "places", "offset %d is beyond all there can be", p.GetOffset())
		}
		r.at[i].next = partition.Offset(p.GetOffset())
	}
	if len(r.at) > 0 {
		return nil
	}
	for _, n := range r.req.GetPartitions() {
		if err := add(n, "partitions"); err != nil {
			return err
		}
	}
	if len(r.at) == 0 {
		for i := range r.t.Partitions {
			_ = add(uint32(i), "") // they are there
		}
	}
	for i := range r.at {
		only := &r.at[i].number
		if err := r.b.reachable(ctx, r.t, only, r.req.GetStart(), "start"); err != nil && !r.leaves(i, err) {
			return err
		}
		next, err := r.b.resolve(ctx, r.at[i].id, r.req.GetStart())
		if err != nil && !r.leaves(i, err) {
			return err
		}
		r.at[i].next = next
	}
	r.res.LeftOut = nil // the rounds tell it
	return nil
}

// leaves tells whether a partition is left out for what is wrong with it, so that
// the others are read.
func (r *reading) leaves(i int, err error) bool {
	if len(r.at) == 1 || !errors.As(err, new(*partition.ErrDamaged)) {
		return false
	}
	r.res.LeftOut = append(r.res.LeftOut, &strandmqv1.LeftOut{Partition: r.at[i].number, Problem: r.b.explain(err).problem(nil)})
	return true
}

// round looks once into each partition, beginning elsewhere each time. failed is
// why some could not be looked into, which may pass.
func (r *reading) round(ctx context.Context) (failed, err error) {
	r.res.LeftOut = nil
	most, bytes := int(r.req.GetMaxMessages()), int(r.req.GetMaxBytes())
	if most == 0 {
		most = defaultRead
	}
	if bytes == 0 {
		bytes = record.MaxBatchBytes
	}
	turn := int(r.b.readTurn.Add(1) % uint64(len(r.at)))
	for k := range r.at {
		i := (turn + k) % len(r.at)
		p := &r.at[i]
		got, err := r.look(ctx, p, most, bytes)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case r.b.serving.Err() != nil:
			return nil, r.b.stopping()
		case err != nil && r.leaves(i, err):
			continue
		case err != nil && r.b.explain(err).retryAfter > 0:
			failed = err
			continue
		case err != nil:
			return nil, err
		}
		if start := got.kept.Start; p.next < start {
			r.res.Gaps = append(r.res.Gaps, &strandmqv1.ReadGap{Partition: p.number, First: uint64(p.next), Last: uint64(start - 1)})
			p.next = start
		}
		for _, m := range got.messages {
			r.res.Messages = append(r.res.Messages, &strandmqv1.ReadMessage{
				Message: fromRecord(m.Record, int64(m.PublishTime), r.req.GetBodyFormat()), Partition: p.number, Offset: uint64(m.Offset),
			})
			bytes -= recordBytes(m.Record)
			p.next = m.Offset + 1
		}
		if most -= len(got.messages); most <= 0 || bytes <= 0 {
			break
		}
	}
	return failed, nil
}

// look reads a partition. A place that its log never reached is refused: it is of
// another topic, such as one of the same name that was deleted, and whoever waited
// there would pass over all that comes until then.
func (r *reading) look(ctx context.Context, p *reader, most, bytes int) (stretch, error) {
	for end := time.Now().Add(endPatience); ; {
		got, err := r.b.parts.Read(ctx, p.id, p.next, most, bytes)
		if err != nil || p.next <= got.kept.End {
			return got, err
		}
		if time.Now().After(end) {
			return stretch{}, refuse("OFFSET_BEYOND_END", "places",
				"partition %d of topic %s ends at offset %d, and %d is beyond: if the topic was deleted and made anew, begin again without a place, with earliest or latest", p.number, r.t.Name, got.kept.End, p.next)
		}
		again := time.NewTimer(lastRead)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return stretch{}, ctx.Err()
		}
	}
}

// answer tells where to go on, by partition.
func (r *reading) answer() *strandmqv1.ReadResponse {
	slices.SortFunc(r.at, func(x, y reader) int { return int(x.number) - int(y.number) })
	r.res.Next = make([]*strandmqv1.ReadPlace, len(r.at))
	for i, p := range r.at {
		r.res.Next[i] = &strandmqv1.ReadPlace{Partition: p.number, Offset: uint64(p.next)}
	}
	return r.res
}
