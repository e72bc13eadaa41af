package plan

import (
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// Policy is a stream's retention. A zero field sets no limit.
type Policy struct {
	// BytesMax bounds the user bytes that are kept.
	BytesMax int64
	// AgeMax, in milliseconds, bounds the age of the last user chunk of what is
	// kept.
	AgeMax int64
}

// RetainInput is what the decision rests on: the log's segments from the log
// start on, the last being the active one if there is one, and how far the log
// is safe.
type RetainInput struct {
	Segments []manifest.Summary
	Policy   Policy
	Now      chunk.Timestamp
	// Commit and Durable bound what may be relied on (E3, I23).
	Commit, Durable chunk.LSN
}

// Retain returns how many segments, from the front, should go (design 3.6).
// Units go as wholes, and the newest that has user data always stays: a leader
// that failed right behind a roll leaves one without, which must not take the
// messages before it along. Their age may: the roll by age has nothing to
// append. Kept is the longest run of newest units that fits
// the policy; where E3 does not allow the log start there, the highest unit
// start below at which it is allowed.
func Retain(in *RetainInput) int {
	starts := unitStarts(in.Segments)
	keep, _ := wanted(in, starts)
	for keep > 0 && !MayStart(in, starts[keep]) {
		keep--
	}
	if len(starts) == 0 {
		return 0
	}
	return starts[keep]
}

// wanted returns the first unit that the policy keeps, whatever E3 says, and why
// what is before it should go.
func wanted(in *RetainInput, starts []int) (keep int, why Verdict) {
	keep = len(starts) - 1
	if keep <= 0 {
		return 0, Stays
	}
	for keep > 0 && userBytes(in.Segments, starts, keep) == 0 && !expired(in, starts, keep-1) {
		keep--
	}
	bytes := userBytes(in.Segments, starts, keep)
	for keep > 0 {
		older := userBytes(in.Segments, starts, keep-1)
		if expired(in, starts, keep-1) {
			return keep, TooOld
		}
		if in.Policy.BytesMax > 0 && bytes+older > in.Policy.BytesMax {
			return keep, TooMuch
		}
		bytes += older
		keep--
	}
	return 0, Stays
}

// unitStarts returns the indices of the segments with which units begin. What is
// left of a unit whose start is gone counts as one.
func unitStarts(segments []manifest.Summary) []int {
	var starts []int
	for i := range segments {
		if i == 0 || segments[i].UnitStart {
			starts = append(starts, i)
		}
	}
	return starts
}

func unitEnd(segments []manifest.Summary, starts []int, unit int) int {
	if unit+1 < len(starts) {
		return starts[unit+1]
	}
	return len(segments)
}

func userBytes(segments []manifest.Summary, starts []int, unit int) (n int64) {
	for i := starts[unit]; i < unitEnd(segments, starts, unit); i++ {
		n += segments[i].UserBytes
	}
	return n
}

// expired tells whether a unit's last user chunk is too old. A unit without one
// is never too old by itself: it goes when a newer one does.
func expired(in *RetainInput, starts []int, unit int) bool {
	if in.Policy.AgeMax <= 0 {
		return false
	}
	for i := unitEnd(in.Segments, starts, unit) - 1; i >= starts[unit]; i-- {
		if s := &in.Segments[i]; s.UserChunks > 0 {
			return int64(in.Now-s.LastTimestamp) > in.Policy.AgeMax
		}
	}
	return false
}

// MayStart tells whether the log may start at a segment (E3): everything before
// is sealed and committed, and a complete snapshot lies at or after it, at or
// below the commit and the durable tail.
func MayStart(in *RetainInput, segment int) bool { return holds(in, segment) == HoldNone }

// holds tells what keeps the log from starting at a segment.
func holds(in *RetainInput, segment int) Hold {
	if segment == 0 {
		return HoldNone
	}
	if segment >= len(in.Segments) || in.Segments[segment-1].LastLSN > in.Commit {
		return HoldUncommitted
	}
	for i := segment; i < len(in.Segments); i++ {
		switch last := in.Segments[i].SnapshotLast.LSN; {
		case last == 0:
		case last > in.Commit:
			return HoldSnapshotUncommitted
		case last > in.Durable:
			return HoldSnapshotUnsynced
		default:
			return HoldNone
		}
	}
	return HoldNoSnapshot
}
