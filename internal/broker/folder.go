package broker

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// What a data folder is, before anything in it is used. It has a store, and beside it, if
// it is that of a node of a cluster, the node's identity:
//
//	store            identity/            it is
//	none             none                 nobody's yet; refused where it has to be a node's
//	none             there                refused: the store is gone
//	of one node      none                 a broker that is alone
//	of a cluster     there                that node
//	of a cluster     none                 refused: alone it has no majority, and is not node 1
//	any              not to be read       refused

// noIdentityHelp is the way out where a node does not know who it is.
const noIdentityHelp = "nothing was changed: put identity/ back as it was, readable for the user that runs the broker, or, if it is lost, have a node that runs replace this one (strandmq cluster replace) and let a new node join, on an empty folder"

// storeGoneHelp is the way out where a node has its identity and not its store.
func storeGoneHelp(n partition.NodeID) string {
	which := "N"
	if n != 0 {
		which = strconv.FormatUint(uint64(n), 10)
	}
	return fmt.Sprintf("put the store back if it is only elsewhere, with the identity of the same time; if it is lost, have a node that runs replace this one (strandmq cluster replace %s), and let a new node join, on an empty folder", which)
}

// openStore opens the store, after it has seen that the folder is what it has to be.
// clustered tells whether it is that of a node of a cluster.
func (b *Broker) openStore(sc logstore.Config) (in bool, err error) {
	if b.cfg.Store.FS == nil {
		if in, err = clustered(b.cfg.DataDir); err != nil {
			return false, err
		}
	}
	sc.MustExist = sc.MustExist || b.cfg.Existing || in
	b.store, err = logstore.Open(sc)
	var none *logstore.ErrNoStore
	var foreign *logstore.ErrForeign
	switch {
	case err == nil:
	case in && (errors.As(err, &none) || errors.As(err, &foreign)):
		who, what := partition.NodeID(0), "a node"
		if identity, _ := loadIdentity(b.cfg.DataDir); identity != nil {
			who = partition.NodeID(identity.Node())
			what = fmt.Sprintf("node %v", who)
		}
		return in, &StartError{Reason: NodeRefused, Err: err, Text: fmt.Sprintf("%s holds the identity of %s, and its store is gone; nothing was changed: %s", sc.Dir, what, storeGoneHelp(who))}
	case b.cfg.Existing && errors.As(err, &none):
		return in, &StartError{Reason: FolderEmpty, Err: err, Text: fmt.Sprintf(
			"%s holds no node, and with --existing it has to: look whether its disk is mounted, and at --data; if the disk of a cluster's node is lost, have a node that runs replace it (strandmq cluster replace N) and let a new one join, without --existing", sc.Dir)}
	default:
		return in, err
	}
	if identity, err := loadIdentity(b.cfg.DataDir); b.cfg.Store.FS != nil || b.cfg.Peers != nil || identity != nil || err != nil {
		return in, nil //nolint:nilerr // beginAgent looks at it again, and says so
	}
	others, err := partition.NodesIn(b.store)
	if err != nil {
		return in, err
	}
	return in, b.strangers(others)
}

// strangers refuses a store of which other nodes have replicas, where the folder does not
// say who this one is.
func (b *Broker) strangers(nodes []partition.NodeID) error {
	if slices.IndexFunc(nodes, func(n partition.NodeID) bool { return n != b.cfg.Node }) < 0 {
		return nil
	}
	return &StartError{Reason: NoIdentity, Text: fmt.Sprintf("%s holds the data of a cluster's node, and its %s folder, which says which node it is, is missing or not whole; %s", b.cfg.DataDir, identityFolder, noIdentityHelp)}
}

// knowsItself is the same question again, to the log as it was replayed: what a store
// remembers of the replicas may be older than that.
func (b *Broker) knowsItself() error {
	if b.cfg.Peers != nil || b.agent != nil && b.agent.identity != nil {
		return nil
	}
	info, err := b.host.Info(partition.Metadata)
	if err != nil {
		return nil //nolint:nilerr // there is none yet
	}
	var nodes []partition.NodeID
	for _, r := range slices.Concat(info.Voters, info.Learners) {
		nodes = append(nodes, r.Node())
	}
	err = b.strangers(nodes)
	if err != nil && b.agent != nil {
		b.agent.refusedStart()
	}
	return err
}
