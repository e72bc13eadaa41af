// Package tracking answers: who has read and written how far, and when is it
// worth writing?
//
// State is what a log's chunks say: reference → stored offset, publisher →
// last sequence. It is the fold of trailers, deltas and snapshots in LSN order
// and nothing else, so that every replica with the same chunks has the same
// State, and after truncation it is folded again. Known tells whether a fold
// says everything (rule F9).
//
// Pending holds stores that no chunk carries so far: a leader's own, or those
// that a follower keeps for an election (F5). Pacer decides when they are worth
// a trailer or a delta chunk, within the budget of design 4.2.
//
// Everything here is a value that one goroutine at a time uses: no clock, no
// I/O; "now" is always given. Orders run on LSN, epoch and version, never on
// time or on a map's order, and equal states encode to equal bytes.
//
// Read State first, then Update and Pending, then Pacer. The bytes are drawn
// above the codecs and told in segstore/FORMAT.md section 3.
package tracking
