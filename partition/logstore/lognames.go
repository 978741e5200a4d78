package logstore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

func logName(num uint64) string { return fmt.Sprintf("%06d.log", num) }

// logTrail is which entries of which logs stand in a stretch of log files.
type logTrail map[uint64]Range

// take adds the entries of one batch.
func (t logTrail) take(rec []byte) {
	r := batchrepr.Read(rec)
	for {
		kind, key, _, ok, err := r.Next()
		if !ok || err != nil {
			return
		}
		if kind != pebble.InternalKeyKindSet {
			continue
		}
		if k, ok := decodeKey(key); ok && k.ns == nsEntry {
			e, there := t[k.partition]
			if !there {
				e = Range{Partition: k.partition, Low: k.index}
			}
			e.Low, e.High = min(e.Low, k.index), max(e.High, k.index)
			t[k.partition] = e
		}
	}
}

// lostInLogs names what the damage at a place of the i-th log file is, or may
// be, the loss of: of each log the entries between the last one that reads
// before it and the first one behind it; to the end if none does. It cannot know
// of a log all of whose entries in the files lie in the damage.
func (s *Store) lostInLogs(dir string, nums []uint64, i, at int) []Range {
	before, behind := logTrail{}, logTrail{}
	for j, num := range nums {
		data, err := readAll(s.cfg.FS, s.cfg.FS.PathJoin(dir, logName(num)))
		if err != nil {
			continue // it is told of what can be read
		}
		trail, pos := before, 0
		take := func(rec []byte) error {
			if _, err := batchCounter(rec, s.counterKey); err != nil {
				return err
			}
			trail.take(rec)
			return nil
		}
		if j <= i {
			end := len(data)
			if j == i {
				end = at
			}
			_, _, _ = scanFrom(data[:end], uint32(num), 0, take)
			if j < i {
				continue
			}
			pos = at
		}
		trail = behind
		for {
			from, ok := nextRecord(data, uint32(num), pos)
			if !ok {
				break
			}
			_, stop, _ := scanFrom(data, uint32(num), from, take)
			pos = max(stop, from) + 1
		}
	}
	var out []Range
	for p, b := range before {
		r := Range{Partition: p, Low: b.High + 1}
		if a, ok := behind[p]; ok {
			if r.High = a.Low - 1; r.High < r.Low {
				continue // nothing of it is missing, or it was written over
			}
		}
		out = append(out, r)
	}
	for p, a := range behind {
		if _, ok := before[p]; !ok && a.Low > 1 {
			// Where its entries in the tables end is not known from here.
			out = append(out, Range{Partition: p, Low: 1, High: a.Low - 1})
		}
	}
	return tidy(out)
}
