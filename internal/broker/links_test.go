package broker

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// linkedHost is a host that speaks to others over real connections.
type linkedHost struct {
	id        partition.NodeID
	host      *partition.Host
	store     *logstore.Store
	transport *peer.Transport
	closed    bool
}

func (h *linkedHost) close(t *testing.T) {
	if h.closed {
		return
	}
	h.closed = true
	for _, f := range []func() error{h.transport.Close, h.host.Close, h.store.Close} {
		if err := f(); err != nil {
			t.Errorf("node %d: %v", h.id, err)
		}
	}
}

func linkHosts(t *testing.T, n int) []*linkedHost {
	t.Helper()
	authority, err := peer.NewAuthority("links")
	if err != nil {
		t.Fatal(err)
	}
	ca, _ := authority.PEM()
	var hosts []*linkedHost
	members := map[uint64]peer.Member{}
	for id := partition.NodeID(1); id <= partition.NodeID(n); id++ {
		h := &linkedHost{id: id}
		if h.store, err = logstore.Open(logstore.Config{FS: vfs.NewMem(), Dir: "store", MemTableBytes: 4 << 20, CacheBytes: 8 << 20}); err != nil {
			t.Fatal(err)
		}
		l := newLinks(slog.New(slog.DiscardHandler))
		if h.host, err = partition.Open(partition.Config{Node: id, Store: h.store, Tick: 10 * time.Millisecond, Send: l.send}); err != nil {
			t.Fatal(err)
		}
		l.join(h.host)
		dir := filepath.Join(t.TempDir(), "identity")
		csr, err := peer.Request(dir)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := authority.Sign(csr, uint64(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Install(dir, cert, ca); err != nil {
			t.Fatal(err)
		}
		identity, err := peer.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if h.transport, err = peer.New(peer.Config{Identity: identity, Store: peer.StoreID{byte(id)}, Boot: 1, Listen: "127.0.0.1:0", Deliver: l.deliver, Alive: l.alive}); err != nil {
			t.Fatal(err)
		}
		l.over(h.transport)
		t.Cleanup(func() { h.close(t) })
		members[uint64(id)] = peer.Member{Address: h.transport.Addr().String()}
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		h.transport.SetNodes(members)
	}
	return hosts
}

// Three hosts over TLS: what one stores, all have; when the leader's node ends,
// another leads and writes go on.
func TestReplicasOverConnections(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // for all of it, which takes seconds
	defer cancel()
	hosts := linkHosts(t, 3)
	const p = partition.PartitionID(7)
	var voters []partition.ReplicaID
	for _, h := range hosts {
		voters = append(voters, partition.ReplicaID(h.id))
	}
	for _, h := range hosts {
		if err := h.host.CreateReplicas(ctx, p, partition.ReplicaID(h.id), voters); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		for !cond() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s did not happen", what)
			case <-time.After(5 * time.Millisecond): // nobody tells the test of a change
			}
		}
	}
	leader := func() (out *linkedHost) {
		until("a leader", func() bool {
			i := slices.IndexFunc(hosts, func(h *linkedHost) bool {
				info, err := h.host.Info(p)
				return !h.closed && err == nil && info.Leading
			})
			if i >= 0 {
				out = hosts[i]
			}
			return i >= 0
		})
		return out
	}
	published := 0
	publish := func() {
		t.Helper()
		// A leader that has just lost its place refuses or does not know: the next is asked.
		until("a publish", func() bool {
			body := strings.Repeat("x", 1000*(published%50))
			b := record.Append(nil, record.Meta{}, []record.Record{{Body: []byte(fmt.Sprint(published, body))}})
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := leader().host.Publish(short, p, b)
			return err == nil
		})
		published++
	}
	for range 200 {
		publish()
	}
	all := func() {
		t.Helper()
		until("the same everywhere", func() bool {
			var ends []partition.Index
			for _, h := range hosts {
				if !h.closed {
					info, err := h.host.Info(p)
					if err != nil {
						t.Fatal(err)
					}
					ends = append(ends, info.LastIndex)
				}
			}
			return slices.Min(ends) == slices.Max(ends)
		})
	}
	all()
	first := leader()
	first.close(t)
	for range 20 {
		publish()
	}
	if leader() == first {
		t.Error("a node that ended leads")
	}
	all()
}
