// Package node answers: which parts make a running node, and in which order?
//
// It is the wiring: the only place where all rooms of the house are named
// together. Interfaces that a room declares for what it needs are joined here
// with the room that has it (join_*.go); nothing is decided here.
//
//	disk ── segstore.Store ── replication.Node ◄── residents ── cluster.Cluster
//	                               ▲                                  ▲
//	                               └── broker.Broker (clients) ───────┤
//	                                   admin.Server (operators) ──────┘
//
// Read first: Start (node.go), residents (residents.go).
package node
