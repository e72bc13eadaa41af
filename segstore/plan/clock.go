package plan

import "github.com/millrace/millrace/segstore/chunk"

// How far and how long a clock is doubted, in milliseconds.
const (
	// JumpMax is how far a clock may run ahead of what is expected.
	JumpMax = 3_600_000
	// ConfirmAfter is how long a jump must last to be believed with nobody to
	// confirm it.
	ConfirmAfter = 600_000
)

// AgeClock decides which time it is when messages are deleted for their age. A
// clock that jumps would make all of them old at once, so a jump is believed
// only when a second source says the same, or when it has lasted: until then the
// believed time goes on by the steady clock. It never goes back, so a clock that
// is set back deletes nothing, and nothing is deleted twice as early when it is
// set right again.
//
// The zero value believes nothing yet.
type AgeClock struct {
	known bool
	// At steady time `steady` it was `wall`, as was believed last.
	wall   chunk.Timestamp
	steady int64
	// seen is the highest time that was ever believed.
	seen chunk.Timestamp
	// suspect is a reading that is not believed, and when it was first seen.
	suspected     bool
	suspect       chunk.Timestamp
	suspectSteady int64
}

// Evidence is what else may tell the time.
type Evidence struct {
	// Newest is the timestamp of the newest record that was on disk when the
	// process started; 0 if there is none. Time is at least that late, and a
	// clock that is hardly ahead of it is right.
	Newest chunk.Timestamp
	// Others are the clocks of the other voters, if there are any.
	Others []chunk.Timestamp
}

// Now takes a reading of the machine's clock and of one that only counts
// milliseconds, and returns the time by which ages may be judged; doubted tells
// that the machine's clock says something else.
func (c *AgeClock) Now(wall chunk.Timestamp, steady int64, e Evidence) (now chunk.Timestamp, doubted bool) {
	if !c.known {
		c.known = true
		c.wall, c.steady = wall, steady
		if e.Newest > 0 && wall > e.Newest+JumpMax {
			c.wall = e.Newest
		}
	}
	expected := c.wall + chunk.Timestamp(steady-c.steady)
	switch {
	case !far(wall, expected), c.confirmed(wall, steady, e):
		c.wall, c.steady, c.suspected = wall, steady, false
		c.seen = max(c.seen, wall)
		return c.seen, false
	case !c.suspected || far(wall, c.suspect+chunk.Timestamp(steady-c.suspectSteady)):
		c.suspected, c.suspect, c.suspectSteady = true, wall, steady
	}
	c.seen = max(c.seen, min(expected, wall))
	return c.seen, true
}

// confirmed tells whether a reading that was not expected is to be believed.
func (c *AgeClock) confirmed(wall chunk.Timestamp, steady int64, e Evidence) bool {
	if e.Newest > 0 && !far(wall, e.Newest) {
		return true
	}
	near := 0
	for _, other := range e.Others {
		if !far(wall, other) {
			near++
		}
	}
	if near > 0 && 2*near >= len(e.Others) {
		return true
	}
	return c.suspected && steady-c.suspectSteady >= ConfirmAfter &&
		!far(wall, c.suspect+chunk.Timestamp(steady-c.suspectSteady))
}

func far(a, b chunk.Timestamp) bool { return a > b+JumpMax || b > a+JumpMax }
