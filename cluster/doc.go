// Package cluster answers: who is here, and who leads?
//
// It runs the metadata raft (hashicorp/raft over raft-boltdb) under the pure
// catalog, keeps the node's identity, proves passwords, and runs the
// coordinator beside the raft leader: the loop that gives every stream a
// leader. No message and no stored offset passes through it.
//
//	call ──► propose ──► raft ──► machine ──► catalog.State ──► View, Subscribe
//	                                              │
//	          Fencer ◄── coordinator ◄── changed ─┘
//	        (replicas)        └── epochs and leaders ──► propose
//
//	other nodes ──► Network ──► knocks (join, found) · requests (atLeader) · links (presence)
//
// Read first: Cluster (cluster.go), machine (machine.go), coordinator
// (coordinator.go); then belong (join.go) for how a node comes to its cluster
// and atLeader (leader.go) for how a call comes to the leader.
//
// Invariants:
//
//   - View never goes back, and shows a change before the call that made it
//     returns and before subscribers are told.
//   - A create answers only when the stream's leader says that it leads.
//   - When the store of the raft log fails once, nothing is ever written to it
//     again and the node must stop: what a failed sync left behind is unknown.
//     A lonely voter whose disk is full waits for space instead (latch).
//   - A node gives its word to one founder at most; an empty one founds nothing
//     while its configuration names others.
//   - A call that came back shows in View, wherever it was made.
//   - Membership is raft's and the catalog's; links and gossip are hints.
//   - An unknown catalog command stops the node; nothing behind it is applied.
package cluster
