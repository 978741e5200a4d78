package broker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
)

// snapshotPath is where a node takes a partition's snapshot in: the bytes are the
// body, and the answer is what the host said of them.
const snapshotPath = "/node/snapshot"

// maxSnapshotAnswer is more than the words of a refusal.
const maxSnapshotAnswer = 64 << 10

// sendSnapshot is partition.Config.SendSnapshot. The host sends two at once.
func (a *agent) sendSnapshot(ctx context.Context, to partition.NodeID, id partition.PartitionID, r io.Reader) error {
	if a.transport == nil {
		return &errUnreached{node: to, err: fmt.Errorf("the node is starting")}
	}
	client, url := a.client(to)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+snapshotPath+"?partition="+strconv.FormatUint(uint64(id), 10), io.NopCloser(r))
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxSnapshotAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("node %v answers a snapshot with %s: %s", to, res.Status, bytes.TrimSpace(answer))
	}
	return partition.ParseSnapshotAnswer(id, answer)
}

// takeSnapshot answers a node that sends one. The host bounds how many come at once,
// and looks at what comes.
func (a *agent) takeSnapshot(w http.ResponseWriter, r *http.Request) {
	from, known := peer.From(r.Context())
	id, err := strconv.ParseUint(r.URL.Query().Get("partition"), 10, 64)
	if r.Method != http.MethodPost || !known || err != nil {
		http.Error(w, "a snapshot is posted by a node, for a partition", http.StatusBadRequest)
		return
	}
	err = a.b.host.ReceiveSnapshot(r.Context(), partition.NodeID(from), partition.PartitionID(id), r.Body)
	if err != nil {
		a.log.Info("a snapshot was not taken in", "partition", a.b.partitionName(partition.PartitionID(id)), "from", from, "err", err)
	} else {
		a.log.Info("a snapshot was taken in", "partition", a.b.partitionName(partition.PartitionID(id)), "from", from)
	}
	_, _ = w.Write(partition.AppendSnapshotAnswer(nil, err))
}
