package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

func TestStartErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	running := start(t, t.TempDir())

	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "holiday.jpg"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		listen string
		dir    string
		want   StartReason
		text   string
	}{
		{"all addresses", "0.0.0.0:0", "", NotLoopback, "TLS"},
		{"no address", ":7171", "", NotLoopback, "TLS"},
		{"other address", "192.0.2.1:7171", "", NotLoopback, "TLS"},
		{"other name", "broker.example:7171", "", NotLoopback, "TLS"},
		{"all v6 addresses", "[::]:7171", "", NotLoopback, "TLS"},
		{"no port", "127.0.0.1", "", BadListen, "address:port"},
		{"port name", "127.0.0.1:http", "", BadListen, "port"},
		{"large port", "127.0.0.1:70000", "", BadListen, "65535"},
		{"no folder", "127.0.0.1:0", "-", BadConfig, "data folder"},
		{"port taken", taken.Addr().String(), "", PortTaken, "--listen"},
		{"folder in use", "127.0.0.1:0", running.cfg.DataDir, FolderInUse, "in use"},
		{"foreign folder", "127.0.0.1:0", foreign, FolderForeign, "holiday.jpg"},
		{"a file", "127.0.0.1:0", file, "", file},
		{"below a file", "127.0.0.1:0", filepath.Join(file, "data"), "", file},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir
			switch dir {
			case "":
				dir = t.TempDir()
			case "-":
				dir = ""
			}
			b, err := Start(context.Background(), Config{DataDir: dir, Listen: c.listen, Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				b.Close()
				t.Fatal("started")
			}
			var se *StartError
			if !errors.As(err, &se) {
				t.Fatalf("%v is a %T", err, err)
			}
			if c.want != "" && se.Reason != c.want || se.Reason == "" {
				t.Fatalf("reason %s, want %s: %v", se.Reason, c.want, err)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%q does not say %q", err, c.text)
			}
			if strings.Contains(err.Error(), "goroutine") {
				t.Fatalf("a stack trace: %v", err)
			}
		})
	}
	// What was refused left the folder alone, and the running broker too.
	if entries, err := os.ReadDir(foreign); err != nil || len(entries) != 1 {
		t.Fatalf("the foreign folder now has %v (%v)", entries, err)
	}
	newAPI(t, running.URL()).topic(t, "t", 1)
}

// A folder whose files were changed behind the broker's back is refused.
func TestStartDamaged(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.store(t, "t", msg("k", strings.Repeat("x", 10_000)))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	lists, err := filepath.Glob(filepath.Join(dir, "pebble", "MANIFEST-*"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("the store has no list of tables: %v", err)
	}
	for _, name := range lists {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		body[len(body)/2] ^= 0xff
		if err := os.WriteFile(name, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Start(context.Background(), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		again.Close()
		t.Fatal("started on a damaged folder")
	}
	var se *StartError
	if !errors.As(err, &se) || se.Reason != FolderDamaged {
		t.Fatalf("got %v, want %s", err, FolderDamaged)
	}
}

// What keeps a node from starting is called what people call it, with its folder and a way
// out that there is.
func TestDamagedMetadataIsTold(t *testing.T) {
	err := startError(&partition.ErrDamaged{Partition: partition.Metadata, From: 3, To: 7, Why: "stored data does not read"}, logstore.Config{Dir: "data"})
	var se *StartError
	if !errors.As(err, &se) || se.Reason != FolderDamaged {
		t.Fatalf("got %v, want %s", err, FolderDamaged)
	}
	for _, want := range []string{"the folder data", "the metadata log", "entries 3 to 7", "does not read", "restore the folder"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "p0") {
		t.Errorf("%q has a number that nobody knows", err)
	}
}

func TestConfigListsEveryFault(t *testing.T) {
	err := Config{SessionTimeout: 1, TransferTime: 1, StopTime: -1, RequestBytes: 1, Connections: -1, ConnectionsPerAddress: -1, Listen: "x"}.Validate()
	for _, want := range []string{"data folder", "session timeout", "transfer time", "stop time", "request bytes", "connections: ", "connections per address", "listen"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
}

// A node knows itself by its store, whatever its address. Nothing is written when
// it starts again.
func TestStartFindsItself(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	m := b.coord.View()
	n, ok := m.Node(1)
	if !ok || n.Store != b.store.ID() || len(n.Store) != 32 || n.Boot != b.store.Boot() || n.State != coordinator.Active {
		t.Fatalf("node %+v", n)
	}
	if p, _ := m.Partition(partition.Metadata); len(p.Replicas) != 1 || p.Replicas[0] != partition.NewReplicaID(1, 0) {
		t.Errorf("the metadata log is at %v", p.Replicas)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if again := start(t, dir).coord.View(); again.Revision != m.Revision {
		t.Errorf("the second start changed the map from %d to %d", m.Revision, again.Revision)
	}
}
