package broker

import (
	"fmt"
	"time"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// A refusal is an error on its way to a caller: a stable reason, the words, and
// what a program can act on. Errors of the packages below become refusals in
// translate, and nowhere else.
type refusal struct {
	reason     string // a row of the table
	text       string // what went wrong and what to do
	field      string // the field at fault
	retryAfter time.Duration
	route      *strandmqv1.RouteResponse // with a stale route: the present one
}

func (r *refusal) Error() string { return r.reason + ": " + r.text }

// refuse makes a refusal of bad input.
func refuse(reason, field, format string, args ...any) *refusal {
	return &refusal{reason: reason, field: field, text: fmt.Sprintf(format, args...)}
}

// A row of the error table. The code is Connect's name for it.
type row struct {
	reason string
	code   string
	when   string
	what   string // what the caller can do
}

// table is every reason that a caller can meet. docs/errors.md shows it, and a
// test holds the two equal. A reason, once published, keeps its meaning and its
// code for good.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var table = []row{
	// The asker's: trying again unchanged does not help.
	{"BAD_REQUEST", "invalid_argument", "The request cannot be decoded, or has a field that does not exist (JSON), invalid UTF-8, or is nested too deep.", "Correct the request; the message names the place."},
	{"BAD_NAME", "invalid_argument", "A topic, group, member, session or producer name breaks the rules.", "Use 1 to 200 letters, digits, dots, underscores and dashes, no dot first; 1 to 64 for a producer."},
	{"BAD_KEY", "invalid_argument", "A key is empty or too long.", "Use 1 to 4,096 bytes; leave the key out for a message without one."},
	{"BAD_ID", "invalid_argument", "A message id is too long or not valid text.", "Keep ids within 256 bytes of UTF-8."},
	{"BAD_HEADER", "invalid_argument", "A header's name or value breaks the rules, or there are too many.", "At most 64 headers and 16 KiB; names by the rules of HTTP, values without control characters (or as bytes)."},
	{"BAD_BODY", "invalid_argument", "A JSON body holds what JSON tools would change.", "Send the value as a string, or the body as text."},
	{"BODY_TOO_LARGE", "invalid_argument", "A body is larger than the topic takes.", "Send less, or raise the topic's max_body_bytes (at most 1 MiB)."},
	{"BATCH_TOO_LARGE", "invalid_argument", "A call carries too many items or bytes.", "Split it: at most 1,000 items and 4 MiB."},
	{"BAD_RECORD_BATCH", "invalid_argument", "A record batch is not one (its magic, version, checksum, counts or lengths are wrong), or a record in it is beyond a limit. Nothing of it was stored.", "Make it as docs/format/record-batch.md draws it; the message says what is wrong and in which record."},
	{"BAD_VALUE", "invalid_argument", "A number, a position or a choice is out of range, or a list is empty.", "The message names the range."},
	{"BAD_POLICY", "invalid_argument", "A group's policy or a topic's settings contradict themselves or are out of range.", "The message lists every fault."},
	{"BAD_TOKEN", "invalid_argument", "A delivery token is malformed, cut off, or not from this cluster or group.", "Send the token exactly as it was received."},
	{"REQUEST_TOO_LARGE", "resource_exhausted", "The request is larger than the server reads.", "Split it; retry_after_ms is 0, so do not send it again as it is."},
	{"NOT_CONFIRMED", "failed_precondition", "A dangerous call came without the name typed again.", "Set confirm to the name of what is to be deleted."},
	{"UNKNOWN_TOPIC", "not_found", "There is no such topic.", "Create it, or correct the name."},
	{"UNKNOWN_GROUP", "not_found", "The topic has no such group.", "Create it, set create_group, or correct the name."},
	{"UNKNOWN_PARTITION", "not_found", "The topic has no such partition.", "Partitions are numbered from 0; DescribeTopic lists them."},
	{"UNKNOWN_MESSAGE", "not_found", "No message with that id or at that place is kept.", "Correct the id or the place; it may also have been removed by retention."},
	{"UNKNOWN_DEAD_LETTER", "not_found", "The group has no such dead letter.", "List them; it may have been replayed or discarded."},
	{"UNKNOWN_NODE", "not_found", "The cluster has no such node.", "List the nodes, and correct the number."},
	{"UNKNOWN_METHOD", "unimplemented", "There is no such service, method or path.", "Reflection lists services and methods, GET /v1/openapi.json the paths of the plain HTTP API."},
	{"TOPIC_EXISTS", "already_exists", "There is a topic of that name with other settings.", "Use AlterTopic, or another name."},
	{"GROUP_EXISTS", "already_exists", "There is a group of that name with another policy.", "Use AlterGroup, or another name."},
	{"ID_REUSED", "already_exists", "The message id is taken, within its topic and key, by a message with another body.", "Give every message an id of its own."},
	{"SEQUENCE_REUSED", "already_exists", "A producer used the sequence number before, for another message.", "Begin with a new producer id."},
	{"SEQUENCE_EXPIRED", "already_exists", "A producer sent a sequence number again whose message was stored so long ago that where it stood is not known any more.", "It was stored: go on with the next message."},
	{"SEQUENCE_GAP", "failed_precondition", "A producer's sequence skipped numbers.", "Send the missing messages first; the message says which number is expected."},
	{"STALE_ROUTE", "failed_precondition", "A record batch was made for a partition that does not own the hashes of its keys: the topic's routing table changed, or the topic was made anew. Nothing of it was stored.", "The present table is with the answer: make the batch again by it."},
	{"STALE_DELIVERY", "failed_precondition", "The token is not that of the message's current delivery: it lapsed, was settled otherwise, or the group was reset.", "Drop the work. Nothing was changed; the message is someone else's, or settled."},
	{"HELD_TOO_LONG", "failed_precondition", "A delivery cannot be extended beyond the policy's max_hold.", "Settle it, or raise max_hold_ms."},
	{"NOT_HOLDER", "failed_precondition", "The settlement names a member that the delivery was not given to. Nothing was changed.", "Name the member that received it, or none."},
	{"SESSION_ENDED", "failed_precondition", "The member's session has ended: it was left, its stream was lost, a newer one of the same member took its place, or, without a stream, it was silent for the session timeout and the group's max_hold.", "Join again, or leave session empty."},
	{"UNKNOWN_SESSION", "not_found", "The member never had such a session: the number was not given out, or is another member's.", "Send the session that Join or Receive gave this member, or leave session empty."},
	{"REPLAYING", "failed_precondition", "The dead letter was replayed and waits for its turn, or is with a member, so it cannot be discarded.", "Settle that delivery when it comes; a reject makes it a dead letter again."},
	{"REPLAY_LIMIT", "failed_precondition", "As many replayed messages wait in a partition as the group's max_deferred lets.", "Repeat the request when some were handled; what was counted stands."},
	{"OFFSET_BEYOND_END", "out_of_range", "An offset is beyond the end of a partition: to read from, or for a group to start at or be moved to.", "Use an offset up to end_offset, or latest for the end; the message says where it is."},
	{"TOPIC_REPLACED", "failed_precondition", "The place to read on from is of a topic that was deleted, and another one has its name.", "Begin again without a place, with earliest or latest."},
	{"OFFSET_EXPIRED", "out_of_range", "The offset is no longer kept.", "Use a position from start_offset on."},
	{"LIMIT_REACHED", "resource_exhausted", "A limit on the number of topics, partitions, groups or members is reached.", "Delete what is not needed, or raise the limit."},
	{"REPLICATION", "failed_precondition", "More replicas are asked for than there are active nodes, or a move names more or fewer nodes than the topic has replicas.", "Add nodes, ask for fewer replicas, or name as many nodes as the topic has."},
	{"LAST_NODE", "failed_precondition", "The last active node cannot be drained, replaced or removed.", "Add a node first."},
	{"NODE_HOLDS", "failed_precondition", "The node has replicas, or the only replica of something.", "Drain it and wait until it has none; the message says how many it has."},
	{"NODE_GONE", "failed_precondition", "The node was removed, or its disk was given up; it never comes back.", "Start it on an empty data folder, as a new node."},
	{"NODE_NOT_ACTIVE", "failed_precondition", "The node is given no replicas.", "Choose an active node, or end its draining."},
	{"NODE_OLDER", "failed_precondition", "The node runs an older version of the broker than the cluster writes for, since all nodes were upgraded.", "Run the version of the other nodes on it."},
	{"NODE_ACTIVE", "failed_precondition", "The data folder is not that of the node that it claims to be, or an older copy of it.", "Start each node on its own folder; after the loss of a disk let a new node join."},
	{"NO_PEERS", "failed_precondition", "No node of the cluster listens for other nodes, so none can join it.", "There is nothing to join: the cluster is this node."},
	{"BAD_JOIN_TOKEN", "permission_denied", "The join token is unknown, used, or past its time.", "Have a node of the cluster make a new one."},
	{"CANCELED", "canceled", "The caller gave up.", "Nothing."},
	{"DEADLINE", "deadline_exceeded", "The caller's time ran out before the answer. What was asked may still happen.", "Ask again; publish with ids and settle calls are safe to repeat."},
	{"REQUEST_SLOW", "deadline_exceeded", "The body of a request did not arrive within 30 seconds. Nothing of it was done, and the connection is closed.", "Send the request in one go; for what is produced slowly use a stream."},

	// The web's: what keeps other sites' pages out of a broker on loopback.
	{"HOST_NOT_ALLOWED", "permission_denied", "The Host header is not one that this broker answers to.", "Use localhost or 127.0.0.1, or start with --allowed-host."},
	{"CROSS_ORIGIN", "permission_denied", "The request comes from a web page of another origin.", "Call from the same origin, or from a program; for publishing and consuming the broker can be started with --allow-origin."},
	{"BAD_CONTENT_TYPE", "invalid_argument", "The content type or encoding is not one that the call can have.", "Send one that the message names: for most calls content-type: application/json, in UTF-8."},
	{"BAD_COMPRESSION", "invalid_argument", "A compressed request inflates to more than 100 times its size, and to more than 256 KiB.", "Send it less compressed, or as it is."},
	{"BAD_METHOD", "unimplemented", "The call is made with another HTTP method.", "Use the one that the message names; mostly POST."},

	// The world's: trying again after retry_after_ms may help.
	{"QUEUE_FULL", "resource_exhausted", "More is being published than the disk takes.", "Wait retry_after_ms, then send the refused messages again."},
	{"DISK_STUCK", "unavailable", "The broker's disk has not come back from a write for seconds, so nothing is published. If it does not come back, the broker stops.", "Wait retry_after_ms and send it again; look at the disk."},
	{"DISK_FULL", "resource_exhausted", "The broker's disk has less free than its reserve, so nothing is published. Receiving, settling and deleting go on.", "Free some room, delete topics, or move the data to a larger disk; then publishing goes on by itself."},
	{"HOLD_LIMIT", "resource_exhausted", "A group that holds is at its limit, and the topic refuses publishes rather than lose messages. Receiving and settling go on.", "Let the group named in the message catch up, raise its hold_limit, or delete it; then publishing goes on by itself."},
	{"TOO_MANY_STREAMS", "resource_exhausted", "The streams that are open hold all the memory that streams may hold.", "Close some, or give the broker more (--stream-memory); then open the stream again."},
	{"BUSY", "resource_exhausted", "Too many requests are being read at once.", "Wait retry_after_ms and send it again."},
	{"NOT_LEADER", "unavailable", "The partition has no leader on this node at the moment.", "Wait retry_after_ms and send it again."},
	{"NO_QUORUM", "unavailable", "Too few of the nodes that have a replica of the partition, or of the cluster's metadata, are there. Nothing was done. What only looks is answered from what the asked node holds.", "Bring nodes back: it goes on when a majority is there. The message names those that are missing."},
	{"IN_PROGRESS", "unavailable", "The topic or group is being created or deleted.", "Wait retry_after_ms and send it again."},
	{"CONFLICT", "aborted", "Others kept changing the same thing at the same time.", "Look at it and try again."},
	{"SUPERSEDED", "aborted", "The same request, by its request id, was asked again while this call waited; the later call gets the deliveries.", "Nothing, if the later call is yours; else give each call a request id of its own."},
	{"NOT_SENT", "aborted", "An earlier message of the same call, which must be stored first, was refused.", "Send both again, in order."},
	{"OUTCOME_UNKNOWN", "unavailable", "The broker stopped or lost leadership before it knew the outcome.", "Send it again; with a message id or a producer sequence nothing is stored twice."},
	{"NOT_READY", "unavailable", "The broker is starting or stopping.", "Wait retry_after_ms and send it again."},

	// Ours: the node says what is wrong and stops what it cannot trust.
	{"PARTITION_DAMAGED", "data_loss", "Stored data of the partition failed its checksum; it is not served.", "Restore the data folder from a copy; the message says what is damaged, and the other partitions go on: calls that concern several answer for those and name this one in left_out."},
	{"NEWER_FORMAT", "failed_precondition", "A newer version of the broker wrote what the partition stores, so this one does not read it. Nothing is damaged, and nothing was changed.", "Run that version or a newer one on the data folder; until then the other partitions go on."},
	{"STORE_FAILED", "unavailable", "The disk refused a write, so the node stopped writing, and the broker ends. Calls that were on their way get OUTCOME_UNKNOWN.", "Free or replace the disk and start the broker again; everything acknowledged is on it."},
	{"INTERNAL", "internal", "A fault of the broker.", "The broker's log has the details under the request id that comes with it."},
}

// rowOf finds a reason's row. A reason without one is a fault of ours, which
// the test over the table rules out for every reason in the source.
func rowOf(reason string) row {
	for _, r := range table {
		if r.reason == reason {
			return r
		}
	}
	return table[len(table)-1]
}

// rowFor is a reason's row for who writes problems of its own.
func rowFor(reason string) (code, when, what string) {
	r := rowOf(reason)
	return r.code, r.when, r.what
}
