package consumer

// table maps numbers to places in a slice: 16 bytes a slot, no allocation but
// to grow, and no order to go wrong by. Open addressing with linear probing;
// removal shifts back what follows, so that no slot is ever lost.
type table struct {
	slots []slot // length a power of two, at most three quarters full
	shift uint8  // 64 - log2(len(slots))
	n     int
}

type slot struct {
	key  uint64
	val  int32 // valid when used
	used bool
}

func (t *table) home(k uint64) int {
	// Fibonacci hashing (Knuth 6.4): offsets are dense and key hashes of one
	// partition share their upper bits; the product's upper bits do not.
	return int((k * 0x9e3779b97f4a7c15) >> t.shift)
}

func (t *table) find(k uint64) (int32, bool) {
	if t.n == 0 {
		return 0, false
	}
	mask := len(t.slots) - 1
	for i := t.home(k); ; i = (i + 1) & mask {
		s := &t.slots[i]
		if !s.used {
			return 0, false
		}
		if s.key == k {
			return s.val, true
		}
	}
}

func (t *table) put(k uint64, v int32) {
	if t.n >= len(t.slots)/4*3 {
		t.grow()
	}
	mask := len(t.slots) - 1
	i := t.home(k)
	for t.slots[i].used {
		if t.slots[i].key == k {
			t.slots[i].val = v
			return
		}
		i = (i + 1) & mask
	}
	t.slots[i] = slot{key: k, val: v, used: true}
	t.n++
}

func (t *table) del(k uint64) {
	if t.n == 0 {
		return
	}
	mask := len(t.slots) - 1
	i := t.home(k)
	for {
		if !t.slots[i].used {
			return
		}
		if t.slots[i].key == k {
			break
		}
		i = (i + 1) & mask
	}
	t.n--
	// Move back each follower that may stand in the gap.
	for j := i; ; {
		j = (j + 1) & mask
		if !t.slots[j].used {
			break
		}
		if (j-t.home(t.slots[j].key))&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
}

func (t *table) grow() {
	old := t.slots
	n := max(16, 2*len(old))
	t.slots = make([]slot, n)
	t.shift = 64
	for ; n > 1; n /= 2 {
		t.shift--
	}
	t.n = 0
	for _, s := range old {
		if s.used {
			t.put(s.key, s.val)
		}
	}
}

func (t *table) clear() {
	clear(t.slots)
	t.n = 0
}
