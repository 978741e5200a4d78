package consumer

import (
	"encoding/binary"
	"slices"

	"github.com/strandmq/strandmq/partition"
)

// The log says what was proposed; whether it took effect is decided where it is
// applied, by a state that is gone when somebody asks. So the few decisions that
// a reader of the log cannot make again are kept as rows: which hand-outs of a
// plan and which lapses were void, and which policy held from which entry on.
// With them a trace is told by the log exactly, as long as a command names a
// message once, and a leader's does.

// maxVoidRun bounds what one row covers, and with it how far a look for the rows
// of one message goes.
const maxVoidRun = 4096

// voids gathers what one command did not do: a row for each run of offsets.
type voids struct {
	g           *group
	at          partition.Index
	any         bool
	first, last partition.Offset
}

// void notes that the command did nothing with a message. Those that it did not
// mean to do anything with may stand between two of a run.
func (v *voids) void(o partition.Offset) {
	if v.any && (o <= v.last || o-v.first >= maxVoidRun) {
		v.end()
	}
	if !v.any {
		v.any, v.first = true, o
	}
	v.last = o
}

// one notes a message by itself: what lies around it can be another matter.
func (v *voids) one(o partition.Offset) {
	v.void(o)
	v.end()
}

// end closes a run: the next offset is not part of it.
func (v *voids) end() {
	if v.any {
		v.g.rows.putVoid(v.at, v.first, v.last)
	}
	v.any = false
}

func (r rowsOf) putVoid(at partition.Index, first, last partition.Offset) {
	r.Put(r.key2(rowVoid, uint64(last), partition.Offset(at)), binary.AppendUvarint(nil, uint64(last-first)))
}

// voided lists the entries whose command did nothing with a message.
func (r rowsOf) voided(o partition.Offset) (map[partition.Index]bool, error) {
	res := make(map[partition.Index]bool)
	var bad error
	err := r.Scan(r.prefix(rowVoid), r.key(rowVoid, o), func(k, v []byte) bool {
		last := lastOffset(k[:len(k)-8])
		d := reader{b: v}
		n := d.uvarint()
		if why := d.finish(); why != "" || n >= maxVoidRun || n > uint64(last) {
			bad = d.ofRow(k, why)
			return false
		}
		if last-partition.Offset(n) <= o {
			res[partition.Index(lastOffset(k))] = true
		}
		return last-o < maxVoidRun
	})
	if err == nil {
		err = bad
	}
	return res, err
}

// policyFrom is a policy and the entry from which on it held.
type policyFrom struct {
	at     partition.Index
	policy Policy
}

func (r rowsOf) putPolicy(at partition.Index, p Policy) {
	r.Put(r.key(rowPolicy, partition.Offset(at)), appendPolicy(nil, p))
}

// policies lists a group's policies, the first one first: its entry made the
// group.
func (r rowsOf) policies() (ps []policyFrom, err error) {
	var bad error
	err = r.Scan(r.prefix(rowPolicy), nil, func(k, v []byte) bool {
		d := reader{b: v}
		p := policyFrom{partition.Index(lastOffset(k)), d.policy()}
		if why := d.finish(); why != "" {
			bad = d.ofRow(k, why)
			return false
		}
		ps = append(ps, p)
		return true
	})
	if err == nil {
		err = bad
	}
	return ps, err
}

// past is what a trace needs to know of a group to read the log as Apply did.
type past struct {
	policies []policyFrom
	void     map[partition.Index]bool // entries that did nothing with the message
	free     map[partition.Index]bool // entries in which it failed and was not charged
}

func (g *group) past(o partition.Offset) (p past, err error) {
	if p.void, err = g.rows.voided(o); err == nil {
		p.policies, err = g.rows.policies()
	}
	if err == nil {
		p.free, err = g.rows.uncharged(o)
	}
	return p, err
}

// policyAt is the policy that held before an entry was applied; none if the
// group was not there.
func (p past) policyAt(at partition.Index) (Policy, bool) {
	n, _ := slices.BinarySearchFunc(p.policies, at, func(p policyFrom, at partition.Index) int {
		if p.at < at {
			return -1
		}
		return 1
	})
	if n == 0 {
		return Policy{}, false
	}
	return p.policies[n-1].policy, true
}

// putUncharged notes that a message failed in an entry and was not charged, as
// the group's circuit was open.
func (r rowsOf) putUncharged(at partition.Index, o partition.Offset) {
	r.Put(r.key2(rowUncharged, uint64(o), partition.Offset(at)), []byte{rowVersion})
}

func (r rowsOf) uncharged(o partition.Offset) (map[partition.Index]bool, error) {
	res := make(map[partition.Index]bool)
	err := r.Scan(r.key(rowUncharged, o), nil, func(k, _ []byte) bool {
		res[partition.Index(lastOffset(k))] = true
		return true
	})
	return res, err
}
