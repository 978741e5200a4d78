package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strandmq/strandmq/internal/heldport"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

var measuredBinary = flag.String("measured.binary", "", "measure this binary instead of one that is built from here: two of them in turn compare versions")

// buildMeasured gives the binary that is measured.
func buildMeasured(t testing.TB) string {
	if *measuredBinary != "" {
		return *measuredBinary
	}
	return buildBroker(t)
}

// measured is a broker that runs as a process of its own.
type measured struct {
	folder string
	url    string
	peer   string // its address for other nodes, in a fleet
	cmd    *exec.Cmd
	ended  <-chan struct{} // closed when it is gone
	api    *clients
}

// dial gives its clients.
func (p *measured) dial() *clients {
	if p.api == nil {
		p.api = dial(p.url)
	}
	return p.api
}

// startMeasured starts one that is alone, or as more flags say.
func startMeasured(b testing.TB, binary, folder string, more ...string) *measured {
	b.Helper()
	p := &measured{folder: folder, cmd: exec.Command(binary, append([]string{"serve", "--data", folder, "--listen", "127.0.0.1:0", "--log-level", "warn"}, more...)...)}
	said, err := p.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if p.ended, err = startTied(p.cmd, here); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "serving at "); ok {
			p.url, _, _ = strings.Cut(rest, ",")
			go func() { _, _ = io.Copy(io.Discard, said) }() // warnings; it ends with the process
			return p
		}
	}
	p.stop()
	b.Fatal("the broker did not serve")
	return nil
}

func (p *measured) stop() {
	_ = p.cmd.Process.Kill() // its data are thrown away
	<-p.ended
}

// fleet is a broker of one process or more, each a node.
type fleet []*measured

// startFleet starts a broker of so many nodes on fresh folders, and waits until it
// is whole: all are there, and three vote for the metadata.
func startFleet(b *testing.B, binary string, nodes int) fleet {
	b.Helper()
	folder := b.TempDir()
	if nodes == 1 {
		return fleet{startMeasured(b, binary, filepath.Join(folder, "data"))}
	}
	var f fleet
	for i := range nodes {
		at := devAddress{API: heldport.Address(b), Peer: heldport.Address(b)}
		// The same again when it is started again: others know it by them.
		flags := []string{"--listen", at.API, "--peer-listen", at.Peer}
		if i > 0 {
			res, err := f[0].dial().cluster.CreateJoinToken(b.Context(), &strandmqv1.CreateJoinTokenRequest{})
			if err != nil {
				b.Fatal(err)
			}
			flags = append(flags, "--join", f[0].peer, "--join-token", res.GetToken())
		}
		p := startMeasured(b, binary, filepath.Join(folder, fmt.Sprint("n", i+1)), flags...)
		p.peer = at.Peer
		f = append(f, p)
	}
	f.await(b)
	return f
}

// again starts a node of a fleet that was stopped.
func (p *measured) again(b *testing.B, binary string) *measured {
	b.Helper()
	n := startMeasured(b, binary, p.folder, "--listen", strings.TrimPrefix(p.url, "http://"), "--peer-listen", p.peer)
	n.peer = p.peer
	return n
}

// await waits until every node is there for the others and nothing is on the move.
func (f fleet) await(b *testing.B) {
	b.Helper()
	for deadline := time.Now().Add(devPatience); ; {
		there, votes := 0, 0
		res, err := f[0].dial().cluster.DescribeCluster(b.Context(), &strandmqv1.DescribeClusterRequest{})
		for _, n := range res.GetNodes() {
			if n.SilentMs != nil && n.GetSilentMs() == 0 {
				there++
			}
			if n.GetVotes() {
				votes++
			}
		}
		if err == nil && there == len(f) && votes >= min(3, len(f)) && len(res.GetMoving()) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the cluster is not whole: of %d nodes %d are there and %d vote, %v", len(f), there, votes, err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

func (f fleet) urls() []string {
	urls := make([]string, len(f))
	for i, p := range f {
		urls[i] = p.url
	}
	return urls
}

func (f fleet) stop() {
	for _, p := range f {
		p.stop()
	}
}

// counters are what the kernel counts, in seconds, MiB, bytes.
type counters struct {
	at                  time.Time
	server, client, all float64
	peak                float64
	written             float64
	flushes             float64
}

func (p *measured) count(b *testing.B) counters { return fleet{p}.count(b) }

// count sums up what all nodes took.
func (f fleet) count(b *testing.B) counters {
	b.Helper()
	c := counters{at: time.Now()}
	of := func(name string) string {
		raw, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return string(raw)
	}
	for _, p := range f {
		proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
		stat := of(proc + "stat")
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		c.server += (number(fields[11]) + number(fields[12])) / 100
		c.peak += fieldOf(of(proc+"status"), "VmHWM:") / 1024
		c.written += fieldOf(of(proc+"io"), "write_bytes:")
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		b.Fatal(err)
	}
	c.client = float64(self.Utime.Nano()+self.Stime.Nano()) / 1e9
	cpu := strings.Fields(strings.SplitN(of("/proc/stat"), "\n", 2)[0])
	for _, i := range []int{1, 2, 3, 6, 7, 8} { // without idle and waiting
		c.all += number(cpu[i]) / 100
	}
	for line := range strings.Lines(of("/proc/diskstats")) {
		f := strings.Fields(line)
		if len(f) < 20 {
			continue
		}
		if _, err := os.Stat("/sys/block/" + f[2] + "/device"); err == nil {
			c.flushes += number(f[18])
		}
	}
	return c
}

func number(s string) float64 { n, _ := strconv.ParseFloat(s, 64); return n }

// fieldOf finds the number behind a name.
func fieldOf(text, name string) float64 {
	_, rest, _ := strings.Cut(text, name)
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	return number(f[0])
}
