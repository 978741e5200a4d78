package partition

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// The row metaConf has a partition's replicas, as Raft's ConfState.

func encodeConf(voters []NodeID) ([]byte, error) {
	conf := &raftpb.ConfState{}
	for _, v := range voters {
		conf.Voters = append(conf.Voters, uint64(v))
	}
	return proto.Marshal(conf)
}

// decodeConf takes only what Raft can begin with: it panics over the rest.
func decodeConf(b []byte) (*raftpb.ConfState, error) {
	if b == nil {
		return nil, errors.New("what replicas it has is not stored")
	}
	conf := &raftpb.ConfState{}
	if err := proto.Unmarshal(b, conf); err != nil {
		return nil, fmt.Errorf("what replicas it has does not read: %w", err)
	}
	if len(conf.GetVoters()) == 0 {
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
