package replication

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// jumpingClock is the machine's clock, set forward or back by the test; its
// steady half is never set.
type jumpingClock struct {
	systemClock
	began time.Time
	jump  atomic.Int64
}

func newJumpingClock() *jumpingClock { return &jumpingClock{began: time.Now()} }

func (c *jumpingClock) Now() time.Time {
	return time.Now().Round(0).Add(time.Duration(c.jump.Load()))
}
func (c *jumpingClock) Steady() time.Duration { return time.Since(c.began) }
func (c *jumpingClock) set(d time.Duration)   { c.jump.Store(int64(d)) }

const thirtyDays = 30 * 24 * time.Hour

func TestRetention_doubtsAClockThatJumps(t *testing.T) {
	for _, c := range []struct {
		name   string
		jump   time.Duration
		others func(real time.Time) []time.Time
		// kept: records are there five minutes, and fifteen minutes after the jump.
		after5, after15 bool
	}{
		{"forward", thirtyDays, nil, true, false},
		{"forward by less than an hour", 50 * time.Minute, nil, false, false},
		{"back", -thirtyDays, nil, true, true},
		{"forward, as the others' did", thirtyDays, func(real time.Time) []time.Time {
			return []time.Time{real.Add(thirtyDays), real.Add(thirtyDays)}
		}, false, false},
		{"forward, others know better", thirtyDays, func(real time.Time) []time.Time { return []time.Time{real, real} }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := newJumpingClock()
				f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
					f.config.Clock = clock
					f.stream.Settings.RetainAge, f.stream.Settings.Log.MaxAge = 40*time.Minute, 40*time.Minute
					if c.others != nil {
						f.config.Clocks = func() []time.Time { return c.others(time.Now()) }
					}
				})
				defer f.stop()
				f.lead(1)
				f.publish(f.declare(""), numbered(1, 10, 100)...)
				time.Sleep(time.Minute)
				clock.set(c.jump)
				for _, wait := range []struct {
					minutes time.Duration
					kept    bool
				}{{5, c.after5}, {10, c.after15}} {
					time.Sleep(wait.minutes * time.Minute)
					synctest.Wait()
					if n := len(f.records()); (n > 0) != wait.kept {
						t.Fatalf("%d records %d minutes later, kept should be %v", n, wait.minutes, wait.kept)
					}
				}
			})
		})
	}
}

// TestTurn_stampsByTheOthers: what a leader writes bears the time that its clock
// says, unless others are there and all are more than an hour behind that.
func TestTurn_stampsByTheOthers(t *testing.T) {
	for _, c := range []struct {
		name   string
		others []time.Duration
		want   time.Duration // ahead
	}{
		{"alone", nil, thirtyDays},
		{"all others know better", []time.Duration{0, time.Minute}, time.Minute},
		{"one is as far", []time.Duration{0, thirtyDays}, thirtyDays},
		{"hardly ahead of one", []time.Duration{0, thirtyDays - 50*time.Minute}, thirtyDays},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := newJumpingClock()
				f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
					f.config.Clock = clock
					f.config.Clocks = func() (list []time.Time) {
						for _, ahead := range c.others {
							list = append(list, time.Now().Add(ahead))
						}
						return list
					}
				})
				defer f.stop()
				f.lead(1)
				p := f.declare("")
				f.publish(p, numbered(1, 1, 100)...)
				time.Sleep(time.Minute)
				clock.set(thirtyDays)
				f.publish(p, numbered(2, 1, 100)...)
				synctest.Wait()
				at, _, ok, err := f.replica.TimestampAt(1)
				if want := chunk.Timestamp(time.Now().Add(c.want).UnixMilli()); !ok || err != nil || at != want {
					t.Errorf("the record is of %d (%v, %v), want %d", at, ok, err, want)
				}
			})
		})
	}
}

// A clock that is ahead only for a while takes nothing, neither then nor when
// records that it has stamped are the newest after a restart.
func TestRetention_forgivesAClockThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, mem := newJumpingClock(), vfs.NewMem()
		f := newFixture(t, mem, "/data", func(f *fixture) {
			f.config.Clock = clock
			f.stream.Settings.RetainAge, f.stream.Settings.Log.MaxAge = 2*time.Hour, 2*time.Hour
		})
		f.lead(1)
		p := f.declare("")
		f.publish(p, numbered(1, 10, 100)...)
		time.Sleep(time.Minute)
		clock.set(thirtyDays)
		f.publish(p, numbered(11, 10, 100)...)
		time.Sleep(9 * time.Minute)
		clock.set(0)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 20 {
			t.Fatalf("%d records after the clock was ahead", n)
		}
		f.stop()
		f.start(false)
		defer f.stop()
		f.lead(2)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 20 {
			t.Fatalf("%d records after a restart", n)
		}
	})
}

// After a long stop nobody can tell whether the clock is right: ages count once
// it has been the same for ten minutes.
func TestRetention_waitsAfterALongStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
			f.stream.Settings.RetainAge, f.stream.Settings.Log.MaxAge = time.Hour, time.Hour
		})
		f.lead(1)
		f.publish(f.declare(""), numbered(1, 10, 100)...)
		f.stop()
		time.Sleep(thirtyDays)
		f.start(false)
		defer f.stop()
		f.lead(2)
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 10 {
			t.Fatalf("%d records 9 minutes after the start", n)
		}
		if report := f.ask(RetentionQuery{}); !report.Doubted {
			t.Fatal("the report does not say that the clock is doubted")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 0 {
			t.Fatalf("%d records 11 minutes after the start", n)
		}
	})
}

// ask waits for a report.
func (f *fixture) ask(q RetentionQuery) *RetentionReport {
	f.t.Helper()
	type answer struct {
		report *RetentionReport
		err    error
	}
	got := make(chan answer, 1)
	f.replica.Retention(q, func(r *RetentionReport, err error) { got <- answer{r, err} })
	select {
	case a := <-got:
		f.must(a.err)
		return a.report
	case <-f.context().Done():
		f.t.Fatal("no answer about retention")
	}
	panic("unreachable")
}

func TestRetention_reports(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
		f.config.RetainEvery = time.Hour
		f.stream.Settings.Log.SegmentBytes = 64 << 10
	})
	errs := make(chan error, 1)
	f.replica.Retention(RetentionQuery{Run: true}, func(_ *RetentionReport, err error) { errs <- err })
	if err := <-errs; !errors.Is(err, ErrNotLeader) {
		t.Fatalf("a run by a follower: %v", err)
	}
	f.lead(1)
	p := f.declare("")
	for i := range uint64(60) {
		f.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	until(t, "the last roll's snapshot is safe", func() bool {
		bytes := int64(200 << 10)
		report := f.ask(RetentionQuery{Bytes: &bytes})
		units, goes := report.Units, 0
		for _, u := range units {
			if u.Goes() {
				goes++
			} else if u.Hold != 0 {
				return false
			}
		}
		return report.Leads && goes > 0 && goes < len(units) && report.First == 0
	})
	if report := f.ask(RetentionQuery{Run: true}); report.First != 0 || report.Units[0].Goes() {
		t.Fatalf("a run without a bound has taken %+v", report)
	}
	if n := len(f.records()); n != 600 {
		t.Fatalf("%d records: questions take nothing", n)
	}
	f.must(f.node.Remove(f.context(), streamUnderTest))
	f.replica.Retention(RetentionQuery{}, func(_ *RetentionReport, err error) { errs <- err })
	if err := <-errs; !errors.Is(err, ErrClosed) {
		t.Fatalf("of a removed stream: %v", err)
	}
}
