package nemesis

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Net is a bridge with a network namespace for each node. Nothing else is on it: the
// addresses are those set aside for benchmarks, and exist in the namespaces only.
type Net struct {
	name  string // of the bridge; the namespaces add a number
	nodes []*Space
}

// Space is the namespace of one node.
type Space struct {
	name   string // of its end on the bridge too
	number int    // from 0
	ns     *os.File
}

// NewNet makes the network. An error says why this machine does not allow it.
func NewNet(nodes int) (*Net, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("network namespaces need the command %s (package iproute2): %w", tool, err)
		}
	}
	n := &Net{name: fmt.Sprintf("smq%d", os.Getpid()%100_000)}
	if err := n.build(nodes); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Net) build(nodes int) error {
	if err := run("ip", "link", "add", n.name, "type", "bridge"); err != nil {
		return err
	}
	if err := run("ip", "link", "set", n.name, "up"); err != nil {
		return err
	}
	for i := range nodes {
		s := &Space{name: fmt.Sprintf("%s-%d", n.name, i+1), number: i}
		if err := run("ip", "netns", "add", s.name); err != nil {
			return err
		}
		n.nodes = append(n.nodes, s)
		var err error
		if s.ns, err = os.Open(filepath.Join("/run/netns", s.name)); err != nil {
			return err
		}
		for _, words := range [][]string{
			{"link", "add", s.name, "type", "veth", "peer", "name", "eth0", "netns", s.name},
			{"link", "set", s.name, "master", n.name, "up"},
			{"-n", s.name, "link", "set", "eth0", "address", s.mac(), "up"},
			{"-n", s.name, "link", "set", "lo", "up"},
			{"-n", s.name, "addr", "add", s.Address() + "/24", "dev", "eth0"},
		} {
			if err := run("ip", words...); err != nil {
				return err
			}
		}
	}
	for from := range n.nodes {
		for to := range n.nodes {
			if from != to {
				if err := n.Heal(Way{from, to}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Close takes it all down. The processes in it have to be gone.
func (n *Net) Close() error {
	var errs []error
	for _, s := range n.nodes {
		// By name: a namespace lives on while a socket in it does, and its links too.
		if _, err := net.InterfaceByName(s.name); err == nil {
			errs = append(errs, run("ip", "link", "del", s.name))
		}
		if s.ns != nil {
			errs = append(errs, s.ns.Close())
		}
		errs = append(errs, run("ip", "netns", "del", s.name))
	}
	if _, err := net.InterfaceByName(n.name); err == nil {
		errs = append(errs, run("ip", "link", "del", n.name))
	}
	return errors.Join(errs...)
}

// Space is a node's namespace.
func (n *Net) Space(node int) *Space { return n.nodes[node] }

// Cut lets nothing arrive any more in one direction. The sender learns nothing of it.
func (n *Net) Cut(w Way) error {
	return n.neighbour(w, "02:00:00:00:00:ff") // nobody's
}

// Heal lets it arrive again.
func (n *Net) Heal(w Way) error {
	return n.neighbour(w, n.nodes[w.To].mac())
}

func (n *Net) neighbour(w Way, mac string) error {
	return run("ip", "-n", n.nodes[w.From].name, "neigh", "replace", n.nodes[w.To].Address(), "lladdr", mac, "nud", "permanent", "dev", "eth0")
}

// Narrow sends what a node sends through a link of so many bits a second, which holds
// up to 300 ms of it and drops the rest.
func (n *Net) Narrow(node, rate int) error {
	return n.tc(node, "qdisc", "replace", "dev", "eth0", "root", "tbf",
		"rate", fmt.Sprintf("%dbit", rate), "burst", "8kb", "latency", "300ms")
}

// Lose drops a share of what a node sends: a filter that draws a random number for each
// packet sends it to a class that keeps none. netem would do it too, and not every
// kernel has it.
func (n *Net) Lose(node int, share float64) error {
	// ld random; jge share, to the second return; ret "of the class"; ret "go on"
	filter := fmt.Sprintf("4,32 0 0 %d,53 1 0 %d,6 0 0 4294967295,6 0 0 0", uint32(math.MaxUint32-4096+1+56), uint32(share*math.MaxUint32))
	for _, words := range [][]string{
		{"qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10", "r2q", "100000"},
		{"class", "replace", "dev", "eth0", "parent", "1:", "classid", "1:10", "htb", "rate", "10gbit"},
		{"class", "replace", "dev", "eth0", "parent", "1:", "classid", "1:20", "htb", "rate", "10gbit"},
		{"qdisc", "replace", "dev", "eth0", "parent", "1:20", "handle", "20:", "blackhole"},
		{"filter", "replace", "dev", "eth0", "parent", "1:", "protocol", "all", "prio", "1", "bpf", "bytecode", filter, "flowid", "1:20"},
	} {
		if err := n.tc(node, words...); err != nil {
			return err
		}
	}
	return nil
}

// Plain ends Narrow and Lose.
func (n *Net) Plain(node int) error {
	return n.tc(node, "qdisc", "del", "dev", "eth0", "root")
}

func (n *Net) tc(node int, words ...string) error {
	return run("tc", append([]string{"-n", n.nodes[node].name}, words...)...)
}

// Address is where other nodes reach this one.
func (s *Space) Address() string { return fmt.Sprintf("198.18.0.%d", s.number+1) }

func (s *Space) mac() string { return fmt.Sprintf("02:00:00:00:00:%02x", s.number+1) }

// Do calls f in the namespace: sockets that it opens and processes that it starts are
// in it for good.
func (s *Space) Do(f func() error) error {
	done := make(chan error, 1)
	// The thread is not given back: what cannot return to where it was must not run
	// anything else, and a thread ends with a goroutine that keeps it.
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(s.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering the network namespace %s: %w", s.name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Dial opens a connection from within the namespace to an address with a number.
func (s *Space) Dial(address string) (c net.Conn, err error) {
	err = s.Do(func() error {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err = d.Dial("tcp", address)
		return err
	})
	return c, err
}

// run runs a command and tells what it said when it fails.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
