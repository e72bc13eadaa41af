package segstore

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func journalOf(t *testing.T, s *Store) string { return s.dir + "/" + journalDir + "/" + journalName }

func TestJournal_remembersOverRestarts(t *testing.T) {
	f := memFixture(t)
	j := f.store.Journal()
	for _, change := range []func(done func(error)){
		func(done func(error)) { j.Promise(1, 7, done) },
		func(done func(error)) { j.Promise(1, 5, done) }, // never goes down
		func(done func(error)) { j.Progress(1, 20, 30, done) },
		func(done func(error)) { j.Progress(1, 10, 3, done) },
		func(done func(error)) { j.SetAside(2, AsideLearner, done) },
		func(done func(error)) { j.Progress(3, 9, 9, done) },
		func(done func(error)) { j.Lower(3, 4, done) },
		func(done func(error)) { j.Promise(4, 1, done) },
		func(done func(error)) { j.Remove(4, done) },
	} {
		f.must(awaited(change))
	}
	f.powerOff()
	for inc, want := range map[chunk.Incarnation]StreamState{
		1: {Promise: 7, Mark: 20, Commit: 20},
		2: {Aside: AsideLearner},
		3: {Mark: 4, Commit: 4},
	} {
		if got, ok := f.store.Journal().State(inc); !ok || got != want {
			t.Errorf("stream %s: %+v, want %+v", inc, got, want)
		}
	}
	if _, ok := f.store.Journal().State(4); ok {
		t.Error("a removed stream is still there")
	}
}

// A start needs no space: what the journal says is made durable where it lies.
func TestJournal_startsOnAFullDisk(t *testing.T) {
	f := memFixture(t)
	f.must(awaited(func(done func(error)) { f.store.Journal().Promise(1, 7, done) }))
	f.must(f.store.Close())
	mem := f.fs.(*vfs.Mem)
	mem.Limit(1 << 30)
	free, err := mem.FreeSpace(f.dir)
	must(t, err)
	mem.Limit(1<<30 - int64(free)) // not a byte more
	full, err := NewStore(Options{FS: mem, Dir: f.dir})
	must(t, err)
	if got, ok := full.Journal().State(1); !ok || got.Promise != 7 {
		t.Errorf("on a full disk: %+v", got)
	}
	if err := awaited(func(done func(error)) { full.Journal().Promise(1, 8, done) }); err == nil {
		t.Error("a promise is kept that no disk has room for")
	}
	_ = full.Close() // of a journal whose last write failed
	mem.Limit(0)
	s, err := NewStore(Options{FS: mem.Crash(vfs.Policy{}, func(int) int { return 0 }), Dir: f.dir})
	must(t, err)
	defer s.Close()
	if got, ok := s.Journal().State(1); !ok || got.Promise != 7 {
		t.Errorf("after a power loss: %+v", got)
	}
}

// Promises of many streams at once are a few syncs.
func TestJournal_groupCommit(t *testing.T) {
	mem := vfs.NewMem()
	faulty := vfs.NewFaulty(mem)
	syncer := vfs.NewSyncer(1)
	s, err := NewStore(Options{FS: faulty, Dir: "data", Syncer: syncer})
	must(t, err)
	release := make(chan struct{})
	slow := faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: journalName, Times: 1, Fault: vfs.Fault{Hang: release}})
	var all sync.WaitGroup
	const streams = 1000
	for i := range streams {
		all.Add(1)
		s.Journal().Promise(chunk.Incarnation(i+1), 3, func(err error) {
			if err != nil {
				t.Error(err)
			}
			all.Done()
		})
	}
	before := syncer.Stats().Syncs
	close(release)
	all.Wait()
	if n := syncer.Stats().Syncs - before; n > 3 {
		t.Errorf("%d syncs for %d promises", n, streams)
	}
	if faulty.Hits(slow) != 1 {
		t.Error("no sync was slow")
	}
	must(t, s.Close())
	must(t, syncer.Close())
}

// A value that is there already costs nothing, unless it is not durable yet.
func TestJournal_sameValue(t *testing.T) {
	f := memFixture(t)
	j := f.store.Journal()
	f.must(awaited(func(done func(error)) { j.Promise(9, 3, done) }))
	before := j.Stats().Records
	f.must(awaited(func(done func(error)) { j.Promise(9, 3, done) }))
	if n := j.Stats().Records - before; n != 0 {
		t.Errorf("%d records", n)
	}
}

