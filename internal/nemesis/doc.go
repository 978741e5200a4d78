// Package nemesis makes a plan of faults for a cluster of three real broker processes,
// has the machine carry them out, and says how long each kept publishers waiting.
//
//	seed ──Plan──► []Step     pure: which fault, where, how long, one after the other
//	Step ──► Net, Disk        Linux and root: what is done to links and disks
//	acks ──► Ledger ──► []Outage ──► Summary     pure: what it cost
//
// It knows no broker: who runs the processes, loads them and judges what they did is the
// test of the command, which has the broker's clients (cmd/strandmq.TestNemesis). What a
// plan says it says again for the same seed, so a run can be made again; what the
// processes make of it they do not.
//
// Net puts each node into a network namespace of its own, all on one bridge that belongs
// to nobody else. A cut needs no packet filter: each node has fixed neighbour entries, and
// a node that is to be unheard by another gets a hardware address for it that nobody has.
// So every direction of every pair can be cut alone, silently, and connections that are
// open notice nothing but silence.
//
// Disk gives each node a file system of its own in a file, which can be filled, frozen, and
// cut off from its power: what was not synced is then gone, as SelfTest proves each time.
//
// What it cannot do: jump a node's clock, since a Go program asks the kernel without a
// library between and time namespaces move no wall clock; and tear writes in the middle.
// The simulator (internal/sim) does both.
package nemesis
