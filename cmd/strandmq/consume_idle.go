package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// sayIdle tells why there is nothing to do, when some of it is something else than what
// was told since something came, numbers apart. The broker names a few of the reasons, now
// these and then those.
func (c *consumption) sayIdle() {
	c.waited = true
	why := c.m.idle
	if why == nothingLeft && c.elsewhere != "" {
		why = c.elsewhere
	}
	if why == "" || time.Since(c.idleSaid) < idleEvery {
		return
	}
	if why == nothingLeft && !c.f.untilEmpty {
		c.idleTold = nil // what was waited for is over
		return           // what a consumer waits in all day
	}
	news := false
	for _, fact := range strings.Split(why, "; ") {
		kind := kindOf(fact)
		if !c.idleTold[kind] {
			news = true
			if c.idleTold == nil || len(c.idleTold) >= mostTold {
				c.idleTold = map[string]bool{}
			}
			c.idleTold[kind] = true
		}
	}
	if news {
		c.idleSaid = time.Now()
		c.a.talk("waiting: %s", plain.Short(why, 500))
	}
}

// mostTold bounds what is remembered of what was told.
const mostTold = 1000

// kindOf is a reason without its numbers, and alike for one and for many.
func kindOf(fact string) string {
	words := strings.Fields(strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, fact))
	for i, w := range words {
		switch w {
		case "are":
			w = "is"
		case "have":
			w = "has"
		}
		if stem, many := strings.CutSuffix(w, "ies"); many {
			w = stem + "y"
		}
		words[i] = strings.TrimSuffix(w, "s")
	}
	return strings.Join(words, " ")
}

// leftElsewhere says in words what a group has left in partitions that other
// members have, and who they are. Empty: nothing.
func leftElsewhere(res *strandmqv1.DescribeGroupResponse, member string) string {
	mine, owners := map[uint32]bool{}, map[uint32][]string{}
	for _, m := range res.GetMembers() {
		for _, s := range m.GetAssignment() {
			if m.GetName() == member {
				mine[s.GetPartition()] = true
			} else {
				owners[s.GetPartition()] = append(owners[s.GetPartition()], m.GetName())
			}
		}
	}
	var left uint64
	var names []string
	for _, p := range res.GetPartitions() {
		n, who := p.GetCounts().GetLag(), owners[p.GetPartition()]
		if n == 0 || mine[p.GetPartition()] || len(who) == 0 {
			continue
		}
		left += n
		for _, name := range who {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if left == 0 {
		return ""
	}
	slices.Sort(names)
	const few = 3
	more := ""
	if len(names) > few {
		more = fmt.Sprintf(" and %d more", len(names)-few)
		names = names[:few]
	}
	return fmt.Sprintf("%s messages are left in partitions of other members (%s%s): this one gets those when they leave, or make no call for the session timeout",
		quantity.Count(left), strings.Join(names, ", "), more)
}

const (
	// idleEvery is how often a reason to wait is told at most.
	idleEvery = 2 * time.Second
	// nothingLeft is what the broker says where the member's partitions have nothing
	// to wait for but publishers.
	nothingLeft = "everything in the member's partitions was handed out and settled"
)
