package segstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// What is not committed and durable is not superseded (E2, ST-18).
func TestCompact_waitsForTheCommit(t *testing.T) {
	k := newTracker(t)
	k.ride(2, 40)
	k.deltas(30)
	k.roll(true)
	k.deltas(3)
	k.sync()
	commit := k.log.Commit()
	k.roll(true)
	head := k.log.Tail().LSN
	k.deltas(1)
	if job, until := k.log.Compact(); job != nil || until != head {
		t.Fatalf("above the commit: %v, until %d, want %d", job, until, head)
	}
	k.log.commit.Store(uint64(head)) // committed by others, and not durable here
	if job, until := k.log.Compact(); job != nil || until != head {
		t.Fatalf("above the durable tail: %v, until %d, want %d", job, until, head)
	}
	k.log.commit.Store(uint64(commit))
	k.sync()
	if n := k.compactAll(); n != 1 {
		t.Errorf("%d pieces of work once it is committed", n)
	}
}

// A replica whose tracking is unknown compacts nothing (C4).
func TestCompact_notWithUnknownTracking(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.log.tracking = tracking.New(tracking.Caps{}, k.log.Tail().LSN+1)
	if job, _ := k.log.Compact(); job != nil {
		t.Errorf("planned %+v", job.Compaction)
	}
}

// A dropped chunk proves that it was committed, to a node that forgot (C5), and
// nothing at or below is cut any more (B6).
func TestCompact_gapProvesTheCommit(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.compactAll()
	dropped := chunk.LSN(0)
	for _, s := range k.log.Segments() {
		dropped = max(dropped, s.DroppedLSN)
	}
	must(t, k.store.Close())
	must(t, k.fs.(*vfs.Mem).Edit("data/journal/"+journalName, func([]byte) []byte { return nil }))
	k.open()
	k.openLog()
	if got := k.log.Commit(); got < dropped || dropped == 0 {
		t.Errorf("commit %d, chunk %d was dropped", got, dropped)
	}
	if _, err := k.log.Truncate(dropped - 1); !errors.Is(err, ErrBelowCommit) {
		t.Errorf("cut below it: %v", err)
	}
}

// A cut takes tracking back as if nothing had been compacted (C3, I18).
func TestCompact_thenTruncate(t *testing.T) {
	build := func() (*tracker, []chunk.LSN) {
		k := newTracker(t)
		k.mixed()
		var cuts []chunk.LSN
		for range 3 {
			k.ride(1, 40)
			cuts = append(cuts, k.log.Tail().LSN)
			k.deltas(2)
			k.roll(false)
			cuts = append(cuts, k.log.Tail().LSN)
		}
		must(t, k.log.syncNow())
		return k, cuts
	}
	_, cuts := build()
	for _, n := range cuts {
		plain, _ := build()
		_, err := plain.log.Truncate(n)
		must(t, err)
		k, _ := build()
		if k.compactAll() == 0 {
			t.Fatal("nothing was compacted")
		}
		_, err = k.log.Truncate(n)
		must(t, err)
		want := plain.portrait()
		k.wantPortrait(want)
		k.restart()
		k.wantPortrait(want)
		k.rescan()
	}
}

// Retention keeps what it keeps without compaction, and the log start may move
// into what was compacted (E3).
func TestCompact_thenRetention(t *testing.T) {
	for _, most := range []int64{1, 800, 1500, 1 << 40} {
		plain, k := newTracker(t), newTracker(t)
		plain.mixed()
		k.mixed()
		k.compactAll()
		for _, f := range []*tracker{plain, k} {
			_, err := f.log.Retention(Policy{BytesMax: most}, f.now)
			must(t, err)
		}
		want := plain.portrait()
		k.wantPortrait(want)
		k.restart()
		k.wantPortrait(want)
		k.rescan()
	}
}

