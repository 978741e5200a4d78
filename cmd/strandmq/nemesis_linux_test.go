package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/nemesis"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// diskSize is what each node of TestNemesis has: enough for a run, little enough to be
// filled in a moment.
const diskSize = 1 << 30

// sea is what the squadron of TestNemesis swims in.
type sea struct {
	f     *squadron
	net   *nemesis.Net
	disks []*nemesis.Disk
}

// TestNemesis has three real processes, each in a network namespace and on a disk of its
// own, suffer every kind of fault that this machine can make, under a load with failing
// handlers, and judges the whole history: P1 to P9. `make nemesis` runs it.
func TestNemesis(t *testing.T) {
	seed, steps := nemesisPlan(t)
	network, err := nemesis.NewNet(3)
	if err != nil {
		t.Skipf("SKIPPED: no networks to cut on this machine: %v", err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &sea{net: network}
	var berths []berth
	for i := range 3 {
		d, err := nemesis.NewDisk(t.TempDir(), fmt.Sprintf("n%d", i+1), diskSize)
		if err != nil {
			t.Skipf("SKIPPED: no disks to cut off on this machine: %v", err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := d.SelfTest(); err != nil {
			t.Fatal(err)
		}
		w.disks = append(w.disks, d)
		space := network.Space(i)
		berths = append(berths, berth{
			folder: d.Dir(), peer: net.JoinHostPort(space.Address(), "7271"), within: space.Do, dial: space.Dial,
		})
	}
	w.f = startSquadron(t, berths)
	tr := &trial{
		t: t, f: w.f, s: &storm{t: t, api: w.f.any, seed: seed, ctx: t.Context()}, strike: w.strike,
		partitions: *nemesisPartitions, probes: *nemesisProbes, groups: *nemesisGroups,
	}
	tr.run(steps)
}

// strike does what a step says, and returns when it is healed.
func (w *sea) strike(step nemesis.Step) bool {
	s, disk := w.f.nodes[step.Node], w.disks[step.Node]
	switch step.Kind {
	case nemesis.Cut, nemesis.Deaf, nemesis.Mute, nemesis.Partial:
		w.each(step, w.net.Cut)
		time.Sleep(step.Lasts) // the load over what is left
		w.each(step, w.net.Heal)
	case nemesis.Flap:
		half := step.Lasts / time.Duration(2*step.Turns)
		for range step.Turns {
			w.each(step, w.net.Cut)
			time.Sleep(half) // the load over what is left
			w.each(step, w.net.Heal)
			time.Sleep(half) // and over all
		}
	case nemesis.Slow:
		w.must(w.net.Narrow(step.Node, step.Rate))
		time.Sleep(step.Lasts) // the load over it
		w.must(w.net.Plain(step.Node))
	case nemesis.Lossy:
		w.must(w.net.Lose(step.Node, step.Loss))
		time.Sleep(step.Lasts) // the load over it
		w.must(w.net.Plain(step.Node))
	case nemesis.Full:
		s.hurt = true
		w.must(disk.Fill(0))
		time.Sleep(step.Lasts) // the load with it
		w.must(disk.Empty())
	case nemesis.Stall:
		s.hurt = true
		w.must(disk.Freeze())
		time.Sleep(step.Lasts) // the load with it
		w.must(disk.Thaw())
	case nemesis.Power:
		w.dark(step.Lasts, step.Node)
	case nemesis.Dark:
		w.dark(step.Lasts, 0, 1, 2)
	case nemesis.Replace:
		w.replace(s)
	default:
		return w.f.simply(step)
	}
	return true
}

func (w *sea) must(err error) {
	w.f.t.Helper()
	if err != nil {
		w.f.t.Fatal(err)
	}
}

func (w *sea) each(step nemesis.Step, do func(nemesis.Way) error) {
	for _, way := range step.Severed(len(w.f.nodes)) {
		w.must(do(way))
	}
}

// dark cuts the power of some nodes: first their disks, so that nothing that they do
// until they are gone reaches them.
func (w *sea) dark(lasts time.Duration, nodes ...int) {
	for _, n := range nodes {
		w.must(w.disks[n].Cut())
	}
	for _, n := range nodes {
		w.f.nodes[n].signal(syscall.SIGKILL)
	}
	for _, n := range nodes {
		w.f.nodes[n].kill()
		w.must(w.disks[n].Off())
	}
	time.Sleep(lasts) // as long as the power is away
	for _, n := range nodes {
		w.must(w.disks[n].On())
		w.f.start(w.f.nodes[n], "")
	}
}

// replace loses a node with its disk, gives it up, and has a new one join in its place.
func (w *sea) replace(s *ship) {
	f := w.f
	by := f.nodes[(s.number+1)%len(f.nodes)]
	var lost uint64
	f.until("the cluster is asked who it is", func() error {
		res, err := look(f.t.Context(), s.api.node.NodeInfo, &strandmqv1.NodeInfoRequest{})
		lost = uint64(res.GetNode())
		return err
	})
	s.kill()
	w.must(os.RemoveAll(s.data))
	// The others may be choosing a leader just now.
	f.until(fmt.Sprintf("node n%d is given up", lost), func() error {
		_, err := look(f.t.Context(), by.api.cluster.ReplaceNode, &strandmqv1.ReplaceNodeRequest{Node: lost, Confirm: fmt.Sprintf("n%d", lost)})
		return err
	})
	f.join(s, by)
	f.serves(s)
}
