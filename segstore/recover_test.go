package segstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// tailFixture is a log of one segment with ten user chunks, all synced.
func tailFixture(t testing.TB) *fixture {
	f := memFixture(t)
	f.publish(10, 40)
	f.sync()
	return f
}

// places returns where each chunk of the unsealed segment starts, and the end.
func (f *fixture) places() (at []int64) {
	f.t.Helper()
	b, err := vfs.ReadFile(f.fs, f.log.active.path())
	f.must(err)
	w := newWalker(bytes.NewReader(b), testIncarnation, 0, int64(len(b)), true)
	for {
		_, _, _, position, err := w.next()
		at = append(at, position)
		if err != nil {
			return at
		}
	}
}

// A cut anywhere in the last three chunks is a torn tail as long as nothing says
// that they were durable; once the mark covers them it is damage, and nothing is
// cut.
func TestRecovery_cutAtEveryByteOfTheLastThreeChunks(t *testing.T) {
	build := func(clean bool) (f *fixture, places []int64) {
		f = memFixture(t)
		f.publish(7, 10)
		f.sync()
		f.publish(3, 10) // carry a synced LSN of 8, below themselves
		places = f.places()
		if clean {
			f.sync()
			f.must(f.log.Close())
		}
		f.log.shut()
		f.must(f.store.Close())
		return f, places
	}
	torn, places := build(false)
	damaged, _ := build(true)
	end := places[len(places)-1]
	for cut := places[len(places)-4]; cut < end; cut++ {
		whole := 0
		for places[whole+1] <= cut {
			whole++
		}
		f := torn.copy()
		f.edit(segmentOf(1), func(b []byte) []byte { return b[:cut] })
		f.open()
		f.openLog()
		if f.log.Err() != nil || int(f.log.Tail().LSN) != whole || f.found.TornBytes != cut-places[whole] {
			t.Fatalf("cut to %d: tail %s, want %d; found %+v; %v", cut, f.log.Tail(), whole, f.found, f.log.Err())
		}
		f.wantAll(0, chunk.Offset(2*(whole-1)))
		f.elect()
		f.publish(1, 10)
		f.sync()
		f.restart()
		f.wantAll(0, chunk.Offset(2*whole))

		f = damaged.copy()
		f.edit(segmentOf(1), func(b []byte) []byte { return b[:cut] })
		f.open()
		f.openLog()
		f.wantDamage(chunk.LSN(whole + 1))
		if size := f.size(segmentOf(1)); size != cut {
			t.Fatalf("cut to %d: the file now has %d bytes", cut, size)
		}
		if got := len(f.readUpTo(chunk.LSN(whole))); got != 2*(whole-1) {
			t.Fatalf("cut to %d: %d records readable, want %d", cut, got, 2*(whole-1))
		}
	}
}

// copy returns a stopped fixture's files as another fixture.
func (f *fixture) copy() *fixture {
	c := *f
	c.fs = f.fs.(*vfs.Mem).Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1))
	c.wrote = maps.Clone(f.wrote)
	return &c
}

func (f *fixture) size(name string) int64 {
	f.t.Helper()
	e, err := f.fs.Stat(f.log.file(name))
	f.must(err)
	return e.Size
}

// readUpTo reads what is committed up to an LSN.
func (f *fixture) readUpTo(commit chunk.LSN) (offsets []chunk.Offset) {
	f.t.Helper()
	r, err := f.log.Attach(Spec{Kind: First}, commit)
	f.must(err)
	defer r.Close()
	for {
		v, ok, err := r.Next(commit)
		f.must(err)
		if !ok {
			return offsets
		}
		offsets = append(offsets, f.check(&v)...)
		v.Release()
	}
}

