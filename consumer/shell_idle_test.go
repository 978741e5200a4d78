package consumer

import (
	"context"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/partition"
)

// A partition that does not tell why it hands nothing out keeps nobody from the reasons of
// the others, and is not taken for one that has nothing.
func TestWhyIdleGoesOn(t *testing.T) {
	ctx := context.Background()
	w := newWorld(3)
	s := w.shell()
	if err := s.CreateGroup(ctx, 2, GroupSpec{ID: 1, Name: "g", Policy: Default()}); err != nil {
		t.Fatal(err)
	}
	if err := s.SetPaused(ctx, 2, 1, true); err != nil {
		t.Fatal(err)
	}
	const without, paused = "does not have the group", "the group is paused"
	if why := s.WhyIdle(ctx, 1, []Share{{Partition: 1}, {Partition: 2}, {Partition: 3}}); !strings.Contains(why, without) || !strings.Contains(why, paused) || strings.Count(why, ";") != 1 {
		t.Errorf("of three partitions, two of them without the group: %q", why)
	}
	if why := s.WhyIdle(ctx, 1, []Share{{Partition: 1}}); !strings.Contains(why, without) {
		t.Errorf("of a partition without the group: %q", why)
	}
	for name, err := range map[string]error{"not asked in time": context.DeadlineExceeded, "not asked: the node is stopping": &partition.ErrStopped{}} {
		if why := notAsked(err); !strings.Contains(why, name) {
			t.Errorf("%v is told as %q", err, why)
		}
	}
}
