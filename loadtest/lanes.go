package loadtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/check"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// lanes are the keys of a load by their partition, as the topic's table has it.
// They belong to one producer.
type lanes struct {
	run      uint64 // of the bodies
	producer uint32
	size     int
	all      []*lane // by partition

	rand *rand.PCG
	fill []byte // random bytes, of which every body gets some
	slab []byte // bodies of the batch that is being made
	recs []record.Record
}

// lane is what goes to one partition.
type lane struct {
	partition uint32
	keys      []laneKey
	sequence  uint64       // of the next record, from 0, for a producer with sequences
	waiting   atomic.Int64 // sent, and not answered
	open      atomic.Int64 // sent, and not handled by a member
}

// laneKey is all about a key in half a line of the processor's cache: keys are
// drawn at random, and what is not in the cache costs more than the rest.
type laneKey struct {
	hash uint64
	sent uint64 // the number of the latest that was made
	key  uint32
	n    uint8 // bytes of the name
	name [11]byte
}

const (
	noise = 128 << 10
	// MaxShapeKeys is how many keys have names that fit.
	MaxShapeKeys = 10_000_000
)

func newLanes(run uint64, size int, keys uint32, seed uint64, route *strandmqv1.RouteResponse) (*lanes, error) {
	l := &lanes{run: run, size: size, rand: rand.NewPCG(seed, run), fill: make([]byte, noise+size)}
	var random [32]byte
	copy(random[:], fmt.Sprintf("%016x%016x", run, seed))
	_, _ = rand.NewChaCha8(random).Read(l.fill) // never fails
	ranges := make([]keyspace.Range, len(route.GetPartitions()))
	for i, p := range route.GetPartitions() {
		ranges[i] = keyspace.Range{First: p.GetHashFirst(), Last: p.GetHashLast()}
		l.all = append(l.all, &lane{partition: p.GetPartition()})
		if p.GetPartition() != uint32(i) {
			return nil, fmt.Errorf("the broker's table of topic %s has partition %d in place %d", route.GetTopic(), p.GetPartition(), i)
		}
	}
	if err := keyspace.Check(ranges); err != nil {
		return nil, fmt.Errorf("the broker's table of topic %s: %w", route.GetTopic(), err)
	}
	for key := range keys {
		k := laneKey{key: key}
		name := appendKeyName(k.name[:0], key)
		k.n = uint8(len(name))
		k.hash = keyspace.Hash(route.GetSeed(), name)
		i, _ := slices.BinarySearchFunc(ranges, k.hash, func(r keyspace.Range, h uint64) int {
			switch {
			case r.Last < h:
				return -1
			case r.First > h:
				return 1
			}
			return 0
		})
		l.all[i].keys = append(l.all[i].keys, k)
	}
	for _, x := range l.all {
		if len(x.keys) == 0 {
			return nil, fmt.Errorf("none of %d keys belongs to partition %d: more --keys are needed", keys, x.partition)
		}
	}
	return l, nil
}

// fork gives another producer a lane of its own over the same keys.
func (l *lanes) fork(producer uint32) (*lanes, *lane) {
	f := *l
	f.producer = producer
	f.rand = rand.NewPCG(l.run, uint64(producer))
	f.slab, f.recs = nil, nil
	of := l.all[int(producer)%len(l.all)]
	f.all = nil
	return &f, &lane{partition: of.partition, keys: slices.Clone(of.keys)}
}

// records makes the next n records of a lane, due at a moment. They are valid
// until the next call.
func (l *lanes) records(x *lane, n int, due int64, ids bool) []record.Record {
	if cap(l.recs) < n {
		l.recs = make([]record.Record, n)
	}
	if len(l.slab) < n*l.size {
		l.slab = make([]byte, n*l.size)
	}
	l.recs = l.recs[:n]
	for i := range l.recs {
		random := l.rand.Uint64()
		k := &x.keys[uint32(random>>32)%uint32(len(x.keys))]
		k.sent++
		body := l.slab[i*l.size : (i+1)*l.size : (i+1)*l.size]
		copy(body[MinSize:], l.fill[random%noise:])
		m := check.Sent{Key: k.key, Producer: l.producer, Number: k.sent}
		stampBody(body, l.run, m, due)
		r := &l.recs[i]
		r.KeyHash, r.HasKey, r.Key, r.Body = k.hash, true, k.name[:k.n:k.n], body
		if ids {
			r.ID = messageID(l.run, m)
		}
	}
	return l.recs
}
