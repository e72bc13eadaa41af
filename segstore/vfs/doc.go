// Package vfs answers: how is the disk reached?
//
// Everything of Millrace that writes or reads files does it through an FS and
// its Files. There are three:
//
//   - OS, the real one: each method is one system call, links are not followed.
//   - Mem, in memory, which keeps apart what would survive a power loss from
//     what would not; Crash gives every state that a crash may leave behind.
//   - Faulty, a wrapper that makes chosen operations fail, hang, tear or lie.
//
// Syncer is the one place that makes segment files durable (design 3.7).
//
// Rules that all three keep, and that code above may build on:
//
//   - A write is durable after a later Datasync or Sync of the same file
//     returned nil; a created, renamed or removed name is durable after a later
//     SyncDir of its directory. Neither implies the other.
//   - A failed sync is terminal: what was written before it may be gone, and a
//     later success proves nothing about it.
//   - A file that was removed or replaced stays readable through its open Files.
//   - WriteAt beyond the end grows the file; the gap reads as zeros.
//   - Errors work with errors.Is: fs.ErrNotExist, fs.ErrExist, syscall.ENOSPC,
//     syscall.EIO, syscall.EMFILE.
//
// The package does not know segments, does not cache and does not log. There is
// no memory mapping: a read error must be an error, not a signal.
//
// Read FS and File first, then Syncer, then Mem.Crash.
package vfs
