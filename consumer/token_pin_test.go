package consumer

import "testing"

// TestTokensStay holds tokens that are in members' hands to what they were: a
// tag is SipHash-2-4 under a key made of the cluster's secret, whoever computes
// it.
func TestTokensStay(t *testing.T) {
	for _, c := range []struct {
		secret uint64
		t      Token
		want   string
	}{
		{0, Token{Partition: 1, Group: 1, Ordinal: 1}, "AgEBAAAAAQAAAAB-N0XUrFhaSw"},
		{42, Token{Partition: 3, Group: 7, Epoch: 2, Offset: 1 << 40, HandOut: 123_456_789, Ordinal: 5, Holder: holderOf("m")}, "AgMHAoCAgICAIJWa7zoF6LKig-6dZVsTM36H"},
		{^uint64(0), Token{Partition: 1 << 20, Group: 1 << 63, Offset: 300, HandOut: 128, Ordinal: 1}, "AoCAQICAgICAgICAgAEArAKAAQEAAAAAr_a3FlfS944"},
	} {
		s := newSealer(c.secret)
		s.seal(&c.t)
		if got := c.t.String(); got != c.want {
			t.Errorf("secret %d: %s, want %s", c.secret, got, c.want)
		}
	}
}
