package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func (mc *machine) createGroup(c *storagev1.CreateGroup) *result {
	if err := names.Group(c.GetName()); err != nil {
		return refuse(err)
	}
	t, err := mc.topicFor(c.TopicId)
	if err != nil {
		return refuse(err)
	}
	if t.Phase != Ready {
		return refuse(busy(KindTopic, t.Name, t.Phase))
	}
	policy, start := c.Policy, c.Start
	if policy == nil {
		policy = &strandmqv1.GroupPolicy{}
	}
	if start == nil {
		start = &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
	}
	if g, ok := t.FindGroup(c.Name); ok {
		switch {
		case g.Phase == Deleting:
			return refuse(busy(KindGroup, g.Name, g.Phase))
		case !proto.Equal(g.Policy, policy):
			return refuse(&ErrExists{Kind: KindGroup, Name: g.Name, Differs: policyDiffers(g.Policy, policy)})
		}
		return &result{topic: t, group: g, existed: true}
	}
	if len(t.groups) >= mc.limits.groups {
		return refuse(&ErrLimit{"groups of a topic", mc.limits.groups})
	}
	g := &Group{
		ID: mc.next.group, Topic: t.ID, Name: c.Name, Phase: Creating,
		Policy: policy, Start: start, Created: mc.clock, Revision: 1,
	}
	mc.next.group++
	mc.edit().nextGroup = mc.next.group
	mc.putGroup(g)
	return &result{topic: mc.topicOf(g), group: g}
}

// policyDiffers names every field in which two policies differ, and how it is
// now.
func policyDiffers(have, want *strandmqv1.GroupPolicy) string {
	h, w := have.ProtoReflect(), want.ProtoReflect()
	fields := h.Descriptor().Fields()
	var all []string
	for i := range fields.Len() {
		f := fields.Get(i)
		if h.Has(f) != w.Has(f) || !h.Get(f).Equal(w.Get(f)) {
			all = append(all, fmt.Sprintf("its %s is %s now, not %s", f.Name(), fieldInWords(h, f), fieldInWords(w, f)))
		}
	}
	if len(all) == 0 {
		return "its policy has other fields"
	}
	return strings.Join(all, ", ")
}

// fieldInWords is a policy's field for people: 30s, 1GiB, key.
func fieldInWords(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	v, name := m.Get(f), string(f.Name())
	switch {
	case !m.Has(f):
		return "unset"
	case f.Enum() != nil:
		// An enum's first value is PREFIX_UNSPECIFIED, and all have the prefix.
		prefix := strings.TrimSuffix(string(f.Enum().Values().ByNumber(0).Name()), "UNSPECIFIED")
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return strings.ToLower(strings.TrimPrefix(string(e.Name()), prefix))
		}
	case strings.HasSuffix(name, "_ms"):
		return quantity.FormatMillis(v.Int())
	case strings.HasSuffix(name, "_bytes") && v.Uint() <= math.MaxInt64:
		return quantity.FormatSize(int64(v.Uint()))
	}
	return v.String()
}

// groupFor finds the group of a command that needs neither it nor its topic to
// be on its way out.
func (mc *machine) groupFor(id uint64) (*Group, error) {
	g, ok := mc.m.GroupByID(GroupID(id))
	if !ok {
		return nil, &ErrNotFound{Kind: KindGroup, Name: GroupID(id).String()}
	}
	if t := mc.topicOf(g); t.Phase == Deleting {
		return nil, busy(KindTopic, t.Name, t.Phase)
	}
	if g.Phase == Deleting {
		return nil, busy(KindGroup, g.Name, g.Phase)
	}
	return g, nil
}

func (mc *machine) alterGroup(c *storagev1.AlterGroup) *result {
	g, err := mc.groupFor(c.GetGroupId())
	switch {
	case err != nil:
		return refuse(err)
	case g.Revision != c.Revision:
		return refuse(&ErrConflict{KindGroup, g.Name})
	case c.Policy == nil || proto.Equal(g.Policy, c.Policy):
		return &result{group: g, existed: true}
	}
	next := *g
	next.Policy = c.Policy
	next.Revision++
	mc.putGroup(&next)
	return &result{group: &next}
}

func (mc *machine) pauseGroup(c *storagev1.PauseGroup) *result {
	g, err := mc.groupFor(c.GetGroupId())
	switch {
	case err != nil:
		return refuse(err)
	case g.Paused == c.Paused:
		return &result{group: g, existed: true}
	}
	next := *g
	next.Paused = c.Paused
	next.Revision++
	mc.putGroup(&next)
	return &result{group: &next}
}

