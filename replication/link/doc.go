// Package link answers: how do nodes talk?
//
// Two nodes that have to do with each other share a bundle of a few
// connections: streams are hashed over all but the last, which carries requests
// alone, so that none waits behind chunks. A message of the protocol goes out
// as a frame, a chunk's bytes beside it, never copied on the way to the kernel.
//
//	replica ─Send─▶ queue of the stream ─▶ writer ═══ conn ═══▶ reader ─Admit─▶ Deliver
//	                    ▲   one for each stream,                  │
//	                    └── credit ◀──────────────────────────────┘ taken
//
// Every connection between nodes, raft's too, comes through one port, the Mux:
// mutual TLS or a cluster secret says who is there before anything else is read.
//
// Not here: what a message means (protocol), who may lead (asked by Admit),
// what a chunk's bytes say (the replica checks them), what a request is about.
//
// Read Frame first, then Mux (who is it?), Links (whom do I talk to?), conn (how
// do bytes go?). The bytes are under "Link bytes" in ../PROTOCOL.md.
//
// Invariants:
//   - Frames of a stream to a node arrive in the order sent, or StreamDown or
//     Down tells that some did not.
//   - Up comes before the first Deliver of a bundle, Down after the last.
//   - Nothing blocks its caller but Request: what can't be queued is dropped, the
//     stream is told, and goes on once the queue is empty.
//   - Memory for what comes in grows with the bytes that came, not with those
//     that a length claims.
//   - A stream without frames sends nothing and owns nothing here.
package link
