package segstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// logSource gives out another log's chunks, few at a time.
type logSource struct {
	log *Log
	// change, if set, tampers with each answer.
	change func(b []byte, next chunk.LSN) ([]byte, chunk.LSN)
}

func (s logSource) ReadRange(_ context.Context, _ chunk.Incarnation, from, last chunk.LSN, _ int) ([]byte, chunk.LSN, error) {
	b, next, err := s.log.ReadRange(from, last, 300)
	if err == nil && s.change != nil {
		b, next = s.change(b, next)
	}
	return b, next, err
}

// replicas are two replicas of one log. The files of the second differ from those
// of the first by their synced LSNs, as a follower's do.
func replicas(t testing.TB) (here, peer *tracker) {
	t.Helper()
	here = newTracker(t)
	here.mixed()
	peer = &tracker{fixture: newFixture(t, vfs.NewMem(), "data")}
	r := here.log.AttachLSN(1)
	defer r.Close()
	for {
		v, ok, err := r.Next(here.log.Tail().LSN)
		must(t, err)
		if !ok {
			break
		}
		c := NewChunk(len(v.Data))
		c.Header, c.Head, c.Data = v.Header, bytes.Clone(v.Head), bytes.Clone(v.Data)
		v.Release()
		peer.log.Stamp(c)
		peer.append(c)
		must(t, peer.log.syncNow())
	}
	peer.sync()
	return here, peer
}

// repair fetches a segment and installs it.
func (f *fixture) repair(name manifest.Name, source Source) error {
	f.t.Helper()
	rep, err := f.log.Repair(name)
	if err != nil {
		return err
	}
	if err := rep.Fetch(context.Background(), source); err != nil {
		rep.Abandon()
		return err
	}
	return f.log.InstallRepair(rep)
}

// meet reads a segment's chunks until the damage in it is found.
func (f *fixture) meet(name manifest.Name) {
	f.t.Helper()
	f.uncached()
	r := f.log.AttachLSN(name.FirstLSN)
	defer r.Close()
	for {
		v, ok, err := r.Next(f.log.Commit())
		if errors.Is(err, ErrDamaged) {
			break
		}
		f.must(err)
		if !ok {
			f.t.Fatalf("segment %s is not damaged", name)
		}
		v.Release()
	}
	if got := f.log.Damaged(); !slices.Equal(got, []manifest.Name{name}) {
		f.t.Fatalf("damaged are %v, want %s", got, name)
	}
}

// harms are ways to damage the file of a sealed segment.
var harms = map[string]func(f *fixture, file string){
	"a flip in data":     func(f *fixture, file string) { f.edit(file, func(b []byte) []byte { b[len(b)-400] ^= 4; return b }) },
	"a flip in the head": func(f *fixture, file string) { f.edit(file, func(b []byte) []byte { b[20] ^= 1; return b }) },
	"zeros":              func(f *fixture, file string) { f.edit(file, func(b []byte) []byte { return make([]byte, len(b)) }) },
	"cut":                func(f *fixture, file string) { f.edit(file, func(b []byte) []byte { return b[:len(b)/2] }) },
	"empty":              func(f *fixture, file string) { f.edit(file, func([]byte) []byte { return nil }) },
	"missing":            func(f *fixture, file string) { f.must(f.fs.Remove(f.log.file(file))) },
}

