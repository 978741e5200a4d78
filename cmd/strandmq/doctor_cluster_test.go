//go:build unix

package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/strandmq/strandmq/internal/doctor"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// On three nodes: each thing that is wrong with nodes is named first, by whichever node is
// asked, and is over when it is over.
func TestDoctorOnThree(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes; TestDiagnose has the same facts without them")
	}
	t.Parallel()
	berths := loopback(t, 3)
	link := newGate(t, berths[2].peer)
	berths[2].args = []string{"--peer-address", link.address()}
	f := startSquadron(t, berths)
	first, second, third := f.nodes[0], f.nodes[1], f.nodes[2]
	p := at(t, first.url, "orders", nil)
	p.store(5, "a", "b", "c")
	granted(t, p.api.groups.DeleteGroup, &strandmqv1.DeleteGroupRequest{Topic: "orders", Group: "g", Confirm: "g"})
	well := func(what string) {
		t.Helper()
		f.whole()
		for _, s := range f.nodes {
			until(t, what, func() bool {
				line, _, code := examine(t, s.url)
				return strings.HasPrefix(line, "nothing is wrong: 3 nodes, ") && code == exitDone
			})
		}
	}
	well("three nodes are well")

	// The others do not reach it, and it goes on. Whoever is asked says the same, also it.
	link.cut()
	for _, s := range f.nodes {
		diagnoses(t, s.url, doctor.NodesCutOff)
		until(t, "it is told once, of the one", func() bool {
			_, whole, _ := examine(t, s.url)
			return strings.Count(whole, string(doctor.NodesCutOff)) == 1 && strings.Contains(whole, "node n3 answers")
		})
	}
	link.mend()
	well("it is reached again")

	third.signal(syscall.SIGSTOP)
	diagnoses(t, first.url, doctor.NodeStuck)
	third.signal(syscall.SIGCONT)
	well("it goes on")

	third.kill()
	diagnoses(t, second.url, doctor.NodeDown)
	until(t, "since when", func() bool {
		_, whole, _ := examine(t, second.url)
		return strings.Contains(whole, "ago: strandmq events --kind NODE_SILENT --node n3")
	})
	second.kill()
	diagnoses(t, first.url, doctor.NoQuorum)
	until(t, "who is away, and what is not asked", func() bool {
		_, whole, _ := examine(t, first.url)
		return strings.Contains(whole, "n2 and n3 are away") && strings.Contains(whole, "not asked: ")
	})
	f.start(second, "")
	f.serves(second)
	diagnoses(t, second.url, doctor.NodeDown)

	// Who is asked first is dead: the others answer, and it is named. The fault is told
	// as any other's.
	dead := "http://" + third.listen
	diagnoses(t, dead+",http://"+first.listen, doctor.NodeDown)
	for _, args := range [][]string{{"doctor"}, {"check"}, {"top", "--once"}, {"events"}, {"topic", "list"}} {
		until(t, args[0]+" asks somebody else", func() bool {
			code, out, talk := strandmq(t, dead+",http://"+first.listen+","+second.url, "", args...)
			return code != 3 && (strings.Contains(out+talk, third.listen) || strings.Contains(out, "node n3 is away")) && !strings.Contains(out+talk, "no broker")
		})
	}

	// Its disk is given up, and there is no fourth node for what it held.
	if _, err := ask(t.Context(), first.api.cluster.ReplaceNode, &strandmqv1.ReplaceNodeRequest{Node: 3, Confirm: "n3"}); err != nil {
		t.Fatal(err)
	}
	diagnoses(t, first.url, doctor.UnderReplicated)
}

// gate carries connections to an address, as long as nobody cuts them.
type gate struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func newGate(t *testing.T, to string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: l, to: to}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() { g.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.cut()
		carrying.Wait()
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

// carry carries one connection.
func (g *gate) carry(c net.Conn) {
	defer func() { _ = c.Close() }()
	to, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	g.mu.Lock()
	shut := g.shut
	g.conns = append(g.conns, c, to)
	g.mu.Unlock()
	if shut {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(c, to)
		_ = c.Close()
	}()
	_, _ = io.Copy(to, c)
	_ = to.Close()
	<-back
}

// cut ends all connections, and those that come, until it is mended.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

func (g *gate) mend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}
