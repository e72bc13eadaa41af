package segstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// trackingBytes is the fold in bytes: equal states give equal ones.
func trackingBytes(t testing.TB, s *tracking.State) string {
	t.Helper()
	b, ok := s.AppendCheckpoint(nil)
	if !ok {
		t.Fatal("tracking is between the parts of a snapshot")
	}
	return string(b)
}

// A cut to any chunk gives the log, the digest, the epochs and the tracking that
// were there after that chunk (I18), and the log goes on from there.
func TestTruncate_anywhere(t *testing.T) {
	type moment struct {
		next     chunk.Offset
		digest   chunk.Digest
		tail     chunk.Tail
		epochs   []manifest.EpochLine
		tracking string
		unit     unitCount
	}
	build := func(note func(*fixture)) *fixture {
		f := newFixture(t, memFS(), "data")
		note(f)
		f.barrier()
		note(f)
		for i := range 3 {
			for range 2 {
				f.append(f.user(2, 40))
				note(f)
			}
			if i == 1 {
				f.elect()
				note(f)
			}
			f.roll(i != 1)
			note(f)
		}
		f.append(f.user(1, 40))
		note(f)
		must(t, f.log.syncNow())
		return f
	}
	var moments []moment
	build(func(f *fixture) {
		moments = append(moments, moment{
			f.log.Next(), f.log.Digest(), f.log.Tail(), f.log.Epochs(), trackingBytes(t, f.log.Tracking()), f.log.unit,
		})
	})
	for n, want := range moments {
		for _, restart := range []bool{false, true} {
			f := build(func(*fixture) {})
			f.now += 1000
			_, err := f.log.Truncate(chunk.LSN(n))
			must(t, err)
			if restart {
				f.restart()
			}
			l := f.log
			if l.Next() != want.next || l.Digest() != want.digest || l.Tail() != want.tail || l.Durable() != want.tail {
				t.Fatalf("cut to %d: next %d, digest %s, tail %s, durable %s; want %+v", n, l.Next(), l.Digest(), l.Tail(), l.Durable(), want)
			}
			if !slices.Equal(l.Epochs(), want.epochs) {
				t.Fatalf("cut to %d: epochs %v, want %v", n, l.Epochs(), want.epochs)
			}
			if got := trackingBytes(t, l.Tracking()); got != want.tracking {
				t.Fatalf("cut to %d: tracking\n%q, want\n%q", n, got, want.tracking)
			}
			if l.unit != want.unit {
				t.Fatalf("cut to %d: unit %+v, want %+v", n, l.unit, want.unit)
			}
			f.wantAll(0, want.next)
			f.epoch = 9
			f.barrier()
			f.publish(2, 30)
			f.roll(true)
			f.publish(1, 30)
			f.sync()
			f.restart()
			f.wantAll(0, want.next+6)
			if len(f.found.Damage) > 0 {
				t.Fatalf("cut to %d: found %+v", n, f.found)
			}
		}
	}
}

func TestTruncate_refusesBelowTheCommit(t *testing.T) {
	f := rolledFixture(t)
	f.log.SetCommit(10)
	before := f.snapshotDir()
	for _, n := range []chunk.LSN{0, 4, 9} {
		if _, err := f.log.Truncate(n); !errors.Is(err, ErrBelowCommit) {
			t.Errorf("cut to %d: %v", n, err)
		}
	}
	if len(before) != len(f.snapshotDir()) || f.log.Err() != nil {
		t.Error("a refused cut changed something")
	}
	f.wantAll(0, 22)
}

// A sync that was asked for before a cut says nothing about what is written
// after it.
func TestTruncate_oldSyncIsNotBelieved(t *testing.T) {
	f := memFixture(t)
	f.publish(3, 40)
	f.must(f.log.syncNow())
	f.publish(3, 40)
	old := syncRequest{log: f.log, segment: f.log.active, tail: f.log.Tail(), end: f.log.summary.Size, run: f.log.run}
	_, err := f.log.Truncate(4)
	f.must(err)
	f.elect()
	f.publish(4, 40)
	if d, err := f.log.synced(old.segment, old.tail, old.end, old.run, nil); d.LSN != 4 || err != nil {
		t.Errorf("durable %s, %v", d, err)
	}
}

