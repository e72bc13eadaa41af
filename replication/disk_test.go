package replication

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// smallDisk is a node on a disk of 4 MiB: low below 1.5 MiB, alarm below 1 MiB,
// floor at 256 KiB.
type smallDisk struct {
	*fixture
	mem *vfs.Mem

	mu     sync.Mutex // guards levels
	levels []segstore.DiskLevel
}

func newSmallDisk(t *testing.T, change ...func(*fixture)) *smallDisk {
	d := &smallDisk{mem: vfs.NewMem()}
	d.mem.Limit(4 << 20)
	d.fixture = newFixture(t, d.mem, "/data", append(change, func(f *fixture) {
		f.stream.Settings.Log.SegmentBytes = 64 << 10
		f.config.RetainEvery = 240 * time.Hour
		f.config.CompactBytesPerSecond = -1
		f.config.Disk = DiskConfig{
			Rule: segstore.DiskRule{FreeMin: 1 << 20, LowPercent: 150, FloorPercent: 25},
			Changed: func(s DiskStatus) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.levels = append(d.levels, s.Level)
			},
		}
	})...)
	d.lead(1)
	return d
}

// leave lets the ballast file leave so many bytes free.
func (d *smallDisk) leave(bytes int64) {
	d.t.Helper()
	file, err := d.mem.OpenFile("/ballast", os.O_RDWR|os.O_CREATE, 0o644)
	d.must(err)
	defer file.Close()
	size, err := file.Size()
	d.must(err)
	free, err := d.mem.FreeSpace("/")
	d.must(err)
	size += int64(free) - bytes
	d.must(file.Truncate(size))
}

// wait lets a few measurements come.
func (d *smallDisk) wait() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

func (d *smallDisk) wantLevels(want ...segstore.DiskLevel) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.levels, want) {
		d.t.Fatalf("levels %v, want %v", d.levels, want)
	}
}

func TestDisk_retentionComesBeforeTheAlarm(t *testing.T) {
	for _, c := range []struct {
		name string
		free int64
	}{{"below the low-water mark", 1<<20 + 200<<10}, {"far below, at once", 512 << 10}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newSmallDisk(t, func(f *fixture) {
					f.stream.Settings.RetainAge, f.stream.Settings.Log.MaxAge = time.Hour, time.Hour
				})
				defer d.stop()
				d.publish(d.declare(""), numbered(1, 1500, 1000)...)
				time.Sleep(2 * time.Hour) // too old now, and nobody has looked
				synctest.Wait()
				if n := len(d.records()); n != 1500 {
					t.Fatalf("%d records before the disk is low", n)
				}
				d.leave(c.free)
				d.wait()
				d.wantLevels(segstore.DiskLow, segstore.DiskRoomy)
				if n := len(d.records()); n != 0 {
					t.Fatalf("%d records are left", n)
				}
			})
		})
	}
}

func TestDisk_alarmComesAndGoesWithAMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t)
		defer d.stop()
		d.wait()
		d.wantLevels()
		d.leave(1<<20 + 1)
		d.wait()
		d.wantLevels(segstore.DiskLow)
		d.leave(1<<20 - 1)
		d.wait()
		d.wantLevels(segstore.DiskLow, segstore.DiskAlarm)
		if s, watched := d.node.Disk(); !watched || s.Level != segstore.DiskAlarm || s.Free != 1<<20-1 || s.Total != 4<<20 || s.Limits.Alarm != 1<<20 {
			t.Fatalf("status %+v", s)
		}
		d.leave(1<<20 + 1) // not yet
		d.wait()
		d.wantLevels(segstore.DiskLow, segstore.DiskAlarm)
		d.leave(3 << 19)
		d.wait()
		d.wantLevels(segstore.DiskLow, segstore.DiskAlarm, segstore.DiskRoomy)
	})
}

