package replication

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAlarms_ringInTimeByOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &countingClock{}
		a := &alarms{clock: clock}
		start := time.Now()
		var rung []string
		newAlarm := func(name string) *alarm {
			return &alarm{ring: func() { rung = append(rung, name+" "+time.Since(start).String()) }}
		}
		one, two, three := newAlarm("one"), newAlarm("two"), newAlarm("three")
		a.set(two, start.Add(2*time.Second))
		a.set(one, start.Add(time.Second))
		a.set(three, start.Add(3*time.Second))
		a.set(one, start.Add(time.Hour))     // later than set: does not count
		a.set(three, start.Add(time.Second)) // earlier: counts
		a.clear(two)
		time.Sleep(time.Minute)
		synctest.Wait()
		slices.Sort(rung)
		if want := []string{"one 1s", "three 1s"}; !slices.Equal(rung, want) {
			t.Fatalf("rung %q, want %q", rung, want)
		}
		if n := clock.running.Load(); n != 0 {
			t.Fatalf("%d timers without an alarm", n)
		}
		a.set(two, time.Now().Add(-time.Second)) // past: at once
		synctest.Wait()
		if len(rung) != 3 {
			t.Fatalf("rung %q", rung)
		}
		a.set(one, time.Now().Add(time.Second))
		a.close()
		a.set(two, time.Now().Add(time.Second))
		time.Sleep(time.Minute)
		if len(rung) != 3 {
			t.Fatalf("rung after close: %q", rung)
		}
	})
}

// countingClock counts the timers that run.
type countingClock struct {
	systemClock
	running atomic.Int64
}

func (c *countingClock) AfterFunc(d time.Duration, f func()) func() bool {
	c.running.Add(1)
	timer := time.AfterFunc(d, func() { c.running.Add(-1); f() })
	return func() bool {
		if !timer.Stop() {
			return false
		}
		c.running.Add(-1)
		return true
	}
}
