package broker

import (
	"testing"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// storesAtOnce is a host that has stored everything already.
type storesAtOnce struct{ outlet }

func (storesAtOnce) PublishBatch(_ uint64, _ record.Batch, done func([]partition.Stored, error)) error {
	done(nil, nil)
	return nil
}

// BenchmarkOwnBatches tells what a batch for this node's own log costs among several
// nodes, beside the log: who leads is looked up, and it is counted until it is stored.
func BenchmarkOwnBatches(b *testing.B) {
	d := newDispatch(&Broker{cfg: Config{Node: edgeNode}}, &Peers{Leader: func(partition.PartitionID) partition.NodeID { return edgeNode }})
	d.b.disk = &disk{}
	batch, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{{Body: []byte("x")}}))
	if err != nil {
		b.Fatal(err)
	}
	for name, out := range map[string]func() error{
		"host":     func() error { return storesAtOnce{}.PublishBatch(1, batch, func([]partition.Stored, error) {}) },
		"dispatch": func() error { return d.publish(storesAtOnce{}, nil, 1, batch, func([]partition.Stored, error) {}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := out(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
