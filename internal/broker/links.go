package broker

import (
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
)

// links carry what a node's replicas say to those of other nodes: from the host
// over the connections between nodes to the host there, and who is up to the host.
//
// The two ends need each other to begin, so it goes: newLinks, a Host that sends
// with send, join with the Host, and a Transport with deliver and alive, given to
// over. Before that, and for nodes that are down, frames are dropped, as Raft allows.
// The Transport is closed first.
type links struct {
	log       *slog.Logger
	host      *partition.Host // set by join, before there is a Transport
	transport atomic.Pointer[peer.Transport]
}

func newLinks(log *slog.Logger) *links { return &links{log: log} }

// join says where to deliver.
func (l *links) join(h *partition.Host) { l.host = h }

// over says what to send over.
func (l *links) over(t *peer.Transport) { l.transport.Store(t) }

// send is partition.Config.Send.
func (l *links) send(to partition.NodeID, frames []partition.Frame) {
	t := l.transport.Load()
	if t == nil {
		return
	}
	urgent, rest := partition.Parted(frames)
	if len(urgent) > 0 {
		t.SendUrgent(uint64(to), partition.AppendFrames(nil, urgent))
	}
	if len(rest) > 0 {
		t.Send(uint64(to), partition.AppendFrames(nil, rest))
	}
}

// deliver is peer.Config.Deliver.
func (l *links) deliver(from uint64, b []byte) {
	frames, err := partition.ParseFrames(b)
	if err != nil {
		// TLS has vouched for the bytes, so a fault of the program there made them, or a
		// later version: it is not known what they ask for.
		l.log.Error("a node sent frames that cannot be read; they are dropped", "node", from, "bytes", len(b), "error", err)
		return
	}
	if t := l.transport.Load(); t != nil && slices.ContainsFunc(frames, partition.Frame.Stuck) {
		// Calls to it may wait for as long as its disk hangs, and what it led is led
		// elsewhere in a moment.
		t.CutCalls(from)
	}
	l.host.Receive(partition.NodeID(from), frames)
}

// alive is peer.Config.Alive.
func (l *links) alive(node uint64, up bool) {
	if up {
		l.host.Up(partition.NodeID(node))
	} else {
		l.host.Down(partition.NodeID(node))
	}
}
