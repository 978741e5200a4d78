package broker

import (
	"context"
	"net/http"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// Peers is how a node works with the others of its cluster. Who gives it sees to
// it that this node has the replicas that the map wants here; the broker only
// carries calls to where partitions are led.
type Peers struct {
	// Serve is called once, early in Start, with what this node answers to others.
	// It is for a listener that lets in nodes of the cluster and nobody else, since
	// it checks nobody; it needs HTTP/2.
	Serve func(http.Handler)
	// Client is how what another node serves is reached: a client that speaks
	// HTTP/2 with this node's identity, and the base URL. It must notice by itself,
	// within a few seconds, that the other node is silent. Nil: it is not known.
	Client func(node partition.NodeID) (client *http.Client, url string)
	// Replicas are the nodes to ask about a partition whose leader is not known.
	Replicas func(id partition.PartitionID) []partition.NodeID
	// Leader is the node that leads a partition, as far as this node knows: 0 if
	// it does not. Default: what this node's replica says.
	Leader func(id partition.PartitionID) partition.NodeID
	// Metadata brings the metadata log up on this node, and returns when the map
	// is recent enough to answer from; the cluster has its name by then.
	Metadata func(ctx context.Context, h *partition.Host, c *coordinator.Coordinator, app *coordinator.App) error
	// Created returns when a partition of the map has a leader, Dropped when no
	// node has a replica of it any more.
	Created, Dropped func(ctx context.Context, id partition.PartitionID) error
}
