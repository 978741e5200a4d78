package partition

import "bytes"

// overlay is an ordered map of keys in memory: a skip list (Pugh 1990). The
// heights come from a fixed sequence, so equal calls build equal lists.
type overlay struct {
	head  [overlayHeight]*overlayNode
	state uint64
	bytes int64
	total *int64 // of all overlays of the node, this one included; nil: not counted
}

const overlayHeight = 14

type overlayNode struct {
	key   []byte
	value []byte // nil: the row is deleted
	next  []*overlayNode
}

// nodeBytes is about what a node costs beside its key and value.
const nodeBytes = 120

// seek returns the first node not below key.
func (o *overlay) seek(key []byte) *overlayNode {
	at := o.head[:]
	for h := overlayHeight - 1; h >= 0; h-- {
		for h < len(at) && at[h] != nil && bytes.Compare(at[h].key, key) < 0 {
			at = at[h].next
		}
	}
	return at[0]
}

func (o *overlay) find(key []byte) *overlayNode {
	if n := o.seek(key); n != nil && bytes.Equal(n.key, key) {
		return n
	}
	return nil
}

func (o *overlay) set(key, value []byte) {
	if n := o.find(key); n != nil {
		o.count(int64(len(value) - len(n.value)))
		n.value = value
		return
	}
	o.state = o.state*6364136223846793005 + 1442695040888963407
	height := 1
	for r := o.state >> 32; height < overlayHeight && r&3 == 0; r >>= 2 {
		height++
	}
	n := &overlayNode{key: bytes.Clone(key), value: value, next: make([]*overlayNode, height)}
	if n.key == nil {
		n.key = []byte{}
	}
	at := o.head[:]
	for h := overlayHeight - 1; h >= 0; h-- {
		for at[h] != nil && bytes.Compare(at[h].key, key) < 0 {
			at = at[h].next
		}
		if h < height {
			n.next[h] = at[h]
			at[h] = n
		}
	}
	o.count(int64(len(key)+len(value)) + nodeBytes)
}

func (o *overlay) count(n int64) {
	o.bytes += n
	if o.total != nil {
		*o.total += n
	}
}

func (o *overlay) clear() {
	o.count(-o.bytes)
	*o = overlay{state: o.state, total: o.total}
}

// leave takes the overlay out of the node's total: nothing will make room in it.
func (o *overlay) leave() {
	if o.total != nil {
		*o.total -= o.bytes
		o.total = nil
	}
}
