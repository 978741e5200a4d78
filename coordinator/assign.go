package coordinator

import (
	"cmp"
	"slices"
)

// assign spreads a topic's partitions over the members of a group. held is what
// each member holds now (nothing for a new one), by member name; the answer has
// a list of shares, by partition, in each member's place.
//
// With no more members than partitions every partition goes whole to one
// member, and members differ by one partition at most. With more members than
// partitions every member gets one share of one partition, and partitions
// differ by one share at most. In both, as few partitions (or members) change
// hands as that balance allows: who has the most may keep the odd one.
//
// The function is a rule of the metadata log: a change of its answers is a new
// version of the rules.
func assign(partitions int, held [][]Share) [][]Share {
	switch {
	case len(held) == 0:
		return nil
	case len(held) <= partitions:
		return assignWhole(partitions, held)
	}
	return assignShared(partitions, held)
}

// assignWhole gives every partition to one member.
func assignWhole(partitions int, held [][]Share) [][]Share {
	// Of several members that share a partition now, the first share stays.
	owner := make([]int, partitions)
	first := make([]uint32, partitions)
	for p := range owner {
		owner[p] = none
	}
	count := make([]int, len(held))
	for m, shares := range held {
		for _, s := range shares {
			p := int(s.Partition)
			if owner[p] != none {
				if s.Share >= first[p] {
					continue
				}
				count[owner[p]]--
			}
			owner[p], first[p] = m, s.Share
			count[m]++
		}
	}
	quota := quotas(partitions, count)
	for p := partitions - 1; p >= 0; p-- {
		if m := owner[p]; m != none && count[m] > quota[m] {
			owner[p] = none
			count[m]--
		}
	}
	m := 0
	for p := range owner {
		if owner[p] != none {
			continue
		}
		for count[m] >= quota[m] {
			m++
		}
		owner[p] = m
		count[m]++
	}
	out := make([][]Share, len(held))
	for p, m := range owner {
		out[m] = append(out[m], Share{Partition: uint32(p), Share: 0, Shares: 1})
	}
	return out
}

// assignShared gives every member one share of a partition.
func assignShared(partitions int, held [][]Share) [][]Share {
	// A member's home is the first partition that it holds something of.
	home := make([]int, len(held))
	count := make([]int, partitions)
	for m, shares := range held {
		home[m] = none
		if len(shares) > 0 {
			home[m] = int(shares[0].Partition)
			count[home[m]]++
		}
	}
	quota := quotas(len(held), count)
	// Where too many are at home, the last shares move out.
	order := make([]int, len(held))
	for m := range order {
		order[m] = m
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(shareAt(held[b]), shareAt(held[a])) })
	for _, m := range order {
		if p := home[m]; p != none && count[p] > quota[p] {
			home[m] = none
			count[p]--
		}
	}
	p := 0
	moved := make([]bool, len(held))
	for m := range home {
		if home[m] != none {
			continue
		}
		for count[p] >= quota[p] {
			p++
		}
		home[m], moved[m] = p, true
		count[p]++
	}
	// Who stays keeps the number of its share where there still is one; the
	// others take what is free, in order.
	taken := make([][]bool, partitions)
	for p := range taken {
		taken[p] = make([]bool, quota[p])
	}
	number := make([]int, len(held))
	for m, p := range home {
		number[m] = none
		if n := int(shareAt(held[m])); !moved[m] && n < quota[p] && !taken[p][n] {
			number[m], taken[p][n] = n, true
		}
	}
	out := make([][]Share, len(held))
	for m, p := range home {
		if number[m] == none {
			number[m] = slices.Index(taken[p], false)
			taken[p][number[m]] = true
		}
		out[m] = []Share{{Partition: uint32(p), Share: uint32(number[m]), Shares: uint32(quota[p])}}
	}
	return out
}

// none stands for no member and no partition.
const none = -1

// shareAt is the number of the first share held, 0 for none.
func shareAt(shares []Share) uint32 {
	if len(shares) == 0 {
		return 0
	}
	return shares[0].Share
}

// quotas divides things over holders as evenly as can be. The odd ones go to
// those who have the most now, so that they need not give them up.
func quotas(things int, has []int) []int {
	order := make([]int, len(has))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(has[b], has[a]) })
	quota := make([]int, len(has))
	for at, i := range order {
		quota[i] = things / len(has)
		if at < things%len(has) {
			quota[i]++
		}
	}
	return quota
}
