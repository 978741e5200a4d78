package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What people call the partitions is in the metadata log, which cannot be read
// when the store does not open. So a text file beside the tables has it too, for
// the message that says what is affected, and for nothing else: it may be old,
// gone or damaged, and then partitions are told by their numbers.
//
//	strandmq names 1
//	3<tab>partition 0 of topic orders
//	crc 1f2e3d4c                        CRC32C over all lines before
const (
	namesName  = "NAMES"
	namesNew   = namesName + ".new"
	namesFirst = "strandmq names 1"
	maxName    = 512 // bytes; longer ones are left out
)

// names is what the partitions are called.
type names struct {
	mu  sync.Mutex
	now map[uint64]string // guarded by mu; replaced, never changed
}

// Name says what people call the partitions, for messages about damage: all of
// them, at each change. It writes a file; an error costs names in messages.
func (s *Store) Name(all map[uint64]string) error {
	if s.cfg.ReadOnly {
		return ErrReadOnly
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	if maps.Equal(all, s.names.now) {
		return nil
	}
	s.names.now = maps.Clone(all)
	return s.replaceFile(namesName, namesNew, encodeNames(all))
}

// NameOf is what the log calls a partition: its name, if there is one, and p3.
func (s *Store) NameOf(p uint64) string {
	number := fmt.Sprintf("p%d", p)
	if name := s.called()[p]; name != "" {
		return name + " (" + number + ")"
	}
	return number
}

// called is what the partitions are called now.
func (s *Store) called() map[uint64]string {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	return s.names.now
}

// loadNames reads what the partitions were called. It never fails.
func (s *Store) loadNames() {
	b, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, namesName))
	if err != nil {
		return
	}
	if all, err := decodeNames(b); err == nil {
		s.names.now = all
	}
}

// named puts names to what an error affects.
func (s *Store) named(err error) error {
	var d *ErrDamaged
	if errors.As(err, &d) && d.Names == nil {
		d.Names = s.called()
		if len(d.Ranges) == 0 && d.Way == "" {
			d.Ranges = s.everything() // without it nothing can be served
		}
	}
	return err
}

// everything is all partitions from their first entry on, as far as the list of
// partitions knows them.
func (s *Store) everything() (all []Range) {
	b, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(s.cfg.Dir, registryName))
	if err != nil {
		return nil
	}
	_, _, ps, err := decodeRegistry(b)
	if err != nil {
		return nil
	}
	for _, p := range ps {
		all = append(all, Range{Partition: p, Low: 1})
	}
	return all
}

// replaceFile writes a file as a whole: beside, synced, renamed.
func (s *Store) replaceFile(name, beside string, b []byte) error {
	path := s.fs.PathJoin(s.cfg.Dir, beside)
	f, err := s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := s.fs.Rename(path, s.fs.PathJoin(s.cfg.Dir, name)); err != nil {
		return err
	}
	return s.syncDir(s.cfg.Dir)
}

func encodeNames(all map[uint64]string) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, namesFirst)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if name := all[p]; name != "" && len(name) <= maxName && !strings.ContainsAny(name, "\r\n") {
			fmt.Fprintf(&b, "%d\t%s\n", p, name)
		}
	}
	return fmt.Appendf(b.Bytes(), "crc %08x\n", crc32.Checksum(b.Bytes(), castagnoli))
}

func decodeNames(b []byte) (map[uint64]string, error) {
	body, ok := bytes.CutSuffix(b, []byte("\n"))
	cut := bytes.LastIndexByte(body, '\n') + 1
	if !ok || string(body[cut:]) != fmt.Sprintf("crc %08x", crc32.Checksum(b[:cut], castagnoli)) {
		return nil, errors.New("the checksum does not fit")
	}
	out := make(map[uint64]string)
	for i, line := range strings.Split(strings.TrimSuffix(string(b[:cut]), "\n"), "\n") {
		if i == 0 {
			if line != namesFirst {
				return nil, errors.New("the first line is of another version")
			}
			continue
		}
		number, name, ok := strings.Cut(line, "\t")
		p, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || name == "" || len(name) > maxName {
			return nil, fmt.Errorf("line %d is no number and name", i+1)
		}
		out[p] = name
	}
	return out, nil
}
