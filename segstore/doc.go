// Package segstore answers: how are a node's logs kept on disk?
//
// A Store is one node's data directory: the streams' logs, the node journal and
// the quarantine. A Log is one replica's log: chunks are appended to segment
// files, synced in groups, sealed, recovered after whatever happened, cut, and
// given up from the front by retention. A Reader walks a log's user chunks in
// order, from memory at the tail and from the files elsewhere.
//
//	Append ─▶ active segment ─▶ Sync ─▶ durable tail
//	   │            │ roll: footer, sealed record
//	   ▼            ▼
//	chunk cache   sealed segments ◀── MANIFEST names them
//	   └──────┬─────┘
//	        Reader ─▶ View: bytes, or a section of a file to send
//
// A Log knows nothing of leaders, followers or clients. Whoever owns it tells
// it what is committed; it promises never to remove anything at or below that,
// never to believe a sync after a failed one, and never to cut silently: what
// can't be read is either the torn end of the last writes or damage, and damage
// is reported (design 3.7). segstore/FORMAT.md tells the bytes and argues for
// each operation why a crash inside of it is harmless.
//
// One goroutine at a time calls a Log's mutators (Append, Sync, Truncate, …);
// Readers, Tail, Durable and Stats may be used from anywhere.
//
// Read Store, Log and Reader first, then recovery in recover.go.
package segstore
