package logstore

import (
	"bytes"
	"slices"
)

// span is the keys from from on and below to.
type span struct{ from, to []byte }

// and is what two spans have in common.
func (a span) and(b span) (both span, some bool) {
	both = a
	if bytes.Compare(b.from, both.from) > 0 {
		both.from = b.from
	}
	if bytes.Compare(b.to, both.to) < 0 {
		both.to = b.to
	}
	return both, bytes.Compare(both.from, both.to) < 0
}

func (a span) has(key []byte) bool {
	return bytes.Compare(a.from, key) <= 0 && bytes.Compare(key, a.to) < 0
}

// within tells whether a lies in one of the spans of a union.
func (a span) within(u []span) bool {
	return slices.ContainsFunc(u, func(b span) bool {
		return bytes.Compare(b.from, a.from) <= 0 && bytes.Compare(a.to, b.to) <= 0
	})
}

// union joins spans that meet, in order.
func union(spans []span) (out []span) {
	slices.SortFunc(spans, func(a, b span) int { return bytes.Compare(a.from, b.from) })
	for _, sp := range spans {
		if n := len(out); n > 0 && bytes.Compare(sp.from, out[n-1].to) <= 0 {
			if bytes.Compare(sp.to, out[n-1].to) > 0 {
				out[n-1].to = sp.to
			}
			continue
		}
		out = append(out, sp)
	}
	return out
}

// meet is what two lists of spans have in common.
func meet(a, b []span) (out []span) {
	for _, x := range a {
		for _, y := range b {
			if both, some := x.and(y); some {
				out = append(out, both)
			}
		}
	}
	return out
}
