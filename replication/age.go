package replication

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// SteadyClock is a Clock that also counts time without ever being set. Without
// it the readings of Now are asked, whose differences are steady where they are
// the machine's.
type SteadyClock interface {
	Clock
	// Steady is how much time has passed since some moment.
	Steady() time.Duration
}

// ageClock is the node's judge of time for retention by age.
type ageClock struct {
	others func() []time.Time // the other voters' clocks; nil: nobody is there

	mu    sync.Mutex // guards the fields below
	clock segstore.AgeClock
	// newest is the timestamp of the newest record that was found on disk.
	newest chunk.Timestamp
}

// clocks are what the other voters' say.
func (a *ageClock) clocks() (list []chunk.Timestamp) {
	if a.others == nil {
		return nil
	}
	for _, t := range a.others() {
		list = append(list, chunk.Timestamp(t.UnixMilli()))
	}
	return list
}

// stamp returns the timestamp of what is written at a moment of the clock, behind
// records of an earlier one. Where there are others, a clock that is more than an
// hour ahead of all of them is not believed, since timestamps never go back. They
// are asked only where the clock says that so much has passed.
func (n *Node) stamp(last chunk.Timestamp, now time.Time) chunk.Timestamp {
	wall := chunk.Timestamp(now.UnixMilli())
	if wall <= last {
		return last
	}
	if wall > last+segstore.ClockJumpMax {
		if others := n.age.clocks(); len(others) > 0 && wall > slices.Max(others)+segstore.ClockJumpMax {
			return max(last, slices.Max(others))
		}
	}
	return wall
}

// found notes the newest record of a log that was opened.
func (a *ageClock) found(newest chunk.Timestamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest = max(a.newest, newest)
}

// ageNow returns the time by which ages are judged at a moment of the clock, and
// whether it is another than the clock says.
func (n *Node) ageNow(now time.Time) (chunk.Timestamp, bool) {
	a := &n.age
	evidence := segstore.Evidence{Others: a.clocks()}
	steady := n.steady(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	evidence.Newest = a.newest
	return a.clock.Now(chunk.Timestamp(now.UnixMilli()), steady.Milliseconds(), evidence)
}

// steady returns how much time had passed since some moment when the clock said
// now, whatever it was set to meanwhile.
func (n *Node) steady(now time.Time) time.Duration {
	if c, ok := n.clock.(SteadyClock); ok {
		return c.Steady()
	}
	return now.Sub(n.started)
}
