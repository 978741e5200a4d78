// Package peer connects the nodes of one cluster: who a node is, how it proves
// it, and how bytes get from one node to another.
//
// It owns
//
//   - the cluster's authority and the certificate of each node (authority.go,
//     identity.go): a node is strandmq://CLUSTER/node/N, and its certificate says
//     so;
//
//   - the join token (token.go), by which a machine without a certificate gets
//     one;
//
//   - one listener with TLS 1.3, which speaks one of three protocols on each
//     connection, by its name in the handshake (ALPN);
//
//   - the frames: one connection for each ordered pair of nodes, over which
//     messages go one way (outgoing.go, incoming.go);
//
//   - who is alive (machine_pulse.go): beats, and silence.
//
//     Send ──► queue, bounded in bytes ──► one writer ══ strandmq-frames/1 ══► one reader ──► Deliver
//     full or down: false        │  ▲                               │
//     beats└──┴──────── answers ◄─────────────┘
//     Client ──► http.Client ═══════════════════ h2 ═══════════════════════► Handler
//     Join ─────────────────────────────── strandmq-join/1 ────────────────► OnJoin
//
// It promises that Send never blocks and that what waits to be sent is bounded;
// that messages of one connection arrive in the order they were sent, but for urgent
// ones, which go first, each whole or not at all, and that those of one node are
// delivered one at a time; that
// Alive tells of a node that is silent, within Silence and two beats, and of its
// return; and that every refusal between nodes is an *ErrRefused on both sides.
//
// It does not promise delivery. A message may be lost when a connection breaks,
// when the queue is full, and while a node is down. Who sends must be able to
// send again, as Raft is.
//
// A node is up when both directions work: it is heard (its beats arrive), and it
// answers (what is sent there arrives). So a cut in one direction is seen by both
// ends, and a node that takes no messages for as long as Silence is down for the
// others, whatever else it does.
//
// It refuses to know what the bytes mean: nodes are plain numbers, messages are
// byte slices. Config.Deliver, Config.Handler and Config.OnJoin are where they
// get a meaning. The bytes are drawn in docs/format/node-connections.md.
package peer
