package partition

import (
	"slices"
	"sort"
)

// pages are what planning read of the log from disk. The same messages are read
// a moment later, to be sent, and often again by the next plan, which goes on in
// the middle of what was read: so what was read and checked once stays for a
// while. All partitions of a node share one limit that is not the tail's: a
// group that lags takes nothing from those that keep up. The page that was read
// first leaves first.
//
// The loop alone adds and removes; any goroutine finds.
type pages struct {
	limit, bytes int64
	order        []pageRef // which page leaves next
	head         int
}

type pageRef struct {
	s     *shelf
	first Offset
}

// page is some batches in a row, from one read.
type page struct {
	batches []stored
	bytes   int64
}

func (p *page) first() Offset { return p.batches[0].row.base }
func (p *page) end() Offset   { return p.batches[len(p.batches)-1].row.end() }

// worth tells whether there is room enough for reading ahead to pay.
func (t *pages) worth() bool { return t != nil && t.limit >= 4*pageBytes }

// add keeps what was read of a partition, which must touch no page that is there.
func (t *pages) add(s *shelf, batches []stored) {
	if len(batches) == 0 {
		return
	}
	p := page{batches: batches}
	for i := range batches {
		p.bytes += batches[i].weight()
	}
	s.mu.Lock()
	s.pages = slices.Insert(s.pages, s.pageBehind(p.first()), p)
	s.mu.Unlock()
	t.bytes += p.bytes
	t.order = append(t.order, pageRef{s, p.first()})
	for t.bytes > t.limit && t.head < len(t.order) {
		ref := t.order[t.head]
		t.order[t.head] = pageRef{}
		t.head++
		t.remove(ref)
	}
	if t.head > 1024 && t.head > len(t.order)/2 {
		n := copy(t.order, t.order[t.head:])
		clear(t.order[n:])
		t.order, t.head = t.order[:n], 0
	}
}

func (t *pages) remove(ref pageRef) {
	ref.s.mu.Lock()
	defer ref.s.mu.Unlock()
	i := ref.s.pageBehind(ref.first)
	if i < len(ref.s.pages) && ref.s.pages[i].first() == ref.first {
		t.bytes -= ref.s.pages[i].bytes
		ref.s.pages = slices.Delete(ref.s.pages, i, i+1)
	}
}

// drop removes the pages of a partition that is gone. Their places in the order
// stay and find nothing.
func (t *pages) drop(s *shelf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.pages {
		t.bytes -= s.pages[i].bytes
	}
	s.pages = nil
}

// pageBehind returns the place of the first page that ends behind an offset.
func (s *shelf) pageBehind(o Offset) int {
	return sort.Search(len(s.pages), func(i int) bool { return s.pages[i].end() > o })
}

// findPage returns the batch that holds an offset, if a page has it.
func (s *shelf) findPage(o Offset) (stored, bool) {
	i := s.pageBehind(o)
	if i == len(s.pages) || o < s.pages[i].first() {
		return stored{}, false
	}
	b := s.pages[i].batches
	return b[sort.Search(len(b), func(i int) bool { return b[i].row.end() > o })], true
}
