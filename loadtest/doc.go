// Package loadtest drives a running broker as its users do, measures what they
// would feel, and judges what they got. It owns the load (who sends what, when),
// the figures and the verdict; it knows only what a client knows.
//
//	schedule ─due─► producer ─Send─────────► broker ─Receive─► member ─► ack, nack,
//	keys ─────────►    │                                         │        lapse, crash
//	                   │ receipt                                 │
//	                   ▼                                         ▼
//	          publish latency:              end-to-end latency: due → first delivery
//	          due → receipt                 check.Strands: lost, duplicated, out of
//	                                        order, overlapping
//
// A body says who it is: the run, its key, its producer, its number among that
// producer's messages of the key, when it was due, and a checksum over all of
// it. So nothing has to be kept of a message in order to judge it, and the
// memory of a run depends on its keys, not on its length (see check.Strands).
//
// With a rate, messages are due by a schedule that waits for nobody (an open
// loop), and latency counts from then: a broker that stops for a second is seen
// by every message of that second, also by those that could not even be sent.
// What was due and never sent counts with the time that it has waited so far.
// Without a rate, each producer sends its next batch when the last one has its
// receipts, and latency counts from the sending; that tells what the broker can
// carry, and little about what its users feel.
//
// Everything is sent until it has a receipt or a final refusal, which ends the
// run. Members tell the judge what they are about to ask before they ask it, so
// that a verdict is a proof. The seam to the broker is Broker, Publisher and
// Session: over unary calls (unary_client.go), or over streams (stream_*.go).
//
// A Shape is the other way to load: one of the workloads by which brokers are
// compared, at full speed (RunShape). There the load test must cost next to
// nothing, since it shares the processor with the broker, so it has a path of
// its own, without an allocation for a message: a pump that fills frames, takers
// that settle runs, and a check that counts.
//
//	lanes ─records─► pump ─frames─► broker ─frames─► taker ─runs─► acks
//	                   ▲  ◄─answers─                   │
//	                   └────────── room ◄──────────────┴─► check.Tally
//
// A run keeps nothing on the broker that it made, unless it is told to.
package loadtest
