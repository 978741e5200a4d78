package format

import (
	"errors"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for found := range uint64(3) {
		if err := Check("row", found, 2); err != nil {
			t.Errorf("format %d: %v", found, err)
		}
	}
	err := Check("row", 3, 2)
	var newer *ErrNewer
	if !errors.As(err, &newer) || *newer != (ErrNewer{What: "row", Found: 3, Known: 2}) {
		t.Fatalf("%#v", err)
	}
	for _, part := range []string{"row of format 3", "up to 2", "written by a newer version", "run that version or newer"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}
