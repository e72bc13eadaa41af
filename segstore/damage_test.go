package segstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"reflect"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// What a crash may leave of the newest file after a roll: the log goes on, and
// nothing that was synced is missing (ST-05, ST-06).
func TestDamage_newestFileAfterARoll(t *testing.T) {
	base := memFixture(t)
	base.publish(3, 20)
	base.sync()
	base.roll(true) // not synced: the new file's chunk may be lost
	head := base.log.summary.Size
	base.log.shut()
	base.must(base.store.Close())
	for _, n := range []int64{0, 1, 20, 47, 48, 96, head - 1} {
		for _, fill := range []bool{false, true} {
			if fill && n == head-1 {
				continue // its last byte is a zero
			}
			f := base.copy()
			f.edit(segmentOf(5), func(b []byte) []byte {
				if fill {
					return append(bytes.Clone(b[:n]), make([]byte, int(head-n))...)
				}
				return b[:n]
			})
			f.open()
			f.openLog()
			if f.log.Err() != nil || f.log.Tail().LSN != 4 || !f.found.Reopened {
				t.Fatalf("%d bytes, zeros %v: tail %s, %v, found %+v", n, fill, f.log.Tail(), f.log.Err(), f.found)
			}
			f.wantAll(0, 6)
			f.elect()
			f.publish(1, 20)
			f.roll(true)
			f.publish(1, 20)
			f.sync()
			f.restart()
			f.wantAll(0, 10)
			if n := len(f.log.Segments()); n != 2 {
				t.Errorf("%d segments", n)
			}
		}
	}
}

// The very first file of a stream, lost in part before any sync: a valid empty
// log (ST-05).
func TestDamage_firstFile(t *testing.T) {
	base := memFixture(t)
	base.publish(1, 20)
	size := base.log.summary.Size
	base.log.shut()
	base.must(base.store.Close())
	for n := int64(0); n < size; n += 7 {
		f := base.copy()
		f.edit(segmentOf(1), func(b []byte) []byte { return b[:n] })
		f.open()
		f.openLog()
		if f.log.Err() != nil || f.log.Next() != 0 {
			t.Fatalf("%d bytes: next %d, %v", n, f.log.Next(), f.log.Err())
		}
		f.epoch = 2
		f.barrier()
		f.publish(2, 20)
		f.sync()
		f.restart()
		f.wantAll(0, 4)
	}
}

// MANIFEST is ahead of the files: the two newest are gone. What was durable is
// missing, which is damage, and never a shorter log (ST-03, ST-24).
func TestDamage_manifestAheadOfTheFiles(t *testing.T) {
	f := rolledFixture(t)
	f.stopped(func() {
		f.must(f.fs.Remove(f.log.file(segmentOf(13))))
		f.must(f.fs.Remove(f.log.file(segmentOf(9))))
	})
	f.wantDamage(13)
	if len(f.found.Damage) < 2 || f.log.Segments()[2].Damage == nil {
		t.Errorf("found %+v", f.found)
	}
	if got := len(f.readUpTo(8)); got != 12 {
		t.Errorf("%d records readable", got)
	}
}

// Files that are not where they belong are damage where they are missing and go
// to quarantine where they are found.
func TestDamage_renamedAndSwappedFiles(t *testing.T) {
	t.Run("renamed", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() { f.must(f.fs.Rename(f.log.file(segmentOf(5)), f.log.file(segmentOf(6)))) })
		if f.log.Err() != nil || len(f.found.Damage) != 1 || len(f.quarantined()) != 1 {
			t.Errorf("%v, found %+v", f.log.Err(), f.found)
		}
	})
	t.Run("swapped", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() {
			a, b := f.log.file(segmentOf(5)), f.log.file(segmentOf(9))
			f.must(f.fs.Rename(a, "data/x"))
			f.must(f.fs.Rename(b, a))
			f.must(f.fs.Rename("data/x", b))
		})
		for _, o := range []chunk.Offset{6, 12} {
			r, err := f.log.Attach(Spec{Kind: AtOffset, Offset: o}, f.log.Commit())
			if err == nil {
				_, _, err = r.Next(f.log.Commit())
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("offset %d: %v", o, err)
			}
		}
	})
	t.Run("a hole behind the unsealed file", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() {
			b, err := vfs.ReadFile(f.fs, f.log.file(segmentOf(13)))
			f.must(err)
			file, err := f.fs.OpenFile(f.log.file(segmentOf(40)), os.O_CREATE|os.O_RDWR, 0o644)
			f.must(err)
			_, err = file.WriteAt(b, 0)
			f.must(err)
			f.must(file.Close())
		})
		f.wantAll(0, 22)
		if len(f.quarantined()) != 1 {
			t.Errorf("quarantine holds %v", f.quarantined())
		}
	})
	t.Run("both generations, one without a footer", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() {
			file, err := f.fs.OpenFile(f.log.file(segmentFile(manifest.Name{FirstLSN: 5, Generation: 1})), os.O_CREATE|os.O_RDWR, 0o644)
			f.must(err)
			_, err = file.WriteAt([]byte("half a compaction"), 0)
			f.must(err)
			f.must(file.Close())
			f.must(f.fs.Remove(f.log.file(manifestName)))
		})
		f.wantAll(0, 22)
		if len(f.found.Damage) != 0 {
			t.Errorf("found %+v", f.found)
		}
	})
}

