// Package chunk answers: what is a chunk, byte for byte?
//
// A chunk is the unit of write, replication, delivery and compaction. This
// package holds its numbers (Offset, LSN, Epoch), its two headers, the Builder
// that makes one and the iteration over its entries. It is not about files:
// segments, indexes and recovery are segstore's.
package chunk
