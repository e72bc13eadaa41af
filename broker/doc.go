// Package broker answers: how are clients served?
//
// It listens on the stream port, keeps one session a connection, and carries
// each command of the stream protocol to the room that knows: Publish to the
// leading replica, Subscribe to a reader of the log, Create to the catalog.
//
//	            ┌ reader goroutine: frame → dispatch → answer
//	socket ─────┤
//	            └ writer goroutine: answers, confirms, Deliver frames
//
// What needs a stream's leader on another node is asked there (leader.go, lane.go),
// and what needs a replica where this node has none (extent.go), by requests that
// forward.go writes down; guests.go serves those of other nodes:
//
//	session → leader ┬ local  ───────────────────────────→ Replica
//	                 └ remote → lane ═ Peers ═ ServePeer ─→ Replica
//
// Read first: dispatch in dispatch.go (which command is legal when, and who
// carries it out), session.publish (the way in) and writer.deliver (the way
// out).
//
// Not here: the frames' bytes (wire), what a stream is (segstore), when a
// message is safe (replication), who may do what (the Directory joined in cmd).
//
// Invariants:
//   - Frames of one connection are carried out one after another; answers
//     leave in that order.
//   - Nothing a client sends makes the broker hold more memory than the limits
//     of Config allow; a limit that bites says its name.
//   - A Publish frame is checked whole before any of it is handed over.
//   - A publishing id is confirmed only to the publisher that sent it, never to
//     a later one with the same number.
//   - Rights are looked at where the client is connected, and nowhere else.
//   - Each Deliver costs one credit and no Deliver goes out without one.
//   - A member of a group that is not active gets nothing, and nothing behind the
//     ConsumerUpdate that ends its turn (groups.go).
package broker
