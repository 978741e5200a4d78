package partition

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/proto"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/strandmq/strandmq/partition/logstore"
)

// NodesIn are the nodes of whose replicas a store knows: its own, where that is written
// down, and those of the configurations of its partitions. It is for who has to know
// whose a store is before Open, and passes over what does not read: Open tells of that.
func NodesIn(s *logstore.Store) ([]NodeID, error) {
	ids, err := s.Partitions()
	if err != nil {
		return nil, err
	}
	var out []NodeID
	for _, p := range ids {
		if b, err := s.Meta(p, metaReplica); err == nil && len(b) == 8 {
			out = append(out, ReplicaID(binary.LittleEndian.Uint64(b)).Node())
		}
		conf := &raftpb.ConfState{}
		if b, err := s.Meta(p, metaConf); err == nil && proto.Unmarshal(b, conf) == nil {
			for _, r := range members(conf) {
				out = append(out, r.Node())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