// A damaged segment is fetched from a peer, however it is damaged, and whatever
// either side has compacted: the log is what it was before, the bad bytes are in
// quarantine, and a restart finds nothing to complain about.
func TestRepair_fetchesADamagedSegment(t *testing.T) {
	for _, compacted := range []string{"neither", "here", "there", "both"} {
		for harm, damage := range harms {
			t.Run(compacted+" compacted, "+harm, func(t *testing.T) {
				here, peer := replicas(t)
				if compacted == "here" || compacted == "both" {
					here.compactAll()
				}
				if compacted == "there" || compacted == "both" {
					peer.compactAll()
					peer.uncached()
				}
				want := here.portrait()
				segments := here.log.Segments()
				target := segments[0]
				if compacted == "neither" || compacted == "there" {
					target = segments[1]
				}
				name := target.Name()
				here.stopped(func() { damage(here.fixture, segmentFile(name)) })
				here.meet(name)
				must(t, here.repair(name, logSource{log: peer.log}))
				here.wantOwnMarks(name.FirstLSN)

				for range 2 {
					here.uncached()
					here.wantPortrait(want)
					here.rescan()
					here.wantSeeks()
					if st := here.log.Stats(); st.Damaged != 0 {
						t.Fatalf("%d segments are still damaged", st.Damaged)
					}
					here.restart()
					if len(here.found.Damage)+len(here.found.Quarantined) > 0 {
						t.Fatalf("found %+v", here.found)
					}
				}
				if here.log.Segments()[slices.IndexFunc(segments, func(s SegmentInfo) bool { return s.Name() == name })].Generation <= name.Generation {
					t.Error("the generation did not rise")
				}
				if kept := here.quarantined(); (len(kept) == 1) != (harm != "missing") || len(kept) == 1 && !strings.Contains(kept[0], name.String()) {
					t.Errorf("quarantine holds %v", kept)
				}
			})
		}
	}
}

// wantOwnMarks checks that no chunk of a repaired segment calls anything durable
// on a peer's word.
func (f *fixture) wantOwnMarks(first chunk.LSN) {
	f.t.Helper()
	f.uncached()
	i := slices.IndexFunc(f.log.Segments(), func(s SegmentInfo) bool { return s.FirstLSN == first })
	last := f.log.Segments()[i].LastLSN
	r := f.log.AttachLSN(first)
	defer r.Close()
	for {
		v, ok, err := r.Next(last)
		f.must(err)
		if !ok {
			return
		}
		if v.Header.SyncedLSN >= first {
			f.t.Fatalf("chunk %d says that %d was durable", v.Header.LSN, v.Header.SyncedLSN)
		}
		v.Release()
	}
}

// What a source gives is not believed: every answer that is not the segment is
// refused, the log stays as it was, and a good source still helps.
func TestRepair_refusesForeignBytes(t *testing.T) {
	other := newTracker(t)
	other.mixed()
	other.roll(true)
	for name, change := range map[string]func(b []byte, next chunk.LSN) ([]byte, chunk.LSN){
		"a flipped bit":     func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { b[len(b)-3] ^= 1; return b, next },
		"cut short":         func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return b[:len(b)-3], next },
		"something behind":  func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return append(b, 0), next },
		"twice":             func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return append(b, b...), next },
		"no step on":        func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return b, 1 },
		"nothing":           func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return nil, next },
		"a part left out":   func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return b, next + 3 },
		"another record":    func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return forged(t, b, chunk.User), next },
		"another delta":     func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return forged(t, b, chunk.Delta), next },
		"of another stream": func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) { return restamped(t, b, testIncarnation+1), next },
	} {
		t.Run(name, func(t *testing.T) {
			here, peer := replicas(t)
			want := here.portrait()
			target := here.log.Segments()[1].Name()
			here.stopped(func() { harms["a flip in data"](here.fixture, segmentFile(target)) })
			here.meet(target)
			before := here.snapshotDir()
			if err := here.repair(target, logSource{peer.log, change}); !errors.Is(err, ErrForeign) {
				t.Fatalf("got %v, want ErrForeign", err)
			}
			if after := here.snapshotDir(); !slices.Equal(names(after), names(before)) {
				t.Errorf("files %v, were %v", names(after), names(before))
			}
			if n := here.log.Stats().Damaged; n != 1 {
				t.Errorf("%d segments are damaged", n)
			}
			must(t, here.repair(target, logSource{log: peer.log}))
			here.uncached()
			here.wantPortrait(want)
		})
	}
	t.Run("another history", func(t *testing.T) {
		here, _ := replicas(t)
		target := here.log.Segments()[1].Name()
		here.stopped(func() { harms["a flip in data"](here.fixture, segmentFile(target)) })
		here.meet(target)
		fork := newTracker(t)
		fork.now++ // other timestamps, so other digests
		fork.mixed()
		if err := here.repair(target, logSource{log: fork.log}); !errors.Is(err, ErrForeign) {
			t.Fatalf("got %v, want ErrForeign", err)
		}
	})
}

