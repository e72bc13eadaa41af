package plan

import "github.com/millrace/millrace/segstore/chunk"

// RollKind says why a log should begin a new segment.
type RollKind uint8

const (
	// RollNone: go on in the active segment.
	RollNone RollKind = iota
	// RollSize: the unit holds as many user bytes as a segment should.
	RollSize
	// RollAge: the unit's first user chunk is old enough.
	RollAge
	// RollControl: tracking has piled up where compaction can't take it, or the
	// active segment is damaged, and only a new segment changes that. It begins no
	// unit.
	RollControl
)

func (k RollKind) String() string { return [...]string{"none", "size", "age", "control"}[k] }

// StartsUnit tells whether the new segment begins a unit of retention.
func (k RollKind) StartsUnit() bool { return k == RollSize || k == RollAge }

// Appending says what is about to be appended. Units of retention begin by user data
// and time alone: if tracking could begin one, the full one before it would not
// be the newest any more, and might be retired although no message has come
// (I21).
type Appending uint8

const (
	// AppendingUser: a user chunk. Any roll may come before it.
	AppendingUser Appending = iota
	// AppendingDelta: a delta. Only a control roll may.
	AppendingDelta
	// AppendingNothing: it is only looked whether the log is due by age or for its
	// damage, the rolls that need no append.
	AppendingNothing
)

// RollInput is what the decision rests on (design 3.3, E4). Byte counts are of
// chunks already written.
type RollInput struct {
	// Holds tells that the active segment has a chunk beside its head snapshot;
	// without one it must not roll for its control chunks, or it would for ever.
	Holds     bool
	Appending Appending
	// UnitUserBytes counts since the last size or age roll.
	UnitUserBytes, SegmentBytes int64
	// UnitFirst is the timestamp of the first user chunk since then, if UnitUsed.
	UnitFirst chunk.Timestamp
	UnitUsed  bool
	Now       chunk.Timestamp
	// MaxAge is the stream's age limit in milliseconds; 0 = none.
	MaxAge int64
	// ControlBytes are those of deltas and barriers in the active segment,
	// UserBytes those of its user chunks.
	ControlBytes, UserBytes int64
	// SnapshotBytes is what the newest snapshot took, or the next one may take.
	SnapshotBytes   int64
	ControlBytesMin int64
	ControlPerMille int64
	// HeldBytes and HeldBound are what HeldTracking tells of the log with what is
	// about to be appended.
	HeldBytes, HeldBound int64
	// Damaged: the active segment is known to be. Only a sealed one can be fetched
	// again from another replica.
	Damaged bool
}

// Roll decides. Size goes before age, age before control.
func Roll(in *RollInput) RollKind {
	switch {
	// A unit that is full, or old, ends where it would without tracking, also
	// right behind a roll for control chunks: what retention takes must not
	// depend on those (I21).
	case in.Appending == AppendingUser && in.UnitUsed && in.UnitUserBytes >= in.SegmentBytes:
		return RollSize
	case in.Appending != AppendingDelta && in.UnitUsed && in.MaxAge > 0 && int64(in.Now-in.UnitFirst) > in.MaxAge/4:
		return RollAge
	case in.Holds && in.Appending != AppendingNothing && (in.controlHeavy() || pressing(in.HeldBytes, in.HeldBound)):
		return RollControl
	case in.Holds && in.Damaged:
		return RollControl
	}
	return RollNone
}

// controlHeavy tells whether the active segment is worth sealing for its deltas
// alone.
func (in *RollInput) controlHeavy() bool {
	return in.ControlBytes > max(in.ControlBytesMin, in.SnapshotBytes) &&
		in.ControlBytes > in.UserBytes/1000*in.ControlPerMille+in.UserBytes%1000*in.ControlPerMille/1000
}
