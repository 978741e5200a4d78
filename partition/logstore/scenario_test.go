package logstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestScenarios runs the scripts in testdata. A script has one store; commands
// are lines of one batch, except those that close, cut or damage the store.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		mem := newMem()
		var s *Store
		defer func() {
			if s != nil {
				_ = s.Close()
			}
		}()
		open := func() string {
			var err error
			if s, err = Open(testConfig(mem)); err != nil {
				s = nil
				return fmt.Sprintf("%s\n", firstLine(err))
			}
			return fmt.Sprintf("open, boot %d, batch %d\n", s.boot, s.counter)
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "open":
				return open()
			case "close":
				err := s.Close()
				s = nil
				return say(err)
			case "power-cut":
				mem = mem.CrashClone(vfs.CrashCloneCfg{})
				_ = s.Close()
				return open()
			case "power-off": // a cut without opening again
				disk := mem.CrashClone(vfs.CrashCloneCfg{})
				_ = s.Close()
				mem, s = disk, nil
				return "off\n"
			case "lose": // the files whose names contain the argument
				var gone []string
				img := takeImage(t, mem)
				for name := range img {
					if strings.Contains(name, d.CmdArgs[0].Key) {
						delete(img, name)
						if k := kind(name); !slices.Contains(gone, k) {
							gone = append(gone, k) // how many is a matter of timing
						}
					}
				}
				mem = img.fs(t)
				return fmt.Sprintf("lost %v\n", gone)
			case "sync", "nosync":
				return scenarioBatch(s, d)
			case "witness":
				return say(s.SyncWitness())
			case "log":
				return scenarioLog(s, d)
			}
			return "unknown command\n"
		})
	})
}

func say(err error) string {
	if err != nil {
		return firstLine(err) + "\n"
	}
	return "ok\n"
}

func firstLine(err error) string { return strings.SplitN(err.Error(), "\n", 2)[0] }

// scenarioBatch commits the writes in the command's input as one batch.
func scenarioBatch(s *Store, d *datadriven.TestData) string {
	b := s.NewBatch()
	for line := range strings.Lines(d.Input) {
		var p, x, y, z uint64
		var err error
		switch f := strings.Fields(line); f[0] {
		case "append": // partition term first last
			_, _ = fmt.Sscan(strings.Join(f[1:], " "), &p, &x, &y, &z)
			var es []Entry
			for i := y; i <= z; i++ {
				es = append(es, Entry{Term: x, Index: i, Data: fmt.Appendf(nil, "%d/%d", x, i)})
			}
			err = b.Append(p, es)
		case "hard": // partition term vote commit
			_, _ = fmt.Sscan(strings.Join(f[1:], " "), &p, &x, &y, &z)
			err = b.SetHardState(p, HardState{x, y, z})
		case "truncate": // partition to
			_, _ = fmt.Sscan(strings.Join(f[1:], " "), &p, &x)
			err = b.TruncatePrefix(p, x)
		case "reset": // partition index term
			_, _ = fmt.Sscan(strings.Join(f[1:], " "), &p, &x, &y)
			err = b.ResetLog(p, x, y)
		case "drop": // partition
			_, _ = fmt.Sscan(f[1], &p)
			err = b.DropPartition(p)
		}
		if err != nil {
			b.Close()
			return firstLine(err) + "\n"
		}
	}
	if d.Cmd == "nosync" {
		return say(s.CommitNoSync(b))
	}
	p, err := s.Commit(b)
	if err != nil {
		return firstLine(err) + "\n"
	}
	return say(p.Wait())
}

// scenarioLog prints all logs.
func scenarioLog(s *Store, d *datadriven.TestData) string {
	var out strings.Builder
	ps, err := s.Partitions()
	if err != nil {
		return say(err)
	}
	for _, p := range ps {
		first, err1 := s.FirstIndex(p)
		last, err2 := s.LastIndex(p)
		hs, err3 := s.HardState(p)
		es, err4 := s.Entries(p, first, last+1, 0)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			fmt.Fprintf(&out, "p%d: %s\n", p, firstLine(err))
			continue
		}
		fmt.Fprintf(&out, "p%d [%d..%d] term %d vote %d commit %d:", p, first, last, hs.Term, hs.Vote, hs.Commit)
		for _, e := range es {
			fmt.Fprintf(&out, " %s", e.Data)
		}
		out.WriteString("\n")
	}
	if out.Len() == 0 {
		return "no logs\n"
	}
	return out.String()
}
