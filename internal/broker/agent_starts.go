package broker

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/peer"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
)

// A data folder and an older copy of it are the same node by everything that is in
// them, and a start of the copy would lose what the node acknowledged since. So each
// start has a random number, its life. The folder remembers those of its starts, and
// the cluster the one by which it knows the node:
//
//	folder   1:a  2:b  3:c          the cluster knows 3:c, and takes start 4:d
//	copy     1:a  2:b               it does not know of 3:c: refused, now and as often
//	                                as it is started
//
// A start is in the folder before the cluster hears of it. One that was refused is
// taken out again: a copy that is started again and again does not pass by counting.

const (
	startsFile = "starts.json"
	// startsKept is more starts than can pass while another node is away and does not
	// hear of them, or without the cluster being there.
	startsKept = 32
)

// startRow is one start in the file.
type startRow struct {
	Boot uint64 `json:"boot"`
	Life uint64 `json:"life,string"`
}

func readStarts(data string) ([]coordinator.Start, error) {
	path := filepath.Join(identityDir(data), startsFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rows []startRow
	if err := json.Unmarshal(b, &rows); err != nil {
		return nil, &StartError{Reason: FolderDamaged, Err: err, Text: fmt.Sprintf(
			"%s cannot be read: %v: it tells this data folder from copies of it; restore the folder as it was when the node ran last, or replace the node", path, err)}
	}
	var out []coordinator.Start
	for _, r := range rows {
		out = append(out, coordinator.Start(r))
	}
	return out, nil
}

func writeStarts(data string, list []coordinator.Start) error {
	rows := []startRow{}
	for _, s := range list[max(0, len(list)-startsKept):] {
		rows = append(rows, startRow(s))
	}
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return writeWhole(identityDir(data), startsFile, b)
}

// beginStart gives this start its life, and has the folder know of it.
func (a *agent) beginStart() (err error) {
	if a.earlier, err = readStarts(a.b.cfg.DataDir); err != nil {
		return err
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return err
	}
	a.life = binary.LittleEndian.Uint64(seed[:]) | 1
	return writeStarts(a.b.cfg.DataDir, append(a.earlier, coordinator.Start{Boot: a.b.store.Boot(), Life: a.life}))
}

// refusedStart takes this start back: the cluster does not know the node by it.
func (a *agent) refusedStart() {
	if err := writeStarts(a.b.cfg.DataDir, a.earlier); err != nil {
		a.log.Warn("a refused start of the node was not taken back", "err", err)
	}
}

// peerStarts are the earlier starts for the connections.
func (a *agent) peerStarts() (out []peer.Start) {
	for _, s := range a.earlier {
		out = append(out, peer.Start(s))
	}
	return out
}

// presents is what this node says of itself, with the starts that it knows of.
func (a *agent) presents(at coordinator.Address) *nodev1.NodeAddress {
	out := addressTo(at)
	for _, s := range a.earlier {
		out.Earlier = append(out.Earlier, &nodev1.NodeStart{Boot: s.Boot, Life: s.Life})
	}
	return out
}

func startsFrom(a *nodev1.NodeAddress) (out []coordinator.Start) {
	for _, s := range a.GetEarlier() {
		out = append(out, coordinator.Start{Boot: s.GetBoot(), Life: s.GetLife()})
	}
	return out
}

// displaced is why other nodes do not take this one for the node that it was: its
// data folder is another, or has been started since. One that says so is enough, as
// it has that from the metadata log.
func (a *agent) displaced() *peer.ErrRefused {
	for _, n := range a.transport.Nodes() {
		var refused *peer.ErrRefused
		if errors.As(n.Err, &refused) && refused.Remote && (refused.Reason == peer.OlderBoot || refused.Reason == peer.WrongStore) {
			return refused
		}
	}
	return nil
}

// disowned is why most of the other nodes have not known this one as one of the cluster for
// a while now. For a moment that is so of one that has just joined.
func (a *agent) disowned(now time.Time) *peer.ErrRefused {
	var why *peer.ErrRefused
	nodes, n := a.transport.Nodes(), 0
	for _, o := range nodes {
		var refused *peer.ErrRefused
		if !o.To && errors.As(o.Err, &refused) && refused.Remote && refused.Reason == peer.NotMember {
			why = refused
			n++
		}
	}
	switch {
	case n <= len(nodes)/2:
		a.disown = time.Time{}
	case a.disown.IsZero():
		a.disown = now
	case now.Sub(a.disown) >= outcastAfter:
		return why
	}
	return nil
}

// shutOut is why every node that answers, or that this one would ask, has nothing to
// do with this one; nil where one has, or none answers.
func (a *agent) shutOut() *peer.ErrRefused {
	var why *peer.ErrRefused
	for _, n := range a.transport.Nodes() {
		var refused *peer.ErrRefused
		switch {
		case n.To:
			return nil
		case !errors.As(n.Err, &refused): // it does not answer
		case refused.Reason == peer.Busy || refused.Reason == peer.Failed:
			return nil
		default:
			why = refused
		}
	}
	return why
}
