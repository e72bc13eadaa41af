package segstore

import (
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
)

// What a log's owner decides with and is told: the plan and manifest rooms' own
// types, under the names by which rooms above know them.
type (
	// EpochLine says where an epoch begins in the log (C1).
	EpochLine = manifest.EpochLine
	// Start is where a log starts.
	Start = manifest.Start
	// Policy is a stream's retention.
	Policy = plan.Policy
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

// The kinds of rolls.
const (
	RollNone    = plan.RollNone
	RollSize    = plan.RollSize
	RollAge     = plan.RollAge
	RollControl = plan.RollControl
)