// What lies behind the last chunk and is no chunk is cut, before anything is
// appended behind it (ST-07): the second restart shows whether it was.
func TestRecovery_bytesBehindTheTail(t *testing.T) {
	foreign := newFixture(t, vfs.NewMem(), "data")
	foreign.must(foreign.store.Create("/other", testIncarnation+1))
	behind := map[string]func(own []byte) []byte{
		"4096 zeros":        func([]byte) []byte { return make([]byte, 4096) },
		"one zero":          func([]byte) []byte { return []byte{0} },
		"garbage":           func([]byte) []byte { return bytes.Repeat([]byte{0xd3, 'M', 'R', 1, 7}, 900) },
		"the magic":         func([]byte) []byte { return []byte{0xd3, 'M', 'R'} },
		"half a chunk":      func(own []byte) []byte { return own[:len(own)/2] },
		"a chunk once more": func(own []byte) []byte { return own },
		"another stream's chunk": func(own []byte) []byte {
			h, err := chunk.Decode(testIncarnation, own)
			if err != nil {
				t.Fatal(err)
			}
			b := bytes.Clone(own)
			chunk.Restamp(testIncarnation+1, b[:h.HeadLength()], 1<<40)
			return b
		},
	}
	for name, make := range behind {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, clean stop %v", name, clean), func(t *testing.T) {
				f := tailFixture(t)
				places := f.places()
				if clean {
					f.must(f.log.Close())
				} else {
					f.log.shut()
				}
				f.must(f.store.Close())
				end := f.size(segmentOf(1))
				f.edit(segmentOf(1), func(b []byte) []byte {
					return append(bytes.Clone(b), make(b[places[5]:places[6]])...)
				})
				f.open()
				f.openLog()
				if f.log.Err() != nil || f.size(segmentOf(1)) != end || f.found.TornBytes == 0 {
					t.Fatalf("size %d, want %d; found %+v; %v", f.size(segmentOf(1)), end, f.found, f.log.Err())
				}
				f.wantAll(0, 20)
				for range 2 {
					f.elect()
					f.publish(3, 30)
					f.sync()
					f.restart()
				}
				f.wantAll(0, 32)
			})
		}
	}
}

// Every flipped bit of a chunk below the mark is damage and never a cut; the
// chunks before it can be read, and the error names the first one that can't.
func TestRecovery_everyFlippedBitBelowTheMark(t *testing.T) {
	f := tailFixture(t)
	places := f.places()
	f.log.shut() // no checkpoint, no mark in the journal: the chunks carry it
	f.must(f.store.Close())
	const broken = 4 // the fifth chunk; chunks behind it tell that it was synced
	f.fs = f.fs.(*vfs.Mem)
	file := f.log.file(segmentOf(1))
	for at := places[broken]; at < places[broken+1]; at++ {
		bit := byte(1) << (at % 8)
		flip := func(b []byte) []byte { b[at] ^= bit; return b }
		f.must(f.fs.(*vfs.Mem).Edit(file, flip))
		f.open()
		f.must(f.store.journal.changeNow(testIncarnation, func(s *StreamState) { *s = StreamState{Mark: 6} }))
		f.openLog()
		f.wantDamage(broken + 1)
		f.readUpTo(broken)
		f.log.shut()
		f.must(f.store.Close())
		f.must(f.fs.(*vfs.Mem).Edit(file, flip))
	}
}

func (j *Journal) changeNow(inc chunk.Incarnation, change func(*StreamState)) error {
	return awaited(func(done func(error)) { j.Change(inc, change, done) })
}

// Without a mark in the journal, the synced LSNs of chunks behind a bad one tell
// torn from damaged (design 3.7).
func TestRecovery_marksBehindTheBadChunk(t *testing.T) {
	for _, c := range []struct {
		name    string
		synced  chunk.LSN // carried by the chunks behind the bad one, which is 6
		damaged bool
	}{
		{"none of them says that the bad one was synced", 5, false},
		{"one of them does", 6, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := memFixture(t)
			f.publish(5, 40)
			for range 3 {
				ch := f.user(2, 40)
				ch.Header.SyncedLSN = c.synced
				ch.Header.HeadCRC = chunk.Restamp(testIncarnation, ch.Head, c.synced)
				f.append(ch)
			}
			places := f.places()
			f.log.shut()
			f.must(f.store.Close())
			f.edit(segmentOf(1), func(b []byte) []byte { b[places[5]+60] ^= 1; return b })
			f.open()
			f.openLog()
			if c.damaged {
				f.wantDamage(6)
				return
			}
			if f.log.Err() != nil || f.log.Tail().LSN != 5 {
				t.Errorf("tail %s, %v", f.log.Tail(), f.log.Err())
			}
		})
	}
}

