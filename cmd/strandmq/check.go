package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/doctor"
	"github.com/strandmq/strandmq/internal/plain"
)

// limitFlags are the thresholds of check.
type limitFlags struct {
	lag, dead, disk [2]countFlag
	age             [2]spanFlag
}

func (l *limitFlags) flags(c *cobra.Command) {
	l.age = [2]spanFlag{{d: 60e9}, {d: 600e9}}
	l.disk = [2]countFlag{{n: 10, most: 100}, {n: 5, most: 100}}
	f := c.Flags()
	for i, level := range []string{"warning", "critical"} {
		f.Var(&l.lag[i], "lag-"+level, level+" from so many messages on that a group has neither settled nor given up; 0: never")
		f.Var(&l.age[i], "age-"+level, level+" when the oldest of them is so old; 0: never")
		f.Var(&l.dead[i], "dead-"+level, level+" from so many dead letters of a group on; 0: never")
		f.Var(&l.disk[i], "disk-"+level, level+" when less than so many per cent of a disk are free; 0: never")
	}
}

func (l *limitFlags) limits() doctor.Limits {
	pair := func(c [2]countFlag) [2]uint64 { return [2]uint64{uint64(c[0].n), uint64(c[1].n)} }
	out := doctor.Limits{Lag: pair(l.lag), Dead: pair(l.dead), Disk: pair(l.disk)}
	out.Age[0], out.Age[1] = l.age[0].d, l.age[1].d
	return out
}

func (a *app) checkCommand() *cobra.Command {
	var s scope
	var l limitFlags
	within := spanFlag{4500 * time.Millisecond}
	c := command(&cobra.Command{
		Use:   "check",
		Short: "Check figures against limits, for monitoring",
		Long: `Takes one look and holds what it sees against limits, for Nagios, Icinga, cron and the
like: one line with the worst and the figures, and a line for each thing that is not
right. Nodes that are away, too few of them (NO_QUORUM), damage, a disk that is stuck or too full
for publishes are always critical; clocks that differ are a warning.

Exit codes: 0 ok, 1 warning, 2 critical, 3 unknown: wrong usage, no answer, or not all
could be asked and the rest is well. 'strandmq doctor' says why.`,
		Example: `  strandmq check
  strandmq check --topic orders --group billing --lag-warning 1000 --lag-critical 100000
  strandmq check --age-warning 5m --age-critical 1h --dead-warning 1
  strandmq check --disk-warning 20 --disk-critical 10 --output json`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if err := s.check(); err != nil {
			return err
		}
		if within.d <= 0 {
			return usagef("--timeout 0: nobody answers in no time; use 1s or more")
		}
		v := doctor.Verdict{State: doctor.Unknown}
		facts, err := a.inquire(cmd.Context(), s.topic, s.group, 0, within.d, false)
		if err == nil {
			err = s.known(facts)
		}
		if err != nil {
			v.Text = err.Error()
			if isReason(err, noQuorum) { // a node that starts, and waits for the others
				v.State = doctor.Failed
			}
		} else {
			v = doctor.Check(facts, l.limits())
		}
		if err := a.printVerdict(v); err != nil {
			return err
		}
		if v.State != doctor.OK {
			return &exit{code: int(v.State)}
		}
		return nil
	})
	c.Annotations = map[string]string{usageExit: "3"}
	s.flags(c)
	l.flags(c)
	c.Flags().Var(&within, "timeout", "how long it may take in all: what has not answered by then counts as not answering")
	return c
}

func (a *app) printVerdict(v doctor.Verdict) error {
	if a.json() {
		v.Lines = orNone(v.Lines)
		return a.printValue(v)
	}
	// What stands behind the bar is for programs: it is drawn as curves.
	fmt.Fprintf(a.out, "%s: %s | nodes=%d groups=%d lag=%d oldest=%.3fs dead=%d\n", v.State, plain.Text(v.Text), v.Nodes, v.Groups, v.Lag, v.Oldest, v.Dead)
	for _, l := range v.Lines {
		fmt.Fprintf(a.out, "%s: %s\n", l.State, plain.Text(l.Text))
	}
	return nil
}
