package segstore

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// A failed sync ends the run: no later success is believed, and the next one
// starts at the last sync that succeeded, the known commit with it (design 3.7).
func TestFailedSync_cutsToTheLastSuccess(t *testing.T) {
	for name, how := range map[string]vfs.SyncFailure{
		"bytes stay dirty": vfs.BytesStayDirty, "called clean": vfs.BytesLostAtCrash, "dropped": vfs.BytesDropped,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, vfs.NewMem(), "data")
			faulty := f.faulty()
			f.barrier()
			f.publish(3, 40)
			f.sync()
			f.publish(3, 40)
			f.log.SetCommit(6) // others hold it
			f.must(awaited(f.log.saveProgress))
			faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Err: syscall.EIO, Sync: how}})
			for range 3 {
				if err := f.log.syncNow(); !errors.Is(err, ErrPoisoned) {
					t.Fatalf("sync: %v", err)
				}
			}
			if d := f.log.Durable(); d.LSN != 4 {
				t.Errorf("durable %s", d)
			}
			c := f.user(1, 10)
			if err := f.log.Append(c); !errors.Is(err, ErrPoisoned) {
				t.Errorf("append: %v", err)
			}
			c.Release()
			f.must(f.log.Close())
			f.openLog()
			f.wantAll(0, 6)
			if f.log.Commit() != 4 || f.log.Err() != nil || !f.found.CutDone {
				t.Errorf("commit %d, found %+v, %v", f.log.Commit(), f.found, f.log.Err())
			}
			f.elect()
			f.publish(2, 30)
			f.sync()
			f.restart()
			f.wantAll(0, 10)
		})
	}
}

// The process dies right after a failed sync, before it could note that: what
// recovery then calls durable must be so, although the system takes the pages
// for clean.
func TestFailedSync_processDiesAtOnce(t *testing.T) {
	mem := vfs.NewMem()
	f := newFixture(t, mem, "data")
	faulty := f.faulty()
	f.barrier()
	f.publish(3, 40)
	f.sync()
	f.publish(3, 40)
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}})
	if err := f.log.syncNow(); err == nil {
		t.Fatal("the sync did not fail")
	}
	f.kill()
	next, durable := f.log.Next(), f.log.Durable()
	f.log.shut()
	f.fs = mem.Crash(vfs.Policy{}, vfs.Seeded(1))
	f.open()
	f.openLog()
	if f.log.Tail() != durable || f.log.Err() != nil {
		t.Errorf("tail %s, called durable %s; %v", f.log.Tail(), durable, f.log.Err())
	}
	f.wantAll(0, next)
}

// Every operation of a script fails once, in turn, by a full disk or an I/O
// error. Whatever was told durable is there afterwards, the log is usable again
// without anybody's help, and another stream's log is not touched.
func TestFaults_everyOperation(t *testing.T) {
	const ops = vfs.OpCreate | vfs.OpOpen | vfs.OpWrite | vfs.OpTruncate | vfs.OpSync | vfs.OpSyncDir | vfs.OpRename | vfs.OpRemove
	faults := map[string]vfs.Fault{
		"full":    {Err: syscall.ENOSPC},
		"partial": {Err: syscall.ENOSPC, Short: 30},
		"io":      {Err: syscall.EIO, Sync: vfs.BytesLostAtCrash},
		"files":   {Err: syscall.EMFILE},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			for after := 0; ; after++ {
				if !faultAt(t, ops, fault, after) {
					if after < 40 {
						t.Fatalf("only %d operations were struck", after)
					}
					return
				}
			}
		})
	}
}

