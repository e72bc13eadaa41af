// Package catalog answers: what streams, replicas and users exist, and what
// is the next step?
//
// It is the state machine behind the metadata raft. A Command is a value with
// a versioned JSON form and a request id; State.Apply turns one State into the
// next. A State is immutable: once made it is read by any number of goroutines
// without a lock, and a change shares all that it does not touch (tree.go).
//
// The package also decides, without doing: Place chooses the nodes of a new
// stream, NextSteps says which streams need a new epoch, a fence or a leader.
// The coordinator in package cluster carries the steps out.
//
// Read first: State, Stream, Command (command.go), NextSteps (steps.go).
//
// Invariants:
//
//   - Apply is a function of the state and the command alone. The proposer
//     draws incarnations and reads the clock; both travel in the command.
//   - A command that was applied before (same request id) changes nothing and
//     gets its first answer again, as far as the bounded memory reaches. Behind
//     that memory, commands name what they expect to find (an incarnation, an
//     epoch, a version), so a late repetition is refused, not carried out.
//   - A command that this version does not know is an error of Apply, not of
//     the command: the node must stop, since going on would diverge.
//   - At most one leader is ever recorded for an epoch of a stream (A1).
//   - No message and no stored offset is here: those are in the streams.
package catalog
