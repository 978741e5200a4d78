package coordinator

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// The rows of the metadata log's state: one per object, the values protobuf
// messages of package storage.v1. See docs/format/metadata.md.
//
//	"c"                          ClusterRow   clock, counters, format, the log's own placement
//	"a"                          AuthorityRow what signs the nodes' certificates
//	"n" node id                  NodeRow      its state and address
//	"j" hash of the secret       JoinTokenRow
//	"t" topic id                 TopicRow     with its partitions
//	"g" group id                 GroupRow
//	"m" group id, member name    MemberRow    session and shares
//	"e" event number             EventRow     what happened
//	"s" node id                  EventSourceRow the last batch of events of a node, and whether it is heard of
//
// Ids are 8 bytes, big endian. A checkpoint writes the rows of what changed, so
// a member that joins costs its own row, those of the members whose shares
// changed, its group's and the cluster's.
const (
	rowCluster   byte = 'c'
	rowAuthority byte = 'a'
	rowNode      byte = 'n'
	rowToken     byte = 'j'
	rowTopic     byte = 't'
	rowGroup     byte = 'g'
	rowMember    byte = 'm'
	rowEvent     byte = 'e'
	rowSource    byte = 's'
)

// rowFormat is the version of the rows. Those of version 1, from before there were
// nodes, are read as they are: their partitions have no replicas until the first
// node is added. Those of version 2 are from before damaged replicas were made anew,
// those of version 3 from before there were events.
const (
	rowFormat       = 4
	oldestRowFormat = 1
)

// rowKey names a row.
type rowKey struct {
	kind byte
	id   uint64 // none for the cluster, its authority and a join token
	name string // of a member; the hash of a join token
}

func (k rowKey) bytes() []byte {
	b := []byte{k.kind}
	switch k.kind {
	case rowCluster, rowAuthority, rowToken:
	default:
		b = binary.BigEndian.AppendUint64(b, k.id)
	}
	return append(b, k.name...)
}

// checkpoint writes the rows that changed since the last one.
func (mc *machine) checkpoint(rows partition.Rows) error {
	for k := range mc.dirty {
		value := mc.row(k)
		if value == nil {
			rows.Delete(k.bytes())
			continue
		}
		b, err := proto.Marshal(value)
		if err != nil {
			return fmt.Errorf("metadata row %q: %w", k.bytes(), err)
		}
		rows.Put(k.bytes(), b)
	}
	clear(mc.dirty)
	return nil
}

// row is a row's present value, nil for none.
func (mc *machine) row(k rowKey) proto.Message {
	switch k.kind {
	case rowCluster:
		return &storagev1.ClusterRow{
			Format: rowFormat, ClusterId: mc.m.Cluster.ID, TokenSecret: mc.m.Cluster.TokenSecret,
			ClockMs: int64(mc.clock), Revision: mc.m.Revision,
			NextTopic: uint64(mc.next.topic), NextPartition: uint64(mc.next.partition),
			NextGroup: uint64(mc.next.group), NextSession: mc.next.session,
			NextNode: uint64(mc.next.node), Metadata: partitionRow(&mc.m.metadata), Placed: mc.m.placed,
			EventChange: mc.events.change, EventGone: mc.events.gone, EventTotals: mc.events.totalRows(),
		}
	case rowAuthority:
		a := mc.m.Cluster.Authority
		return &storagev1.AuthorityRow{Certificate: a.Certificate, Key: a.Key}
	case rowNode:
		if n, ok := mc.m.Node(partition.NodeID(k.id)); ok {
			return &storagev1.NodeRow{Id: k.id, State: storagev1.NodeState(n.State), Address: n.proto(), JoinedMs: int64(n.Joined)}
		}
	case rowToken:
		if t, ok := mc.m.findToken(TokenHash([]byte(k.name))); ok {
			return &storagev1.JoinTokenRow{Hash: t.Hash[:], CreatedMs: int64(t.Created), ExpiresMs: int64(t.Expires), Node: uint64(t.Node)}
		}
	case rowTopic:
		if t, ok := mc.m.TopicByID(TopicID(k.id)); ok {
			return topicRow(t)
		}
	case rowGroup:
		if g, ok := mc.m.GroupByID(GroupID(k.id)); ok {
			return groupRow(g)
		}
	case rowMember:
		if g, ok := mc.m.GroupByID(GroupID(k.id)); ok {
			if m, ok := g.Member(k.name); ok {
				return memberRow(g.ID, m)
			}
		}
	case rowEvent:
		if e, ok := mc.events.find(k.id); ok {
			return eventRow(e)
		}
	case rowSource:
		if s, ok := mc.sources[partition.NodeID(k.id)]; ok {
			return &storagev1.EventSourceRow{Node: k.id, Boot: s.boot, Batch: s.batch, Presence: storagev1.NodePresence(s.presence)}
		}
	}
	return nil
}

