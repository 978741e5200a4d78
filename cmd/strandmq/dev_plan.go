package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// devPlan is where the nodes of a cluster of processes are. The folder keeps it: a
// cluster comes back on the same ports, by which its nodes know each other.
type devPlan struct {
	Nodes []devAddress `json:"nodes"`
}

// devAddress is where one node is.
type devAddress struct {
	API  string `json:"api"`  // address and port for clients
	Peer string `json:"peer"` // for nodes
}

// The files of a dev beside its nodes' folders.
const (
	devPlanFile = "dev.json"
	devLockFile = "dev.lock" // held by the process, whose number is in it
)

// devFolder makes the folder, if it is not there. One with other files is refused.
func devFolder(folder string) error {
	ls, err := os.ReadDir(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.MkdirAll(folder, 0o700)
	case err != nil:
		return err
	}
	var others []string
	for _, f := range ls {
		switch f.Name() {
		case devPlanFile:
			return nil
		case devLockFile:
		default:
			others = append(others, f.Name())
		}
	}
	switch {
	case len(others) == 0:
		return nil
	case slices.Contains(others, "n1"):
		return fmt.Errorf("%s has the data of nodes, and %s is missing, which says where they are: put it back; or start each by itself (strandmq serve --data %s); or use an empty folder",
			folder, devPlanFile, filepath.Join(folder, "n1"))
	}
	return fmt.Errorf("%s holds other files, %s among them: use an empty folder", folder, others[0])
}

// planDev reads the plan of a folder, and makes it as long as is wanted.
func planDev(folder string, want, port int) (devPlan, error) {
	var p devPlan
	path := filepath.Join(folder, devPlanFile)
	b, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(b, &p); err != nil {
			return p, fmt.Errorf("%s does not read: %w; the nodes' data beside it is as it was: mend the file, or start each by itself (strandmq serve --data %s), or remove the folder with all that it holds",
				path, err, filepath.Join(folder, "n1"))
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if len(p.Nodes) >= want {
		return p, nil
	}
	port = p.follows(port)
	if port == 0 {
		free, err := freeAddresses(want - len(p.Nodes))
		if err != nil {
			return p, err
		}
		p.Nodes = append(p.Nodes, free...)
	}
	for i := len(p.Nodes); i < want; i++ {
		p.Nodes = append(p.Nodes, devAddress{API: fmt.Sprintf("127.0.0.1:%d", port+i), Peer: fmt.Sprintf("127.0.0.1:%d", port+100+i)})
	}
	if b, err = json.MarshalIndent(p, "", "  "); err != nil {
		return p, err
	}
	return p, os.WriteFile(path, b, 0o600)
}

// follows is the port that further nodes of a plan count from: the first node's, or 0
// where that took a free one.
func (p devPlan) follows(port int) int {
	if len(p.Nodes) == 0 {
		return port
	}
	api, peer := portOf(p.Nodes[0].API), portOf(p.Nodes[0].Peer)
	if peer != api+100 {
		return 0
	}
	return api
}

func portOf(at string) int {
	_, s, _ := net.SplitHostPort(at)
	n, _ := strconv.Atoi(s)
	return n
}

// awaitPorts waits for the ports of the plan: nodes that were left behind by a process
// that was killed end by themselves, and have them until then.
func (p devPlan) awaitPorts(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	told := false
	for i, n := range p.Nodes {
		for _, at := range []string{n.API, n.Peer} {
			for {
				l, err := net.Listen("tcp", at)
				if err == nil {
					_ = l.Close()
					break
				}
				if !told {
					told = true
					a.talk("waiting for %s of node n%d, which another process has: perhaps the node itself, which ends", at, i+1)
				}
				if !sleepFor(ctx, 50*time.Millisecond) { // between two looks
					return fmt.Errorf("node n%d cannot have %s: %w: stop the program that has it", i+1, at, err)
				}
			}
		}
	}
	return nil
}

// freeAddresses finds two free ports for each of so many nodes, none of them twice.
// Somebody may take them before they are used, and then the node says so.
func freeAddresses(nodes int) ([]devAddress, error) {
	free := make([]devAddress, nodes)
	for i := range free {
		for _, to := range []*string{&free[i].API, &free[i].Peer} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			defer func() { _ = l.Close() }() // when all are found, or the next could be the same
			*to = l.Addr().String()
		}
	}
	return free, nil
}
