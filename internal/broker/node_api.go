package broker

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// nodeAPI is strandmq.v1.NodeService.
type nodeAPI struct{ b *Broker }

// NodeInfo says what is running.
func (a nodeAPI) NodeInfo(context.Context, *strandmqv1.NodeInfoRequest) (*strandmqv1.NodeInfoResponse, error) {
	b := a.b
	return &strandmqv1.NodeInfoResponse{
		Version: b.cfg.Version, Node: uint64(b.cfg.Node), Cluster: b.cluster.ID,
		Started: timestamppb.New(b.startedAt), Faults: b.faults(),
	}, nil
}