func topicRow(t *Topic) *storagev1.TopicRow {
	row := &storagev1.TopicRow{
		Id: uint64(t.ID), Name: t.Name, Phase: storagev1.Phase(t.Phase), Seed: t.Seed,
		Config: t.Config.Proto(), CreatedMs: int64(t.Created), Revision: t.Revision,
	}
	for i := range t.Partitions {
		row.Partitions = append(row.Partitions, partitionRow(&t.Partitions[i]))
	}
	return row
}

func groupRow(g *Group) *storagev1.GroupRow {
	return &storagev1.GroupRow{
		Id: uint64(g.ID), TopicId: uint64(g.Topic), Name: g.Name, Phase: storagev1.Phase(g.Phase),
		Policy: g.Policy, Paused: g.Paused, Start: g.Start, CreatedMs: int64(g.Created),
		Revision: g.Revision, Logged: g.Logged, Generation: g.Generation, ChangedMs: int64(g.Changed), Why: g.Why,
	}
}

func memberRow(g GroupID, m *Member) *storagev1.MemberRow {
	row := &storagev1.MemberRow{GroupId: uint64(g), Name: m.Name, Session: m.Session, JoinedMs: int64(m.Joined), Stream: m.Stream, Away: m.Away, Draining: m.Draining}
	for _, s := range m.Shares {
		row.Shares = append(row.Shares, &storagev1.ShareRow{Partition: s.Partition, Share: s.Share, Shares: s.Shares})
	}
	return row
}

// restore builds the machine that checkpoint wrote. The error is an *ErrFormat,
// or one of Rows itself.
func restore(rows partition.Rows) (*machine, error) {
	mc := newMachine()
	b, err := rows.Get(rowKey{kind: rowCluster}.bytes())
	if err != nil {
		return nil, err
	}
	if b != nil {
		var c storagev1.ClusterRow
		if err := proto.Unmarshal(b, &c); err != nil {
			return nil, &ErrFormat{What: "the cluster's row does not decode", Err: err}
		}
		if err := format.Check("metadata rows", uint64(c.Format), rowFormat); err != nil {
			return nil, &ErrFormat{What: "newer rows", Err: err}
		}
		if c.Format < oldestRowFormat {
			return nil, &ErrFormat{What: fmt.Sprintf("rows of unknown format %d", c.Format)}
		}
		mc.m.Cluster.ID, mc.m.Cluster.TokenSecret = c.ClusterId, c.TokenSecret
		mc.m.Revision = c.Revision
		mc.m.lastSession = max(c.NextSession, 1) - 1
		mc.clock = partition.Millis(c.ClockMs)
		mc.next = counters{TopicID(c.NextTopic), partition.PartitionID(c.NextPartition), GroupID(c.NextGroup), c.NextSession, max(partition.NodeID(c.NextNode), 1)}
		mc.m.nextPartition, mc.m.nextGroup, mc.m.placed = mc.next.partition, mc.next.group, c.Placed
		if mc.m.metadata, err = takePartition(c.Metadata); err != nil {
			return nil, &ErrFormat{What: "the cluster's row", Err: err}
		}
		mc.takeEvents(&c)
	}
	for _, kind := range []struct {
		kind byte
		take func(value []byte) error
	}{
		{rowAuthority, mc.takeAuthority}, {rowNode, mc.takeNode}, {rowToken, mc.takeToken},
		{rowTopic, mc.takeTopic}, {rowGroup, mc.takeGroup}, {rowMember, mc.takeMember},
		{rowEvent, mc.takeEvent}, {rowSource, mc.takeSource},
	} {
		var bad error
		err := rows.Scan([]byte{kind.kind}, nil, func(key, value []byte) bool {
			if b == nil {
				bad = &ErrFormat{What: fmt.Sprintf("row %q without a cluster's row", key)}
			} else if err := kind.take(value); err != nil {
				bad = &ErrFormat{What: fmt.Sprintf("row %q", key), Err: err}
			}
			return bad == nil
		})
		if err != nil {
			return nil, err
		}
		if bad != nil {
			return nil, bad
		}
	}
	mc.sortEvents()
	return mc, nil
}

