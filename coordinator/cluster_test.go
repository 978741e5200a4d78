package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/partition"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// cluster runs the commands of nodes and placements.
func (s *scenario) cluster(d *datadriven.TestData, arg func(int) string, num func(string) *int64, text func(string) string) (string, error) {
	ctx := context.Background()
	nodeArg := func(v string) partition.NodeID {
		n, err := strconv.ParseUint(strings.TrimPrefix(v, "n"), 10, 64)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		return partition.NodeID(n)
	}
	partitionArg := func(v string) partition.PartitionID {
		n, err := strconv.ParseUint(strings.TrimPrefix(v, "p"), 10, 64)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		return partition.PartitionID(n)
	}
	address := Address{Store: text("store"), Zone: text("zone"), Peer: text("peer"), API: text("api")}
	if n := num("boot"); n != nil {
		address.Boot = uint64(*n)
	}
	if n := num("life"); n != nil {
		address.Life = uint64(*n)
	}
	// earlier=1:11/2:22 are starts by boot number and life.
	var earlier []Start
	for word := range strings.SplitSeq(text("earlier"), "/") {
		var at Start
		if n, _ := fmt.Sscanf(word, "%d:%d", &at.Boot, &at.Life); n == 2 {
			earlier = append(earlier, at)
		}
	}
	nodeText := func(n *Node, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v %v\n", n.ID, n.State), nil
	}
	placeText := func(p *Partition, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return partitionText(p) + "\n", nil
	}
	switch d.Cmd {
	case "found":
		return nodeText(s.c.Found(ctx, address, earlier...))
	case "token":
		secret := []byte{byte(len(s.tokens))}
		valid := int64(60_000)
		if n := num("valid"); n != nil {
			valid = *n
		}
		t, err := s.c.CreateJoinToken(ctx, HashToken(secret), partition.Millis(valid))
		if err != nil {
			return "", err
		}
		s.tokens = append(s.tokens, secret)
		return fmt.Sprintf("token %d until %d\n", len(s.tokens), t.Expires), nil
	case "add-node":
		hash := HashToken([]byte("never given"))
		if n := num("token"); n != nil {
			hash = HashToken(s.tokens[*n-1])
		}
		return nodeText(s.c.AddNode(ctx, hash, address, earlier...))
	case "update-node":
		return nodeText(s.c.UpdateNode(ctx, nodeArg(arg(0)), address, earlier...))
	case "drain", "undrain":
		return nodeText(s.c.DrainNode(ctx, nodeArg(arg(0)), d.Cmd == "drain"))
	case "lose":
		return nodeText(s.c.LoseNode(ctx, nodeArg(arg(0)), text("confirm")))
	case "remove":
		return nodeText(s.c.RemoveNode(ctx, nodeArg(arg(0)), text("confirm")))
	case "place":
		var nodes []partition.NodeID
		for i := 1; arg(i) != ""; i++ {
			nodes = append(nodes, nodeArg(arg(i)))
		}
		dry := s.c.CheckPlace(partitionArg(arg(0)), nodes)
		p, err := s.c.Place(ctx, partitionArg(arg(0)), nodes)
		if fmt.Sprint(dry) != fmt.Sprint(err) {
			d.Fatalf(s.t, "the dry run said %v, and placing %v", dry, err)
		}
		return placeText(p, err)
	case "settle":
		return placeText(s.c.Settle(ctx, partitionArg(arg(0)), uint64(*num("placement"))))
	case "left":
		node, incarnation, _ := strings.Cut(arg(1), ".")
		inc, _ := strconv.ParseUint(incarnation, 10, 32)
		return "", s.c.Left(ctx, partitionArg(arg(0)), partition.NewReplicaID(nodeArg(node), uint32(inc)))
	case "damaged":
		node, incarnation, _ := strings.Cut(arg(1), ".")
		inc, _ := strconv.ParseUint(incarnation, 10, 32)
		return placeText(s.c.Damaged(ctx, partitionArg(arg(0)), partition.NewReplicaID(nodeArg(node), uint32(inc)), "a block of "+arg(1)))
	case "settle-all":
		return "", s.settleAll(ctx)
	case "reach", "miss":
		for i := 0; arg(i) != ""; i++ {
			if err := s.c.Reached(nodeArg(arg(i)), d.Cmd == "reach"); err != nil {
				return "", err
			}
		}
		return "", nil
	case "plan":
		plan := s.c.Plan()
		if n := text("without"); n != "" {
			var err error
			if plan, err = s.c.PlanWithout(nodeArg(n), d.HasArg("lost")); err != nil {
				return "", err
			}
		}
		return planText(plan), nil
	case "deleted":
		return fmt.Sprintln(s.c.View().Deleted(partitionArg(arg(0)))), nil
	}
	d.Fatalf(s.t, "unknown command %s", d.Cmd)
	return "", nil
}

