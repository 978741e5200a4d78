// Package logstore keeps the logs of all partitions of a node, and the rows
// derived from them, in one store on disk. It is the only place that knows
// Pebble.
//
// # What it owns
//
// One folder, locked while it is open:
//
//	LOCK       held by the process that has the store open
//	WITNESS    how far the store was synced, told apart from the store itself
//	PARTITIONS which partitions there are, whatever becomes of the tables
//	pebble/    one Pebble store: one log file for all partitions, tables, values
//	incoming/  tables of a snapshot, before they are part of it
//
// A partition has a log of entries, a hard state, named values, and rows in the
// namespaces Offsets, IDs, Producers and AppRows. What the rows mean is the
// caller's business; this package knows no message, no group and no vote. The
// bytes are drawn in docs/format/store.md.
//
//	Batch ──Commit──► applied (readers see it) ──► log file ──fsync──► Pending.Wait
//	  many partitions     in commit order             shared by all commits
//	                                                        │
//	                                              50 ms later, or SyncWitness
//	                                                        ▼
//	                                                     WITNESS
//
// # What it promises
//
// A batch is on disk as a whole or not at all, and when it is, so is every
// batch committed before it. Wait returns nil only after that.
//
// What is read is what was written. Each entry carries a checksum over itself,
// its key and the checksum of the one before it, each row one over itself and
// its key; reading verifies them, and the chain. What does not verify is not
// returned: the error names the partition, of entries the range too, and
// everything else is still served. A file that is gone or cut short takes with it
// what was in it, and no more, and it is told at the start; partitions that it
// hides are listed all the same. Without a table that holds rows of the store
// itself it does not open.
// What is found is listed (Damage), and damage that a compaction meets is named
// and left where it is.
//
// A store that comes back older than what it acknowledged does not open. Pebble
// alone would open it: it takes a record that does not read for the end of the
// file. So Open reads the MANIFEST and the log files first, without changing
// anything, and then compares the batch counter, a row in every batch, with the
// witness. There is one window: damage to the end of the newest log file within
// WitnessInterval before a crash looks like the crash itself. After a clean
// stop there is none.
//
// The first failed write or fsync stops the store for good; every later call
// returns that first error. Nothing is retried, for an fsync that succeeds
// after one that failed proves nothing. From that moment nothing more reaches
// the disk, so what is there is what a power cut would have left. After a
// restart the log is replayed into new tables and synced anew, which settles
// what the failed fsync had left in doubt.
//
// One partition can be streamed as it is at one moment (Export), and take the
// place of what another store has of it (Import): all at once, or not at all.
//
// # What it refuses
//
// A folder in use, one that is not its own, one of a newer version, one that is
// damaged, an empty one where a store should be: each with an error of its own
// type that says what to do, and with nothing on disk changed. It never cuts
// anything off to make it fit.
//
// # Concurrency
//
// A Store may be used by any number of goroutines. A Batch belongs to one.
// Batches that write the same log are committed in the order in which they were
// begun, else the later one is refused. The store has three goroutines of its own
// beside Pebble's: one tends the witness and calls OnFault, one times what the
// disk is asked to do (a disk that hangs is told by Stuck, and then stops the
// store), one reads everything again, slowly (Scrub). Close ends them all.
package logstore