// faultAt runs the script with one operation struck; false when the script has
// fewer operations.
func faultAt(t *testing.T, ops vfs.Op, fault vfs.Fault, after int) bool {
	t.Helper()
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	must(t, f.store.Create("/other", testIncarnation+1))
	other, _, err := f.store.Open(testIncarnation+1, Config{})
	must(t, err)
	f.config.CheckpointBytes = 300
	f.log.Configure(f.config)
	f.barrier()

	rule := faulty.Add(vfs.Rule{Ops: ops, After: after, Times: 1, Fault: fault})
	var durable chunk.Offset
	script := func() error {
		for i := range 3 {
			for range 3 {
				c := f.user(2, 40)
				err := f.log.Append(c)
				c.Release()
				if err != nil {
					return err
				}
			}
			if err := f.log.syncNow(); err != nil {
				return err
			}
			durable = f.log.Next()
			f.log.SetCommit(f.log.Durable().LSN)
			c := f.control(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagUnitStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, f.snapshot())
			err := f.log.Append(c)
			c.Release()
			if err != nil {
				return err
			}
			if i == 1 {
				if err := f.log.syncNow(); err != nil {
					return err
				}
				f.log.SetCommit(f.log.Durable().LSN)
				if err := f.log.SetLogStart(f.log.Segments()[1].FirstLSN); err != nil {
					return err
				}
			}
		}
		return nil
	}
	failed := script()
	struck := faulty.Hits(rule) > 0
	if failed != nil && !struck {
		t.Fatalf("nothing was struck, and yet: %v", failed)
	}
	faulty.Lift(rule)
	where := fmt.Sprintf("fault at operation %d (%v)", after, failed)

	// As the owner does: a poisoned log is closed and opened again.
	if f.log.Err() != nil {
		_ = f.log.Close()
		f.openLog()
	}
	check := func(step string) {
		t.Helper()
		if f.log.Err() != nil || f.log.Next() < durable {
			t.Fatalf("%s, %s: log ends at %d, %d was durable; %v", where, step, f.log.Next(), durable, f.log.Err())
		}
		if err := readAll(f.log); err != nil {
			t.Fatalf("%s, %s: %v", where, step, err)
		}
	}
	check("after the fault")
	f.elect()
	f.publish(2, 30)
	f.roll(true)
	f.publish(1, 30)
	if err := f.log.syncNow(); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	durable = f.log.Next()
	check("after going on")
	must(t, other.Err())
	f.restart()
	check("after a restart")
	must(t, f.store.Close())
	return struck
}

// A segment whose first chunk could not be written is told by the one that was,
// not by the one that it was begun for.
func TestFailedWrite_ofASegmentsFirstChunk(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	f.barrier()
	f.publish(2, 40)
	f.sync()
	faulty.Add(vfs.Rule{Ops: vfs.OpWrite, Path: segmentOf(4), Times: 1, Fault: vfs.Fault{Err: syscall.ENOSPC}})
	start := chunk.FlagSegmentStart | chunk.FlagUnitStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast
	c := f.control(chunk.Snapshot, start, f.snapshot())
	if err := f.log.Append(c); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append: %v", err)
	}
	c.Release()
	f.epoch++
	f.roll(false)
	f.publish(2, 40)
	f.roll(true)
	f.sync()
	info := f.log.Segments()[1]
	if info.UnitStart || info.FirstEpoch != f.epoch {
		t.Errorf("unit start %t, epoch %d, want %d", info.UnitStart, info.FirstEpoch, f.epoch)
	}
	f.must(f.log.Close())
	v, err := VerifyDir(f.fs, f.log.dir, testIncarnation)
	if f.must(err); len(v.Problems) > 0 {
		t.Errorf("%v", v.Problems)
	}
}

// A cut that fails inside of reading the files again leaves what is below it:
// Close must not take the log for an empty one.
func TestTruncate_failsWithoutLosingWhatIsBelow(t *testing.T) {
	for after := range 12 {
		f := newFixture(t, vfs.NewMem(), "data")
		faulty := f.faulty()
		f.barrier()
		f.publish(5, 40)
		f.sync()
		f.publish(3, 40)
		f.must(f.log.syncNow()) // durable and not committed
		rule := faulty.Add(vfs.Rule{Ops: vfs.OpSync | vfs.OpSyncDir, After: after, Times: 1, Fault: vfs.Fault{Err: syscall.EIO}})
		_, err := f.log.Truncate(7)
		faulty.Lift(rule)
		if err == nil && faulty.Hits(rule) > 0 {
			t.Errorf("sync %d failed unseen", after+1)
		}
		f.must(f.log.Close())
		f.openLog()
		if tail := f.log.Tail().LSN; tail < 7 || err == nil && tail != 7 || f.log.Err() != nil {
			t.Errorf("sync %d failed: the log ends at %d, %v", after+1, tail, f.log.Err())
		}
	}
}
