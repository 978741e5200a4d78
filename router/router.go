// Package router finds the partition of every message and carries publishes
// there.
//
// It owns two things: the routing table of a topic (an immutable value with a
// revision, which can go stale but never changes), and the publisher, which
// groups the messages of a call by partition and puts the answers back in the
// order of the call. How a key becomes a hash, and what ranges of hashes are,
// is internal/keyspace's. It promises that messages of one key
// go to one partition in the order given, that a message refused for itself
// does not stop its neighbours, and that a message refused for lack of room
// stops the later ones of its partition, so that trying again keeps their
// order. It refuses to guess: a message whose fate is not known is answered
// with *ErrOutcomeUnknown.
//
//	Submit(messages) ──check each──► key ─hash─► Table ─► partition
//	                                                        │ one record batch each
//	                                                        ▼
//	Wait() ◄── results in the order of the call ◄── Log.PublishAsync
//
// Table.Parse is the same judgement for a record batch that somebody else made:
// what it accepts is what Submit could have sent.
//
// The same code runs at the edge of every node and in the Go client; only the
// Log behind it differs. The package knows neither networks nor raft.
package router