func TestReset_dropsTheLogAndBeginsAnew(t *testing.T) {
	f := rolledFixture(t)
	f.log.commit.Store(3)
	start := manifest.Start{LSN: 1000, Offset: 500, Digest: 77, Line: manifest.EpochLine{Epoch: 6, LSN: 900, Offset: 450}}
	if _, err := f.log.Reset(manifest.Start{LSN: 3}); !errors.Is(err, ErrBelowCommit) {
		t.Errorf("reset below the commit: %v", err)
	}
	_, err := f.log.Reset(start)
	f.must(err)
	check := func() {
		t.Helper()
		if f.log.Tail() != (chunk.Tail{Epoch: 6, LSN: 999}) || f.log.Next() != 500 || f.log.Commit() != 999 || f.log.Tracking().Known() {
			t.Fatalf("tail %s, next %d, commit %d, tracking known %v", f.log.Tail(), f.log.Next(), f.log.Commit(), f.log.Tracking().Known())
		}
		if want := []string{manifestName}; !slices.Equal(f.files(), want) {
			t.Fatalf("files %v", f.files())
		}
	}
	check()
	f.restart()
	check()
	f.epoch, f.now = 7, f.now+1000
	f.barrier()
	f.publish(2, 30)
	f.sync()
	f.restart()
	f.wantAll(500, 504)
	if f.log.Tracking().Known() || f.log.Err() != nil {
		t.Errorf("tracking known %v, %v", f.log.Tracking().Known(), f.log.Err())
	}
	f.roll(true)
	if !f.log.Tracking().Known() {
		t.Error("a complete snapshot did not make tracking known")
	}
}

// The log start moves only to a segment start behind which a complete snapshot
// is committed and durable (E3).
func TestSetLogStart(t *testing.T) {
	f := rolledFixture(t)
	f.log.commit.Store(7)
	for lsn, want := range map[chunk.LSN]error{6: ErrNotSegmentStart, 99: ErrNotSegmentStart, 9: ErrNoSnapshot} {
		if err := f.log.SetLogStart(lsn); !errors.Is(err, want) {
			t.Errorf("log start %d: %v, want %v", lsn, err, want)
		}
	}
	f.wantAll(0, 22)
	f.must(f.log.SetLogStart(5))
	f.wantAll(6, 22)
	f.must(f.log.SetLogStart(1)) // below the present one: nothing
	f.log.SetCommit(15)
	f.must(f.log.SetLogStart(13)) // the active segment alone
	f.wantAll(18, 22)
	if want := []string{segmentOf(13), manifestName}; !slices.Equal(f.files(), want) {
		t.Errorf("files %v, want %v", f.files(), want)
	}
	f.restart()
	f.wantAll(18, 22)
	if s := f.log.LogStart(); s.LSN != 13 || s.Offset != 18 || s.Line.Epoch != 1 {
		t.Errorf("log start %+v", s)
	}
	if got := f.log.Epochs(); len(got) != 1 || got[0] != (manifest.EpochLine{Epoch: 1, LSN: 1}) {
		t.Errorf("epochs %v", got)
	}
}

func TestRetention_keepsTheLongestRunThatFits(t *testing.T) {
	f := rolledFixture(t) // units of 3, 3, 3 and 2 chunks of 2 × 44 B and 48 B
	const chunkBytes = 48 + 88
	if moved, err := f.log.Retention(plan.Policy{BytesMax: 8 * chunkBytes}, f.now); err != nil || !moved {
		t.Fatalf("%v, %v", moved, err)
	}
	f.wantAll(6, 22)
	if moved, err := f.log.Retention(plan.Policy{BytesMax: 8 * chunkBytes}, f.now); err != nil || moved {
		t.Errorf("moved again: %v, %v", moved, err)
	}
	var gone Unit
	for _, u := range f.log.Units(plan.Policy{BytesMax: 1}, f.now) {
		if u.Goes() {
			gone.To, gone.UserBytes, gone.Records = u.To, gone.UserBytes+u.UserBytes, gone.Records+u.Records
		}
	}
	if gone.To != 2 || gone.UserBytes != 6*chunkBytes || gone.Records != 12 {
		t.Errorf("to go: %+v", gone)
	}
	f.wantAll(6, 22)
	if moved, err := f.log.Retention(plan.Policy{AgeMax: 1}, f.now+1000); err != nil || !moved {
		t.Fatalf("%v, %v", moved, err)
	}
	f.wantAll(18, 22)
}

// A file that can't be removed holds nothing up, and goes later (ST-22).
func TestSetLogStart_retriesRemovals(t *testing.T) {
	f := newFixture(t, memFS(), "data")
	faulty := f.faulty()
	f.barrier()
	f.publish(1, 10)
	f.roll(true)
	f.publish(1, 10)
	f.sync()
	rule := faulty.Add(failRemove())
	f.must(f.log.SetLogStart(3))
	f.wantAll(2, 4)
	if !slices.Contains(f.files(), segmentOf(1)) {
		t.Fatal("the file went although it could not")
	}
	faulty.Lift(rule)
	_, err := f.log.Retention(plan.Policy{}, f.now)
	f.must(err)
	if slices.Contains(f.files(), segmentOf(1)) {
		t.Error("the file is still there")
	}
}

// TestSetLogStart_isLookedAtByCompaction: the bound of tracking has become less.
func TestSetLogStart_isLookedAtByCompaction(t *testing.T) {
	f := newFixture(t, memFS(), "data")
	f.barrier()
	f.publish(1, 10)
	f.roll(true)
	f.publish(1, 10)
	f.sync()
	f.log.store.candidates.drop(f.log)
	f.must(f.log.SetLogStart(3))
	if l, _ := f.log.store.candidates.take(time.Now()); l != f.log {
		t.Error("compaction does not look at the log")
	}
}