// restamped is chunks as another stream would have them.
func restamped(t *testing.T, chunks []byte, inc chunk.Incarnation) []byte {
	t.Helper()
	out := bytes.Clone(chunks)
	for b := out; len(b) > 0; {
		head, data, err := chunk.Peek(b)
		must(t, err)
		chunk.Restamp(inc, b[:head], 0)
		b = b[head+data:]
	}
	return out
}

// forged is chunks of which the first of a type has other content, under CRCs
// that are right. A user chunk that nothing follows is left as it is.
func forged(t *testing.T, chunks []byte, kind chunk.Type) (out []byte) {
	t.Helper()
	for b, done := chunks, false; len(b) > 0; {
		length, data, err := chunk.Peek(b)
		must(t, err)
		h, err := chunk.Verify(testIncarnation, b[:length], b[length:length+data])
		must(t, err)
		meta := chunk.Meta{
			Incarnation: testIncarnation, Flags: h.Flags, LSN: h.LSN, DigestBefore: h.DigestBefore,
			Timestamp: h.Timestamp, Epoch: h.Epoch, BaseOffset: h.BaseOffset, Trailer: bytes.Clone(h.TrailerOf(b[:length])),
		}
		content := bytes.Clone(b[length : length+data])
		switch {
		case done || h.Type != kind || kind == chunk.User && len(b) == length+data:
			out = append(out, b[:length+data]...)
		case kind == chunk.User:
			content[len(content)-1]++
			var builder chunk.Builder
			builder.Reset(nil, nil)
			builder.AppendRun(content, int(h.Entries), h.Records)
			head, body, _ := builder.Finish(&meta)
			out, done = append(append(out, head...), body...), true
		default:
			meta.Trailer = nil
			head, _ := chunk.BuildControl(kind, &meta, nil)
			out, done = append(out, head...), true
		}
		b = b[length+data:]
	}
	return out
}

func TestRepair_refusals(t *testing.T) {
	here, peer := replicas(t)
	segments := here.log.Segments()
	target := segments[1].Name()
	if err := here.repair(target, nil); !errors.Is(err, ErrSound) {
		t.Errorf("of a sound segment: %v", err)
	}
	if err := here.repair(nameOf(999), nil); !errors.Is(err, ErrMissing) {
		t.Errorf("of no segment: %v", err)
	}
	if err := here.repair(segments[len(segments)-1].Name(), nil); !errors.Is(err, ErrMissing) {
		t.Errorf("of the active segment: %v", err)
	}
	here.stopped(func() { harms["missing"](here.fixture, segmentFile(target)) })
	rep, err := here.log.Repair(target)
	must(t, err)
	if _, err := here.log.Repair(target); !errors.Is(err, ErrBusy) {
		t.Errorf("of one that is being repaired: %v", err)
	}
	if job, _ := here.log.Compact(); job != nil {
		t.Error("compaction began beside a repair")
	}
	rep.Abandon()

	// Retention takes the segment while it is fetched.
	rep, err = here.log.Repair(target)
	must(t, err)
	must(t, rep.Fetch(context.Background(), logSource{log: peer.log}))
	must(t, here.log.SetLogStart(segments[2].FirstLSN))
	if err := here.log.InstallRepair(rep); !errors.Is(err, ErrStale) {
		t.Errorf("of one that retention took: %v", err)
	}
	here.restart()
	if got := here.log.Segments()[0].FirstLSN; got != segments[2].FirstLSN || len(here.found.Damage) > 0 {
		t.Errorf("the log starts at %d, found %+v", got, here.found)
	}
}