// Recovering again changes nothing more (I25).
func TestRecovery_again(t *testing.T) {
	f := memFixture(t)
	f.publish(3, 40)
	f.roll(true)
	f.publish(3, 40)
	f.sync()
	f.publish(1, 40)
	f.log.shut()
	f.must(f.store.Close())
	f.edit(segmentOf(5), func(b []byte) []byte { return b[:len(b)-7] })
	f.open()
	f.openLog()
	first := f.snapshotDir()
	f.log.shut()
	f.must(f.store.Close())
	f.open()
	f.openLog()
	if again := f.snapshotDir(); !reflect.DeepEqual(again, first) {
		t.Errorf("files differ: %v, %v", names(first), names(again))
	}
	f.wantAll(0, 12)
}

func names(m map[string][]byte) (out []string) {
	for n, b := range m {
		out = append(out, fmt.Sprintf("%s:%d", n, len(b)))
	}
	slices.Sort(out)
	return out
}

func (f *fixture) snapshotDir() map[string][]byte {
	f.t.Helper()
	out := map[string][]byte{}
	for _, n := range f.files() {
		b, err := vfs.ReadFile(f.fs, f.log.file(n))
		f.must(err)
		out[n] = b
	}
	return out
}

// rolledFixture has three sealed segments and an active one: LSN 1–4, 5–8, 9–12
// and 13–15; offsets 0–5, 6–11, 12–17 and 18–21.
func rolledFixture(t testing.TB) *fixture {
	f := memFixture(t)
	for range 3 {
		f.publish(3, 40)
		f.roll(true)
	}
	f.publish(2, 40)
	f.sync()
	return f
}

// stopped closes the fixture, changes a file, and opens it again.
func (f *fixture) stopped(change func()) {
	f.t.Helper()
	f.must(f.store.Close())
	change()
	f.open()
	f.openLog()
}

// Whatever happens to MANIFEST, the log comes back whole from the footers; never
// as an empty one (ST-24).
func TestRecovery_manifest(t *testing.T) {
	other := newFixture(t, vfs.NewMem(), "data")
	other.must(other.store.Create("/other", testIncarnation+1))
	foreign, err := vfs.ReadFile(other.fs, "data/streams/"+dirName("/other", testIncarnation+1)+"/"+manifestName)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"empty":            func([]byte) []byte { return nil },
		"garbage":          func([]byte) []byte { return bytes.Repeat([]byte{7}, 500) },
		"another stream's": func([]byte) []byte { return foreign },
		"only its start":   func(b []byte) []byte { return b[:30] },
		"one record less":  func(b []byte) []byte { return b[:len(b)-280] },
		"torn":             func(b []byte) []byte { return b[:len(b)-1] },
		"flipped first":    func(b []byte) []byte { b[9] ^= 4; return b },
		"flipped middle":   func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"flipped last":     func(b []byte) []byte { b[len(b)-5] ^= 4; return b },
		"zeros":            func(b []byte) []byte { return make([]byte, len(b)) },
		"zeros behind it":  func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 100)...) },
	} {
		t.Run(name, func(t *testing.T) {
			f := rolledFixture(t)
			f.stopped(func() { f.edit(manifestName, change) })
			f.wantAll(0, 22)
			if f.log.Err() != nil || len(f.log.Segments()) != 4 {
				t.Errorf("%d segments, %v", len(f.log.Segments()), f.log.Err())
			}
			f.elect()
			f.publish(1, 10)
			f.roll(true)
			f.sync()
			f.restart()
			f.wantAll(0, 24)
			if f.found.ManifestRebuilt || f.found.Sealed > 0 {
				t.Errorf("not mended the first time: %+v", f.found)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() { f.must(f.fs.Remove(f.log.file(manifestName))) })
		f.wantAll(0, 22)
		if !f.found.ManifestRebuilt {
			t.Errorf("found %+v", f.found)
		}
	})
	t.Run("missing, and the log start with it", func(t *testing.T) {
		f := rolledFixture(t)
		f.must(f.log.SetLogStart(9))
		digest := f.log.Digest()
		f.stopped(func() { f.must(f.fs.Remove(f.log.file(manifestName))) })
		f.wantAll(12, 22)
		if s := f.log.LogStart(); s.LSN != 9 || s.Offset != 12 || f.log.Digest() != digest {
			t.Errorf("log start %+v", s)
		}
	})
	t.Run("missing with all segments", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() {
			for _, n := range f.files() {
				f.must(f.fs.Remove(f.log.file(n)))
			}
		})
		f.wantDamage(1)
	})
	t.Run("of a newer version", func(t *testing.T) {
		f := rolledFixture(t)
		f.must(f.store.Close())
		f.edit(manifestName, func(b []byte) []byte {
			return manifest.AppendFrame(b, testIncarnation, []byte{99, 0, 0, 0, 0, 0, 0, 0})
		})
		before := f.snapshotDir()
		f.open()
		if _, _, err := f.store.Open(testIncarnation, Config{}); !errors.Is(err, ErrVersion) {
			t.Errorf("got %v, want ErrVersion", err)
		}
		if !reflect.DeepEqual(f.snapshotDir(), before) {
			t.Error("files were changed")
		}
	})
}

