package consumer

import (
	"bytes"
	"reflect"
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
		if err := newTracer(1, Window{Last: 10}).command(1, cmd); err != nil {
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

// FuzzQueueRows reads any value as a row of a queue and as one of a key: what is
// taken is in order, and is written as it was read.
func FuzzQueueRows(f *testing.F) {
	key := rowsOf{newMemRows(), 1}.key(rowQueue, 5)
	ms := []queuedMessage{{5, 7, 100}, {9, 7, 1}}
	f.Add(queueRow{next: 10, key: 7, body: encodeQueued(ms, false)}.encode())
	f.Add(queueRow{kind: queueMixed, key: 0, body: encodeQueued(ms, true)}.encode())
	f.Add(queueRow{next: 3, key: 7, body: encodeQueued(ms, false)}.encode())
	f.Add([]byte{rowVersion, keyCold, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4})
	f.Add([]byte{rowVersion, keyReady})
	f.Fuzz(func(t *testing.T, v []byte) {
		app, _ := furnished(t)
		g := app.groups[0]
		if r, err := decodeQueueRow(key, v); err == nil {
			if !bytes.Equal(r.encode(), v) {
				t.Fatalf("%x is written as %x", v, r.encode())
			}
			if r.kind == queueWhole {
				_, _ = g.entryOf(key, r)
			} else if ms, err := r.messages(key); err == nil {
				for i := 1; i < len(ms); i++ {
					if ms[i].offset <= ms[i-1].offset {
						t.Fatalf("out of order: %v", ms)
					}
				}
			}
		}
		if ks, err := decodeKey(g.rows.keyRow(3), v); err == nil {
			g.putKey(&ks)
			again, err := decodeKey(g.rows.keyRow(3), app.rows.(*memRows).now[string(g.rows.keyRow(3))])
			if ks.row && (err != nil || !reflect.DeepEqual(again, ks)) {
				t.Fatalf("%+v is read again as %+v: %v", ks, again, err)
			}
		}
	})
}