// A lost MANIFEST is made anew from footers: the compacted files win.
func TestCompact_survivesLostManifest(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	before := k.portrait()
	k.compactAll()
	names := func() (all []manifest.Name) {
		for _, s := range k.log.Segments() {
			all = append(all, s.Name())
		}
		return all
	}
	want := names()
	must(t, k.store.Close())
	must(t, k.fs.Remove(k.log.file(manifestName)))
	k.open()
	k.openLog()
	if !k.found.ManifestRebuilt || !slices.Equal(names(), want) {
		t.Errorf("rebuilt %v: %v, want %v", k.found.ManifestRebuilt, names(), want)
	}
	k.wantPortrait(before)
}

// A damaged source is named and left as it is; what can be compacted is (I26).
func TestCompact_damagedSource(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	infos := k.log.Segments()
	bad := segmentFile(infos[1].Name())
	k.edit(bad, func(b []byte) []byte { b[infos[1].Size/2] ^= 4; return b })
	var failures []error
	for {
		job, _ := k.log.Compact()
		if job == nil {
			break
		}
		var done bool
		var err error
		for err == nil && !done {
			_, done, err = job.Step(1 << 20)
		}
		if err != nil {
			failures = append(failures, err)
			job.Abandon()
			continue
		}
		must(t, k.log.Install(job))
	}
	var d *DamageError
	if len(failures) != 1 || !errors.As(failures[0], &d) || d.Segment != infos[1].Name() || d.Position == 0 {
		t.Fatalf("failures %v", failures)
	}
	after := k.log.Segments()
	if after[1].Damage == nil || after[1].Generation != 0 || after[0].Generation == 0 {
		t.Errorf("segments %+v", after[:2])
	}
	content, err := vfs.ReadFile(k.fs, k.log.file(bad))
	if err != nil || int64(len(content)) != infos[1].FileSize() {
		t.Errorf("the damaged file has %d bytes, %v", len(content), err)
	}
	for _, name := range k.files() {
		if strings.HasPrefix(name, fmt.Sprintf("%020d.1", infos[1].FirstLSN)) {
			t.Errorf("%s was left behind", name)
		}
	}
}

// The disk refuses at each operation in turn: nothing changes, and once it works
// again the work is done.
func TestCompact_failingDisk(t *testing.T) {
	for _, ops := range []vfs.Op{vfs.OpOpen, vfs.OpRead, vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove} {
		for after := range 8 {
			k := newTracker(t)
			k.mixed()
			before := k.portrait()
			faulty := k.faulty()
			k.log.SetCommit(k.log.Tail().LSN)
			before.Tracking = trackingBytes(t, k.log.Tracking())
			job, _ := k.log.Compact()
			for job.KeptBytes == 0 { // of which nothing would be read
				k.finish(job)
				k.must(k.log.Install(job))
				job, _ = k.log.Compact()
			}
			rule := faulty.Add(vfs.Rule{Ops: ops, After: after, Times: 1, Fault: vfs.Fault{Err: syscall.EIO}})
			var done bool
			var err error
			for err == nil && !done {
				_, done, err = job.Step(1 << 20)
			}
			if err == nil {
				err = k.log.Install(job)
			} else {
				job.Abandon()
			}
			faulty.Lift(rule)
			what := fmt.Sprintf("%s %d fails: %v", ops, after, err)
			if k.log.Err() != nil { // whether the record is in MANIFEST is unknown
				k.log.shut()
				k.openLog()
				k.log.SetCommit(k.log.Tail().LSN)
			}
			if len(k.found.Damage) > 0 || k.log.Err() != nil {
				t.Fatalf("%s: found %+v, %v", what, k.found, k.log.Err())
			}
			k.compactAll()
			k.uncached()
			k.wantPortrait(before)
			k.rescan()
			k.restart()
			if len(k.found.Damage) > 0 || len(k.found.Quarantined) > 0 {
				t.Fatalf("%s: found %+v", what, k.found)
			}
			k.wantPortrait(before)
		}
	}
}

