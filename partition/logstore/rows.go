package logstore

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Get reads a row; nil if there is none. What it returns is the caller's.
func (s *Store) Get(ns Namespace, p uint64, key []byte) ([]byte, error) {
	return s.AppendGet(nil, ns, p, key)
}

// AppendGet appends a row's value to dst, verified. It returns nil if there is
// no such row, which an empty value is not.
func (s *Store) AppendGet(dst []byte, ns Namespace, p uint64, key []byte) ([]byte, error) {
	if !ns.rows() {
		return nil, &ErrBadBatch{Partition: p, What: "not a namespace of rows"}
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	var buf [96]byte
	full := appendKey(buf[:0], ns, p, key)
	row, err := s.get(full, dst)
	if err != nil {
		return nil, s.readError(err, Range{Partition: p, Low: 1})
	}
	if row == nil {
		return nil, nil
	}
	if _, err := unseal(full, row[len(dst):], -1); err != nil {
		return nil, s.badRow(ns, p, err)
	}
	return row[:len(row)-sealLen], nil
}

// badRow is the damage of a row that does not pass.
func (s *Store) badRow(ns Namespace, p uint64, err error) *ErrDamaged {
	d := s.damaged(fmt.Sprintf("a row of the %v is not what was written", ns), err, Range{Partition: p, Low: 1})
	s.reportDamage(d)
	return d
}

// get appends the value of a key to dst; nil if there is none.
func (s *Store) get(key, dst []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if dst == nil {
		dst = make([]byte, 0, len(v))
	}
	dst = append(dst, v...)
	return dst, closer.Close()
}

// Iterate calls fn with the rows from from on and below to (nil: to the end),
// verified and in key order, until fn returns false. Key and value are valid
// until fn returns. fn sees the rows as they were when Iterate began; it may
// read and commit. A damaged row ends it with *ErrDamaged, after fn had those
// before it.
func (s *Store) Iterate(ns Namespace, p uint64, from, to []byte, fn func(key, value []byte) bool) error {
	return s.iterate(ns, p, from, to, false, fn)
}

// IterateReverse is Iterate from the end: the first row it gives is the last
// one below to.
func (s *Store) IterateReverse(ns Namespace, p uint64, from, to []byte, fn func(key, value []byte) bool) error {
	return s.iterate(ns, p, from, to, true, fn)
}

func (s *Store) iterate(ns Namespace, p uint64, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	if !ns.rows() {
		return &ErrBadBatch{Partition: p, What: "not a namespace of rows"}
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	end := appendPrefixEnd(nil, ns, p)
	if to != nil {
		end = appendKey(nil, ns, p, to)
	}
	all := Range{Partition: p, Low: 1}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: appendKey(nil, ns, p, from), UpperBound: end})
	if err != nil {
		return s.readError(err, all)
	}
	defer func() { _ = it.Close() }()
	first, step := it.First, it.Next
	if reverse {
		first, step = it.Last, it.Prev
	}
	for ok := first(); ok; ok = step() {
		v, err := it.ValueAndErr()
		if err != nil {
			return s.readError(err, all)
		}
		if v, err = unseal(it.Key(), v, -1); err != nil {
			return s.badRow(ns, p, err)
		}
		if !fn(it.Key()[prefixLen:], v) {
			return nil
		}
	}
	if err := it.Error(); err != nil {
		return s.readError(err, all)
	}
	return nil
}
