package segstore

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

var (
	// ErrExists reports that a stream of this incarnation has files here already.
	ErrExists = errors.New("segstore: stream exists")
	// ErrMissing reports that no stream of this incarnation has files here.
	ErrMissing = errors.New("segstore: no such stream")
	// ErrClosed reports a log or store that was closed or removed.
	ErrClosed = errors.New("segstore: closed")
	// ErrNotContiguous reports a chunk that does not continue the log (B2).
	ErrNotContiguous = errors.New("segstore: chunk does not continue the log")
	// ErrPoisoned reports a log one of whose syncs has failed: nothing above its
	// durable tail is believed any more, and it takes no chunk until it is cut
	// there and opened again.
	ErrPoisoned = errors.New("segstore: an earlier sync failed")
	// ErrDamaged reports bytes that were durable and can't be read any more. The
	// error is a *DamageError.
	ErrDamaged = errors.New("segstore: damaged")
	// ErrBelowCommit refuses to remove what is committed (B6).
	ErrBelowCommit = errors.New("segstore: would remove committed chunks")
	// ErrNoSnapshot refuses a log start behind which no complete, committed and
	// durable snapshot lies (E3).
	ErrNoSnapshot = errors.New("segstore: no complete snapshot behind the new log start")
	// ErrNotSegmentStart refuses a log start inside of a segment (E3).
	ErrNotSegmentStart = errors.New("segstore: no segment starts there")
	// ErrVersion reports files of a format that this program is too old for.
	ErrVersion = errors.New("segstore: written by a newer version of the format")
)

// DamageError names what can't be read. It is an ErrDamaged.
type DamageError struct {
	File     string // path of the segment's file
	Position int64  // of the first bad byte range in it
	// Segment names the file's place in the log.
	Segment manifest.Name
	// First and Last bound the LSNs that are lost or unproven; Last is 0 where
	// it is not known, and below First where all chunks are good and the file's
	// end is not.
	First, Last chunk.LSN
	// Offset is the first record that may be lost, Next the one behind the last;
	// 0 where it is not known.
	Offset, Next chunk.Offset
	Cause        error
}

func (e *DamageError) Error() string {
	what := fmt.Sprintf("chunks %d to %d", e.First, e.Last)
	switch {
	case e.Last == 0:
		what = fmt.Sprintf("chunks from %d on (offsets from %d on)", e.First, e.Offset)
	case e.First > e.Last:
		what = fmt.Sprintf("what is behind chunk %d", e.Last)
	case e.Next > e.Offset:
		what += fmt.Sprintf(" (offsets %d to %d)", e.Offset, e.Next-1)
	}
	return fmt.Sprintf("segstore: damaged: %s, in %s at byte %d: %v", what, e.File, e.Position, e.Cause)
}

// Unwrap gives ErrDamaged and the cause.
func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Cause} }