// A disk without room is left alone, but for what needs none.
func TestCompact_headroom(t *testing.T) {
	k := newTracker(t)
	k.ride(60, 200)
	k.deltas(120)
	k.roll(true)
	k.deltas(30) // no user data: its footer alone is kept
	k.roll(true)
	k.deltas(1)
	k.roll(true)
	k.deltas(1)
	k.sync()
	infos := k.log.Segments()
	var used int64
	for _, name := range k.files() {
		e, err := k.fs.Stat(k.log.file(name))
		must(t, err)
		used += e.Size
	}
	k.fs.(*vfs.Mem).Limit(used + infos[0].UserBytes)
	if n := k.compactAll(); n != 1 || k.log.Segments()[1].Generation != 1 {
		t.Errorf("%d pieces of work without room: %+v", n, k.log.Compaction())
	}
	k.fs.(*vfs.Mem).Limit(0)
	if n := k.compactAll(); n != 1 || k.log.Segments()[0].Generation != 1 {
		t.Errorf("%d pieces of work with room", n)
	}
}

// Work that is overtaken is dropped, and its file with it (ST-21).
func TestCompact_overtaken(t *testing.T) {
	for _, c := range []struct {
		name string
		by   func(k *tracker)
		want error
	}{
		{"by retention", func(k *tracker) {
			_, err := k.log.Retention(Policy{BytesMax: 1}, k.now)
			k.must(err)
		}, ErrStale},
		{"by a cut", func(k *tracker) {
			k.ride(1, 40)
			_, err := k.log.Truncate(k.log.Tail().LSN - 1)
			k.must(err)
		}, ErrStale},
		{"by closing", func(k *tracker) { k.must(k.log.Close()) }, ErrClosed},
		{"by removal", func(k *tracker) { k.must(k.store.Remove(testIncarnation)) }, ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTracker(t)
			k.mixed()
			job, _ := k.log.Compact()
			k.finish(job)
			c.by(k)
			if err := k.log.Install(job); !errors.Is(err, c.want) {
				t.Fatalf("installed: %v, want %v", err, c.want)
			}
			if exists, _ := vfs.Exists(k.fs, job.path()); exists {
				t.Error("its file was left behind")
			}
			if errors.Is(c.want, ErrStale) {
				k.compactAll()
				k.uncached()
				k.rescan()
				before := k.portrait()
				k.restart()
				k.wantPortrait(before)
			}
		})
	}
}

// A file that is still read stays under its name until the last reader left.
func TestCompact_readFileStays(t *testing.T) {
	k := newTracker(t)
	k.append(k.user(1, sendFileMin+100))
	k.deltas(200)
	for range 2 {
		k.roll(true)
		k.deltas(1)
	}
	k.sync()
	k.uncached()
	content := k.content(Spec{Kind: First}) // checked now: the next read gives sections
	// Complete blocks count as checked; the first MiB is one only with more in it.
	k.log.layout.Load().segments[0].checked.add(0, checkedBlock)
	r, err := k.log.Attach(Spec{Kind: First}, k.log.Commit())
	must(t, err)
	defer r.Close()
	v, ok, err := r.Next(k.log.Commit())
	must(t, err)
	file, position, length, section := v.Section()
	if !ok || !section {
		t.Fatalf("no section of a file: %v, %v", ok, section)
	}
	want := make([]byte, length)
	_, err = file.ReadAt(want, position)
	must(t, err)
	old := k.log.file(segmentFile(k.log.Segments()[0].Name()))
	if k.compactAll() == 0 {
		t.Fatal("nothing was compacted")
	}
	if exists, _ := vfs.Exists(k.fs, old); !exists || k.log.Compaction().BytesPinned == 0 {
		t.Errorf("the file that is read: there %v, pinned %d bytes", exists, k.log.Compaction().BytesPinned)
	}
	got := make([]byte, length)
	if _, err = file.ReadAt(got, position); err != nil || !bytes.Equal(got, want) {
		t.Errorf("its bytes have changed: %v", err)
	}
	v.Release()
	k.compactAll()
	if exists, _ := vfs.Exists(k.fs, old); exists || k.log.Compaction().BytesPinned != 0 {
		t.Errorf("after the last reader: there %v, pinned %d bytes", exists, k.log.Compaction().BytesPinned)
	}
	if again := k.content(Spec{Kind: First}); !slices.Equal(again, content) {
		t.Errorf("content %v, was %v", ends(again), ends(content))
	}
}
