// Package manifest answers: what do the sealed segments contain?
//
// A stream's MANIFEST is a log of small records: this segment was sealed, these
// generations were replaced by that one, the log starts here, the log was cut
// there. Folding the records gives a State, the one authority on which files
// make up the log. The Summary of a segment is kept twice, in a sealed record
// and as the footer of the segment's file, so that a lost MANIFEST is rebuilt
// without reading data.
//
// The package turns bytes into records and records into a State, and back. It
// opens no file: segstore appends, syncs and rewrites. Read Summary first, then
// Record, then State. The bytes are described in segstore/FORMAT.md section 6.
//
// Invariants of a State (I20, I24):
//
//   - segments are contiguous: each begins at the LSN, offset and digest where
//     the one before it ends, the first at or below the log start;
//   - a record that would break this is refused, never applied by halves.
package manifest