func planText(plan placement.Plan) string {
	var b strings.Builder
	for _, m := range plan.Moves {
		fmt.Fprintf(&b, "%v %v -> %v: %s\n", m.Partition, m.From, m.To, m.Why)
	}
	for _, s := range plan.Stuck {
		fmt.Fprintf(&b, "%v stuck, %s: %s\n", s.Partition, s.Why, s.Needs)
	}
	return b.String()
}

// settleAll does what nodes do: every partition's voters become those wanted, and
// what left is erased.
func (s *scenario) settleAll(ctx context.Context) error {
	for p := range s.c.View().Partitions() {
		if _, err := s.c.Settle(ctx, p.ID, p.Placement); err != nil {
			return err
		}
		now, _ := s.c.View().Partition(p.ID)
		for _, l := range slices.Clone(now.Leaving) {
			if err := s.c.Left(ctx, p.ID, l.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// clusterCommand draws a command of nodes and placements, again over few values.
func clusterCommand(t *rapid.T, next counters, m *Map, cmd *storagev1.MetadataCommand, kind int) {
	node := func() uint64 { return rapid.Uint64Range(0, uint64(next.node)).Draw(t, "node") }
	part := func() uint64 { return rapid.Uint64Range(0, uint64(next.partition)).Draw(t, "partition") }
	// Mostly the present one.
	placement := func(id uint64) uint64 {
		p, ok := m.Partition(partition.PartitionID(id))
		if !ok || rapid.IntRange(0, 7).Draw(t, "stale") == 0 {
			return 3
		}
		return p.Placement
	}
	hash := func() []byte {
		h := HashToken([]byte{byte(rapid.IntRange(0, 3).Draw(t, "token"))})
		return h[:]
	}
	address := &storagev1.NodeAddress{
		Store: rapid.SampledFrom([]string{"", "s1", "s2", "s3", "s4", "s5", "s6", "s7"}).Draw(t, "store"),
		Boot:  rapid.Uint64Range(0, 2).Draw(t, "boot"),
		Zone:  rapid.SampledFrom([]string{"", "a", "no zone"}).Draw(t, "zone"),
	}
	switch kind {
	case 21:
		cmd.Command = &storagev1.MetadataCommand_SetAuthority{SetAuthority: &storagev1.SetAuthority{Certificate: []byte("c"), Key: []byte(rapid.SampledFrom([]string{"", "k"}).Draw(t, "key"))}}
	case 22:
		cmd.Command = &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{Node: node(), Address: address}}
	case 23, 24, 25, 26:
		cmd.Command = &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{TokenHash: hash(), Address: address}}
	case 27:
		cmd.Command = &storagev1.MetadataCommand_UpdateNode{UpdateNode: &storagev1.UpdateNode{Node: node(), Address: address}}
	case 28:
		cmd.Command = &storagev1.MetadataCommand_DrainNode{DrainNode: &storagev1.DrainNode{Node: node(), Draining: rapid.Bool().Draw(t, "drain")}}
	case 29:
		cmd.Command = &storagev1.MetadataCommand_LoseNode{LoseNode: &storagev1.LoseNode{Node: node()}}
	case 30:
		cmd.Command = &storagev1.MetadataCommand_RemoveNode{RemoveNode: &storagev1.RemoveNode{Node: node()}}
	case 31, 32:
		cmd.Command = &storagev1.MetadataCommand_CreateJoinToken{CreateJoinToken: &storagev1.CreateJoinToken{Hash: hash(), ExpiresMs: rapid.Int64Range(0, 3000).Draw(t, "expires")}}
	case 33, 34, 35, 36:
		place := &storagev1.PlaceReplicas{}
		for range rapid.IntRange(0, 2).Draw(t, "placements") {
			id := part()
			place.Placements = append(place.Placements, &storagev1.Placement{
				PartitionId: id, Placement: placement(id),
				Nodes: rapid.SliceOfN(rapid.Uint64Range(1, max(uint64(next.node), 1)), 1, 4).Draw(t, "nodes"),
			})
		}
		cmd.Command = &storagev1.MetadataCommand_PlaceReplicas{PlaceReplicas: place}
	case 37, 38:
		settle := &storagev1.SettleReplicas{}
		for range rapid.IntRange(0, 2).Draw(t, "settled") {
			id := part()
			settle.Settled = append(settle.Settled, &storagev1.Settled{PartitionId: id, Placement: placement(id)})
		}
		cmd.Command = &storagev1.MetadataCommand_SettleReplicas{SettleReplicas: settle}
	case 39:
		cmd.Command = &storagev1.MetadataCommand_LeftReplica{LeftReplica: &storagev1.LeftReplica{PartitionId: part(), Replica: uint64(partition.NewReplicaID(partition.NodeID(node()), rapid.Uint32Range(0, 2).Draw(t, "incarnation")))}}
	case 41, 42, 43:
		id := part()
		r := uint64(partition.NewReplicaID(partition.NodeID(node()), rapid.Uint32Range(0, 2).Draw(t, "incarnation")))
		if p, ok := m.Partition(partition.PartitionID(id)); ok && len(p.Replicas) > 0 && kind > 41 {
			r = uint64(rapid.SampledFrom(p.Replicas).Draw(t, "replica"))
		}
		cmd.Command = &storagev1.MetadataCommand_DamagedReplica{DamagedReplica: &storagev1.DamagedReplica{PartitionId: id, Replica: r, Why: "a block"}}
	case 44:
		id := part()
		if p, ok := m.Partition(partition.PartitionID(id)); ok && p.Rebuild.ID != 0 {
			cmd.Command = &storagev1.MetadataCommand_LeftReplica{LeftReplica: &storagev1.LeftReplica{PartitionId: id, Replica: uint64(p.Rebuild.ID)}}
			break
		}
		cmd.Command = &storagev1.MetadataCommand_SettleReplicas{SettleReplicas: &storagev1.SettleReplicas{Settled: []*storagev1.Settled{{PartitionId: id, Placement: placement(id)}}}}
	case 40:
		list := &storagev1.NodeList{Nodes: rapid.SliceOfN(rapid.Uint64Range(1, max(uint64(next.node), 1)), 1, 3).Draw(t, "nodes")}
		cmd.Command = &storagev1.MetadataCommand_CreateTopic{CreateTopic: &storagev1.CreateTopic{Name: "a", Partitions: 2, Placements: []*storagev1.NodeList{list, list}}}
	}
}

// soundCluster checks what must hold of nodes and placements at any time.
func soundCluster(mc *machine) error {
	m := mc.m
	if mc.members() > mc.limits.nodes {
		return fmt.Errorf("%d nodes", mc.members())
	}
	if len(m.nodes) > 0 && m.active() == 0 {
		return fmt.Errorf("no node is active")
	}
	stores := map[string]bool{}
	for _, n := range m.nodes {
		if stores[n.Store] {
			return fmt.Errorf("store %s is two nodes", n.Store)
		}
		stores[n.Store] = true
		if n.ID >= mc.next.node {
			return fmt.Errorf("%v would be given out again", n.ID)
		}
		if n.State == Removed && m.partitionsOn(n.ID) > 0 {
			return fmt.Errorf("%v is removed and holds partitions", n.ID)
		}
	}
	for p := range m.Partitions() {
		if (len(p.Replicas) == 0) != (len(m.nodes) == 0) {
			return fmt.Errorf("%v has %d replicas with %d nodes", p.ID, len(p.Replicas), len(m.nodes))
		}
		held := map[partition.NodeID]bool{}
		check := func(r partition.ReplicaID) error {
			n, ok := m.Node(r.Node())
			switch {
			case held[r.Node()]:
				return fmt.Errorf("%v has two replicas on %v", p.ID, r.Node())
			case !ok || n.State == Removed:
				return fmt.Errorf("%v has a replica on %v, which is gone", p.ID, r.Node())
			case r.Incarnation() >= p.nextIncarnation:
				return fmt.Errorf("%v of %v would be given out again", r, p.ID)
			}
			held[r.Node()] = true
			return nil
		}
		voters := false
		for _, r := range p.Replicas {
			if err := check(r); err != nil {
				return err
			}
			voters = voters || p.voted(r)
		}
		for _, l := range p.Leaving {
			if err := check(l.ID); err != nil {
				return err
			}
			if !l.Out && !p.Moving() {
				return fmt.Errorf("%v is settled and %v has its vote", p.ID, l.ID)
			}
			voters = voters || !l.Out && p.voted(l.ID)
		}
		if len(p.Replicas) > 0 && !voters {
			return fmt.Errorf("%v: nobody that is left has ever voted", p.ID)
		}
		if n := len(p.Replicas); n > 0 && (n%2 == 0) != p.comesAgain(p.Rebuild.ID.Node()) {
			return fmt.Errorf("%v has %d replicas, and %v is made anew", p.ID, n, p.Rebuild.ID)
		}
		if m.Deleted(p.ID) {
			return fmt.Errorf("%v is here and taken for deleted", p.ID)
		}
	}
	return nil
}

// Dry runs say what the call would, and change nothing; the authority is given
// once; who is there is known to the leader only.
func TestClusterCalls(t *testing.T) {
	h, c := newMemHost(t, 10_000)
	ctx := context.Background()
	if _, err := c.Bootstrap(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Found(ctx, Address{Store: "s1", Boot: 1}); err != nil {
		t.Fatal(err)
	}
	own := Authority{Certificate: []byte("c"), Key: []byte("k")}
	for _, a := range []Authority{own, {Certificate: []byte("other"), Key: []byte("other")}} {
		if got, err := c.SetAuthority(ctx, a); err != nil || string(got.Certificate) != "c" || string(got.Key) != "k" {
			t.Errorf("authority %s, %v", got, err)
		}
	}
	var last *ErrLastNode
	for what, err := range map[string]error{"drain": c.CheckDrain(1), "lose": c.CheckLose(1), "remove": c.CheckRemove(1)} {
		if !errors.As(err, &last) || last.Node != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
	token, err := c.CreateJoinToken(ctx, HashToken([]byte("a secret")), 1000)
	if err != nil || token.Hash != HashToken([]byte("a secret")) {
		t.Fatalf("%+v, %v", token, err)
	}
	if _, err := c.AddNode(ctx, token.Hash, Address{Store: "s2"}); err != nil {
		t.Fatal(err)
	}
	before := dump(c.View())
	if err := c.CheckDrain(2); err != nil {
		t.Error(err)
	}
	if err := c.CheckLose(2); err != nil {
		t.Error(err)
	}
	if err := c.CheckRemove(2); err != nil {
		t.Error(err)
	}
	if after := dump(c.View()); after != before {
		t.Errorf("dry runs changed\n%sto\n%s", before, after)
	}
	h.pass(5000)
	if ms, ok := c.Silent(2); !ok || ms < 5000 {
		t.Errorf("silent for %d, known %v", ms, ok)
	}
	if ms, ok := c.Silent(1); !ok || ms != 0 {
		t.Errorf("the leader itself is silent for %d, known %v", ms, ok)
	}
	if err := c.Reached(2, true); err != nil {
		t.Fatal(err)
	}
	if ms, ok := c.Silent(2); !ok || ms != 0 {
		t.Errorf("silent for %d, known %v", ms, ok)
	}
	h.app.Lead(false)
	if _, ok := c.Silent(2); ok {
		t.Error("who does not lead knows who is there")
	}
}

// Who has just come to lead has heard of nobody: what is too few then is said to be so for
// want of hearing, and goes well when one more is heard of. Later it is so.
func TestTooFewAreHeardOf(t *testing.T) {
	h, c := newMemHost(t, 30_000)
	h.lead()
	ctx := t.Context()
	if _, err := c.Found(ctx, Address{Store: "s1"}); err != nil {
		t.Fatal(err)
	}
	for n := 2; n <= 3; n++ {
		secret := HashToken([]byte{byte(n)})
		if _, err := c.CreateJoinToken(ctx, secret, 60_000); err != nil {
			t.Fatal(err)
		}
		if _, err := c.AddNode(ctx, secret, Address{Store: fmt.Sprint("s", n)}); err != nil {
			t.Fatal(err)
		}
	}
	few := func(name string, unheard ...partition.NodeID) {
		t.Helper()
		var not *ErrReplication
		if _, _, err := c.CreateTopic(ctx, TopicSpec{Name: name}); !errors.As(err, &not) || not.There != 1 || !slices.Equal(not.Unheard, unheard) {
			t.Errorf("%v, %+v; want that nobody has heard of %v", err, not, unheard)
		}
	}
	h.app.Lead(false)
	h.lead()
	h.pass(100)
	few("t", 2, 3)
	h.pass(silentAfter)
	few("t")
	h.app.Lead(false)
	h.lead()
	h.pass(100)
	few("t", 2, 3)
	five := &strandmqv1.TopicConfig{Replication: proto.Uint32(5)}
	var not *ErrReplication
	if _, _, err := c.CreateTopic(ctx, TopicSpec{Name: "u", Config: five}); !errors.As(err, &not) || len(not.Unheard) > 0 {
		t.Errorf("of five there are three: %v, %+v", err, not)
	}
	if err := c.Reached(3, true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.CreateTopic(ctx, TopicSpec{Name: "t"}); err != nil {
		t.Error(err)
	}
}

// A topic whose nodes go while it is being placed is placed again.
func TestPlacedAgain(t *testing.T) {
	mc := newMachine()
	must(t, mc, first("s1"))
	create := createTopic("t", 1)
	create.GetCreateTopic().Placements = []*storagev1.NodeList{{Nodes: []uint64{7}}}
	var conflict *ErrConflict
	if r := must(t, mc, create); !errors.As(r.err, &conflict) {
		t.Errorf("on a node that is not there: %v", r.err)
	}
	var invalid *ErrInvalid
	for _, lists := range [][]*storagev1.NodeList{{{Nodes: []uint64{1, 1, 1}}}, {{}}, {{Nodes: []uint64{1}}, {Nodes: []uint64{1}}}} {
		create.GetCreateTopic().Placements = lists
		if r := must(t, mc, create); !errors.As(r.err, &invalid) {
			t.Errorf("%v: %v", lists, r.err)
		}
	}
}

func TestNodeLimits(t *testing.T) {
	mc := newMachine()
	mc.limits.nodes, mc.limits.tokens = 2, 1
	must(t, mc, first("s1"))
	token := func(secret string, now, expires int64) *result {
		h := HashToken([]byte(secret))
		return must(t, mc, &storagev1.MetadataCommand{NowMs: now, Command: &storagev1.MetadataCommand_CreateJoinToken{CreateJoinToken: &storagev1.CreateJoinToken{Hash: h[:], ExpiresMs: expires}}})
	}
	add := func(secret, store string) *result {
		h := HashToken([]byte(secret))
		return must(t, mc, &storagev1.MetadataCommand{Command: &storagev1.MetadataCommand_AddNode{AddNode: &storagev1.AddNode{TokenHash: h[:], Address: &storagev1.NodeAddress{Store: store}}}})
	}
	var limit *ErrLimit
	if r := token("a", 0, 100); r.err != nil {
		t.Fatal(r.err)
	}
	if r := token("b", 0, 100); !errors.As(r.err, &limit) {
		t.Errorf("two open tokens: %v", r.err)
	}
	if r := add("a", "s2"); r.err != nil || r.node.ID != 2 {
		t.Fatalf("%+v", r)
	}
	if r := token("b", 0, 100); r.err != nil {
		t.Errorf("a used token is in the way: %v", r.err)
	}
	if r := add("b", "s3"); !errors.As(r.err, &limit) {
		t.Errorf("a third node: %v", r.err)
	}
	// Long after, they are forgotten.
	if r := token("c", 1000+int64(rememberTokens), 2000+int64(rememberTokens)); r.err != nil || len(mc.m.tokens) != 1 {
		t.Errorf("%v, %d tokens", r.err, len(mc.m.tokens))
	}
	rows := memRows{}
	if err := mc.checkpoint(rows); err != nil {
		t.Fatal(err)
	}
	if back, err := restore(rows); err != nil || describe(back) != describe(mc) {
		t.Errorf("%v", err)
	}
}

// A token can be made, and is good for its time, when another leader's clock was
// ahead: the log's clock only goes forward.
func TestTokenBehindTheLogsClock(t *testing.T) {
	h, c := newMemHost(t, 1000)
	ctx := context.Background()
	if _, err := c.Found(ctx, Address{Store: "s1"}); err != nil {
		t.Fatal(err)
	}
	ahead := h.now
	h.now -= 3_600_000
	token, err := c.CreateJoinToken(ctx, HashToken([]byte("a secret")), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if want := ahead + 1000; token.Expires != want {
		t.Errorf("it expires at %d; want %d", token.Expires, want)
	}
	if _, err := c.AddNode(ctx, token.Hash, Address{Store: "s2"}); err != nil {
		t.Error(err)
	}
}
