package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Deliveries that came together share memory, a few neighbours at a time: who keeps one
// keeps those alive as well, and no more.
const (
	sharedTasks = 16
	sharedBytes = 4 << 10
)

// unpacked is a frame from the broker, ready to be judged.
type unpacked struct {
	settled []*strandmqv1.SettleRunResult
	tasks   []*task
	every   int64 // the shortest time to a deadline, in milliseconds; 0: no deliveries
}

// unpack reads a frame. An error means that the broker does not keep to the protocol.
func unpack(f *strandmqv1.ConsumeResponse, topic, group string, now int64) (unpacked, error) {
	u := unpacked{settled: f.GetSettled()}
	var room memory
	for _, b := range f.GetBatches() {
		every := max(1, b.GetDeadlineMs()-b.GetHandedMs())
		if u.every == 0 || every < u.every {
			u.every = every
		}
		offset := b.GetFirstOffset()
		records, rest, err := record.View(b.GetRecords())
		if err == nil {
			u.tasks = slices.Grow(u.tasks, records.Len())
			room.left = records.Len()
			_, rest, err = record.ParseEach(b.GetRecords(), func(i int, _ record.Raw, r *record.Fields) error {
				if i > 0 {
					offset += uint64(at(b.GetOffsetSteps(), i-1, 1))
				}
				t := room.task()
				t.Message = room.message(r)
				t.Topic, t.Group, t.Partition, t.Offset = topic, group, b.GetPartition(), offset
				t.Attempt, t.Replayed = at(b.GetAttempts(), i, 1), slices.Contains(b.GetReplayed(), uint32(i))
				t.Fence = at(b.GetFences(), i, b.GetFirstFence()+uint64(i))
				t.PublishTime = time.UnixMilli(at(b.GetPublishMs(), i, records.PublishTime()))
				t.FirstSeen = time.UnixMilli(at(b.GetFirstSeenMs(), i, b.GetHandedMs()))
				t.number, t.every, t.renewAt, t.lapsesAt = b.GetFirstNumber()+uint64(i), every, now+every/2, now+every
				t.settled = b.GetSettled()
				u.tasks = append(u.tasks, t)
				return nil
			})
		}
		if err != nil || len(rest) > 0 {
			return unpacked{}, &Error{Message: fmt.Sprintf("the broker sent deliveries that cannot be read: %v", err), err: err}
		}
	}
	return u, nil
}

// at gives an element of a list that a frame leaves out when there is nothing
// special to tell.
func at[T any](list []T, i int, otherwise T) T {
	if i < len(list) {
		return list[i]
	}
	return otherwise
}

// memory is where the deliveries of a frame are put.
type memory struct {
	tasks []task
	bytes []byte
	left  int // messages of the batch, for which there will be a need
}

func (m *memory) task() *task {
	if len(m.tasks) == 0 {
		m.tasks = make([]task, min(sharedTasks, max(1, m.left)))
	}
	t := &m.tasks[0]
	m.tasks, m.left = m.tasks[1:], m.left-1
	return t
}

// copy copies bytes, of which there may be many.
func (m *memory) copy(b []byte) []byte {
	if len(b) > sharedBytes/4 {
		return slices.Clone(b)
	}
	if len(b) > len(m.bytes) {
		m.bytes = make([]byte, min(sharedBytes, (m.left+1)*len(b)))
	}
	out := m.bytes[:len(b):len(b)]
	m.bytes = m.bytes[copy(out, b):]
	return out
}

// message copies a record, which aliases its frame.
func (m *memory) message(r *record.Fields) Message {
	out := Message{Key: string(r.Key), ID: string(r.ID), Body: m.copy(r.Body)}
	if n := r.Headers.Len(); n > 0 {
		out.Headers = make([]Header, 0, n)
		for list := r.Headers; list.Len() > 0; {
			name, value, _ := list.Next()
			out.Headers = append(out.Headers, Header{Name: string(name), Value: string(value)})
		}
	}
	return out
}
