package logstore

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// Get reads a row; nil if there is none. What it returns is the caller's.
func (s *Store) Get(ns Namespace, p uint64, key []byte) ([]byte, error) {
	return s.AppendGet(nil, ns, p, key)
}

// AppendGet appends a row's value to dst. It returns nil if there is no such
// row, which an empty value is not.
func (s *Store) AppendGet(dst []byte, ns Namespace, p uint64, key []byte) ([]byte, error) {
	if !ns.rows() {
		return nil, &ErrBadBatch{Partition: p, What: "not a namespace of rows"}
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	var buf [96]byte
	v, err := s.get(appendKey(buf[:0], ns, p, key), dst)
	if err != nil {
		return nil, s.readError(err, Range{Partition: p, Low: 1})
	}
	return v, nil
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
// in key order, until fn returns false. Key and value are valid until fn
// returns. fn sees the rows as they were when Iterate began; it may read and
// commit.
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
		if !fn(it.Key()[prefixLen:], v) {
			return nil
		}
	}
	if err := it.Error(); err != nil {
		return s.readError(err, all)
	}
	return nil
}
