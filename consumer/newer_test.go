package consumer

import (
	"bytes"
	"errors"
	"testing"

	"github.com/strandmq/strandmq/internal/format"
)

// Every command and every row with a version says that a newer version wrote it
// when one did, and that it is damaged when none can have.
func TestNewerFormat(t *testing.T) {
	checkKnown := func(what string, err error, version, known byte) {
		t.Helper()
		var newer *format.ErrNewer
		if isNewer := errors.As(err, &newer); err == nil || isNewer != (version > known) || isNewer && (newer.Found != uint64(version) || newer.Known != uint64(known)) {
			t.Errorf("%s of version %d: %v", what, version, err)
		}
	}
	check := func(what string, err error, version byte) { t.Helper(); checkKnown(what, err, version, 1) }
	for _, version := range []byte{0, 2, 3, 255} {
		for _, cmd := range seeds() {
			cmd[0] = version
			app, at := furnished(t)
			before := app.dump()
			_, err := app.Apply(at, cmd)
			check("command "+string('0'+cmd[1]), err, version)
			if app.dump() != before {
				t.Errorf("command %d of version %d changed the state", cmd[1], version)
			}
			check("traced command", newTracer(1, Window{Last: 10}).command(1, cmd), version)
		}
		versioned := 0
		app, _ := furnished(t)
		if err := app.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		rows := app.rows.(*memRows)
		for key, value := range rows.now {
			whole := bytes.Clone(value)
			value[0] = version
			switch {
			case key[0] == rowGroup:
				if versioned++; version == groupRowVersion {
					break // as it is
				}
				_, err := NewApp(1, rows)
				checkKnown("row "+key, err, version, groupRowVersion)
			case key[0] == rowOf && key[9] == rowEntry:
				_, err := NewApp(1, rows)
				check("row "+key, err, version)
				versioned++
			case key[0] == rowOf && key[9] == rowDead:
				check("dead letter", app.groups[0].eachDead(0, nil), version)
				versioned++
			}
			copy(value, whole)
		}
		if versioned < 3 {
			t.Fatalf("only %d rows have a version", versioned)
		}
	}
}

// A group's row of version 1 does not say how hand-outs ended, and is read all the same.
func TestGroupRowOfVersion1(t *testing.T) {
	app, _ := furnished(t)
	if err := app.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	g := app.groups[0]
	if o := g.outcomes; o.nacked+o.rejected+o.lapsed+o.lost != g.retried || g.retried == 0 {
		t.Fatalf("%d failed: %+v", g.retried, o)
	}
	rows := app.rows.(*memRows)
	key := string(groupKey(rowGroup, g.id))
	whole := rows.now[key]
	old := bytes.Clone(whole[:len(whole)-len(g.outcomes.append(nil))])
	old[0] = 1
	rows.now[key] = old
	again, err := NewApp(1, rows)
	if err != nil {
		t.Fatal(err)
	}
	if g := again.groups[0]; g.outcomes != (outcomes{}) {
		t.Errorf("outcomes %+v of nothing", g.outcomes)
	}
	rows.now[key] = whole
	if again, err = NewApp(1, rows); err != nil || again.groups[0].outcomes != g.outcomes {
		t.Errorf("%v", err)
	}
}
