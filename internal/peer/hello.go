package peer

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// The versions of the frames that this program speaks. What stands in a hello
// can only be added to, by fields; what follows the welcome is as the version says.
const (
	lowestVersion  = 1
	highestVersion = 1
)

// StoreID names a data folder. No two folders have the same one, copies aside.
type StoreID [16]byte

// String is the beginning of the id, as the store itself prints it.
func (s StoreID) String() string { return hex.EncodeToString(s[:4]) }

// hello is what each side says first.
type hello struct {
	lowest, highest uint16 // versions
	cluster         string
	node            uint64 // who speaks
	to              uint64 // whom it means to speak to
	store           StoreID
	boot            uint64 // how often that folder was started
	life            uint64 // a random number of this process: two processes of one boot are seen by it
	clock           int64  // milliseconds since 1970
	earlier         []Start
}

// Start is one start of a data folder.
type Start struct{ Boot, Life uint64 }

// earlierLimit is how many earlier starts are told.
const earlierLimit = 32

// knows tells whether the folder can be the one that was started as s last: s is
// among its starts, or was too long ago for it to tell. A copy of it that is older
// than s knows starts before it and not s.
func (h hello) knows(s Start) bool {
	if s.Life == 0 || s == (Start{h.boot, h.life}) || len(h.earlier) > 0 && s.Boot < h.earlier[0].Boot {
		return true
	}
	return slices.Contains(h.earlier, s)
}

func (h hello) encode() []byte {
	v := binary.LittleEndian.AppendUint16(nil, h.lowest)
	b := appendField(nil, tagVersions, binary.LittleEndian.AppendUint16(v, h.highest))
	b = appendField(b, tagCluster, []byte(h.cluster))
	b = appendUint64(b, tagNode, h.node)
	b = appendUint64(b, tagTo, h.to)
	b = appendField(b, tagStore, h.store[:])
	b = appendUint64(b, tagBoot, h.boot)
	b = appendUint64(b, tagLife, h.life)
	b = appendUint64(b, tagClock, uint64(h.clock))
	if len(h.earlier) == 0 {
		return b
	}
	starts := make([]byte, 0, 16*len(h.earlier))
	for _, s := range h.earlier {
		starts = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(starts, s.Boot), s.Life)
	}
	return appendField(b, tagEarlier, starts)
}

// parseHello takes a hello or a welcome apart. Fields that it does not know are
// left out; those of version 1 have to be there.
func parseHello(b []byte) (hello, error) {
	var h hello
	seen := 0
	err := parseFields(b, func(t tag, v []byte) (err error) {
		if t >= tagVersions && t <= tagClock {
			if seen&(1<<t) != 0 {
				return refuse(Malformed, "a hello has field %d twice", t)
			}
			seen |= 1 << t
		}
		var clock uint64
		switch t {
		case tagVersions:
			if len(v) != 4 {
				return refuse(Malformed, "a hello's versions have %d bytes, and have 4 where they are right", len(v))
			}
			h.lowest, h.highest = binary.LittleEndian.Uint16(v), binary.LittleEndian.Uint16(v[2:])
		case tagCluster:
			if !validCluster(string(v)) {
				return refuse(Malformed, "a hello's cluster id is not one")
			}
			h.cluster = string(v)
		case tagNode:
			h.node, err = parseUint64(t, v)
		case tagTo:
			h.to, err = parseUint64(t, v)
		case tagStore:
			if len(v) != len(h.store) {
				return refuse(Malformed, "a hello's store id has %d bytes, and has %d where it is right", len(v), len(h.store))
			}
			copy(h.store[:], v)
		case tagBoot:
			h.boot, err = parseUint64(t, v)
		case tagLife:
			h.life, err = parseUint64(t, v)
		case tagClock:
			clock, err = parseUint64(t, v)
			h.clock = int64(clock)
		case tagEarlier:
			if len(v)%16 != 0 || len(v) > 16*earlierLimit || h.earlier != nil {
				return refuse(Malformed, "a hello's earlier starts have %d bytes, and have 16 each, up to %d starts, where they are right", len(v), earlierLimit)
			}
			for ; len(v) > 0; v = v[16:] {
				h.earlier = append(h.earlier, Start{binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:])})
			}
		}
		return err
	})
	if err != nil {
		return hello{}, err
	}
	for t := tagVersions; t <= tagClock; t++ {
		if seen&(1<<t) == 0 {
			return hello{}, refuse(Malformed, "a hello has no field %d", t)
		}
	}
	if h.lowest == 0 || h.lowest > h.highest {
		return hello{}, refuse(Malformed, "a hello speaks versions %d to %d", h.lowest, h.highest)
	}
	return h, nil
}

// version is the highest version that a node speaks of those of another.
func (own hello) version(h hello) (uint16, *ErrRefused) {
	v := min(h.highest, own.highest)
	if v < max(h.lowest, own.lowest) {
		return 0, refuse(UnknownVersion, "node %d speaks versions %d to %d of the node protocol, and node %d versions %d to %d: run versions of the broker that are closer to each other",
			h.node, h.lowest, h.highest, own.node, own.lowest, own.highest)
	}
	return v, nil
}

// validCluster holds a cluster id to what stands unchanged in a URI.
func validCluster(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
