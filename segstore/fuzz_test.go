package segstore

import (
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// twoSegments makes a disk with a log of a sealed segment and an unsealed one
// with a checkpoint, both stopped in order.
func twoSegments(f testing.TB) *vfs.Mem {
	k := &fixture{t: f, fs: vfs.NewMem(), dir: "data", epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	k.config.CheckpointBytes = 100
	k.openInline()
	k.must(k.store.Create(testName, testIncarnation))
	k.openLog()
	k.barrier()
	k.publish(3, 40_000) // index entries are 64 KiB apart
	k.roll(true)
	k.publish(3, 40)
	k.sync()
	k.must(k.store.Close())
	return k.fs.(*vfs.Mem)
}

// replaceFile puts other bytes in the place of a file of the log.
func replaceFile(t testing.TB, disk *vfs.Mem, file string, content []byte) {
	name := "data/streams/" + dirName(testName, testIncarnation) + "/" + file
	f, err := disk.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	must(t, err)
	_, err = f.WriteAt(content, 0)
	must(t, err)
	must(t, f.Close())
}

// opened opens the log of a disk and describes all that can be read of it, from
// each place that an index can lead to.
func opened(t testing.TB, disk *vfs.Mem) string {
	k := &fixture{t: t, fs: disk, dir: "data", epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	k.openInline()
	k.openLog()
	defer func() { must(t, k.store.Close()) }()
	k.log.SetCommit(k.log.Tail().LSN)
	told := fmt.Sprint(k.log.Tail(), k.log.Next(), k.log.Digest(), k.log.Epochs(), k.log.Err(), trackingBytes(t, k.log.Tracking()))
	for o := range k.log.Next() {
		for _, spec := range []Spec{{Kind: AtOffset, Offset: o}, {Kind: AtTimestamp, Timestamp: testTime + 10*chunk.Timestamp(o)}, {Kind: Last}} {
			r, err := k.log.Attach(spec, k.log.Commit())
			must(t, err)
			v, ok, err := r.Next(k.log.Commit())
			must(t, err)
			told += fmt.Sprintln(spec, ok, v.Header)
			v.Release()
			r.Close()
		}
	}
	return told
}

// FuzzIndex: whatever stands in an index file, places are found as without one.
func FuzzIndex(f *testing.F) { fuzzCache(f, indexFile(nameOf(1))) }

// FuzzCheckpoint: whatever stands in a checkpoint, the log opens as without one.
func FuzzCheckpoint(f *testing.F) { fuzzCache(f, checkpointName) }

// fuzzCache fuzzes a file that is a cache: the log is the same without it.
func fuzzCache(f *testing.F, file string) {
	disk := twoSegments(f)
	good, err := vfs.ReadFile(disk, "data/streams/"+dirName(testName, testIncarnation)+"/"+file)
	must(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good[:len(good):len(good)], good...))
	f.Add([]byte{})
	replaceFile(f, disk, file, nil)
	want := opened(f, disk.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1)))
	f.Fuzz(func(t *testing.T, content []byte) {
		again := disk.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1))
		replaceFile(t, again, file, content)
		if got := opened(t, again); got != want {
			t.Fatalf("the log is\n%s\nwithout the file\n%s", got, want)
		}
	})
}