// Behind the segment nothing is committed, or no snapshot is: it could become
// the log's last one again, or be where tracking is folded from.
func TestRepair_waitsForWhatFollows(t *testing.T) {
	here, peer := replicas(t)
	target := here.log.Segments()[4]
	here.stopped(func() { harms["missing"](here.fixture, segmentFile(target.Name())) })
	here.log.commit.Store(uint64(target.LastLSN))
	if err := here.repair(target.Name(), logSource{log: peer.log}); !errors.Is(err, ErrNotYet) {
		t.Errorf("nothing behind it is committed: %v", err)
	}
	here.log.SetCommit(here.log.Tail().LSN)
	rep, err := here.log.Repair(target.Name())
	must(t, err)
	rep.mayStrip = false
	compacted := logSource{peer.log, func(b []byte, next chunk.LSN) ([]byte, chunk.LSN) {
		head, data, err := chunk.Peek(b)
		must(t, err)
		return b[:head+data], next // as if the others had been dropped
	}}
	if err := rep.Fetch(context.Background(), compacted); !errors.Is(err, ErrNoSnapshot) {
		t.Errorf("a compacted source: %v", err)
	}
	rep.Abandon()
	must(t, here.repair(target.Name(), logSource{log: peer.log}))
}

// ReadRange gives what is committed and sound, and says why it does not.
func TestReadRange(t *testing.T) {
	here, _ := replicas(t)
	segments := here.log.Segments()
	for _, most := range []int{1, 100, 1 << 20} {
		var all []byte
		for lsn := chunk.LSN(1); lsn <= here.log.Commit(); {
			b, next, err := here.log.ReadRange(lsn, here.log.Commit(), most)
			if err != nil || next <= lsn || len(b) == 0 {
				t.Fatalf("from %d: %d bytes, next %d, %v", lsn, len(b), next, err)
			}
			all, lsn = append(all, b...), next
		}
		var want []byte
		for _, s := range segments {
			b, err := vfs.ReadFile(here.fs, here.log.file(segmentFile(s.Name())))
			must(t, err)
			want = append(want, b[:s.Size]...)
		}
		if !bytes.Equal(all, want) {
			t.Errorf("%d bytes at a time: %d bytes, the files have %d", most, len(all), len(want))
		}
	}
	if _, _, err := here.log.ReadRange(1, here.log.Commit()+1, 1); !errors.Is(err, ErrNotYet) {
		t.Errorf("above the commit: %v", err)
	}
	harms["a flip in data"](here.fixture, segmentFile(segments[1].Name()))
	here.uncached()
	if _, _, err := here.log.ReadRange(segments[1].FirstLSN, segments[1].LastLSN, 1<<20); !errors.Is(err, ErrDamaged) {
		t.Errorf("of a damaged segment: %v", err)
	}
	must(t, here.log.SetLogStart(segments[2].FirstLSN))
	if _, _, err := here.log.ReadRange(1, segments[2].FirstLSN, 1); !errors.Is(err, ErrMissing) {
		t.Errorf("below the log start: %v", err)
	}
}

// Every operation of a repair fails once, in turn: the log goes on, and the
// repair can be repeated.
func TestRepair_failingDisk(t *testing.T) {
	const ops = vfs.OpCreate | vfs.OpOpen | vfs.OpWrite | vfs.OpTruncate | vfs.OpSync | vfs.OpSyncDir | vfs.OpRename | vfs.OpRemove
	for _, fault := range []vfs.Fault{{Err: syscall.ENOSPC}, {Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}} {
		for after := 0; ; after++ {
			here, peer := replicas(t)
			want := here.portrait()
			target := here.log.Segments()[1].Name()
			harms["a flip in data"](here.fixture, segmentFile(target))
			faulty := here.faulty()
			here.meet(target)
			rule := faulty.Add(vfs.Rule{Ops: ops, After: after, Times: 1, Fault: fault})
			err := here.repair(target, logSource{log: peer.log})
			struck := faulty.Hits(rule) > 0
			faulty.Lift(rule)
			if err != nil && !struck {
				t.Fatalf("nothing was struck, and yet: %v", err)
			}
			if here.log.Err() != nil { // as the owner does
				must(t, here.log.Close())
				here.openLog()
			}
			if slices.Contains(here.log.Damaged(), target) || err != nil && here.log.Segments()[1].Name() == target {
				if len(here.log.Damaged()) == 0 {
					here.meet(target)
				}
				if err := here.repair(target, logSource{log: peer.log}); err != nil {
					t.Fatalf("operation %d, %v: again: %v", after, fault.Err, err)
				}
			}
			here.uncached()
			here.wantPortrait(want)
			here.restart()
			here.wantPortrait(want)
			if !struck {
				if after < 10 {
					t.Fatalf("only %d operations were struck", after)
				}
				break
			}
		}
	}
}

