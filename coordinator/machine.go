package coordinator

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Rules is the version of what apply does with a command, the newest that this
// build knows. Entries carry it, so that brokers of two versions cannot make two
// states of one log; and each carries one that every node applies.
const Rules = 6

// toldRules are the first by which nodes tell what they apply. No entry is written
// by earlier ones any more.
const toldRules = 5

// result is what apply made of a command.
type result struct {
	topic    *Topic
	group    *Group
	member   *Member
	node     *Node
	token    *JoinToken
	place    *Partition
	existed  bool   // nothing new was made
	replaced uint64 // the session that ended by a join
	err      error  // a refusal; nothing changed
}

// machine is the state of the metadata log: pure, and the same on every replica
// after the same entries. The map in it is replaced, never changed.
type machine struct {
	m      *Map
	clock  partition.Millis // the greatest that an entry carried
	next   counters
	limits limits
	newest uint32 // rules that this node applies

	events  Events
	sources map[partition.NodeID]source

	at      partition.Index     // the entry being applied
	applied uint32              // its rules
	draft   bool                // m was copied for it
	dirty   map[rowKey]struct{} // rows that differ from the last checkpoint
}

// counters are the next of each kind of number that is never used twice.
type counters struct {
	topic     TopicID
	partition partition.PartitionID
	group     GroupID
	session   uint64
	node      partition.NodeID
}

func newMachine() *machine {
	return &machine{
		m:       &Map{nextPartition: partition.Metadata + 1, nextGroup: 1},
		next:    counters{topic: 1, partition: partition.Metadata + 1, group: 1, session: 1, node: 1},
		limits:  theLimits,
		newest:  Rules,
		sources: make(map[partition.NodeID]source),
		dirty:   make(map[rowKey]struct{}),
	}
}

// apply runs one command. The error is an *ErrFormat: the command is not to be
// understood, and nothing may be applied any more.
func (mc *machine) apply(at partition.Index, b []byte) (*result, error) {
	var cmd storagev1.MetadataCommand
	if err := proto.Unmarshal(b, &cmd); err != nil {
		return nil, &ErrFormat{At: at, What: "a command that does not decode", Err: err}
	}
	if err := format.Check("metadata command", uint64(cmd.Rules), uint64(mc.newest)); err != nil {
		return nil, &ErrFormat{At: at, What: "newer rules", Err: err}
	}
	if cmd.Rules == 0 {
		return nil, &ErrFormat{At: at, What: "a command without rules"}
	}
	mc.at, mc.applied, mc.draft = at, cmd.Rules, false
	mc.clock = max(mc.clock, partition.Millis(cmd.NowMs))
	mc.touch(rowKey{kind: rowCluster})
	if mc.m.Cluster.ID == "" {
		if c, ok := cmd.Command.(*storagev1.MetadataCommand_Bootstrap); ok {
			return mc.bootstrap(c.Bootstrap), nil
		}
	}
	var r *result
	switch c := cmd.Command.(type) {
	case *storagev1.MetadataCommand_Bootstrap:
		r = &result{existed: true}
	case *storagev1.MetadataCommand_CreateTopic:
		r = mc.createTopic(c.CreateTopic)
	case *storagev1.MetadataCommand_FinishTopic:
		r = mc.finishTopic(c.FinishTopic)
	case *storagev1.MetadataCommand_AlterTopic:
		r = mc.alterTopic(c.AlterTopic)
	case *storagev1.MetadataCommand_DeleteTopic:
		r = mc.deleteTopic(c.DeleteTopic)
	case *storagev1.MetadataCommand_RemoveTopic:
		r = mc.removeTopic(c.RemoveTopic)
	case *storagev1.MetadataCommand_CreateGroup:
		r = mc.createGroup(c.CreateGroup)
	case *storagev1.MetadataCommand_AlterGroup:
		r = mc.alterGroup(c.AlterGroup)
	case *storagev1.MetadataCommand_PauseGroup:
		r = mc.pauseGroup(c.PauseGroup)
	case *storagev1.MetadataCommand_FinishGroup:
		r = mc.finishGroup(c.FinishGroup)
	case *storagev1.MetadataCommand_DeleteGroup:
		r = mc.deleteGroup(c.DeleteGroup)
	case *storagev1.MetadataCommand_RemoveGroup:
		r = mc.removeGroup(c.RemoveGroup)
	case *storagev1.MetadataCommand_Join:
		r = mc.join(c.Join)
	case *storagev1.MetadataCommand_Leave:
		r = mc.leave(c.Leave)
	case *storagev1.MetadataCommand_Expire:
		r = mc.expire(c.Expire)
	case *storagev1.MetadataCommand_SetAuthority:
		r = mc.setAuthority(c.SetAuthority)
	case *storagev1.MetadataCommand_AddNode:
		r = mc.addNode(c.AddNode)
	case *storagev1.MetadataCommand_UpdateNode:
		r = mc.updateNode(c.UpdateNode)
	case *storagev1.MetadataCommand_DrainNode:
		r = mc.drainNode(c.DrainNode)
	case *storagev1.MetadataCommand_LoseNode:
		r = mc.loseNode(c.LoseNode)
	case *storagev1.MetadataCommand_RemoveNode:
		r = mc.removeNode(c.RemoveNode)
	case *storagev1.MetadataCommand_CreateJoinToken:
		r = mc.createJoinToken(c.CreateJoinToken)
	case *storagev1.MetadataCommand_PlaceReplicas:
		r = mc.placeReplicas(c.PlaceReplicas)
	case *storagev1.MetadataCommand_SettleReplicas:
		r = mc.settleReplicas(c.SettleReplicas)
	case *storagev1.MetadataCommand_LeftReplica:
		r = mc.leftReplica(c.LeftReplica)
	case *storagev1.MetadataCommand_DamagedReplica:
		r = mc.damagedReplica(c.DamagedReplica)
	case *storagev1.MetadataCommand_AddEvents:
		r = mc.addEvents(c.AddEvents)
	case *storagev1.MetadataCommand_NoteNodes:
		r = mc.noteNodes(c.NoteNodes)
	default:
		return nil, &ErrFormat{At: at, What: "a command of an unknown kind"}
	}
	return r, nil
}