func TestJournal_isRewrittenWhenMostlyHistory(t *testing.T) {
	f := memFixture(t)
	j := f.store.Journal()
	for i := range 5000 {
		f.must(awaited(func(done func(error)) { j.Progress(chunk.Incarnation(i%10), chunk.LSN(i), 0, done) }))
	}
	st := j.Stats()
	if st.Rewrites < 2 || st.Bytes > 200_000 {
		t.Errorf("%+v", st)
	}
	f.powerOff()
	for i := range 10 {
		if s, _ := f.store.Journal().State(chunk.Incarnation(i)); s.Mark != chunk.LSN(4990+i) {
			t.Errorf("stream %d: %+v", i, s)
		}
	}
}

// A torn last record is dropped; a damaged or missing journal sets every replica
// aside, and is kept.
func TestJournal_damage(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		lost   bool
	}{
		{"torn", func(b []byte) []byte { return b[:len(b)-1] }, false},
		{"torn to zeros", func(b []byte) []byte { clear(b[len(b)-30:]); return b }, false},
		{"garbage behind it", func(b []byte) []byte { return append(bytes.Clone(b), "garbage that is no record"...) }, false},
		{"flipped first", func(b []byte) []byte { b[12] ^= 1; return b }, true},
		{"flipped middle", func(b []byte) []byte { b[60] ^= 1; return b }, true},
		{"flipped last", func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, true},
		{"empty", func([]byte) []byte { return nil }, true},
		{"another's", func(b []byte) []byte { return appendJournalBegin(nil, 99)[:20] }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := memFixture(t)
			f.publish(3, 20)
			f.sync()
			f.must(awaited(func(done func(error)) { f.store.journal.Promise(testIncarnation, 2, done) }))
			f.must(awaited(func(done func(error)) { f.store.journal.Promise(testIncarnation, 3, done) }))
			f.log.shut()
			f.must(f.store.Close())
			f.must(f.fs.(*vfs.Mem).Edit(journalOf(t, f.store), c.change))
			f.open()
			f.openLog()
			f.wantAll(0, 6)
			if lost := f.store.Journal().Lost() != nil; lost != c.lost {
				t.Fatalf("lost: %v", f.store.Journal().Lost())
			}
			s, _ := f.store.Journal().State(testIncarnation)
			kept, err := f.fs.List("data/" + quarantineDir)
			f.must(err)
			if c.lost {
				if f.found.Aside != AsideJournalLost || len(kept) != 1 {
					t.Errorf("aside: %s, kept %v", f.found.Aside, kept)
				}
				f.restart()
				if f.found.Aside != AsideJournalLost || f.store.Journal().Lost() != nil {
					t.Errorf("after a restart: %s, %v", f.found.Aside, f.store.Journal().Lost())
				}
				return
			}
			if f.found.Aside != NotAside || s.Promise < 2 || len(kept) != 0 {
				t.Errorf("aside: %s, state %+v, kept %v", f.found.Aside, s, kept)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		f := memFixture(t)
		f.must(f.store.Close())
		f.must(f.fs.Remove(journalOf(t, f.store)))
		f.open()
		f.openLog()
		if f.found.Aside != AsideJournalLost {
			t.Errorf("aside: %s", f.found.Aside)
		}
	})
	t.Run("newer version", func(t *testing.T) {
		f := memFixture(t)
		f.must(f.store.Close())
		b := appendJournalBegin(nil, 7)
		f.must(f.fs.(*vfs.Mem).Edit(journalOf(t, f.store), func([]byte) []byte {
			body := bytes.Clone(b[8:])
			body[7]++
			return manifestFrame(0, body)
		}))
		if _, err := NewStore(Options{FS: f.fs, Dir: f.dir}); !errors.Is(err, ErrVersion) {
			t.Errorf("got %v", err)
		}
	})
}

// Of records that one sync was to cover, a power loss may keep the later ones
// and lose the earlier: a torn end too, for nobody was told of either. Fencing
// many streams at a start is such a moment.
func TestJournal_holeInUnsyncedRecordsIsTorn(t *testing.T) {
	mem := vfs.NewMem()
	f := newFixture(t, mem, "data")
	f.must(awaited(func(done func(error)) { f.store.journal.Promise(testIncarnation, 2, done) }))
	f.log.shut()
	f.must(f.store.Close())

	faulty := vfs.NewFaulty(mem)
	s, err := NewStore(Options{FS: faulty, Dir: "data"})
	must(t, err)
	release := make(chan struct{})
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: journalName, Times: 1, Fault: vfs.Fault{Hang: release}})
	answered := make(chan error, 3)
	for i := range 3 {
		s.journal.Promise(chunk.Incarnation(100+i), 7, func(err error) { answered <- err })
	}
	states := 0
	_, all := vfs.Enumerate(1000, func(choose vfs.Choose) {
		crashed := mem.Crash(vfs.Policy{Writes: vfs.KeepAny, Names: vfs.KeepAll}, choose)
		after, err := NewStore(Options{FS: crashed, Dir: "data"})
		must(t, err)
		if lost := after.journal.Lost(); lost != nil {
			t.Errorf("a crash is called damage: %v", lost)
		}
		if s, _ := after.journal.State(testIncarnation); s.Promise != 2 {
			t.Errorf("a synced promise is %d", s.Promise)
		}
		states++
		must(t, after.Close())
	})
	if !all || states < 8 {
		t.Errorf("%d states, all: %t", states, all)
	}
	close(release)
	for range 3 {
		must(t, <-answered)
	}
	must(t, s.Close())
}

