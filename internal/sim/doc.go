// Package sim runs whole brokers in one thread, by a seed: nodes on disks that lose
// power, clocks that jump, networks that lose and repeat, clients that crash and ask
// again. What runs is the broker's own code; only time, disk, network and clients
// are the simulator's.
//
//	          events, by virtual time (clock.go)
//	               │
//	publishers ─► node ─► partition.Node ─► consumer.App     the broker's own
//	members    ─►  │   └─ consumer.Shell, streams            the broker's own
//	operators  ─►  │   └─ logstore on Pebble ─► disk         its files are the simulator's
//	steward    ─►  │   └─ coordinator, placement, duty       the broker's own
//	faults     ─►  └─ net ─► other nodes
//	                          │
//	                        judge: what was promised, from what clients see
//
// It owns the order of everything. One event happens after another, and what an
// event draws it draws from the seed; so a seed is a history, the same on every
// run, and a failure comes back as often as it is asked for. It promises that a run
// which the judge accepted kept: what was acknowledged, at its offset; the order of
// keys and producers; one delivery of a key at a time; attempts, tokens and acks;
// counts that add up; one leader and one vote a term; entries that never change once
// applied, and are on most disks by then (ballot.go); and
// rows of groups that depend on the log alone. With Options.Live it also promises
// that everything is done once the faults end.
//
// It refuses to know how the broker decides: the judge is written from the promises.
// It looks at a group's rows only to compare them with themselves.
//
// # What is simulated, and what is not
//
// Of the store's log files everything that is not durable yet is kept back, byte for
// byte (disk.go), so a power cut loses what it should, in the middle of a write too.
// Pebble's tables and manifest are written by its own goroutines, in real time; what
// the store holds does not depend on when, and so neither does a history. The host's
// loop is node.go's: what partition.Host does in goroutines is not run here, nor is
// the API, the connections, and the waiting of a unary Receive.
//
// Snapshots go over the simulated network as streams, and are taken into the store
// within one step. What replicas there are is decided by the cluster's metadata and
// each node's part of it (cluster.go, deputy.go), or, without a cluster, by the
// simulator, which does what they never would (placer.go); the core carries it out.
//
// docs/simulator.md says how to run it and how to read what it finds.
package sim
