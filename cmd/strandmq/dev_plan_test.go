package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Where a cluster's nodes are stays as it is; further ones count from the first, and a
// folder that was tampered with is told of without costing what is in it.
func TestDevPlan(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "dev")
	if err := devFolder(folder); err != nil {
		t.Fatal(err)
	}
	first, err := planDev(folder, 2, 21710)
	if err != nil {
		t.Fatal(err)
	}
	more, err := planDev(folder, 3, 7171)
	if err != nil || len(more.Nodes) != 3 || more.Nodes[0] != first.Nodes[0] || more.Nodes[2] != (devAddress{API: "127.0.0.1:21712", Peer: "127.0.0.1:21812"}) {
		t.Errorf("%v, %v", more, err)
	}
	free := filepath.Join(t.TempDir(), "free")
	if err := devFolder(free); err != nil {
		t.Fatal(err)
	}
	if _, err := planDev(free, 1, 0); err != nil {
		t.Fatal(err)
	}
	if p, err := planDev(free, 2, 7171); err != nil || portOf(p.Nodes[1].API) == 7172 {
		t.Errorf("%v, %v", p, err)
	}

	says := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	plan := filepath.Join(folder, devPlanFile)
	if err := os.WriteFile(plan, []byte(`{"nodes":[`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = planDev(folder, 3, 7171)
	says(err, "mend the file, or start each by itself (strandmq serve --data "+filepath.Join(folder, "n1"))
	if err := os.Mkdir(filepath.Join(folder, "n1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(plan); err != nil {
		t.Fatal(err)
	}
	says(devFolder(folder), "dev.json is missing, which says where they are: put it back")
	if err := os.WriteFile(filepath.Join(free, "photo.jpg"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(free, devPlanFile)); err != nil {
		t.Fatal(err)
	}
	says(devFolder(free), "holds other files, photo.jpg among them")
}