// Rot in such records is told from a torn end by its single bit, and by any
// record that was written once they were durable.
func TestJournal_rotInRecordsOfOneSync(t *testing.T) {
	const id = 5
	begin := appendJournalBegin(nil, id)
	first := appendJournalState(bytes.Clone(begin), id, 1, int64(len(begin)), &StreamState{Promise: 3})
	second := appendJournalState(bytes.Clone(first), id, 2, int64(len(begin)), &StreamState{Promise: 3})
	later := appendJournalGone(bytes.Clone(second), id, 2, int64(len(second)))
	for _, c := range []struct {
		name    string
		file    []byte
		zeros   int
		flip    byte
		damaged bool
	}{
		{"torn, and one of the same sync behind it", second, 20, 0, false},
		{"torn, and one of a later sync behind it", later, 20, 0, true},
		{"a bit flipped, and one of the same sync behind it", second, 0, 1, true},
		{"two bits flipped, and one of a later sync behind it", later, 0, 3, true},
	} {
		b := bytes.Clone(c.file)
		clear(b[len(begin)+12 : len(begin)+12+c.zeros])
		b[len(begin)+15] ^= c.flip
		_, states, good, err := decodeJournal(b)
		if damaged := errors.Is(err, errJournalDamaged); damaged != c.damaged {
			t.Errorf("%s: %v", c.name, err)
		}
		if !c.damaged && (good != len(begin) || len(states) != 0) {
			t.Errorf("%s: %d bytes are good, %v", c.name, good, states)
		}
	}
}

// A write that fails is told, changes nothing, and is repeated in full: a value
// that never became durable is not taken for one (ENOSPC).
func TestJournal_failedWrite(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	j := f.store.Journal()
	rule := faulty.Add(vfs.Rule{Ops: vfs.OpWrite, Path: journalName, Fault: vfs.Fault{Err: syscall.ENOSPC, Short: 7}})
	promise := func() error { return awaited(func(done func(error)) { j.Promise(5, 2, done) }) }
	if err := promise(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	if s, ok := j.State(5); ok {
		t.Errorf("it is remembered: %+v", s)
	}
	if err := promise(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the second time: %v", err)
	}
	faulty.Lift(rule)
	f.must(promise())
	f.must(f.store.Close())
	f.open()
	if s, _ := f.store.Journal().State(5); s.Promise != 2 {
		t.Errorf("%+v", s)
	}
}

// After a failed sync the file is not believed again; the next change writes a
// new one with everything.
func TestJournal_failedSync(t *testing.T) {
	mem := vfs.NewMem()
	f := newFixture(t, mem, "data")
	faulty := f.faulty()
	j := f.store.Journal()
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: journalName, Times: 1, Fault: vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}})
	promise := func(inc chunk.Incarnation) error {
		return awaited(func(done func(error)) { j.Promise(inc, 2, done) })
	}
	if err := promise(5); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	f.must(promise(6))
	f.must(promise(5)) // not answered from memory
	f.log.shut()
	f.fs = mem.Crash(vfs.Policy{}, vfs.Seeded(1))
	f.open()
	for _, inc := range []chunk.Incarnation{5, 6} {
		if s, _ := f.store.Journal().State(inc); s.Promise != 2 {
			t.Errorf("stream %s: %+v", inc, s)
		}
	}
}

// A failed sync that no change came after, as that of a mark nobody waits for, is
// made good when the store is closed.
func TestJournal_failedSyncBeforeTheEnd(t *testing.T) {
	mem := vfs.NewMem()
	f := newFixture(t, mem, "data")
	faulty := f.faulty()
	j := f.store.Journal()
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: journalName, Times: 1, Fault: vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}})
	if err := awaited(func(done func(error)) { j.Promise(5, 2, done) }); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	f.log.shut()
	f.must(f.store.Close())
	f.fs = mem.Crash(vfs.Policy{}, vfs.Seeded(1))
	f.open()
	if s, _ := f.store.Journal().State(5); s.Promise != 2 {
		t.Errorf("%+v", s)
	}
}

