package segstore

import "github.com/millrace/millrace/segstore/plan"

// What a log's owner decides with: the plan room's own types, under the names
// by which rooms above know them.
type (
	// Policy is a stream's retention.
	Policy = plan.Policy
	// RollKind says why a log should begin a new segment.
	RollKind = plan.RollKind
)

// The kinds of rolls.
const (
	RollNone    = plan.RollNone
	RollSize    = plan.RollSize
	RollAge     = plan.RollAge
	RollControl = plan.RollControl
)
