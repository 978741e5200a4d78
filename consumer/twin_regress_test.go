package consumer

import "testing"

// TestTwinRegressions runs scripts that once failed.
func TestTwinRegressions(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"the first message of the log waits again, after the keys were divided anew", `
			create 0 302934 0 0
			publish 1 0 0 0
			rogue 0 4 0 0
			rogue 0 2 0 0
			receive 0 2 65 87
			advance 0 239 0 0
			drain 0 0 0 0
			replay 0 0 0 0`},
		{"the queues of a group without order are built anew, while something is out and memory is full", `
			keys 0 0 0 2
			create 0 0 0 0
			stream 0 0 0 0
			propose 0 1 0 0
			publish 0 0 0 0
			policy 0 4 3 4
			publish 0 0 0 0
			credit 0 0 0 0
			stream 0 1 239 0
			rogue 0 3 0 0
			credit 0 0 0 0
			policy 0 0 0 239`},
		{"a stream has forgotten what the hand-out settled, once its deadline is past", `
			create 0 930853 0 0
			publish 0 3 0 0
			stream 0 0 0 0
			credit 0 0 3 0
			publish 0 3 0 0
			publish 0 1 0 0
			propose 0 2 0 0
			next 0 0 0 0
			advance 0 213 0 0
			propose 0 0 0 0
			next 0 0 0 0
			numbers 0 0 0 0`},
		{"a stream settles by number what its clock says has lapsed and the log still holds", `
			keys 0 0 1 0
			create 0 2 0 0
			receive 0 0 0 0
			stream 0 0 0 0
			publish 0 0 0 0
			back 0 2 0 0
			publish 0 0 0 0
			numbers 0 0 0 0
			settle 0 0 0 0
			receive 0 0 0 0
			credit 0 0 1 0
			next 0 0 0 0
			due 0 0 0 0
			publish 0 0 0 0
			next 0 0 0 0
			numbers 0 0 0 0`},
		{"a failure while the circuit is open is not charged, and its trace says so", `
			create 0 187474 0 0
			publish 0 0 0 0
			receive 0 0 0 0
			stream 0 0 0 0
			credit 0 0 0 0
			settle 0 4 0 1
			replay 0 0 0 0
			advance 0 170 0 0`},
		{"a message waits for its backoff and the clock goes back", `
			create 0 29 0 0
			create 1 0 0 0
			receive 0 0 0 0
			publish 0 0 0 0
			drain 1 0 0 0
			lost 0 1 0 1
			lost 1 0 0 0
			back 0 1 0 0
			receive 0 0 0 0`},
		{"a message is given back to the call that is under way", `
			create 0 2 0 0
			receive 0 1 0 0
			publish 0 0 0 0
			publish 0 0 0 0
			settle 0 20 0 1
			receive 0 1 0 2
			settle 0 20 1 0`},
		{"a reset comes between a plan and its reply", `
			create 0 0 0 0
			receive 0 0 0 2
			publish 1 0 0 0
			reset 0 0 0 0`},
		{"a dead letter lies behind the target of a reset", `
			create 0 0 0 0
			publish 0 1 0 0
			publish 0 0 1 0
			receive 0 0 0 1
			publish 0 0 0 0
			settle 0 8 0 1
			settle 0 8 0 2
			publish 0 1 0 0
			reset 0 0 0 0
			drain 0 0 0 0
			replay 0 0 0 0
			discard 0 0 0 0`},
		{"a replayed dead letter is dead again and parks its key", `
			create 0 418114 0 0
			receive 0 0 0 0
			publish 1 0 0 0
			drain 1 0 0 0
			lost 0 1 0 1
			replay 0 0 0 0
			publish 0 0 0 0
			reset 0 1 0 0`},
		{"a reset keeps the attempts of a replay", `
			create 0 1 0 0
			publish 0 1 0 0
			receive 0 0 0 0
			drain 0 0 0 0
			settle 0 8 0 1
			replay 0 0 0 0
			again 0 0 0 0
			settle 0 4 0 1
			settle 0 4 0 1
			reset 0 1 0 0`},
		{"a dead letter ahead of the scan fills the last place of what may wait", `
			create 0 0 0 0
			publish 0 0 0 0
			publish 0 2 0 1
			receive 0 0 0 2
			policy 0 1 0 0
			settle 0 0 0 0
			policy 0 1 1 2
			settle 0 4 0 56
			reset 0 0 0 0`},
		{"a plan that was given up for lost scans on", `
			create 0 2 0 0
			publish 0 1 1 0
			rogue 0 3 0 0
			policy 0 0 121 245
			drain 0 0 0 0
			receive 0 0 0 252
			drain 0 0 0 0
			publish 0 0 0 0
			drain 0 0 0 0`},
		{"a delivery is extended when its group became at-most-once", `
			create 0 0 0 0
			publish 0 0 0 0
			receive 0 0 0 0
			drain 0 0 0 0
			policy 0 128 2 2
			drain 0 0 0 0
			settle 0 18 1 1
			drain 0 0 0 0`},
		{"a request is asked again while its member holds all that it may", `
			create 0 1048576 0 0
			publish 0 1 0 1
			receive 0 0 0 2
			settle 0 0 0 1
			receive 0 3 0 88
			again 0 0 1 0`},
		{"a stream of an at-most-once group takes what was handed out before a reset", `
			create 0 182137 0 0
			receive 0 0 0 180
			stream 0 0 0 0
			publish 0 1 0 0
			credit 0 0 0 0
			reset 0 0 0 0
			credit 0 0 1 0`},
		{"what backs off fills memory, and keeps out of it what has no order", `
			keys 0 0 0 2
			create 0 2 0 0
			publish 1 0 0 0
			receive 0 0 0 0
			session 0 0 0 0
			propose 0 3 0 239
			stream 0 0 0 0
			receive 0 0 0 0
			receive 0 0 34 0
			credit 0 0 0 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ops := parseTwinScript(c.script)
			if err := inBubble(t, func() error { return newTwinWorld().run(ops) }); err != nil {
				t.Error(err)
			}
		})
	}
}