// An index is a cache: whatever happens to it, reading by offset and by time is
// right, and it is there again afterwards (ST-02, ST-10).
func TestRecovery_index(t *testing.T) {
	index := indexFile(manifest.Name{FirstLSN: 5})
	for name, change := range map[string]func(b []byte) []byte{
		"empty":            func([]byte) []byte { return nil },
		"cut":              func(b []byte) []byte { return b[:len(b)-5] },
		"flipped":          func(b []byte) []byte { b[len(b)-9] ^= 1; return b },
		"too long":         func(b []byte) []byte { return append(bytes.Clone(b), b...) },
		"another stream's": func([]byte) []byte { return encodeIndex(testIncarnation+1, entries{{lsn: 5}}) },
		"another segment's": func([]byte) []byte {
			return encodeIndex(testIncarnation, entries{{lsn: 9, base: 12, position: 0}})
		},
		"out of order": func([]byte) []byte {
			return encodeIndex(testIncarnation, entries{{lsn: 6, position: 50}, {lsn: 5, position: 90}})
		},
		"pointing past the end": func([]byte) []byte {
			return encodeIndex(testIncarnation, entries{{lsn: 5, position: 1 << 40}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := rolledFixture(t)
			want, err := vfs.ReadFile(f.fs, f.log.file(index))
			f.must(err)
			f.stopped(func() { f.edit(index, change) })
			f.wantSeeks()
			if got, err := vfs.ReadFile(f.fs, f.log.file(index)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the index was not mended: %v", err)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		f := rolledFixture(t)
		f.stopped(func() { f.must(f.fs.Remove(f.log.file(index))) })
		f.wantSeeks()
	})
	t.Run("without a segment", func(t *testing.T) {
		f := rolledFixture(t)
		stray := indexFile(manifest.Name{FirstLSN: 7})
		f.stopped(func() {
			file, err := f.fs.OpenFile(f.log.file(stray), 0x42, 0o644)
			f.must(err)
			f.must(file.Close())
		})
		if slices.Contains(f.files(), stray) {
			t.Error("the stray index is still there")
		}
	})
}

// wantSeeks attaches at every offset and compares with a full read.
func (f *fixture) wantSeeks() {
	f.t.Helper()
	all := f.content(Spec{Kind: First})
	for i, o := range all {
		got := f.content(Spec{Kind: AtOffset, Offset: o})
		if want := all[i-i%2:]; !slices.Equal(got, want) {
			f.t.Fatalf("from offset %d: %v, want %v", o, ends(got), ends(want))
		}
	}
}