func TestDisk_belowTheFloorNothingIsWrittenAndNothingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t)
		defer d.stop()
		p := d.declare("p")
		d.publish(p, message{id: 1, body: "before"})
		d.leave(256<<10 + 100_000)
		d.wait()
		sink := newCollector()
		for id := uint64(2); id <= 401; id++ { // no measurement comes between these
			d.replica.Publish(batchOf(p, sink, numbered(id, 1, 1000)...))
			synctest.Wait()
		}
		if n := len(sink.ids()); n < 80 || n > 105 {
			t.Fatalf("%d messages of 1 KB went into 100 KB", n)
		}
		if free, _ := d.mem.FreeSpace("/"); free < 250<<10 {
			t.Fatalf("%d bytes are left, the floor is %d", free, 256<<10)
		}
		d.wait()
		// What is not a message goes on: stored offsets, a new log, a deletion.
		d.must(d.replica.StoreOffset("c", 1))
		d.wait()
		d.wantOffset("c", 1)
		other := Stream{Incarnation: 7, Name: "other"}
		_, err := d.node.Open(other, true)
		d.must(err)
		d.must(d.node.Remove(d.context(), 7))
		d.leave(3 << 20)
		d.must(sink.wait(t, 400))
		d.wantSequence("p", 401)
		if n := len(d.records()); n != 401 {
			t.Fatalf("%d records", n)
		}
		select {
		case err := <-d.lost:
			t.Fatalf("a run was lost: %v", err)
		default:
		}
	})
}

func TestDisk_aNodeOnAFullDiskCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t)
		d.leave(100 << 10)
		d.wait()
		sink := newCollector()
		d.replica.Publish(batchOf(d.declare("p"), sink, message{id: 1, body: "in vain"}))
		synctest.Wait()
		d.must(d.node.Close(d.context()))
		if err := sink.wait(t, 1); !errors.Is(err, ErrClosed) {
			t.Fatalf("the batch came back with %v", err)
		}
		_ = d.store.Close()
		d.fixture.node = nil
	})
}

// Many replicas have their turn before the disk is measured again.
func TestDisk_everyReplicaRetains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t)
		defer d.stop()
		for i := range 20 {
			s := d.stream
			s.Incarnation, s.Name = streamUnderTest+1+chunk.Incarnation(i), fmt.Sprint("s", i)
			_, err := d.node.Open(s, true)
			d.must(err)
		}
		d.wait()
		before := map[string]uint64{}
		d.node.Replicas(func(r *Replica) { before[r.Incarnation().String()] = r.Stats().Turns })
		d.leave(1<<20 + 100<<10)
		d.wait()
		d.node.Replicas(func(r *Replica) {
			if r.Stats().Turns == before[r.Incarnation().String()] {
				t.Errorf("replica %s had no turn while the disk is low", r.Incarnation())
			}
		})
	})
}

// A node that starts on a low disk lets retention run once its replicas are
// there, before anybody is stopped.
func TestDisk_lowAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t, func(f *fixture) {
			f.stream.Settings.RetainAge, f.stream.Settings.Log.MaxAge = time.Hour, time.Hour
		})
		defer d.stop()
		d.publish(d.declare(""), numbered(1, 1500, 1000)...)
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		d.stop()
		d.leave(512 << 10)
		d.levels = nil
		d.config.Clocks = func() []time.Time { return []time.Time{time.Now()} } // which know how long it was down
		d.start(false)
		d.lead(2)
		d.wait()
		d.wantLevels(segstore.DiskLow, segstore.DiskRoomy)
		if n := len(d.records()); n != 0 {
			t.Fatalf("%d records are left", n)
		}
	})
}

// What a closed session has left in a queue is void once its reference is declared
// again (F4): the newcomer asks where the sequence is, and its next message must
// not count as a duplicate of one that nobody was promised.
func TestDisk_whatAClosedSessionLeftIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSmallDisk(t)
		defer d.stop()
		older := d.declare("r")
		d.publish(older, message{id: 1, body: "first"})
		d.leave(100 << 10)
		d.wait()
		left := newCollector()
		d.replica.Publish(batchOf(older, left, message{id: 2, body: "left"}))
		synctest.Wait()
		older.Close()
		newer := d.declare("r")
		d.wantSequence("r", 1)
		sink := newCollector()
		d.replica.Publish(batchOf(newer, sink, message{id: 2, body: "second"}))
		d.leave(3 << 20)
		d.must(sink.wait(t, 1))
		d.wantRecords("first", "second")
		if err := left.wait(t, 1); !errors.Is(err, ErrFenced) {
			t.Errorf("what was left: %v", err)
		}
	})
}
