package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// The row metaConf has a partition's replicas, as Raft's ConfState.

// encodeConf makes the row of these voters; without any, that of a replica that
// has not heard yet whose it is.
func encodeConf(voters []ReplicaID) ([]byte, error) {
	conf := &raftpb.ConfState{AutoLeave: new(bool)} // so that the row is never empty
	for _, v := range voters {
		conf.Voters = append(conf.Voters, uint64(v))
	}
	return proto.Marshal(conf)
}

// decodeConf takes only what Raft can begin with: it panics over the rest. A
// replica that joins, and has nothing yet, knows no voters.
func decodeConf(b []byte, joins bool) (*raftpb.ConfState, error) {
	if b == nil {
		return nil, errors.New("what replicas it has is not stored")
	}
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(b, conf); err != nil {
		return nil, fmt.Errorf("what replicas it has does not read: %w", err)
	}
	if len(conf.GetVoters()) == 0 && (!joins || len(members(conf)) > 0) {
		return nil, errors.New("of its replicas none is a voter")
	}
	if len(conf.ProtoReflect().GetUnknown()) > 0 {
		return nil, errors.New("what is stored of its replicas is of a newer form")
	}
	// What Raft itself does first: it carries the changes out that lead to the
	// stored state, and looks whether they did.
	trk := tracker.MakeProgressTracker(1, 0)
	cfg, _, err := confchange.Restore(confchange.Changer{Tracker: trk, LastIndex: 1}, conf)
	if err != nil {
		return nil, fmt.Errorf("its replicas cannot be what is stored: %w", err)
	}
	trk.Config = cfg
	if err := conf.Equivalent(trk.ConfState()); err != nil {
		return nil, errors.New("its replicas cannot be what is stored: some stand there twice, or in two roles")
	}
	return conf, nil
}

// The row metaReplica has the replica's own id. The first one on a node has none:
// it has the node's.
//
//	replica u64
func appendReplicaRow(dst []byte, r ReplicaID) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(r))
}

func decodeReplicaRow(v []byte, n NodeID) (ReplicaID, error) {
	if v == nil {
		return n.Replica(), nil
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("the row of the replica's own id has %d bytes, want 8", len(v))
	}
	r := ReplicaID(binary.LittleEndian.Uint64(v))
	if r.Node() != n {
		return 0, fmt.Errorf("its replica here is %v, and this is node %v", r, n)
	}
	return r, nil
}

// members are all replicas of a configuration, each once.
func members(c *raftpb.ConfState) []ReplicaID {
	var out []ReplicaID
	for _, ids := range [][]uint64{c.GetVoters(), c.GetVotersOutgoing(), c.GetLearners(), c.GetLearnersNext()} {
		for _, id := range ids {
			if !slices.Contains(out, ReplicaID(id)) {
				out = append(out, ReplicaID(id))
			}
		}
	}
	return out
}

// decodeChange reads a change of the replicas as it stands in the log.
func decodeChange(e *raftpb.Entry) (raftpb.ConfChangeI, error) {
	if e.GetType() == raftpb.EntryConfChange {
		v := &raftpb.ConfChange{}
		return v, proto.Unmarshal(e.GetData(), v)
	}
	v := &raftpb.ConfChangeV2{}
	return v, proto.Unmarshal(e.GetData(), v)
}
