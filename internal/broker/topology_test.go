package broker

import (
	"errors"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// A leader that is away passes, and what is damaged does not.
func TestWhatPasses(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&partition.ErrNotLeader{Partition: 3}: true, &partition.ErrOutcomeUnknown{}: true,
		errors.New("the disk is gone"): false, &partition.ErrDamaged{}: false,
	} {
		if passing(err) != want {
			t.Errorf("%T passes: %v", err, !want)
		}
	}
}