func refuse(err error) *result { return &result{err: err} }

func (mc *machine) bootstrap(c *storagev1.Bootstrap) *result {
	if c.GetClusterId() == "" {
		return refuse(&ErrInvalid{Faults: []Fault{{"cluster_id", "it is empty"}}})
	}
	cl := &mc.edit().Cluster
	cl.ID, cl.TokenSecret = c.ClusterId, c.TokenSecret
	return &result{}
}

// edit is the map that this entry may write to: a copy, made once, of the map
// that readers have.
func (mc *machine) edit() *Map {
	if !mc.draft {
		m := *mc.m
		m.Revision = uint64(mc.at)
		mc.m, mc.draft = &m, true
	}
	return mc.m
}

func (mc *machine) touch(k rowKey) { mc.dirty[k] = struct{}{} }

// putTopic puts a new value of a topic into the map and its row.
func (mc *machine) putTopic(t *Topic) {
	t.Revision = uint64(mc.at)
	mc.setTopic(t)
	mc.touch(rowKey{kind: rowTopic, id: uint64(t.ID)})
}

// setTopic puts a new value of a topic into the map. Its groups are no part of
// its row.
func (mc *machine) setTopic(t *Topic) {
	m := mc.edit()
	m.topics = with(m.topics, t, topicName)
	m.topicsByID = with(m.topicsByID, t, topicID)
}

// putGroup puts a new value of a group into the map and its row.
func (mc *machine) putGroup(g *Group) {
	m := mc.edit()
	m.groupsByID = with(m.groupsByID, g, groupID)
	t := *mc.topicOf(g)
	t.groups = with(t.groups, g, groupName)
	mc.setTopic(&t)
	mc.touch(rowKey{kind: rowGroup, id: uint64(g.ID)})
}

// topicOf is a group's topic: a group never outlives it.
func (mc *machine) topicOf(g *Group) *Topic {
	t, ok := mc.m.TopicByID(g.Topic)
	if !ok {
		panic(fmt.Sprintf("coordinator: group %v has no topic %v", g.ID, g.Topic))
	}
	return t
}
