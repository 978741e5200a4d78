// Package consumer is what consumer groups make of one partition's messages:
// who was handed what, how often, until when, and what becomes of it.
//
// It owns the delivery state of every group in a partition, the policy that the
// partition's log gave the group, the dead letters, and the delivery tokens.
// It promises, whatever fails on the way:
//
//   - while a message of a key is unsettled in a group, no later one of the key
//     is handed out in that group (P3); other keys flow;
//   - a hand-out is in the log before anyone gets it, with its attempt, member
//     and deadline (P5); a message never handed out is never charged;
//   - a token acts on its own delivery only (P6), and what it repeats is success;
//   - after max_attempts a message is dead in the same log entry as its last
//     failure (P7); asking again gives what is out again (P8);
//   - memory is bounded (P11) by constants and by what the policy lets be out:
//     what waits beyond them waits on disk, as do keys that cannot go, and the
//     history of what failed; what is settled costs nothing;
//   - a command touches what it names, and a turn what it hands out. Nothing
//     walks through all that waits, but for a reset, a change of mode and a look
//     at the counts.
//
// It refuses to know topics, sessions' timeouts, assignments and routes: the
// caller says which session asks for which share of which partition. A wrong
// answer there costs balance, never order, since a message is handed out by
// what this state says and by nothing else.
//
//	 Shell, any goroutine          App, the partition's one goroutine
//	┌──────────────────┐  Post   ┌──────────────────────────────────────────┐
//	│ Receive ─────────┼────────►│ hand: who waits, what can go, timers     │
//	│   ▲   demand     │         │   │ Drive: plans, lapses (propose only)  │
//	│   │              │         │   ▼                                      │
//	│   │              │ Propose │ ══════════ the partition's log ═══════   │
//	│ Settle, admin ───┼────────►│   │ Apply: decides, the same everywhere  │
//	│   │              │         │   ▼                                      │
//	│   └── Handed ◄───┼─────────┤ group: entries, key queues, members      │
//	│ Stats, DeadLetters◄──View──┤   │ Checkpoint                           │
//	└──────────────────┘         │   ▼ Rows: dead letters, history, entries │
//	                             └──────────────────────────────────────────┘
//
// The parts, from the inside out. A group (machine_group.go) is tables and
// queues with one rule: only the head of a key's queue is ready, and only while
// nothing of the key is out and no dead letter parks it; what waits beyond what
// memory takes is on disk (machine_queue.go, machine_shelf.go). Apply (machine.go,
// machine_plan.go, machine_settle.go, machine_dead.go, machine_clock.go) is the
// only thing that changes it. The hand (machine_hand.go, machine_dispatch.go) exists where the
// partition is led; it reserves credit of those who wait, proposes plans, and
// brings them what Apply made of those. A Stream (shell_stream.go) is a taker that
// stays: without credit it sleeps, and costs the hand nothing. The Shell blocks,
// reads clocks and makes tokens. A trace (machine_trace.go) reads a message's life back from the
// log; what only Apply could decide it takes from rows (machine_void.go). docs/format/delivery.md draws commands and rows.
//
// Four things that are easy to miss:
//
//   - A plan names consecutive messages of the log with their key hashes, and
//     Apply hands each out or lets it wait. So no replica reads messages to
//     apply, and what a plan got wrong is void, not harmful.
//   - The end of a backoff is no log entry: a hand-out of a message that failed
//     is void as long as the group's clock says that its wait is not over.
//   - That clock is in the log and only moves forward, as fast as time passes
//     for the leader, wherever the leader's own clock stands. One that is hours
//     behind or was set back makes what is out last a ninth longer at most; one
//     that is far ahead or was set forward ends it two seconds early at most,
//     and what more there is moves clock and deadlines alike. A change of leader
//     can give what is out the time again that passed since the group's last
//     command. machine_clock.go has the rules.
//   - Keys are told apart by their 64-bit hash. Two keys with one hash share a
//     queue: that costs them parallelism and nothing else. A message without a
//     key is expected to have a hash of its own.
package consumer
