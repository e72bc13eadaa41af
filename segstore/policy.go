package segstore

import (
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
)

// ClockJumpMax is how far, in milliseconds, a clock may be ahead of what is
// expected of it before somebody else is asked.
const ClockJumpMax = plan.JumpMax

// What a log's owner decides with and is told: the plan and manifest rooms' own
// types, under the names by which rooms above know them.
type (
	// EpochLine says where an epoch begins in the log (C1).
	EpochLine = manifest.EpochLine
	// Start is where a log starts.
	Start = manifest.Start
	// Policy is a stream's retention.
	Policy = plan.Policy
	// Unit is one unit of retention and what becomes of it.
	Unit = plan.Unit
	// AgeClock decides which time it is when messages go for their age, Evidence
	// what it may ask beside the machine's clock.
	AgeClock = plan.AgeClock
	Evidence = plan.Evidence
	// DiskRule, DiskLimits and DiskLevel tell how much of a disk stays free.
	DiskRule   = plan.DiskRule
	DiskLimits = plan.DiskLimits
	DiskLevel  = plan.DiskLevel
	// RollKind says why a log should begin a new segment.
	RollKind = plan.RollKind
	// Appending says what is about to be appended.
	Appending = plan.Appending
)

// What may be about to be appended.
const (
	AppendingUser    = plan.AppendingUser
	AppendingDelta   = plan.AppendingDelta
	AppendingNothing = plan.AppendingNothing
)

// What a disk's level may be.
const (
	DiskRoomy = plan.DiskRoomy
	DiskLow   = plan.DiskLow
	DiskAlarm = plan.DiskAlarm
)

// The kinds of rolls.
const (
	RollNone    = plan.RollNone
	RollSize    = plan.RollSize
	RollAge     = plan.RollAge
	RollControl = plan.RollControl
)
