package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
)

// attendee is a member of the topic's group, as the metadata log knows members: it
// joins, gives signs of life, is silent for a while, and leaves.
type attendee struct {
	s       *Sim
	r       *rand.Rand
	name    string
	session uint64        // 0: none
	heard   time.Duration // when a sign of life was confirmed last
	busy    bool
	silent  time.Duration // until then
	quiet   bool
}

func (a *attendee) heal()          { a.quiet, a.silent = true, 0 }
func (a *attendee) undone() string { return "" }

func (a *attendee) loop() {
	a.s.after(a.s.between(a.r, 200*time.Millisecond, 2*time.Second), a.name, a.loop)
	if a.busy || a.s.now < a.silent {
		return
	}
	session, group := a.session, a.s.cluster.group
	asked := a.s.now
	a.busy = true
	switch k := a.r.IntN(40); {
	case session == 0:
		var got coordinator.Joined
		a.s.call(partition.Metadata, func(n *node) (err error) {
			got, err = n.coord.Join(context.Background(), topicName, groupName, a.name)
			return err
		}, func(err error) {
			a.busy = false
			if err == nil {
				a.session, a.heard = got.Member.Session, asked
			}
		})
	case k == 0 && !a.quiet:
		a.session = 0
		a.s.call(partition.Metadata, func(n *node) error { return n.coord.Leave(context.Background(), group, a.name, session) }, func(error) { a.busy = false })
	case k == 1 && !a.quiet:
		a.busy, a.silent = false, asked+a.s.between(a.r, time.Second, 3*sessionTime)
	default:
		a.s.call(partition.Metadata, func(n *node) error {
			if a.s.planted.is("unheard-members", 1) {
				return nil
			}
			_, err := n.coord.Heartbeat(context.Background(), group, a.name, session)
			return err
		}, func(err error) {
			var ended *coordinator.ErrSessionEnded
			var never *coordinator.ErrNoSession
			a.busy = false
			switch {
			case err == nil:
				a.heard = asked
			case errors.As(err, &ended):
				a.session = 0
			case errors.As(err, &never):
				// A leader of old may not know of it yet.
			case !mayRefuse(err):
				a.s.fault("a sign of life of %s: %v", a.name, err)
			}
		})
	}
}

// attend has members attend.
func (c *cluster) attend() {
	for i := range 1 + c.r.IntN(3) {
		a := &attendee{s: c.s, r: source(c.s.plan.seed, fmt.Sprintf("attendee %d", i)), name: fmt.Sprintf("a%d", i)}
		c.attendees = append(c.attendees, a)
		c.s.clients = append(c.s.clients, a)
		c.s.after(time.Second, a.name, a.loop)
	}
}
