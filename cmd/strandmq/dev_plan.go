package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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

const devPlanFile = "dev.json"

// planDev reads the plan of a folder, and makes it as long as is wanted.
func planDev(folder string, want, port int) (devPlan, error) {
	var p devPlan
	path := filepath.Join(folder, devPlanFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ls, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
		if len(ls) > 0 {
			return p, fmt.Errorf("%s holds other files, %s among them: use an empty folder", folder, ls[0].Name())
		}
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return p, err
		}
	case err != nil:
		return p, err
	default:
		if err := json.Unmarshal(b, &p); err != nil {
			return p, fmt.Errorf("%s cannot be read: %w: remove the folder to begin anew", path, err)
		}
	}
	if len(p.Nodes) >= want {
		return p, nil
	}
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
