package segstore

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// stepAll steps a compactor on a clock of its own until it is idle.
func stepAll(t testing.TB, c *Compactor, from time.Time) (now time.Time, steps int) {
	t.Helper()
	for now = from; steps < 100_000; steps++ {
		wait := c.Step(now)
		if wait == CompactorIdle {
			return now, steps
		}
		if wait <= 0 {
			t.Fatalf("wait %s", wait)
		}
		now = now.Add(wait)
	}
	t.Fatal("never idle")
	return now, steps
}

func TestCompactor_compactsWhatWasSealed(t *testing.T) {
	k := newTracker(t)
	c := k.store.NewCompactor(CompactorOptions{})
	stepAll(t, c, timeOf(k.now))
	k.mixed()
	before := k.portrait()
	stepAll(t, c, timeOf(k.now))
	st := k.log.Compaction()
	if st.Drops < 4 || k.log.Compaction().BytesDroppable != 0 {
		t.Errorf("compacted %+v, %d bytes could be dropped", st, k.log.Compaction().BytesDroppable)
	}
	k.uncached()
	k.wantPortrait(before)
	if wait := c.Step(timeOf(k.now)); wait != CompactorIdle {
		t.Errorf("after all is done: wait %s", wait)
	}
	// A restart looks at every log once.
	k.restart()
	k.log.SetCommit(k.log.Tail().LSN)
	k.wantPortrait(before)
	stepAll(t, k.store.NewCompactor(CompactorOptions{}), timeOf(k.now))
	if st := k.log.Compaction(); st.Drops != 0 {
		t.Errorf("compacted again: %+v", st)
	}
}

// A log whose snapshots are not committed yet is asked again once they are.
func TestCompactor_waitsForTheCommit(t *testing.T) {
	k := newTracker(t)
	c := k.store.NewCompactor(CompactorOptions{})
	k.ride(2, 40)
	k.deltas(30)
	k.roll(true)
	k.deltas(1)
	k.roll(true)
	now := timeOf(k.now)
	for range 5 {
		if wait := c.Step(now); wait != compactRetry {
			t.Fatalf("wait %s", wait)
		}
		now = now.Add(compactRetry)
	}
	k.sync()
	stepAll(t, c, now)
	if st := k.log.Compaction(); st.Drops != 1 {
		t.Errorf("compacted %+v", st)
	}
}

// The rate bounds what is read, at any moment.
func TestCompactor_keepsToItsRate(t *testing.T) {
	k := newTracker(t)
	for range 6 {
		k.ride(5, 40)
		k.deltas(30)
		k.roll(true)
	}
	k.deltas(1)
	k.sync()
	const rate = 1000
	c := k.store.NewCompactor(CompactorOptions{BytesPerSecond: rate})
	begin := timeOf(k.now)
	now := begin
	var read int64
	for wait := time.Duration(0); wait != CompactorIdle; {
		now = now.Add(wait)
		wait = c.Step(now)
		st := k.log.Compaction()
		read = st.BytesDropped + st.BytesRewritten
		if most := int64(now.Sub(begin).Seconds()*rate) + rate/compactBurst + 1000; read > most {
			t.Fatalf("%d bytes after %s", read, now.Sub(begin))
		}
	}
	if read < 20*rate {
		t.Fatalf("only %d bytes", read)
	}
	if most := time.Duration(read/rate+1) * time.Second; now.Sub(begin) > most {
		t.Errorf("took %s, %s would do", now.Sub(begin), most)
	}
}

// One piece of work at a time, however many logs have some.
func TestCompactor_oneJobANode(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	const other chunk.Incarnation = 77
	k.must(k.store.Create("/other", other))
	l, _, err := k.store.Open(other, k.config)
	k.must(err)
	fillOther(k, l)
	now := timeOf(k.now)
	c := k.store.NewCompactor(CompactorOptions{BytesPerSecond: 2000})
	for wait := c.Step(now); wait != CompactorIdle; wait = c.Step(now) {
		now = now.Add(wait)
		k.store.handles.mu.Lock()
		writing := 0
		for s := range k.store.handles.open {
			if s.summary.Load() != nil && s.pins.Load() > 0 {
				writing++
			}
		}
		k.store.handles.mu.Unlock()
		if writing > 1 {
			t.Fatalf("%d sources are being read", writing)
		}
	}
	if k.log.Compaction().Drops < 4 || l.Compaction().Drops < 1 {
		t.Errorf("compacted %+v and %+v", k.log.Compaction(), l.Compaction())
	}
}