// repairWalk looks, at each change that a repair makes, at what a power loss may
// leave there.
type repairWalk struct {
	*tracker
	want      portrait
	target    manifest.Name
	installed bool
	states    int
}

// Power is lost before every change that a repair makes on the disk. The segment
// is then the damaged one as it was or the good one as a whole; what else is in
// the log is there; the damaged bytes are not lost while they are the only ones;
// recovering again changes nothing.
func TestCrash_repair(t *testing.T) {
	for harm, damage := range harms {
		t.Run(harm, func(t *testing.T) {
			here, peer := replicas(t)
			want, target := here.portrait(), here.log.Segments()[1].Name()
			here.stopped(func() { damage(here.fixture, segmentFile(target)) })
			here.meet(target)
			must(t, here.store.Close())
			here.openInline()
			here.openLog()
			here.meet(target)
			w := &repairWalk{tracker: here, want: want, target: target}
			mem := here.fs.(*vfs.Mem)
			watching := true
			mem.Observe(func(op vfs.Op, name string) {
				if watching {
					watching = false
					w.crash(mem, op.String()+" "+name)
					watching = true
				}
			})
			must(t, here.repair(target, logSource{log: peer.log}))
			w.installed = true
			w.crash(mem, "nothing more")
			mem.Observe(nil)
			if w.states < 100 {
				t.Errorf("only %d states", w.states)
			}
		})
	}
}

func (w *repairWalk) crash(mem *vfs.Mem, before string) {
	w.t.Helper()
	for i, p := range crashPolicies {
		w.states++
		after := mem.Crash(p, vfs.Seeded(uint64(w.states)))
		first := w.judge(after, before, i)
		if second := w.judge(after.Crash(vfs.Policy{}, vfs.Seeded(1)), before, i); second != first {
			w.t.Fatalf("before %s, policy %d: repaired %v, then %v", before, i, first, second)
		}
	}
}

// judge recovers a state and tells whether it holds the repaired segment.
func (w *repairWalk) judge(mem *vfs.Mem, before string, policy int) (repaired bool) {
	w.t.Helper()
	f := &fixture{t: w.t, fs: mem, dir: "data", epoch: w.epoch, now: w.now, wrote: w.wrote}
	f.openInline()
	f.openLog()
	defer f.log.shut()
	bad := func(format string, args ...any) {
		w.t.Helper()
		w.t.Fatalf("before %s, policy %d: "+format, append([]any{before, policy}, args...)...)
	}
	// Where the damaged file is gone or short, what was fetched may hold the only
	// good bytes: it is not removed.
	half := manifest.Name{FirstLSN: w.target.FirstLSN, Generation: w.target.Generation + 1}
	unknown := slices.DeleteFunc(slices.Clone(f.found.Quarantined), func(file string) bool { return file == segmentFile(half) })
	if f.log.Err() != nil || f.found.Aside != NotAside || len(unknown) > 0 || f.found.ManifestRebuilt {
		bad("%v, found %+v", f.log.Err(), f.found)
	}
	name := f.log.Segments()[1].Name()
	repaired = name != w.target
	if w.installed && !repaired {
		bad("the repair is forgotten")
	}
	if repaired {
		f.wantPortrait(w.want)
		if _, err := mem.Stat(f.log.file(segmentFile(w.target))); err == nil {
			bad("the damaged file is still there")
		}
		return true
	}
	f.meet(name)
	return false
}
