package plan

import "github.com/millrace/millrace/segstore/chunk"

// Verdict is what retention makes of a unit.
type Verdict uint8

// The verdicts.
const (
	// Stays: it is within the policy.
	Stays Verdict = iota
	// Newest: it would be over a limit, but the newest unit with messages always
	// stays.
	Newest
	// TooMuch, TooOld: it goes, or a newer one is over a limit, and units go
	// oldest first.
	TooMuch
	TooOld
)

func (v Verdict) String() string {
	return [...]string{"stays", "newest", "size", "age"}[v]
}

// Hold is what keeps a unit that the policy would take (E3).
type Hold uint8

// The holds.
const (
	HoldNone Hold = iota
	// HoldUncommitted: it, or what is before it, is not committed yet.
	HoldUncommitted
	// HoldNoSnapshot: no complete snapshot lies behind it.
	HoldNoSnapshot
	// HoldSnapshotUncommitted, HoldSnapshotUnsynced: there is one, but a power
	// loss could still take it.
	HoldSnapshotUncommitted
	HoldSnapshotUnsynced
)

func (h Hold) String() string {
	return [...]string{
		"", "its messages are not committed yet", "no complete snapshot of tracking lies behind it",
		"the snapshot of tracking behind it is not committed yet", "the snapshot of tracking behind it is not synced yet",
	}[h]
}

// Unit is one unit of retention, as a person would want to know it.
type Unit struct {
	From, To                int // its segments: From up to, without, To
	FirstLSN                chunk.LSN
	FirstOffset, NextOffset chunk.Offset
	Records                 uint64
	UserBytes, DiskBytes    int64
	FirstTimestamp          chunk.Timestamp // of user chunks; 0: it has none
	LastTimestamp           chunk.Timestamp
	Verdict                 Verdict
	Hold                    Hold // of a unit that should go and does not
}

// Goes tells whether retention takes the unit now.
func (u *Unit) Goes() bool {
	return (u.Verdict == TooMuch || u.Verdict == TooOld) && u.Hold == HoldNone
}

// Units explains what Retain does with the same input, unit by unit from the
// oldest on.
func Units(in *RetainInput) []Unit {
	starts := unitStarts(in.Segments)
	keep, why := wanted(in, starts)
	goes := Retain(in)
	units := make([]Unit, len(starts))
	for i := range starts {
		u := &units[i]
		u.From, u.To = starts[i], unitEnd(in.Segments, starts, i)
		first, last := &in.Segments[u.From], &in.Segments[u.To-1]
		u.FirstLSN, u.FirstOffset, u.NextOffset = first.FirstLSN, first.BaseOffset, last.NextOffset
		for k := u.From; k < u.To; k++ {
			s := &in.Segments[k]
			u.Records += s.Records
			u.UserBytes += s.UserBytes
			u.DiskBytes += s.Size
			if s.UserChunks > 0 {
				if u.FirstTimestamp == 0 {
					u.FirstTimestamp = s.FirstTimestamp
				}
				u.LastTimestamp = s.LastTimestamp
			}
		}
		switch {
		case i < keep:
			u.Verdict = why
			if u.From >= goes {
				u.Hold = holds(in, starts[keep])
			}
		case overAlone(in, starts, i):
			u.Verdict = Newest
		}
	}
	return units
}

// overAlone tells whether a unit that stays is over a limit all by itself.
func overAlone(in *RetainInput, starts []int, unit int) bool {
	return in.Policy.BytesMax > 0 && userBytes(in.Segments, starts, unit) > in.Policy.BytesMax || expired(in, starts, unit)
}
