// Package broker is one node put together: the store, the host of the
// partitions, the groups, the coordinator, and the API that clients speak.
//
// It owns the order in which these start and stop, the one HTTP port, and the
// one table that turns typed errors into what a caller sees. It decides nothing
// about messages: an API method validates, calls, and translates.
//
//	            HTTP/1.1, h2c: Connect, gRPC, gRPC-Web, JSON
//	                             │
//	guard: request id, host, origin, content type, size, time ──► probes, /metrics
//	                             │
//	         *_api.go: validate, call, translate the error
//	           (streams: publishStream and attendant, with their flow)
//	      ┌──────────────┬───────┴────────┬─────────────────┐
//	   router         consumer       coordinator          trace
//	 key → partition   groups       topics, groups,      the log,
//	      │            deliveries    members             read back
//	      └──────────────┴───────┬────────┴─────────────────┘
//	                     partition.Host ──► logstore
//
// What concerns one partition goes through the interface partitions. A node with
// Config.Peers asks where a partition is led (dispatch): this node, or another one
// over node.v1, which it serves to others in turn. Batches go to another node by
// a pipe, in one lane for each partition (lane.go); a stream of deliveries gathers
// from several nodes (gather.go); what changes the map is passed on to whoever
// leads the metadata log (control.go).
//
// Every call has a request id (request.go), which goes along in its context: to the
// nodes that are asked for it, and into what is logged for it.
//
// It promises that an answer which says stored or settled is given after the
// log says so; that every refusal has a reason of the table (docs/errors.md);
// that a panic in one call ends that call only and shows no detail; that bytes
// of requests held in memory are bounded; and that Close returns when nothing
// of the node runs any more.
//
// It refuses to listen anywhere but on loopback, because neither TLS nor access
// tokens exist yet; to answer for host names that it was not told of; and to
// open a folder that is in use, foreign, newer than itself, or damaged.
package broker