// fillOther gives another log of the same store something to compact.
func fillOther(k *tracker, l *Log) {
	k.t.Helper()
	add := func(t chunk.Type, flags chunk.Flags, payload []byte) {
		c := NewChunk(0)
		m := chunk.Meta{
			Incarnation: l.inc, Flags: flags, LSN: l.Tail().LSN + 1, Timestamp: k.now, Epoch: 1,
			BaseOffset: l.Next(), DigestBefore: l.Digest(), Trailer: payload,
		}
		c.Head, c.Header = chunk.BuildControl(t, &m, c.Head)
		k.must(l.Append(c))
		c.Release()
	}
	add(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, nil)
	for range 3 {
		add(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast,
			l.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: k.now}, nil)[0])
		for range 20 {
			add(chunk.Delta, 0, nil)
		}
	}
	k.must(l.syncNow())
	l.SetCommit(l.Tail().LSN)
}

// Turns come later and elsewhere, as in a node; closed logs never give one.
func TestCompactor_turnsOfLogs(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	var turns []func()
	refuse := false
	c := k.store.NewCompactor(CompactorOptions{Enter: func(_ *Log, f func()) bool {
		if !refuse {
			turns = append(turns, f)
		}
		return !refuse
	}})
	now := timeOf(k.now)
	step := func() {
		for range 50 {
			now = now.Add(c.Step(now))
		}
	}
	refuse = true
	step()
	if wait := c.Step(now); wait != CompactorIdle {
		t.Fatalf("after a refusal: wait %s", wait)
	}
	refuse = false
	k.store.candidates.add(candidate{log: k.log})
	step()
	if len(turns) != 1 {
		t.Fatalf("%d turns are asked for", len(turns))
	}
	turns[0]()
	step() // plans, copies, asks for the turn to install
	if len(turns) != 2 || k.log.Compaction().Drops != 0 {
		t.Fatalf("%d turns, compacted %+v", len(turns), k.log.Compaction())
	}
	turns[1]()
	if k.log.Compaction().Drops != 1 {
		t.Fatalf("compacted %+v", k.log.Compaction())
	}
	step()
	turns[2]()
	step() // the next piece waits for its turn, which never comes
	must(t, k.log.Close())
	step()
	if wait := c.Step(now); wait != CompactorIdle {
		t.Errorf("after the log was closed: wait %s", wait)
	}
	for _, late := range turns[3:] {
		late()
	}
	k.openLog()
	if len(k.found.Damage) > 0 || len(k.found.Quarantined) > 0 || len(k.found.Removed) > 0 {
		t.Errorf("found %+v", k.found)
	}
	k.rescan()
}

// A disk that fails is tried again after a while; the log is as it was.
func TestCompactor_failingDisk(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	before := k.portrait()
	faulty := k.faulty()
	k.log.SetCommit(k.log.Tail().LSN)
	before.Tracking = trackingBytes(t, k.log.Tracking())
	rule := faulty.Add(vfs.Rule{Ops: vfs.OpCreate, Path: "*.1.seg", Fault: vfs.Fault{Err: syscall.ENOSPC}})
	c := k.store.NewCompactor(CompactorOptions{})
	now := timeOf(k.now)
	for range 300 {
		now = now.Add(min(c.Step(now), compactRetry))
	}
	st := k.log.Compaction()
	if st.Failures < 2 || st.Failures > 10 || !errors.Is(st.LastError, syscall.ENOSPC) {
		t.Fatalf("compacted %+v", st)
	}
	k.wantPortrait(before)
	faulty.Lift(rule)
	for range 300 {
		now = now.Add(min(c.Step(now), compactRetry))
	}
	if k.log.Compaction().Drops < 4 {
		t.Errorf("compacted %+v", k.log.Compaction())
	}
	k.wantPortrait(before)
}

func TestCompactor_runs(t *testing.T) {
	k := newTracker(t)
	var turn sync.Mutex // stands for the log's turn
	turned := make(chan struct{}, 1000)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	c := k.store.NewCompactor(CompactorOptions{Enter: func(_ *Log, f func()) bool {
		go func() {
			turn.Lock()
			defer turn.Unlock()
			f()
			turned <- struct{}{}
		}()
		return true
	}})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	turn.Lock()
	k.mixed()
	before := k.portrait()
	turn.Unlock()
	deadline := time.After(20 * time.Second)
	for k.log.Compaction().Drops < 4 {
		select {
		case <-turned:
		case <-deadline:
			t.Fatalf("compacted %+v", k.log.Compaction())
		}
	}
	stop()
	<-ended
	turn.Lock()
	defer turn.Unlock()
	k.wantPortrait(before)
}
