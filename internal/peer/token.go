package peer

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base32"
	"hash/crc32"
	"strings"
)

// A join token, in base32 without padding behind its prefix:
//
//	+0   version   u8, 1
//	+1   secret    16 bytes
//	+17  pin       32 bytes: SHA-256 of the authority's public key
//	+49  check     u32, big endian: CRC32C of what is before, against typing errors
//
// The secret proves to the cluster that the machine may join, the pin proves to the
// machine that it joins that cluster. Who issues tokens keeps a hash of the secret,
// until when it is valid, and whether it was used.
const (
	tokenPrefix  = "smq-join-"
	tokenVersion = 1
	secretSize   = 16
	tokenSize    = 1 + secretSize + sha256.Size + 4
)

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Token lets one machine join.
type Token struct {
	Secret [secretSize]byte
	pin    [sha256.Size]byte
}

// NewToken makes one for the cluster of an authority's certificate.
func NewToken(authority []byte) (Token, error) {
	var t Token
	certs, err := parseCerts(authority)
	if err != nil {
		return t, refuse(BadCertificate, "the authority's certificate: %v", err)
	}
	t.pin = pin(certs[0])
	_, err = rand.Read(t.Secret[:])
	return t, err
}

// Hash is what the cluster keeps of a token's secret.
func Hash(secret []byte) [sha256.Size]byte { return sha256.Sum256(secret) }

// String is the token's text form. It is a secret.
func (t Token) String() string {
	b := append([]byte{tokenVersion}, t.Secret[:]...)
	b = append(b, t.pin[:]...)
	return tokenPrefix + tokenText.EncodeToString(appendSum(b))
}

func appendSum(b []byte) []byte {
	s := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return append(b, byte(s>>24), byte(s>>16), byte(s>>8), byte(s))
}

// ParseToken takes a token's text form apart. What it refuses is not repeated in
// the error.
func ParseToken(s string) (Token, error) {
	var t Token
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !ok {
		return t, refuse(TokenUnknown, "this is not a join token, which begins with %s", tokenPrefix)
	}
	b, err := tokenText.DecodeString(rest)
	switch {
	case err != nil || len(b) < 5 || !same(appendSum(b[:len(b)-4:len(b)-4]), b):
		return t, refuse(TokenUnknown, "the join token is cut off or has a typing error: copy it as a whole")
	case b[0] != tokenVersion:
		return t, refuse(TokenUnknown, "the join token has format %d, and this version knows format %d: run the cluster's version", b[0], tokenVersion)
	case len(b) != tokenSize:
		return t, refuse(TokenUnknown, "the join token has %d bytes, and has %d where it is right", len(b), tokenSize)
	}
	copy(t.Secret[:], b[1:])
	copy(t.pin[:], b[1+secretSize:])
	// Two texts of one token would be two tokens to whoever compares texts.
	if t.String() != tokenPrefix+rest {
		return Token{}, refuse(TokenUnknown, "the join token has a typing error at its end: copy it as a whole")
	}
	return t, nil
}

func same(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }

// Pins tells whether the token is for the cluster that a node is in.
func (t Token) Pins(id *Identity) bool {
	for _, raw := range id.held.Load().cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(raw); err == nil && c.IsCA && pin(c) == t.pin {
			return true
		}
	}
	return false
}