// A whole chunk of a newer format is no damage: the stream is not opened, and
// nothing is changed.
func TestDamage_newerVersion(t *testing.T) {
	f := tailFixture(t)
	places := f.places()
	f.log.shut()
	f.must(f.store.Close())
	f.edit(segmentOf(1), func(b []byte) []byte {
		head := b[places[3]:places[4]]
		h, err := chunk.Decode(testIncarnation, head)
		f.must(err)
		head = head[:h.HeadLength()]
		head[3]++
		table := crc32.MakeTable(crc32.Castagnoli)
		crc := crc32.Update(chunk.CRC(testIncarnation, head[:44]), table, head[48:])
		binary.BigEndian.PutUint32(head[44:], crc)
		return b
	})
	before := f.snapshotDir()
	f.open()
	if _, _, err := f.store.Open(testIncarnation, Config{}); !errors.Is(err, ErrVersion) {
		t.Errorf("got %v, want ErrVersion", err)
	}
	if !reflect.DeepEqual(f.snapshotDir(), before) {
		t.Error("files were changed")
	}
}

// A disk that does not give bytes says nothing about them: the end of the log is
// unproven, and nothing is cut.
func TestDamage_unreadableTail(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	f.barrier()
	f.publish(3, 20)
	f.log.shut()
	f.must(f.store.Close())
	size := f.size(segmentOf(1))
	faulty.Add(vfs.Rule{Ops: vfs.OpRead, Path: "*.seg", After: 1, Fault: vfs.Fault{Err: errors.New("bad sector")}})
	f.open()
	f.openLog()
	if !errors.Is(f.log.Err(), ErrDamaged) || f.size(segmentOf(1)) != size {
		t.Errorf("%v; %d bytes, were %d", f.log.Err(), f.size(segmentOf(1)), size)
	}
}

// A file with bytes that no sync has covered keeps its descriptor, through which
// the system tells what became of them.
func TestHandles_keepDirtyFiles(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	f.must(f.store.Close())
	var err error
	f.store, err = NewStore(Options{FS: f.fs, Dir: f.dir, HandlesMax: 1, CacheBytes: 1})
	must(t, err)
	f.openLog()
	f.barrier()
	f.publish(2, 20)
	f.roll(true)
	f.sync()
	f.publish(1, 20)
	active := f.log.active
	f.content(Spec{Kind: First}) // opens the sealed file too
	has := func() bool {
		f.store.handles.mu.Lock()
		defer f.store.handles.mu.Unlock()
		return f.store.handles.open[active] != nil
	}
	if !has() {
		t.Fatal("the dirty file was closed")
	}
	f.sync()
	f.content(Spec{Kind: First})
	r, err := f.log.Attach(Spec{Kind: First}, 3)
	must(t, err)
	_, _, err = r.Next(3)
	must(t, err)
	if has() || f.store.handles.count() != 1 {
		t.Errorf("%d files are open", f.store.handles.count())
	}
}

