package broker

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// ClusterConfig is how a node works with others.
type ClusterConfig struct {
	// Listen is the address and port for other nodes. It speaks TLS and lets in nodes
	// of the cluster and, by a join token, machines that are to become one. A folder
	// remembers it. Port 0 takes a free one.
	Listen string
	// Address is where other nodes reach it, if not at Listen: address and port.
	Address string
	// Join is the address of a node of the cluster to join, and Token a join token of
	// it. Both are for the first start of a node only: later they change nothing.
	Join, Token string
	// Zone is what fails together: replicas are spread over zones.
	Zone string

	clock    func() time.Time // of the connections, set by tests
	versions [2]uint16        // the same
	rules    uint32           // that the node applies, the same
}

// The files that a node of a cluster has beside its store.
const (
	identityFolder = "identity"
	homeFile       = "cluster.json"
	certFile       = "node.crt" // internal/peer's
)

// home is what a node remembers of its cluster for the time when it has nobody to
// ask yet. It is no secret.
type home struct {
	Listen  string     `json:"listen"`            // where it listens for nodes
	Address string     `json:"address,omitempty"` // where nodes reach it, if elsewhere
	Zone    string     `json:"zone,omitempty"`
	Store   string     `json:"store"`           // the store that the identity belongs to
	Nodes   []homeNode `json:"nodes,omitempty"` // as the cluster was when it joined
}

// homeNode is another node.
type homeNode struct {
	Node    uint64 `json:"node"`
	Address string `json:"address"`
	Store   string `json:"store"`
	Boot    uint64 `json:"boot"`
	Life    uint64 `json:"life,string,omitempty"`
}

func identityDir(data string) string { return filepath.Join(data, identityFolder) }

// clustered tells whether a data folder is that of a node of a cluster: of what that has
// in identity/, some is there. What cannot be read is not absent.
func clustered(data string) (bool, error) {
	if _, err := os.Lstat(identityDir(data)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if _, err := os.ReadDir(identityDir(data)); err != nil {
		return false, &StartError{Reason: NoIdentity, Err: err, Text: fmt.Sprintf("who this node is cannot be read: %v; %s", err, noIdentityHelp)}
	}
	for _, name := range []string{homeFile, certFile} {
		_, err := os.Lstat(filepath.Join(identityDir(data), name))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, &StartError{Reason: NoIdentity, Err: err, Text: fmt.Sprintf("who this node is cannot be read: %v; %s", err, noIdentityHelp)}
		}
	}
	return false, nil
}

// readHome reads what is remembered. fs.ErrNotExist: nothing is.
func readHome(data string) (home, error) {
	var h home
	path := filepath.Join(identityDir(data), homeFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%s cannot be read: %w: restore it from a copy, or replace the node ('strandmq cluster replace')", path, err)
	}
	return h, nil
}

// writeHome writes it as a whole or not at all.
func writeHome(data string, h home) error {
	b, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	return writeWhole(identityDir(data), homeFile, b)
}

// writeWhole writes a small file as a whole or not at all.
func writeWhole(dir, name string, b []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if was, err := os.ReadFile(path); err == nil && string(was) == string(b) {
		return nil
	}
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	_, werr := f.Write(b)
	if err := errors.Join(werr, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// loadIdentity reads who this node is; nil: nobody yet.
func loadIdentity(data string) (*peer.Identity, error) {
	id, err := peer.Load(identityDir(data))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	return id, err
}

// storeID is a store's id as the connections between nodes have it.
func storeID(text string) (id peer.StoreID) {
	b, err := hex.DecodeString(text)
	if err == nil {
		copy(id[:], b)
	}
	return id
}

// members are the nodes of a home for the connections.
func (h home) members() map[uint64]peer.Member {
	out := map[uint64]peer.Member{}
	for _, n := range h.Nodes {
		out[n.Node] = peer.Member{Address: n.Address, Store: storeID(n.Store), Boot: n.Boot, Life: n.Life}
	}
	return out
}

// nodes are their ids.
func (h home) nodes() (out []partition.NodeID) {
	for _, n := range h.Nodes {
		out = append(out, partition.NodeID(n.Node))
	}
	return out
}

func homeNodes(known []*nodev1.KnownNode) (out []homeNode) {
	for _, n := range known {
		a := n.GetAddress()
		out = append(out, homeNode{Node: n.GetNode(), Address: a.GetPeer(), Store: a.GetStore(), Boot: a.GetBoot(), Life: a.GetLife()})
	}
	return out
}

// rules are the newest of the metadata log that this node applies.
func (c Config) rules() uint32 {
	if c.Cluster != nil && c.Cluster.rules != 0 {
		return c.Cluster.rules
	}
	return coordinator.Rules
}
