package consumer

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/dchest/siphash"
	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/partition"
)

// Token names one delivery: the hand-out of one message to one member. It acts
// on that delivery only, for good, since its hand-out number is never used
// again in the group's partition and partition ids are never used again at all.
type Token struct {
	Partition partition.PartitionID
	Group     GroupID
	Epoch     uint64 // how often the group had been reset
	Offset    partition.Offset
	HandOut   uint64 // number of the hand-out in the group's partition: the fence
	Ordinal   uint32 // which hand-out of this message it was, from 1
	Holder    uint32 // whom it was handed out to: see holderOf
	Tag       uint64 // proves that this cluster made the token
}

const tokenVersion = 2

// holderOf is how a token names its member: by a hash, so that a settlement that
// names another one is noticed. Who holds a token may use it without a name.
func holderOf(member string) uint32 { return uint32(xxhash.Sum64String(member)) }

var tokenText = base64.RawURLEncoding

// String is the token's one printed form: about 35 characters that are safe in
// URLs and headers.
func (t Token) String() string {
	b := t.appendBody(make([]byte, 0, 48))
	b = binary.LittleEndian.AppendUint64(b, t.Tag)
	return tokenText.EncodeToString(b)
}

func (t Token) appendBody(b []byte) []byte {
	b = append(b, tokenVersion)
	b = binary.AppendUvarint(b, uint64(t.Partition))
	b = binary.AppendUvarint(b, uint64(t.Group))
	b = binary.AppendUvarint(b, t.Epoch)
	b = binary.AppendUvarint(b, uint64(t.Offset))
	b = binary.AppendUvarint(b, t.HandOut)
	b = binary.AppendUvarint(b, uint64(t.Ordinal))
	return binary.LittleEndian.AppendUint32(b, t.Holder)
}

// ParseToken reads a printed token. It refuses what has not the form of one
// with an *ErrToken; whether this cluster made it is for the Shell to say.
func ParseToken(s string) (Token, error) {
	if s == "" {
		return Token{}, &ErrToken{Why: "empty"}
	}
	if len(s) > 128 {
		return Token{}, &ErrToken{Why: "too long"}
	}
	b, err := tokenText.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") { // the decoder passes over line ends
		return Token{}, &ErrToken{Why: "not base64url without padding"}
	}
	r := reader{b: b}
	if v := r.byte(); r.bad == "" && v != tokenVersion {
		return Token{}, &ErrToken{Why: "of an unknown version"}
	}
	t := Token{
		Partition: partition.PartitionID(r.uvarint()),
		Group:     GroupID(r.uvarint()),
		Epoch:     r.uvarint(),
		Offset:    partition.Offset(r.uvarint()),
		HandOut:   r.uvarint(),
		Ordinal:   r.uint32(),
		Holder:    r.fixed32(),
		Tag:       r.fixed64(),
	}
	// One printed form only: two spellings of a number would be two tokens.
	var buf [80]byte
	if r.finish() != "" || !bytes.Equal(t.appendBody(buf[:0]), b[:len(b)-8]) {
		return Token{}, &ErrToken{Why: "truncated or changed"}
	}
	return t, nil
}

// sealer makes the keyed tag of a token: SipHash-2-4 (Aumasson and Bernstein 2012)
// under a key made of the cluster's secret. It is there so that a token cannot
// be made up, not even by a member of another group.
type sealer struct{ k0, k1 uint64 }

func newSealer(secret uint64) sealer {
	return sealer{k0: keyspace.Mix(secret), k1: keyspace.Mix(secret ^ 0x5374_7261_6e64_4d51)}
}

func (s sealer) seal(t *Token) {
	var buf [64]byte
	t.Tag = siphash.Hash(s.k0, s.k1, t.appendBody(buf[:0]))
}

func (s sealer) made(t Token) bool {
	tag := t.Tag
	s.seal(&t)
	return t.Tag == tag
}