// An unsealed file that is lost as a whole takes with it all that its chunks say
// of what was durable. The journal has heard of it with the first sync.
func TestDamage_unsealedFileLostBehindItsFirstSync(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(f *fixture) (file string, first chunk.LSN)
	}{
		{"the stream's first file", func(f *fixture) (string, chunk.LSN) {
			f.publish(2, 20)
			f.sync()
			f.publish(2, 20)
			f.sync()
			return segmentOf(1), 1
		}},
		{"a later file", func(f *fixture) (string, chunk.LSN) {
			f.publish(3, 20)
			f.sync()
			f.roll(true)
			f.publish(1, 20)
			f.sync()
			return segmentOf(5), 5
		}},
		{"the file behind a cut", func(f *fixture) (string, chunk.LSN) {
			f.publish(3, 20)
			f.sync()
			f.roll(true)
			f.publish(3, 20)
			f.must(f.log.syncNow())
			_, err := f.log.Truncate(4)
			f.must(err)
			f.roll(true)
			f.sync()
			return segmentOf(5), 5
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := memFixture(t)
			file, first := c.write(f)
			f.must(awaited(func(done func(error)) { f.store.journal.Promise(testIncarnation, 1, done) })) // behind the mark
			f.must(f.fs.Remove(f.log.file(file)))
			f.kill()
			f.wantDamage(first)
			f.restart()
			f.wantDamage(first)
		})
	}
}

// A cut takes the mark of what it cuts back, however close the first sync was.
func TestDamage_cutRightBehindTheFirstSync(t *testing.T) {
	for range 50 {
		f := memFixture(t)
		f.publish(3, 20)
		f.sync()
		f.roll(true)
		f.publish(3, 20)
		answered := make(chan error, 1)
		f.log.Sync(func(_ chunk.Tail, err error) { answered <- err })
		_, err := f.log.Truncate(4)
		f.must(err)
		must(t, <-answered)
		f.kill()
		if f.log.Err() != nil || f.log.Tail().LSN != 4 {
			t.Fatalf("tail %s, %v", f.log.Tail(), f.log.Err())
		}
		f.log.shut()
		f.must(f.store.Close())
	}
}

// A length that lies: huge, negative if read as signed, one too many, into the
// next chunk, with a head that is whole but for it and with one that is not. The
// read is bounded, and below the mark it is damage at that chunk.
func TestDamage_lengthFields(t *testing.T) {
	base := tailFixture(t)
	places := base.places()
	base.log.shut()
	base.must(base.store.Close())
	const broken = 4
	for field, at := range map[string]int64{"data": 32, "trailer": 36} {
		for _, change := range []func(uint32) uint32{
			func(uint32) uint32 { return 1<<32 - 1 }, func(uint32) uint32 { return 1 << 31 }, func(n uint32) uint32 { return n + 1 },
			func(n uint32) uint32 { return n + 50 }, func(uint32) uint32 { return chunk.DataLengthMax + 1 },
		} {
			for _, whole := range []bool{false, true} {
				f := base.copy()
				f.edit(segmentOf(1), func(b []byte) []byte {
					c := b[places[broken]:]
					h, err := chunk.Decode(testIncarnation, c[:places[broken+1]-places[broken]])
					f.must(err)
					binary.BigEndian.PutUint32(c[at:], change(binary.BigEndian.Uint32(c[at:])))
					if whole {
						chunk.Restamp(testIncarnation, c[:h.HeadLength()], h.SyncedLSN)
					}
					return b
				})
				f.open()
				f.openLog()
				f.wantDamage(broken + 1)
				if got := len(f.readUpTo(broken)); got != 2*(broken-1) {
					t.Errorf("%s: %d records are readable", field, got)
				}
				f.log.shut()
				f.must(f.store.Close())
			}
		}
	}
}

// A bad chunk in the file that is being written to, which a checkpoint hides from
// the start: what is behind it can be read, it itself can't.
func TestDamage_unsealedReadsBehind(t *testing.T) {
	f := memFixture(t)
	f.publish(10, 40)
	f.sync()
	f.stopped(func() {
		f.edit(segmentOf(1), func(b []byte) []byte {
			b[bytes.Index(b, []byte("6.6.6.6."))-60] ^= 1 // the head of chunk 5
			return b
		})
	})
	if f.log.Err() != nil || f.log.Tail().LSN != 11 {
		t.Fatalf("tail %s, %v", f.log.Tail(), f.log.Err())
	}
	f.elect() // the next chunk is one of this run
	for lsn := chunk.LSN(1); lsn <= 12; lsn++ {
		r := f.log.AttachLSN(lsn)
		v, ok, err := r.Next(f.log.Tail().LSN)
		switch {
		case lsn == 5 || lsn == 6: // that 6 is not the bad one, nothing proves
			var d *DamageError
			if !errors.As(err, &d) {
				t.Errorf("chunk %d: %v, %v", lsn, ok, err)
			}
		case err != nil || !ok || v.Header.LSN != lsn:
			t.Errorf("chunk %d: found %d, %v, %v", lsn, v.Header.LSN, ok, err)
		}
		if ok {
			v.Release()
		}
		r.Close()
	}
}
