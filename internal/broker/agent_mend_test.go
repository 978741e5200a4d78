package broker

import (
	"testing"
	"time"
)

// A replica that is damaged again and again is made anew more and more rarely; one that
// was well for long begins anew.
func TestMendsRest(t *testing.T) {
	var d mended
	now := time.Unix(1_000_000, 0)
	sum := 0
	for now.Before(time.Unix(1_000_000+24*3600, 0)) {
		d = d.again(now)
		now = now.Add(d.rest + time.Minute) // what it takes to be made anew
		sum++
	}
	if sum < 8 || sum > 20 || d.rest != mendRestMax {
		t.Errorf("%d times in a day, and the rest is %v", sum, d.rest)
	}
	if d = d.again(now.Add(3 * 24 * time.Hour)); d.rest != mendRest {
		t.Errorf("after three days it rests for %v", d.rest)
	}
}
