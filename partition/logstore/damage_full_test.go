package logstore

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// Beyond what is kept of damage, the log still has it.
func TestDamageBeyondTheBound(t *testing.T) {
	var out bytes.Buffer
	s := &Store{told: map[string]bool{}, damages: make(chan *ErrDamaged, 1)}
	s.cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
	for i := range maxDamage + 1 {
		s.reportDamage(&ErrDamaged{File: fmt.Sprint("file-", i), What: "a block"})
		s.reportDamage(&ErrDamaged{File: "file-0", What: "a block"})
	}
	if n := len(s.Damage()); n != maxDamage {
		t.Errorf("%d places are kept, want %d", n, maxDamage)
	}
	if n := strings.Count(out.String(), "\n"); n != maxDamage+1 || !strings.Contains(out.String(), fmt.Sprint("file-", maxDamage)) {
		t.Errorf("the log has %d lines, want one for each of %d places", n, maxDamage+1)
	}
}
