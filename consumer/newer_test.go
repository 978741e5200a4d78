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
	check := func(what string, err error, version byte) {
		t.Helper()
		var newer *format.ErrNewer
		if isNewer := errors.As(err, &newer); err == nil || isNewer != (version > 1) || isNewer && (newer.Found != uint64(version) || newer.Known != 1) {
			t.Errorf("%s of version %d: %v", what, version, err)
		}
	}
	for _, version := range []byte{0, 2, 255} {
		for _, cmd := range seeds() {
			cmd[0] = version
			app, at := furnished(t)
			before := app.dump()
			_, err := app.Apply(at, cmd)
			check("command "+string('0'+cmd[1]), err, version)
			if app.dump() != before {
				t.Errorf("command %d of version %d changed the state", cmd[1], version)
			}
			check("traced command", newTracer(1).command(1, cmd), version)
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
			case key[0] == rowGroup, key[0] == rowOf && key[9] == rowEntry:
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