func FuzzJournal(f *testing.F) {
	b := appendJournalBegin(nil, 5)
	f.Add(bytes.Clone(b))
	b = appendJournalState(b, 5, testIncarnation, 24, &StreamState{Promise: 3})
	f.Add(appendJournalGone(b, 5, testIncarnation, 24))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, states, good, err := decodeJournal(b)
		if err != nil {
			return
		}
		if good > len(b) {
			t.Fatalf("%d good bytes of %d", good, len(b))
		}
		again, same, n, err := decodeJournal(b[:good])
		if err != nil || again != id || n != good || fmt.Sprint(same) != fmt.Sprint(states) {
			t.Fatalf("the good part reads as something else: %v", err)
		}
	})
}

// A node that dies again while it starts without its journal has not forgotten
// that the journal is lost.
func TestJournal_lossIsDurableAtOnce(t *testing.T) {
	mem := vfs.NewMem()
	f := newFixture(t, mem, "data")
	f.barrier()
	f.sync()
	f.must(f.store.Create("/second", testIncarnation+1))
	f.must(f.log.Close())
	f.must(f.store.Close())
	f.must(mem.Remove(journalOf(t, f.store)))
	f.must(mem.SyncDir("data/" + journalDir))

	var states []*vfs.Mem
	mem.Observe(func(vfs.Op, string) {
		for _, keep := range []vfs.Keep{vfs.KeepNone, vfs.KeepAll} {
			states = append(states, mem.Crash(vfs.Policy{Writes: keep, Names: keep}, vfs.Seeded(1)))
		}
	})
	s, err := NewStore(Options{FS: mem, Dir: "data"})
	must(t, err)
	mem.Observe(nil)
	must(t, s.Close())
	for i, state := range states {
		s, err := NewStore(Options{FS: state, Dir: "data"})
		must(t, err)
		for _, inc := range []chunk.Incarnation{testIncarnation, testIncarnation + 1} {
			if kept, _ := s.journal.State(inc); kept.Aside != AsideJournalLost {
				t.Errorf("state %d of %d: stream %s is %s", i, len(states), inc, kept.Aside)
			}
		}
		must(t, s.Close())
	}
}

// A journal is renamed, the process dies before the name is synced, and the next
// one finds no room to write it anew: it must make the name durable all the same.
func TestJournal_fullDiskBehindRename(t *testing.T) {
	mem := vfs.NewMem()
	open := func(fsys vfs.FS) *Store {
		t.Helper()
		s, err := NewStore(Options{FS: fsys, Dir: "data", Syncer: vfs.NewInlineSyncer()})
		must(t, err)
		return s
	}
	first := open(mem)
	must(t, first.Create(testName, testIncarnation))
	must(t, first.Close())
	dying := vfs.NewFaulty(mem)
	dying.Add(vfs.Rule{Ops: vfs.OpSyncDir, Path: journalDir, Times: 1, Fault: vfs.Fault{Err: syscall.EIO}})
	if _, err := NewStore(Options{FS: dying, Dir: "data", Syncer: vfs.NewInlineSyncer()}); err == nil {
		t.Fatal("the process has not died")
	}
	full := vfs.NewFaulty(mem)
	full.Add(vfs.Rule{Ops: vfs.OpWrite, Path: "*" + temporary, Fault: vfs.Fault{Err: syscall.ENOSPC}})
	second := open(full)
	must(t, awaited(func(done func(error)) { second.Journal().Promise(testIncarnation, 9, done) }))
	after := open(mem.Crash(vfs.Policy{}, func(int) int { return 0 }))
	if s, _ := after.Journal().State(testIncarnation); s.Promise != 9 {
		t.Errorf("promise is %d", s.Promise)
	}
}

// A record that a border between the file's sectors parts, and whose end holds a
// single set bit, is torn if that end is zero, and no damage: the journal stays.
func TestJournal_tornToOneBit(t *testing.T) {
	const id = 7
	b := appendJournalBegin(nil, id)
	states := 0
	for end := 0; end <= 1024; states++ {
		b = appendJournalState(b, id, chunk.Incarnation(1+states), int64(len(b)), &StreamState{Promise: 3, Registration: 2})
		end = len(b)
	}
	clear(b[1024:])
	_, got, good, err := decodeJournal(b)
	if err != nil || len(got) != states-1 || good >= 1024 {
		t.Errorf("%d of %d states, %d bytes are good, %v", len(got), states, good, err)
	}
	b[700] ^= 4
	if _, _, _, err := decodeJournal(b); !errors.Is(err, errJournalDamaged) {
		t.Errorf("rot before it is %v", err)
	}
}
