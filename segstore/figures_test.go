package segstore

import (
	"errors"
	"io/fs"
	"path"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// What compaction could gain and has gained is told of each segment, and sums up
// to what is told of the log.
func TestSegmentFigures_tellWhatCompactionGains(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	sum := func() (droppable, dropped, index int64) {
		for _, s := range k.log.SegmentFigures() {
			droppable += s.DroppableBytes
			dropped += s.DroppedBytes
			index += s.IndexBytes
			if s.Sealed && s.IndexBytes != k.fileSize(indexFile(s.Name())) || !s.Sealed && s.IndexBytes == 0 {
				t.Errorf("segment %s: index of %d bytes", s.Name(), s.IndexBytes)
			}
		}
		return droppable, dropped, index
	}
	could, _, index := sum()
	st := k.log.Stats()
	if could == 0 || could != st.Compaction.BytesDroppable || index != st.IndexBytes {
		t.Fatalf("droppable %d, index %d; in all %d and %d", could, index, st.Compaction.BytesDroppable, st.IndexBytes)
	}
	before := st.DiskBytes
	if k.compactAll() == 0 {
		t.Fatal("nothing was compacted")
	}
	left, gained, _ := sum()
	st = k.log.Stats()
	if gained != st.Compaction.BytesDropped || before-st.DiskBytes != gained || left != st.Compaction.BytesDroppable {
		t.Errorf("%d bytes gained, counted %d; %d less on disk; %d left, counted %d",
			gained, st.Compaction.BytesDropped, before-st.DiskBytes, left, st.Compaction.BytesDroppable)
	}
}

// fileSize returns 0 for a file that is not there.
func (f *fixture) fileSize(name string) int64 {
	f.t.Helper()
	e, err := f.fs.Stat(path.Join(f.log.dir, name))
	if !errors.Is(err, fs.ErrNotExist) {
		f.must(err)
	}
	return e.Size
}

// TimestampAt finds each record's chunk, after compaction and a start too.
func TestTimestampAt(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	type place struct {
		at    chunk.Timestamp
		until chunk.Offset
	}
	want := map[chunk.Offset]place{}
	r, err := k.log.Attach(Spec{Kind: First}, k.log.Tail().LSN)
	k.must(err)
	defer r.Close()
	for {
		v, ok, err := r.Next(k.log.Tail().LSN)
		k.must(err)
		if !ok {
			break
		}
		for o := v.Header.BaseOffset; o < v.Header.Next(); o++ {
			want[o] = place{v.Header.Timestamp, v.Header.Next()}
		}
		v.Release()
	}
	check := func(when string) {
		t.Helper()
		for o, place := range want {
			if at, until, ok, err := k.log.TimestampAt(o); !ok || err != nil || at != place.at || until != place.until {
				t.Fatalf("%s: offset %d is of %d up to %d, %v, %v; want %v", when, o, at, until, ok, err, place)
			}
		}
		for _, o := range []chunk.Offset{k.log.Next(), k.log.Next() + 1<<40} {
			if _, _, ok, err := k.log.TimestampAt(o); ok || err != nil {
				t.Fatalf("%s: offset %d is found, %v", when, o, err)
			}
		}
	}
	if len(want) < 20 {
		t.Fatalf("only %d records", len(want))
	}
	check("as written")
	if k.compactAll() == 0 {
		t.Fatal("nothing was compacted")
	}
	check("compacted")
}
