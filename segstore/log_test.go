package segstore

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func bothFS(t *testing.T, run func(t *testing.T, f *fixture)) {
	t.Run("mem", func(t *testing.T) { run(t, newFixture(t, vfs.NewMem(), "data")) })
	t.Run("os", func(t *testing.T) { run(t, newFixture(t, vfs.OS{}, t.TempDir())) })
}

func TestLog_appendSyncReadRestart(t *testing.T) {
	bothFS(t, func(t *testing.T, f *fixture) {
		f.barrier()
		f.publish(10, 100)
		if d := f.log.Durable(); d.LSN != 0 {
			t.Errorf("durable %s before any sync", d)
		}
		f.sync()
		if d, tail := f.log.Durable(), f.log.Tail(); d != tail || tail != (chunk.Tail{Epoch: 1, LSN: 11}) {
			t.Errorf("durable %s, tail %s", d, tail)
		}
		f.wantAll(0, 20)
		digest := f.log.Digest()

		f.restart()
		f.wantAll(0, 20)
		if f.log.Digest() != digest || f.found.Tail.LSN != 11 || len(f.found.Damage) != 0 {
			t.Errorf("digest %s, want %s; found %+v", f.log.Digest(), digest, f.found)
		}
		if s, ok := f.log.Tracking().Sequence([]byte("publisher")); !ok || s.Last != 20 || s.LSN != 11 {
			t.Errorf("publisher's sequence %+v, %v", s, ok)
		}
		f.elect()
		f.publish(5, 50)
		f.sync()
		f.wantAll(0, 30)
	})
}

func TestLog_rollsAndGoesOn(t *testing.T) {
	bothFS(t, func(t *testing.T, f *fixture) {
		f.barrier()
		for i := range 5 {
			f.publish(10, 100)
			f.roll(i%2 == 0)
		}
		f.publish(1, 10)
		f.sync()
		f.wantAll(0, 102)
		infos := f.log.Segments()
		if len(infos) != 6 || infos[4].Sealed == infos[5].Sealed {
			t.Fatalf("%d segments: %+v", len(infos), infos)
		}
		for i, s := range infos {
			if err := s.Check(); err != nil {
				t.Errorf("segment %d: %v", i, err)
			}
		}
		f.restart()
		f.wantAll(0, 102)
		again := f.log.Segments()
		for i := range infos {
			a, b := infos[i], again[i]
			if a.Size != b.Size || a.Chain != b.Chain || a.LastLSN != b.LastLSN || a.Sealed != b.Sealed || a.UnitStart != b.UnitStart {
				t.Errorf("segment %d was %+v, is %+v", i, a.Summary, b.Summary)
			}
		}
		if f.found.ReadBytes > infos[5].Size {
			t.Errorf("read %d bytes at start, the last segment has %d", f.found.ReadBytes, infos[5].Size)
		}
	})
}

// What no sync covered may go; what one covered stays (I25).
func TestLog_powerLossKeepsWhatWasSynced(t *testing.T) {
	f := memFixture(t)
	f.publish(5, 100)
	f.sync()
	f.publish(5, 100)
	f.powerOff()
	f.wantAll(0, 10)
	if f.found.Tail.LSN != 6 || f.log.Err() != nil {
		t.Errorf("found %+v, err %v", f.found, f.log.Err())
	}
}

// A process that dies loses nothing that it wrote.
func TestLog_killKeepsWhatWasWritten(t *testing.T) {
	f := memFixture(t)
	f.publish(5, 100)
	f.kill()
	f.wantAll(0, 10)
	if d := f.log.Durable(); d.LSN != 6 {
		t.Errorf("durable %s after recovery", d)
	}
	f.powerOff()
	f.wantAll(0, 10)
}