func (mc *machine) finishGroup(c *storagev1.FinishGroup) *result {
	g, err := mc.groupFor(c.GetGroupId())
	if err != nil {
		return refuse(err)
	}
	// Two changes may be under way at once and finish in any order.
	logged := max(g.Logged, min(c.Revision, g.Revision))
	// A new group of which not every partition could be told is in use as well,
	// with nothing logged by all.
	if logged == g.Logged && g.Phase == Ready {
		return &result{group: g, existed: true}
	}
	next := *g
	next.Logged = logged
	next.Phase = Ready
	mc.putGroup(&next)
	return &result{group: &next}
}

func (mc *machine) deleteGroup(c *storagev1.DeleteGroup) *result {
	g, ok := mc.m.GroupByID(GroupID(c.GetGroupId()))
	switch {
	case !ok:
		return refuse(&ErrNotFound{Kind: KindGroup, Name: GroupID(c.GetGroupId()).String()})
	case g.Phase == Deleting:
		return &result{group: g, existed: true}
	}
	next := *g
	next.Phase = Deleting
	mc.setMembers(&next, nil, "the group is deleted")
	return &result{group: &next}
}

func (mc *machine) removeGroup(c *storagev1.RemoveGroup) *result {
	g, ok := mc.m.GroupByID(GroupID(c.GetGroupId()))
	switch {
	case !ok:
		return &result{existed: true}
	case g.Phase != Deleting:
		return refuse(&ErrInvalid{Faults: []Fault{{"group_id", fmt.Sprintf("group %s is %v; delete it before it is removed", plain.Quote(g.Name), g.Phase)}}})
	}
	m := mc.edit()
	m.groupsByID = without(m.groupsByID, g.ID, groupID)
	t := *mc.topicOf(g)
	t.groups = without(t.groups, g.Name, groupName)
	mc.setTopic(&t)
	mc.touch(rowKey{kind: rowGroup, id: uint64(g.ID)})
	return &result{group: g}
}

func (mc *machine) join(c *storagev1.Join) *result {
	g, err := mc.groupFor(c.GetGroupId())
	switch {
	case err != nil:
		return refuse(err)
	case g.Phase != Ready:
		return refuse(busy(KindGroup, g.Name, g.Phase))
	}
	if err := names.Member(c.Member); err != nil {
		return refuse(err)
	}
	if c.Session != 0 {
		if _, err := g.Session(c.Member, c.Session); err != nil {
			return refuse(err)
		}
	}
	old, ok := g.Member(c.Member)
	// A sign of life, which names the session, is none of a wish to take more; and a
	// stream that drains takes nothing more, whatever calls there are beside it.
	stays := ok && (c.Session != 0 || old.Stream)
	switch {
	case ok && c.Keep && !old.Away && (!old.Draining || stays):
		return &result{topic: mc.topicOf(g), group: g, member: old, existed: true}
	case ok && c.Keep:
		back, next := *old, *g
		back.Away = false
		back.Draining = old.Draining && stays
		mc.setMembers(&next, with(g.Members, &back, memberName), memberIs(c.Member, "is back"))
		r := &result{topic: mc.topicOf(&next), group: &next}
		r.member, _ = next.Member(c.Member)
		return r
	}
	members := g.Members
	if !ok && len(members) >= mc.limits.members {
		// Who is away takes no place from who comes: the one longest there goes.
		gone := longestAway(members)
		if gone == nil {
			return refuse(&ErrLimit{"members of a group", mc.limits.members})
		}
		members = without(members, gone.Name, memberName)
	}
	// A member that comes back under its name finds its shares as they were.
	mb := &Member{Name: c.Member, Session: mc.next.session, Joined: mc.clock, Stream: c.Stream}
	mc.next.session++
	mc.edit().lastSession = mb.Session
	r := &result{}
	why := memberIs(c.Member, "joined")
	if ok {
		why = memberIs(c.Member, "joined anew")
		mb.Shares = old.Shares
		r.replaced = old.Session
	}
	next := *g
	mc.setMembers(&next, with(members, mb, memberName), why)
	r.topic, r.group = mc.topicOf(&next), &next
	r.member, _ = next.Member(c.Member)
	return r
}

func (mc *machine) leave(c *storagev1.Leave) *result {
	g, ok := mc.m.GroupByID(GroupID(c.GetGroupId()))
	if !ok {
		return refuse(&ErrNotFound{Kind: KindGroup, Name: GroupID(c.GetGroupId()).String()})
	}
	m, err := g.Session(c.Member, c.Session)
	if err != nil {
		return refuse(err)
	}
	next := *g
	if !c.Drain {
		mc.setMembers(&next, without(g.Members, c.Member, memberName), memberIs(c.Member, "left"))
		return &result{group: &next}
	}
	if m.Draining && !m.Away {
		return &result{topic: mc.topicOf(g), group: g, member: m, existed: true}
	}
	drains := *m
	drains.Draining, drains.Away = true, false // it was heard of just now
	mc.setMembers(&next, with(g.Members, &drains, memberName), memberIs(c.Member, "drains"))
	r := &result{topic: mc.topicOf(&next), group: &next}
	r.member, _ = next.Member(c.Member)
	return r
}

