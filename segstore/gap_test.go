package segstore

import (
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// copyTo fills an empty log with what a leader's log still has from an LSN on,
// as a link and a follower's turn do.
func (k *tracker) copyTo(to *fixture, from chunk.LSN) (gaps int) {
	k.t.Helper()
	r := k.log.AttachLSN(from)
	defer r.Close()
	for {
		v, ok, err := r.Next(k.log.Tail().LSN)
		k.must(err)
		if !ok {
			return gaps
		}
		if tail := to.log.Tail().LSN; v.Header.LSN > tail+1 {
			gaps++
			g := Gap{Last: v.Header.LSN - 1}
			for _, line := range k.log.Epochs() {
				if line.LSN > tail && line.LSN <= g.Last {
					g.Lines = append(g.Lines, line)
				}
			}
			for _, s := range k.log.Segments() {
				if s.FirstLSN > tail && s.FirstLSN <= g.Last {
					g.Segments = append(g.Segments, GapSegment{s.FirstLSN, s.UnitStart})
				}
			}
			k.must(to.log.Skip(g))
		}
		c := v.Chunk()
		v.Release()
		to.append(c)
	}
}

// A follower of a compacted leader has gaps, and knows all that it must in spite
// of them, also after a restart (C5, C1).
func TestSkip_copiesACompactedLog(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.compactAll()
	k.uncached()
	f := newFixture(t, vfs.NewMem(), "data")
	f.wrote, f.now = k.wrote, k.now
	if gaps := k.copyTo(f, 1); gaps < 3 {
		t.Fatalf("%d gaps", gaps)
	}
	f.sync()
	check := func(when string) {
		t.Helper()
		if got, want := f.log.Epochs(), k.log.Epochs(); !slices.Equal(got, want) {
			t.Errorf("%s: epochs %v, want %v", when, got, want)
		}
		if got, want := f.content(Spec{Kind: First}), k.content(Spec{Kind: First}); !slices.Equal(got, want) {
			t.Errorf("%s: offsets %v, want %v", when, ends(got), ends(want))
		}
		if f.log.Tail() != k.log.Tail() || f.log.Digest() != k.log.Digest() {
			t.Errorf("%s: ends at %v, want %v", when, f.log.Tail(), k.log.Tail())
		}
		if got, want := units(f.log), units(k.log); !slices.Equal(got, want) || len(want) < 2 {
			t.Errorf("%s: units begin at offsets %v, want %v", when, got, want)
		}
		if f.log.unit != k.log.unit {
			t.Errorf("%s: the unit holds %+v, want %+v", when, f.log.unit, k.log.unit)
		}
		if !f.log.Tracking().Known() || !slices.Equal(f.snapshot(), k.snapshot()) {
			t.Errorf("%s: tracking differs", when)
		}
	}
	check("copied")
	f.restart()
	check("restarted")
	f.powerOff()
	check("after a power loss")
	var dropped chunk.LSN
	for _, s := range k.log.Segments() {
		dropped = max(dropped, s.DroppedLSN)
	}
	var here chunk.LSN
	for _, s := range f.log.Segments() {
		here = max(here, s.DroppedLSN)
	}
	if here == 0 || here > dropped {
		t.Errorf("the gap proves the commit up to %d, the leader's up to %d", here, dropped)
	}
}

// units are the offsets at which units of retention begin.
func units(l *Log) (starts []chunk.Offset) {
	for _, s := range l.Segments() {
		if s.UnitStart {
			starts = append(starts, s.BaseOffset)
		}
	}
	return starts
}

// A segment whose head is in a gap begins its unit whatever happens before it is
// sealed (I21).
func TestSkip_unitStartSurvives(t *testing.T) {
	f := memFixture(t)
	f.publish(2, 10)
	f.sync()
	tail := f.log.Tail()
	g := Gap{Last: tail.LSN + 3, Segments: []GapSegment{{FirstLSN: tail.LSN + 1, UnitStart: true}}}
	want := func(when string, size int64) {
		t.Helper()
		if got := units(f.log); len(got) == 0 || got[len(got)-1] != 4 || f.log.unit.userBytes != size {
			t.Fatalf("%s: units begin at %v, the last has %d bytes, want %d", when, got, f.log.unit.userBytes, size)
		}
	}
	behind := func() int64 {
		f.t.Helper()
		must(t, f.log.Skip(g))
		c := f.user(2, 10)
		size := c.Header.UserBytes()
		f.append(c)
		return size
	}
	size := behind()
	want("appended", size)
	f.powerOff() // the chunk is lost, MANIFEST's record is not
	if f.log.Tail() != tail {
		t.Fatalf("tail %v", f.log.Tail())
	}
	behind()
	f.sync()
	want("appended again", size)
	f.powerOff()
	want("after a power loss", size)
	_, err := f.log.Truncate(tail.LSN + 4)
	must(t, err)
	want("cut to its only chunk", size)
	must(t, f.log.records.rewrite(f.log.state.Records()))
	f.restart()
	want("with MANIFEST rewritten", size)
}

// A crash behind Skip and before the chunk behind the gap leaves the log before
// it, and the gap may come again.
func TestSkip_crashBeforeTheChunk(t *testing.T) {
	f := memFixture(t)
	f.publish(2, 10)
	f.sync()
	tail := f.log.Tail()
	g := Gap{
		Last:     tail.LSN + 10,
		Lines:    []manifest.EpochLine{{Epoch: tail.Epoch + 1, LSN: tail.LSN + 3, Offset: f.log.Next()}},
		Segments: []GapSegment{{FirstLSN: tail.LSN + 5, UnitStart: true}},
	}
	for range 2 {
		must(t, f.log.Skip(g))
		must(t, f.log.syncNow())
		f.powerOff()
		if f.log.Tail() != tail {
			t.Fatalf("tail %v after a power loss, want %v", f.log.Tail(), tail)
		}
		if lines := f.log.Epochs(); lines[len(lines)-1].Epoch != tail.Epoch {
			t.Fatalf("epochs %v reach beyond the tail", lines)
		}
	}
	if err := f.log.Skip(Gap{Last: tail.LSN}); !errors.Is(err, ErrNotContiguous) {
		t.Errorf("a gap that ends at the tail: %v", err)
	}
}

// A cut to a missing chunk takes what is behind the gap, and the gap may be gone
// on from.
func TestSkip_truncateToTheGap(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.compactAll()
	k.uncached()
	f := newFixture(t, vfs.NewMem(), "data")
	f.wrote, f.now = k.wrote, k.now
	k.copyTo(f, 1)
	f.sync()
	var last chunk.LSN
	r := f.log.AttachLSN(1)
	defer r.Close()
	var behind *Chunk
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		must(t, err)
		if !ok {
			break
		}
		if v.Header.LSN > last+1 && last > 0 {
			behind = v.Chunk()
			v.Release()
			break
		}
		last = v.Header.LSN
		v.Release()
	}
	if behind == nil {
		t.Fatal("no gap")
	}
	n := behind.Header.LSN - 1
	f.log.commit.Store(uint64(n)) // as if nothing behind were committed
	if _, err := f.log.Truncate(n); err != nil {
		t.Fatal(err)
	}
	if f.log.Tail().LSN != last || f.log.Err() != nil {
		t.Fatalf("tail %v, %v", f.log.Tail(), f.log.Err())
	}
	must(t, f.log.Append(behind))
	f.sync()
	f.powerOff()
	if got := f.log.Tail(); got != behind.Header.Tail() || f.log.Err() != nil {
		t.Fatalf("tail %v, %v, want %v", got, f.log.Err(), behind.Header.Tail())
	}
	k.copyTo(f, behind.Header.LSN+1)
	if got, want := f.log.Epochs(), k.log.Epochs(); !slices.Equal(got, want) {
		t.Errorf("epochs %v, want %v", got, want)
	}
}
