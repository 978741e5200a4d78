package client

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Message is what is published, and what a delivery carries.
type Message struct {
	// Key says whose turn it is: messages of one key are handled in order, one at
	// a time, by each group. At most 4 KiB, of any bytes. Empty: no key, and no
	// order.
	Key string
	// ID is the publisher's own id, at most 256 bytes of UTF-8: the same id of one
	// topic and key is stored once. Empty: none; a publisher stores each message
	// once all the same, by its sequence.
	ID string
	// Headers may repeat and keep their order. At most 64, and 16 KiB in all.
	Headers []Header
	// Body is of any bytes, up to the topic's limit (1 MiB by default).
	Body []byte
}

// Header is one name and value. Names follow the rules of HTTP header names.
type Header struct{ Name, Value string }

// Header gives the first value of a name.
func (m *Message) Header(name string) (value string, ok bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return "", false
}

// Receipt says where a message is stored, fsynced by a majority of replicas.
type Receipt struct {
	Partition uint32
	Offset    uint64 // in the partition, from 0
	// Duplicate says that it had been stored before: under the same id, or by an
	// earlier try of this publisher whose answer was lost.
	Duplicate bool
}

// Delivery is one hand-out of one message to this consumer. It is the handler's, and
// may be kept; up to 15 others, and 4 KiB of bodies, that came with it are kept along.
type Delivery struct {
	Message
	Topic, Group string
	Partition    uint32
	Offset       uint64
	// Attempt counts hand-outs of the message to the group, from 1.
	Attempt uint32
	// PublishTime is when the broker accepted the message.
	PublishTime time.Time
	// FirstSeen is when the group first handed it out.
	FirstSeen time.Time
	// Fence only grows for the group and partition: side effects can be fenced
	// with it.
	Fence uint64
	// Replayed says that it comes from the group's dead letters.
	Replayed bool
}

// DerivedID is an id for the nth message that a handler publishes because of this
// delivery. It is the same at every attempt, on every consumer of the group, and
// after a replay, so what a second attempt publishes again is stored once:
//
//	receipt, err := out.Publish(ctx, client.Message{Key: d.Key, ID: d.DerivedID(0), Body: …})
//
// The same id with another body is refused with ErrIDReused: an earlier attempt
// published something else.
func (d *Delivery) DerivedID(n int) string {
	// The publish time tells a topic from one of the same name that was made anew.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d\x00%d", d.Topic, d.Group, d.Partition, d.Offset, d.PublishTime.UnixMilli()))
	return fmt.Sprintf("d-%s-%d", hex.EncodeToString(sum[:16]), n)
}
