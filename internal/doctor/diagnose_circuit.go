package doctor

import (
	"fmt"

	"github.com/strandmq/strandmq/internal/quantity"
)

// mostly is from what share on failures are of one kind, in per cent.
const mostly = 90

// blame tells how nearly all ended that was tried lately where a circuit is open:
// "session-lost", "lapse", "refused" by handlers, or "one", if it takes one message only to
// open it and it was one. Empty: no circuit is open, or nothing sticks out.
//
// An open circuit is what follows: nearly all failed. Why they failed is the cause.
func (d *ofGroup) blame() string {
	if len(d.g.Circuits) == 0 {
		return ""
	}
	kinds := []struct {
		name     string
		outcomes []string
		counted  func(Counts) uint64
	}{
		{"session-lost", []string{"session-lost"}, func(c Counts) uint64 { return c.Lost }},
		{"lapse", []string{"lapse"}, func(c Counts) uint64 { return c.Lapsed }},
		{"refused", []string{"nack", "reject"}, func(c Counts) uint64 { return c.Nacked + c.Rejected }},
	}
	var all uint64
	found := make([]uint64, len(kinds))
	for i, k := range kinds {
		traced, _ := d.ended(k.outcomes...)
		found[i] = uint64(len(traced)) + d.since(k.counted)
		all += found[i]
	}
	traced, of := d.ended("session-lost", "lapse", "nack", "reject")
	if d.g.BreakerKeys == 1 && of == 1 && len(traced) >= tried {
		return "one"
	}
	for i, k := range kinds {
		if all > 0 && found[i]*100 >= mostly*all {
			return k.name
		}
	}
	return ""
}

// open says of the cause of a circuit that is open what came of it.
func (d *ofGroup) open(f *Finding) {
	if n := len(d.g.Circuits); n > 0 && d.blamed != "" {
		f.say("so the circuit is open in %d of %s: one message at a time is tried, until one is handled", n, quantity.Some(d.g.Partitions, "partition"))
	}
}

// circuitFollows makes a note of the circuit that is open, where its cause was found among
// the findings of the group, which begin there.
func (d *ofGroup) circuitFollows(first int) {
	if d.blamed == "" || d.blamed == "refused" {
		return
	}
	var circuit *Finding
	var cause Cause
	for i := range d.found[first:] {
		switch f := &d.found[first+i]; f.Cause {
		case CircuitOpen:
			circuit = f
		case DeadlineTooShort, ConsumerCrashes, PoisonMessage, BlockedKey:
			cause = f.Cause
		}
	}
	if circuit != nil && cause != "" {
		circuit.Severity = Note
		circuit.Text = fmt.Sprintf("the circuit of group %s of topic %s is open, which follows from %s: one message at a time is tried, until one is handled", d.g.Name, d.g.Topic, cause)
	}
}
