// Package sim answers: do real replicas keep their promises under every fault
// that a seed can think of?
//
// A World is a cluster on one goroutine: replication Nodes over segstore over
// vfs.Mem, joined by a network, placed and coordinated by a catalog that each
// node has by itself, used by model clients and operators. Everything that can happen is an
// event in one queue, ordered by virtual time; whatever could be otherwise is
// drawn from the seed. So a seed is a run, and the same seed is the same run,
// byte for byte of its trace.
//
//	clients ──▶ node: turns of replicas, one event each ──▶ network ──▶ nodes
//	                │                                           │
//	             vfs.Mem, whose syncs end later              lost, late, twice
//	                │
//	             power loss: any state that the disk may keep
//
// After every step that a replica took, checks.go holds it against what a
// perfect observer knows (ghost.go): which chunk is committed at which LSN, who
// promised what, which message was confirmed to whom. The names of violations
// are those of the invariants I1 to I31. coverage.go counts the states in which an
// invariant could have been broken: a thousand seeds must have been in each.
// Whether the checks see a broken rule, make mutants-sim tells: it breaks one
// after the other (testdata/mutants.txt).
//
// A run has two phases. In the first faults happen; which kinds, and how often,
// the seed decides too (options.go). Then it is calm: everything is healed, and
// within a bound each stream must have a leader, every client an answer, and all
// replicas the same log (L1, L2). Rot stays within what may be mended: it is always
// the same node's disk, and never what that node alone has.
//
// The metadata is the real catalog on every node: encoded commands, applied by
// each node from raft's log or a snapshot, with equal hashes at equal entries; and
// the product's decisions about it, which are functions of package catalog: what
// the coordinator does next and when (NextSteps, Sight, Agenda), what replicas'
// wishes become (Wishes), how a node comes to its replica (Residence, Entry), who
// gets a stream (Placer), what operators may do (CanAdd …, LostWithout). Around
// them stand short stand-ins for package cluster's loops (raft.go, coordinator.go,
// metadata.go, operators.go), with its delays, repetitions and time-outs. Leaders
// of the metadata change with commands under way, commands come twice under one
// request id, two coordinators may be at work, and who is there is told late and
// wrongly.
//
// What is not real here: bytes between nodes (frames travel as values), clients'
// wire, memberlist, and raft itself: its votes, its store and its log's way to
// followers are hashicorp's; what it promises is taken for given, and what it may
// do to those who use it is done to them. Read World, then node, then checks; for
// the metadata raft, then coordinator.
package sim
