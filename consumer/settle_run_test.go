package consumer

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// Settlements that follow each other and are alike are one run; what is read is
// what was written, one by one.
func TestSettleRuns(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	read := func(cmd []byte) (ss []Settlement, why string) {
		r := reader{b: cmd}
		r.header()
		s := r.settlements()
		for {
			tok, a, delay, reason, ok := s.next()
			if !ok {
				return ss, r.finish()
			}
			ss = append(ss, Settlement{Token: tok, Action: a, Delay: delay, Reason: string(reason)})
		}
	}
	for range 2000 {
		var ss []Settlement
		o, n := rnd.Uint64N(1<<20), rnd.Uint64N(1<<20)
		for range rnd.IntN(60) {
			s := Settlement{Action: Ack, Token: Token{Ordinal: 1, Epoch: 3}}
			switch rnd.IntN(12) {
			case 0:
				o += rnd.Uint64N(9)
			case 1:
				n -= rnd.Uint64N(9)
			case 2:
				s.Action, s.Delay, s.Reason = Nack, 5, "no"
			case 3:
				s.Token.Ordinal = 2
			case 4:
				s.Token.Epoch = 4
			}
			o, n = o+1, n+1
			s.Token.Offset, s.Token.HandOut = partition.Offset(o), n
			ss = append(ss, s)
			if rnd.IntN(4) == 0 {
				ss = append(ss, s) // twice the same is no run
			}
		}
		got, why := read(encodeSettle(9, 1, ss))
		if why != "" || !slices.Equal(got, ss) {
			t.Fatalf("%q: read\n%v\nof\n%v", why, got, ss)
		}
	}
	many := make([]Settlement, maxSettleCommand)
	for i := range many {
		many[i] = Settlement{Action: Ack, Token: Token{Offset: partition.Offset(i), HandOut: uint64(i + 7), Ordinal: 1}}
	}
	if cmd := encodeSettle(9, 1, many); len(cmd) > 20 {
		t.Errorf("a run of %d is %d bytes long", len(many), len(cmd))
	}
	// Runs that no proposer makes are refused before anything is made of them.
	for _, n := range []uint64{0, maxSettlements, 1 << 60} {
		b := begin(nil, cmdSettle, 9, 1)
		b = append(b, 0, 1, byte(Ack)|settleRun, 2, 2)
		if _, why := read(binary.AppendUvarint(b, n)); why == "" {
			t.Errorf("a run of %d more was read", n)
		}
	}
}
