// Package replication answers: how does a node run its replicas?
//
// A Node holds one Replica for each stream that lives here. What a replica may
// do is decided by protocol, a pure state machine; this package does it: it
// writes and syncs the log, keeps the journal's promises, tells publishers
// what is confirmed. A stream with one replica goes the same way as one with
// three; its majority is itself.
//
//	Publish ─▶ inbox ─▶ turn: assemble chunk ─▶ log.Append ─▶ log.Sync
//	                      ▲                                       │ (Syncer)
//	                      └──────── inbox ◀───── durable tail ◀───┘
//	                      │
//	                      └─▶ protocol.Step ─▶ commit ─▶ Sink, watchers
//
// A turn is the one place where a replica's state changes. It runs when the
// replica has events, on one of as many workers as there are cores, and never
// twice at once for a replica. A replica without events owns no goroutine,
// timer or buffer.
//
// Not here: what is agreed and when (protocol), bytes on disk (segstore), how
// nodes talk (link), who leads what (cluster, joined in cmd).
//
// Read Replica and turn.go first, then assembler, then Node.
//
// Invariants:
//   - A batch is confirmed only when all its chunks are committed, a duplicate
//     only when its original is (F2).
//   - A publisher's sequence rides in the chunk that holds its messages (F1).
//   - Nothing is answered for an epoch that is no longer promised (A2).
//   - After a failed write or sync the run is over: nothing above the last
//     successful sync is believed (design 3.7).
package replication
