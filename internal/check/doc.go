// Package check judges what clients of a broker saw against what the broker
// promises. It has three judges, all pure: they take what was recorded and say
// what is wrong, and never talk to a broker.
//
//	clients   ─record─► History ─Promises─► []Violation   after a run: P1..P9
//	demo      ─tell───► Order ──────────► []Violation   while it runs: one order per key
//	load test ─tell───► Strands ────────► Verdict       while it runs: P1, P2, P3, P6, P9
//
// Promises sees the most and keeps everything. Order knows its whole input
// beforehand. Strands keeps a few numbers per key, so that a run may be long.
//
// A History is a list of calls and answers in the order in which clients saw
// them begin and end, the log read back at the end, and each group's dead
// letters. Calls overlap, and answers get lost when a broker is killed: an
// outcome that no client saw counts as unknown, and the judges accept both. So
// a violation is a proof, while silence is only as good as the run was hard.
//
// What each promise means to the judge:
//
//	P1  a receipt's message is in the log, there, with its bytes; the log holds
//	    only what was sent, without gaps; each group settled all of it
//	P2  a publish that began after another's receipt has the larger offset in
//	    their key; within a call, the order of the call
//	P3  no message of a key is delivered before all earlier ones are done, and
//	    none comes back after a later one was delivered
//	P4  every group is judged alone against the one log
//	P5  attempts go up by one; a jump needs that many lost answers
//	P6  a token that a later hand-out replaced settles nothing; a message with
//	    a confirmed ack is not delivered again
//	P7  no attempt beyond the limit; dead once, with its bytes, and not acked too
//	P8  a token always stands for the same hand-out
//	P9  a key and id are in the log once, and all their receipts agree
package check
