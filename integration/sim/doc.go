// Package sim answers: do real replicas keep their promises under every fault
// that a seed can think of?
//
// A World is a cluster on one goroutine: replication Nodes over segstore over
// vfs.Mem, joined by a network, coordinated by catalog.NextSteps over an ideal
// metadata register, used by model clients. Everything that can happen is an
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
// What is not real here: bytes between nodes (frames travel as values), raft,
// clients' wire. Read World, then node, then checks.
package sim
