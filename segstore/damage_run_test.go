package segstore

import (
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// heard opens the fixture's store anew with somebody who hears of damage.
func (f *fixture) heard() *[]*DamageError {
	f.t.Helper()
	f.must(f.store.Close())
	var all []*DamageError
	s, err := NewStore(Options{FS: f.fs, Dir: f.dir, Damaged: func(_ *Log, d *DamageError) { all = append(all, d) }})
	f.must(err)
	f.store = s
	f.t.Cleanup(func() { _ = s.Close() })
	f.openLog()
	return &all
}

// A reader meets damage while the log is in use: it is told the range, the
// node is told once, figures and descriptions show it, and the log goes on. What
// is before and behind the damage is still read.
func TestDamage_metByAReader(t *testing.T) {
	f := rolledFixture(t)
	heard := f.heard()
	f.uncached()
	f.edit(segmentOf(5), func(b []byte) []byte { b[len(b)-400] ^= 1; return b })
	for range 3 {
		r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
		f.must(err)
		var got []chunk.Offset
		met := 0
		for {
			v, ok, err := r.Next(f.log.Commit())
			var d *DamageError
			if errors.As(err, &d) {
				if met++; met > 1 || d.Segment != nameOf(5) || d.Offset < 6 || d.Next != 12 || d.First < 5 || d.Last != 8 {
					t.Fatalf("met %v", d)
				}
				r.Skip()
				continue
			}
			f.must(err)
			if !ok {
				break
			}
			got = append(got, f.check(&v)...)
			v.Release()
		}
		if met != 1 || !slices.Contains(got, 5) || !slices.Contains(got, 12) {
			t.Fatalf("damage was met %d times; read %v", met, got)
		}
		f.elect()
		f.publish(1, 20)
		f.sync()
	}
	if len(*heard) != 1 || !errors.Is((*heard)[0], ErrDamaged) {
		t.Errorf("the node heard %v", *heard)
	}
	infos, st := f.log.Segments(), f.store.Stats()
	if infos[1].Damage == nil || f.log.Stats().Damaged != 1 || st.Damaged != 1 || f.log.Err() != nil {
		t.Errorf("segment %v, log %+v, store %+v", infos[1].Damage, f.log.Stats(), st)
	}
}

// What rots in the unsealed file is told too, and the log goes on.
func TestDamage_inTheUnsealedFile(t *testing.T) {
	f := rolledFixture(t)
	heard := f.heard()
	f.uncached()
	f.edit(segmentOf(13), func(b []byte) []byte { b[len(b)-3] ^= 1; return b })
	r, err := f.log.Attach(Spec{Kind: AtOffset, Offset: 20}, f.log.Commit())
	f.must(err)
	var d *DamageError
	if _, _, err := r.Next(f.log.Commit()); !errors.As(err, &d) || d.Offset != 20 || d.First != 15 {
		t.Fatalf("read %v", err)
	}
	if len(*heard) != 1 || f.store.Stats().Damaged != 1 || f.log.Segments()[3].Damage == nil {
		t.Errorf("the node heard %v", *heard)
	}
	f.elect()
	f.publish(1, 20)
	f.sync()
	if got := f.content(Spec{Kind: AtOffset, Offset: 22}); len(got) != 2 {
		t.Errorf("behind it: %v", got)
	}
}

// Check finds what a reader has not met, and a file that is gone although its
// descriptor still reads.
func TestLog_Check(t *testing.T) {
	for name, damage := range map[string]func(f *fixture){
		"flip": func(f *fixture) { f.edit(segmentOf(5), func(b []byte) []byte { b[70] ^= 1; return b }) },
		"gone": func(f *fixture) { f.must(f.fs.(*vfs.Mem).Remove(f.log.file(segmentOf(5)))) },
	} {
		t.Run(name, func(t *testing.T) {
			f := rolledFixture(t)
			heard := f.heard()
			f.wantAll(0, 22) // opens the files
			if d, err := f.log.Check(segmentOf(5)); d != nil || err != nil {
				t.Fatalf("a good file: %v, %v", d, err)
			}
			damage(f)
			for range 2 {
				d, err := f.log.Check(segmentOf(5))
				if err != nil || d == nil || d.Last != 8 || d.Next != 12 {
					t.Fatalf("%v, %v", d, err)
				}
			}
			if len(*heard) != 1 || !slices.Equal(f.log.Damaged(), []manifest.Name{nameOf(5)}) {
				t.Errorf("heard %v, damaged %v", *heard, f.log.Damaged())
			}
		})
	}
	f := rolledFixture(t)
	if _, err := f.log.Check("x"); !errors.Is(err, ErrMissing) {
		t.Errorf("no file: %v", err)
	}
}
