// Package partition is one replicated, ordered log, many times over: it stores
// messages, decides their offsets, suppresses duplicates, and drives whatever
// state is attached to a log.
//
// # What it owns
//
// A partition is one Raft group, and its log is the message log. An entry holds
// record batches, as they came, or commands to the state attached to the log
// (App). A Host runs all partitions of a node over one store:
//
//	Publish, Propose ──► queue ──┐                       ┌──► offsets, receipts
//	  (bounded)                  │   one turn            │
//	Post, View ──► inbox ────────┼─► core.pump ──► sync ─┼──► App.Apply, App.Drive
//	                             │   one batch     one   │        │ commands
//	tick, wake ──────────────────┘   for all     fsync   │        ▼
//	                                 partitions          └──── into the next turn
//	Read, Scan ──► memory: the tail, and what Log.Keys read; else store (any goroutine)
//
// The core is passive: no goroutine, clock or socket inside. The host is the
// thin shell around it: one goroutine that owns the core, one that waits for the
// disk. Tests drive the core step by step instead.
//
// # What it promises
//
// A record that was answered as stored is on disk, fsynced, at that offset,
// until a trim removes it. Offsets are dense, from 0. Batches of one partition given in one order
// by one caller are stored in that order. An id, with its key, or a producer's
// sequence is stored once, and a repeat gets the first receipt; what is a repeat
// is decided when an entry is applied, never before.
//
// App.Apply sees every command in the order of the log, and after a restart
// again those behind the last checkpoint, at the same positions. Nothing is
// sent, applied or answered that is not durable here. Every proposal gets an
// answer; where the outcome cannot be known, the answer says so (*ErrOutcomeUnknown).
// Queues, caches and rows that wait for a checkpoint are bounded by Config. Whoever
// publishes much is not in front of who publishes little: see turns.go.
//
// What a trim removes (trim.go) is gone for every reader at once, with the ids
// and sequences that went with it; the App has its say, the same on every
// replica, and the disk gets its room back with the next checkpoint.
//
// # What it refuses
//
// A batch that does not parse, before it reaches the log. More than fits its
// queues (*ErrFull, with a time to try again), or anything while the disk hangs
// (*ErrDiskStuck). To guess: a log whose checksums
// or commands are wrong stops its own partition (*ErrDamaged) and no other; a
// disk that fails stops the host. It knows no topic, group or member: those are
// what Apps make of it.
//
// # Several nodes
//
// The replicas of a partition speak in Frames (frame.go), which a transport takes
// from Config.Send and gives to Host.Receive; it also tells which nodes are there
// (Up, Down). One replica leads; the others apply the same log and serve the same
// reads, a little later. When a node dies, or its disk hangs, others lead what it
// led, and partitions with nothing to say are not ticked at all (failover.go).
// Replicas are added, promoted, demoted and removed one step at a time (change.go).
// Each has an id that is never used again: one that was removed has forgotten its
// votes, and must not come back as the same.
//
// A replica that lacks what the leader's log no longer has, or joins with nothing,
// gets the partition as a whole (snapshot.go): from Config.SendSnapshot to
// Host.ReceiveSnapshot, beside the frames. A leader keeps some of its log for others
// that lag, bounded in bytes.
package partition