// The rows are few and restore is rare, so each is put in its place at once.
func (mc *machine) takeTopic(value []byte) error {
	var row storagev1.TopicRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	cfg, err := TopicConfig{}.With(row.Config)
	if err != nil {
		return err
	}
	t := &Topic{
		ID: TopicID(row.Id), Name: row.Name, Phase: Phase(row.Phase), Seed: row.Seed,
		Config: cfg, Created: partition.Millis(row.CreatedMs), Revision: row.Revision,
	}
	if t.Phase < Creating || t.Phase > Deleting {
		return fmt.Errorf("unknown phase %d", row.Phase)
	}
	ranges := make([]keyspace.Range, len(row.Partitions))
	for i, p := range row.Partitions {
		ranges[i] = keyspace.Range{First: p.HashFirst, Last: p.HashLast}
		one, err := takePartition(p)
		if err != nil {
			return err
		}
		if p.Id != row.Partitions[0].Id+uint64(i) {
			return fmt.Errorf("partition %d has id %v", i, one.ID)
		}
		one.Range = ranges[i]
		t.Partitions = append(t.Partitions, one)
	}
	if err := keyspace.Check(ranges); err != nil {
		return err
	}
	mc.m.topics = with(mc.m.topics, t, topicName)
	mc.m.topicsByID = with(mc.m.topicsByID, t, topicID)
	mc.m.partitions += len(t.Partitions)
	return nil
}

func (mc *machine) takeGroup(value []byte) error {
	var row storagev1.GroupRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	g := &Group{
		ID: GroupID(row.Id), Topic: TopicID(row.TopicId), Name: row.Name, Phase: Phase(row.Phase),
		Policy: row.Policy, Paused: row.Paused, Start: row.Start, Created: partition.Millis(row.CreatedMs),
		Revision: row.Revision, Logged: row.Logged, Generation: row.Generation, Changed: partition.Millis(row.ChangedMs), Why: row.Why,
	}
	if g.Phase < Creating || g.Phase > Deleting || g.Policy == nil || g.Start == nil {
		return fmt.Errorf("phase %d, policy %v, start %v", row.Phase, row.Policy, row.Start)
	}
	t, ok := mc.m.TopicByID(g.Topic)
	if !ok {
		return fmt.Errorf("its topic %v is missing", g.Topic)
	}
	mc.m.groupsByID = with(mc.m.groupsByID, g, groupID)
	t.groups = with(t.groups, g, groupName)
	return nil
}

func (mc *machine) takeMember(value []byte) error {
	var row storagev1.MemberRow
	if err := proto.Unmarshal(value, &row); err != nil {
		return err
	}
	g, ok := mc.m.GroupByID(GroupID(row.GroupId))
	if !ok {
		return fmt.Errorf("its group %v is missing", GroupID(row.GroupId))
	}
	m := &Member{Name: row.Name, Session: row.Session, Joined: partition.Millis(row.JoinedMs), Stream: row.Stream, Away: row.Away, Draining: row.Draining}
	partitions := len(mc.topicOf(g).Partitions)
	for _, s := range row.Shares {
		if int(s.Partition) >= partitions || s.Share >= s.Shares {
			return fmt.Errorf("share %d/%d of partition %d of %d", s.Share, s.Shares, s.Partition, partitions)
		}
		m.Shares = append(m.Shares, Share{Partition: s.Partition, Share: s.Share, Shares: s.Shares})
	}
	g.Members = with(g.Members, m, memberName)
	mc.m.sessions++
	return nil
}
