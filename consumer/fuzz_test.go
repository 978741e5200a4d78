package consumer

import (
	"testing"

	"github.com/strandmq/strandmq/partition"
)

func FuzzToken(f *testing.F) {
	f.Add(Token{Partition: 1, Group: 2, Epoch: 3, Offset: 4, HandOut: 5, Ordinal: 6, Holder: 8, Tag: 7}.String())
	f.Add("")
	f.Add("AQEB")
	f.Add("AX00A000A00000000\r000")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err == nil && tok.String() != s {
			t.Fatalf("%q reads as %+v, which prints as %q", s, tok, tok.String())
		}
	})
}

// seeds are commands of every kind.
func seeds() [][]byte {
	w := planWriter{table: []planMember{{"A", 1, 2}, {"B", 3, 4}}, base: 1}
	w.redeliver(0, 1)
	w.pass(77, 100, 0)
	w.pass(78, 100, none)
	return [][]byte{
		encodeCreate(5, GroupSpec{ID: 1, Name: "G", Policy: Default(), Start: 0}),
		encodePolicy(5, 1, Default()),
		encodePause(5, 1, true),
		encodeDelete(5, 1),
		encodeReset(5, 1, 2),
		encodeSessions(cmdSessions, 5, 1, "A", 2),
		encodeSessions(cmdLeave, 5, 1, "A", 2),
		w.encode(5, 1, 0, 1, 0, 0),
		w.encode(5, 1, 0, 1, 0, 9),
		encodeSettle(5, 1, []Settlement{
			{Token: Token{Offset: 1, HandOut: 1, Ordinal: 1}, Action: Ack},
			{Token: Token{Offset: 0, HandOut: 2, Ordinal: 3, Epoch: 1}, Action: Nack, Delay: 7, Reason: "why"},
		}),
		encodeLapses(5, 1, 0, []lapse{{0, 1}}),
		encodeLeap(5, 1, 5000),
		encodeOffsets(cmdReplay, 5, 1, []partition.Offset{0, 1}),
		encodeOffsets(cmdDiscard, 5, 1, []partition.Offset{0, 1}),
	}
}

// FuzzCommand applies any bytes to a group that has some of everything: they
// are refused, or leave a sound state, and the tracer reads what Apply reads.
func FuzzCommand(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cmd []byte) {
		app, at := furnished(t)
		res, err := app.Apply(at, cmd)
		if err != nil {
			return
		}
		if _, refused := res.(*ErrUnknownGroup); refused {
			return // without looking at the rest
		}
		if err := sound(app, at.End, true); err != nil {
			t.Fatal(err)
		}
		if err := newTracer(1).command(1, cmd); err != nil {
			t.Fatalf("Apply takes what the tracer does not: %v", err)
		}
	})
}

func furnished(t *testing.T) (*App, partition.Position) {
	app, err := NewApp(1, newMemRows())
	if err != nil {
		t.Fatal(err)
	}
	at := partition.Position{Index: 1, End: 20}
	apply := func(cmd []byte) {
		if _, err := app.Apply(at, cmd); err != nil {
			t.Fatal(err)
		}
	}
	apply(encodeCreate(1, GroupSpec{ID: 1, Name: "G", Policy: Default()}))
	w := planWriter{table: []planMember{{"A", 1, 2}}}
	for i := range 10 {
		w.pass(uint64(i%4), 10, 0)
	}
	apply(w.encode(2, 1, 0, 1, 0, 0))
	apply(encodeSettle(3, 1, []Settlement{
		{Token: Token{Offset: 0, HandOut: 1, Ordinal: 1}, Action: Reject},
		{Token: Token{Offset: 1, HandOut: 2, Ordinal: 1}, Action: Nack},
		{Token: Token{Offset: 2, HandOut: 3, Ordinal: 1}, Action: Ack},
	}))
	return app, at
}

// FuzzRows restores from any value in any kind of row: an error, or a state.
func FuzzRows(f *testing.F) {
	app, _ := furnished(&testing.T{})
	if err := app.Checkpoint(); err != nil {
		f.Fatal(err)
	}
	_ = app.rows.Scan(nil, nil, func(k, v []byte) bool {
		f.Add(k, v)
		return true
	})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		app, _ := furnished(t)
		if err := app.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		rows := app.rows.(*memRows)
		if _, ok := rows.now[string(key)]; !ok {
			return // other keys than the App's own are not the decoders' matter
		}
		rows.Put(key, value)
		again, err := NewApp(1, rows)
		if err != nil {
			return
		}
		_ = again.dump()
		for _, g := range again.groups {
			_ = g.eachDead(0, func(partition.Offset, deadRow) bool { return true })
			_, _ = g.rows.history(1)
			_, _ = g.rows.runs(0, 100)
			_, _ = g.rows.ackedBy(0, 1)
		}
	})
}
