package replication

import "time"

// Clock is where time comes from, so that tests can run it.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once, on a goroutine of its own, when d has passed; stop
	// takes that back and reports whether it was in time.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// systemClock is the machine's.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}