func memberIs(name, what string) string { return fmt.Sprintf("member %s %s", plain.Quote(name), what) }

// silence tells of members that are heard of no more.
func silence(names []string) string {
	switch len(names) {
	case 0:
		return "members that drain are not heard of"
	case 1:
		return memberIs(names[0], "is not heard of")
	}
	return fmt.Sprintf("member %s and %d more are not heard of", plain.Quote(names[0]), len(names)-1)
}

// longestAway is, of the members that are away, the one with the oldest session;
// nil if none is away.
func longestAway(members []*Member) (oldest *Member) {
	for _, m := range members {
		if m.Away && (oldest == nil || m.Session < oldest.Session) {
			oldest = m
		}
	}
	return oldest
}

// expire is about each named session that still is its member's. Silence is all
// that the proposer knew, and it may be old: the member may have joined again,
// left, or lost its group since.
//
// A session of a stream ends. Without a stream silence says little: whoever works
// by hand, or for long, has the deadlines of its deliveries and nothing else. So
// its shares go to others, since what is new should not wait for it, and the
// session stays, without shares, until it is named again. One that drains has no
// shares, and is away all the same: what it holds is its own for as long.
func (mc *machine) expire(c *storagev1.Expire) *result {
	silent := make(map[GroupID][]string)
	var order []GroupID // the order of the command, the same everywhere
	for _, s := range c.GetSessions() {
		id := GroupID(s.GetGroupId())
		g, ok := mc.m.GroupByID(id)
		if !ok {
			continue
		}
		if m, err := g.Session(s.GetMember(), s.GetSession()); err != nil || m.Away != s.GetAway() {
			continue
		}
		if silent[id] == nil {
			order = append(order, id)
		}
		if !slices.Contains(silent[id], s.Member) {
			silent[id] = append(silent[id], s.Member)
		}
	}
	for _, id := range order {
		g, _ := mc.m.GroupByID(id)
		members := g.Members
		var ended, away []string
		for _, name := range silent[id] {
			if m, _ := g.Member(name); m.Stream || m.Away {
				members = without(members, name, memberName)
				ended = append(ended, name)
			} else {
				next := *m
				next.Away = true
				members = with(members, &next, memberName)
				if !m.Draining {
					away = append(away, name)
				}
			}
		}
		next := *g
		mc.setMembers(&next, members, silence(append(ended, away...)))
		h := Happening{Topic: mc.topicOf(g).Name, Group: g.Name}
		if n := len(ended); n > 0 {
			h.Kind, h.Count, h.Text = MemberExpired, uint64(n), "not heard of, and its session ended: "+ended[n-1]
			mc.record(h)
		}
		if n := len(away); n > 0 {
			h.Kind, h.Count, h.Text = MemberAway, uint64(n), "not heard of, and its shares went to others: "+away[n-1]
			mc.record(h)
		}
	}
	return &result{}
}

// setMembers gives g, a new value of a group, its members, assigns the
// partitions anew, notes why, and puts the group into the map.
func (mc *machine) setMembers(g *Group, members []*Member, why string) {
	before := g.Members
	g.Members = slices.Clone(members)
	var held [][]Share
	var present []int // who takes part, by place; who is away or drains gets nothing
	for i, m := range members {
		if m.Takes() {
			held, present = append(held, m.Shares), append(present, i)
		} else if len(m.Shares) > 0 {
			next := *m
			next.Shares = nil
			g.Members[i] = &next
		}
	}
	for i, shares := range assign(len(mc.topicOf(g).Partitions), held) {
		m := &g.Members[present[i]]
		if !slices.Equal((*m).Shares, shares) {
			next := **m
			next.Shares = shares
			*m = &next
		}
	}
	for _, m := range before {
		if now, ok := g.Member(m.Name); !ok || now != m {
			mc.touch(rowKey{kind: rowMember, id: uint64(g.ID), name: m.Name})
		}
	}
	for _, m := range g.Members {
		if old, ok := find(before, m.Name, memberName); !ok || old != m {
			mc.touch(rowKey{kind: rowMember, id: uint64(g.ID), name: m.Name})
		}
	}
	g.Generation++
	g.Changed, g.Why = 0, ""
	if mc.applied >= newsRules {
		g.Changed, g.Why = mc.clock, why
	}
	mc.edit().sessions += len(g.Members) - len(before)
	mc.putGroup(g)
}