// ShouldRoll follows the counters over rolls and restarts.
func TestShouldRoll(t *testing.T) {
	f := newFixture(t, memFS(), "data")
	f.log.Configure(Config{SegmentBytes: SegmentBytesMin, ControlBytes: 1000})
	f.config = f.log.Config()
	f.barrier()
	should := func(want plan.RollKind) {
		t.Helper()
		if got := f.log.ShouldRoll(timeOf(f.now), AppendingUser, 0); got != want {
			t.Fatalf("got %s, want %s; unit %+v", got, want, f.log.unit)
		}
	}
	should(plan.RollNone)
	f.publish(8, 4000)
	should(plan.RollNone)
	f.publish(1, 4000)
	should(plan.RollSize)
	if got := f.log.ShouldRoll(timeOf(f.now), AppendingDelta, 0); got != plan.RollNone {
		t.Errorf("before a delta: %s", got)
	}
	f.sync()
	f.restart()
	should(plan.RollSize)
	f.roll(true)
	should(plan.RollNone)
	for range 12 {
		f.append(f.control(chunk.Delta, 0, nil))
	}
	should(plan.RollControl)
	f.roll(false)
	should(plan.RollNone)
	f.publish(8, 4000) // the control roll did not reset the size count
	f.log.config.MaxAge = 400_000_000
	should(plan.RollNone)
	f.now += 101
	should(plan.RollAge)
	f.sync()
	f.restart()
	f.log.config.MaxAge = 400_000_000
	should(plan.RollAge)
}

// A damaged end is given up only when asked: a copy is kept, the log goes on
// behind its last good chunk, and the replica stays set aside.
func TestDropDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fixture)
		copies int
		next   chunk.Offset
	}{
		"a bad chunk":       {func(f *fixture) { f.edit(segmentOf(13), func(b []byte) []byte { b[len(b)-150] ^= 1; return b }) }, 1, 20},
		"a bad first chunk": {func(f *fixture) { f.edit(segmentOf(13), func(b []byte) []byte { b[70] ^= 1; return b }) }, 1, 18},
		"cut":               {func(f *fixture) { f.edit(segmentOf(13), func(b []byte) []byte { return b[:len(b)-1] }) }, 1, 20},
		"the file is gone":  {func(f *fixture) { f.must(f.fs.Remove(f.log.file(segmentOf(13)))) }, 0, 18},
		"everything is gone": {func(f *fixture) {
			f.must(f.fs.(*vfs.Mem).Edit(f.log.file(segmentOf(13)), func([]byte) []byte { return nil }))
		}, 1, 18},
	} {
		t.Run(name, func(t *testing.T) {
			f := rolledFixture(t)
			f.stopped(func() {
				c.change(f)
				f.must(f.fs.Remove(f.log.file(checkpointName))) // it would vouch for what it covers
			})
			if !errors.Is(f.log.Err(), ErrDamaged) {
				t.Fatalf("log says %v", f.log.Err())
			}
			before := len(f.quarantined())
			_, err := f.log.DropDamaged()
			must(t, err)
			if n := len(f.quarantined()) - before; n != c.copies {
				t.Errorf("%d copies in quarantine", n)
			}
			f.wantAll(0, c.next)
			f.elect()
			f.publish(1, 20)
			f.sync()
			f.restart()
			f.wantAll(0, c.next+2)
			if f.log.Err() != nil || f.found.Aside != AsideDamaged {
				t.Errorf("%v, aside: %s", f.log.Err(), f.found.Aside)
			}
			if _, err := f.log.DropDamaged(); err != nil {
				t.Errorf("with nothing damaged: %v", err)
			}
		})
	}
}

func (f *fixture) quarantined() (names []string) {
	f.t.Helper()
	found, err := f.fs.List(f.dir + "/" + quarantineDir)
	f.must(err)
	for _, e := range found {
		names = append(names, e.Name)
	}
	return names
}

// Rot before the place of a cut, which a checkpoint has hidden from the start:
// the cut does not go on as if nothing were, and the next start sets the replica
// aside, so that a leader fills it anew.
func TestTruncate_rotBefore(t *testing.T) {
	f := memFixture(t)
	f.publish(12, 40)
	must(t, f.log.syncNow())
	f.stopped(func() { f.edit(segmentOf(1), func(b []byte) []byte { b[len(b)/3] ^= 1; return b }) })
	if f.log.Err() != nil || f.log.Tail().LSN != 13 {
		t.Fatalf("the checkpoint hides nothing: tail %s, %v", f.log.Tail(), f.log.Err())
	}
	if _, err := f.log.Truncate(11); !errors.Is(err, ErrDamaged) {
		t.Fatalf("cut: %v", err)
	}
	f.restart()
	f.wantDamage(f.log.Tail().LSN + 1)
	_, err := f.log.DropDamaged()
	f.must(err)
	f.elect()
	f.publish(2, 40)
	f.sync()
	f.restart()
	f.wantAll(0, f.log.Next())
}
