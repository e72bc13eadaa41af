package segstore

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// compactWalk is a crashWalk that compacts: at each crash point the log is one
// that was promised, and its files are wholly those of before or wholly those of
// after a piece of work (I19, I20).
type compactWalk struct {
	*crashWalk
	version uint64
	// layouts are what the log's sealed files may be, the newest last.
	layouts [][]manifest.Name
	// users is every user chunk's client header and data, by base offset.
	users map[chunk.Offset]string
}

func (w *compactWalk) deltas(n int) {
	w.t.Helper()
	for range n {
		var u []tracking.Update
		for i := range 4 {
			w.version++
			u = append(u, tracking.Update{
				Ref: fmt.Sprintf("c%d", i), Offset: chunk.Offset(w.version), Version: w.version, Epoch: w.epoch,
			})
		}
		w.chunk(w.control(chunk.Delta, 0, tracking.EncodeDelta(nil, u)))
	}
}

func (w *compactWalk) publish(n int) {
	w.t.Helper()
	for range n {
		c := w.user(2, 30)
		header, data := c.Delivery()
		w.users[c.Header.BaseOffset] = string(header) + string(data)
		w.chunk(c)
	}
}

func (w *compactWalk) roll(unit bool) {
	w.t.Helper()
	w.rollTo(unit)
	w.durable = w.log.Durable().LSN
	w.log.SetCommit(w.durable)
	w.laidOut()
}

func sealedNames(l *Log) (all []manifest.Name) {
	for _, s := range l.Segments() {
		if s.Sealed {
			all = append(all, s.Name())
		}
	}
	return all
}

func (w *compactWalk) laidOut() { w.layouts = append(w.layouts, sealedNames(w.log)) }

// foreseeLayout adds what the files will be once a piece of work is installed.
func (w *compactWalk) foreseeLayout(job *Compaction) {
	now := sealedNames(w.log)
	w.layouts = append(w.layouts, slices.Replace(slices.Clone(now), job.From, job.To, job.out.Name()))
}

// judgeFiles holds a recovered log's files and user chunks against what they may
// be; it is part of judging a crash state.
func (w *compactWalk) judgeFiles(l *Log, mem *vfs.Mem) error {
	now := sealedNames(l)
	if !slices.ContainsFunc(w.layouts, func(o []manifest.Name) bool { return slices.Equal(o, now) }) {
		return fmt.Errorf("sealed files %v, may be %v", now, w.layouts)
	}
	var want, found []string
	for _, s := range l.Segments() {
		want = append(want, segmentFile(s.Name()))
	}
	entries, err := mem.List(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, suffix, ours := parseFile(e.Name); ours && suffix == segmentSuffix {
			found = append(found, e.Name)
		}
	}
	if !slices.Equal(found, want) {
		return fmt.Errorf("files %v, named %v", found, want)
	}
	for _, s := range l.Segments() {
		if s.DroppedLSN > l.Commit() {
			return fmt.Errorf("chunk %d was dropped, commit is %d (C5)", s.DroppedLSN, l.Commit())
		}
	}
	if !l.tracking.Known() {
		return fmt.Errorf("tracking is unknown (F9)")
	}
	return w.judgeUsers(l)
}

func (w *compactWalk) judgeUsers(l *Log) error {
	r, err := l.Attach(Spec{Kind: First}, l.tail.LSN)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		v, ok, err := r.Next(l.tail.LSN)
		if err != nil || !ok {
			return err
		}
		header, data := v.Delivery()
		same := string(header)+string(data) == w.users[v.Header.BaseOffset]
		v.Release()
		if !same {
			return fmt.Errorf("chunk %d has changed", v.Header.LSN)
		}
	}
}

// TestCrash_compaction kills a drop, a merge, and both under retention and roll,
// before every operation on the disk.
func TestCrash_compaction(t *testing.T) {
	w := &compactWalk{users: map[chunk.Offset]string{}}
	w.crashWalk = newCrashWalk(t, Config{SegmentBytes: SegmentBytesMin})
	w.judgeMore = w.judgeFiles
	w.laidOut()
	w.chunk(w.control(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, nil))
	w.publish(1)
	w.deltas(4)
	w.layouts = append(w.layouts, []manifest.Name{{FirstLSN: 1}}) // a crash inside of the seal may finish it
	for i := range 6 {
		w.publish(i % 2)
		w.deltas(5)
		// A seal may be found half done.
		w.layouts = append(w.layouts, append(sealedNames(w.log), manifest.Name{FirstLSN: w.log.summary.FirstLSN}))
		w.roll(i == 4)
	}
	w.syncAll()
	drops, merges := 0, 0
	for step := 0; ; step++ {
		job, _ := w.log.Compact()
		if job == nil {
			break
		}
		if step%2 == 1 { // the log goes on meanwhile
			w.publish(1)
			w.syncAll()
		}
		w.finish(job)
		w.foreseeLayout(job)
		w.must(w.log.Install(job))
		w.laidOut()
		if job.From+1 == job.To {
			drops++
		} else {
			merges++
		}
	}
	if drops < 4 || merges < 1 {
		t.Errorf("%d drops, %d merges", drops, merges)
	}
	w.must(w.log.records.rewrite(w.log.state.Records()))
	w.log.state.Obsolete = nil

	// Retention over compacted files, and MANIFEST lost or not at the end.
	after := sealedNames(w.log)
	for i := range after {
		w.layouts = append(w.layouts, after[i:])
	}
	w.must(w.log.SetLogStart(w.log.Segments()[len(w.log.Segments())-2].FirstLSN))
	w.start = w.log.LogStart().LSN
	w.publish(1)
	w.syncAll()
	t.Logf("%d states, %d drops, %d merges", w.states, drops, merges)
	if w.states < 1500 {
		t.Errorf("only %d states were looked at", w.states)
	}
}

// A power loss inside of a compaction that takes MANIFEST too: a footer vouches
// for what is in front of it, so the files alone give the log back.
func TestCrash_compactionAndLostManifest(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	want := k.portrait()
	must(t, k.store.Close())
	k.openInline()
	k.openLog()
	k.log.SetCommit(k.log.Tail().LSN)
	want.Tracking = trackingBytes(t, k.log.Tracking())

	var states []*vfs.Mem
	mem := k.fs.(*vfs.Mem)
	mem.Observe(func(vfs.Op, string) {
		for _, p := range []vfs.Policy{
			{}, {Writes: vfs.KeepAll, Names: vfs.KeepAll}, {Writes: vfs.KeepAny, Names: vfs.KeepAll},
			{Writes: vfs.KeepAny, Names: vfs.KeepAny, Tears: vfs.TearAny, BordersMax: 2, Grown: true},
		} {
			states = append(states, mem.Crash(p, vfs.Seeded(uint64(len(states)))))
		}
	})
	k.compactAll()
	mem.Observe(nil)
	if len(states) < 150 {
		t.Errorf("only %d states were looked at", len(states))
	}
	for i, after := range states {
		must(t, after.Remove(k.log.file(manifestName)))
		f := &fixture{t: t, fs: after, dir: k.dir, config: k.config, wrote: k.wrote}
		f.openInline()
		f.openLog()
		if !f.found.ManifestRebuilt || len(f.found.Damage) > 0 || len(f.found.Quarantined) > 0 {
			t.Fatalf("state %d: found %+v", i, f.found)
		}
		f.wantPortrait(want)
		must(t, f.store.Close())
	}
}
