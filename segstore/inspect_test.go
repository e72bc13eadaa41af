package segstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// describe is an inspection in a line for each segment.
func describe(in *Inspection) string {
	var b strings.Builder
	for _, s := range in.Segments {
		fmt.Fprintf(&b, "%s sealed %v, LSN %d–%d, offsets %d–%d, %d problems\n",
			s.Name(), s.Sealed, s.FirstLSN, s.LastLSN, s.BaseOffset, s.NextOffset, len(s.Problems))
	}
	return b.String()
}

func TestInspect_describesAStoppedLog(t *testing.T) {
	f := rolledFixture(t)
	infos := f.log.Segments()
	f.must(f.store.Close())
	before := f.snapshotDir()
	dirs, err := StreamDirs(f.fs, f.dir)
	if err != nil || len(dirs) != 1 || dirs[0].Hash != Hash(testName) || dirs[0].Incarnation != testIncarnation {
		t.Fatalf("%v, %v", dirs, err)
	}
	in, err := Inspect(f.fs, dirs[0].Dir, testIncarnation)
	f.must(err)
	want := `00000000000000000001.0 sealed true, LSN 1–4, offsets 0–6, 0 problems
00000000000000000005.0 sealed true, LSN 5–8, offsets 6–12, 0 problems
00000000000000000009.0 sealed true, LSN 9–12, offsets 12–18, 0 problems
00000000000000000013.0 sealed false, LSN 13–15, offsets 18–22, 0 problems
`
	if got := describe(in); got != want || len(in.Problems) > 0 || len(in.Unnamed) > 0 {
		t.Errorf("got\n%s%v %v", got, in.Problems, in.Unnamed)
	}
	for i := range infos {
		if !sameSummary(&in.Segments[i].Summary, &infos[i].Summary) {
			t.Errorf("segment %d\n%+v, running store had\n%+v", i, in.Segments[i].Summary, infos[i].Summary)
		}
		var sealed *manifest.Summary
		if infos[i].Sealed {
			sealed = &in.Segments[i].Summary
		}
		read, problems, err := VerifySegment(f.fs, in.Segments[i].File, testIncarnation, sealed)
		if err != nil || len(problems) > 0 || read != infos[i].Size {
			t.Errorf("segment %d: %d bytes, %v, %v", i, read, problems, err)
		}
	}
	after := f.snapshotDir()
	if !slices.Equal(names(before), names(after)) {
		t.Error("inspecting changed files")
	}
}

// Every flipped bit of a sealed segment is found and its place named.
func TestVerifySegment_everyFlippedByte(t *testing.T) {
	f := rolledFixture(t)
	sum := f.log.Segments()[1].Summary
	file := f.log.file(segmentOf(5))
	size := f.size(segmentOf(5))
	for at := int64(0); at < size; at++ {
		flip := func(b []byte) []byte { b[at] ^= byte(1) << (at % 8); return b }
		f.edit(segmentOf(5), flip)
		if _, problems, err := VerifySegment(f.fs, file, testIncarnation, &sum); err != nil || len(problems) == 0 {
			t.Fatalf("byte %d: %v, %v", at, problems, err)
		}
		f.edit(segmentOf(5), flip)
	}
	if _, problems, err := VerifySegment(f.fs, file, testIncarnation, &sum); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
}

// A dump skips what is bad and goes on with the next good chunk.
func TestDumpFile_skipsWhatIsBad(t *testing.T) {
	f := tailFixture(t)
	places := f.places()
	f.must(f.store.Close())
	f.edit(segmentOf(1), func(b []byte) []byte {
		b[places[3]+20] ^= 1   // a head
		b[places[7]-3] ^= 1    // data
		return append(b, 1, 2) // behind the end
	})
	var good, bad []chunk.LSN
	var stretches []int64
	f.must(DumpFile(f.fs, f.log.file(segmentOf(1)), testIncarnation, func(d *DumpedChunk) error {
		if d.Err != nil {
			bad = append(bad, d.Header.LSN)
			stretches = append(stretches, d.Bytes)
		} else {
			good = append(good, d.Header.LSN)
		}
		return nil
	}))
	if want := []chunk.LSN{1, 2, 3, 5, 6, 8, 9, 10, 11}; !slices.Equal(good, want) {
		t.Errorf("good %v, want %v", good, want)
	}
	if want := []int64{places[4] - places[3], places[7] - places[6], 2}; !slices.Equal(stretches, want) || bad[1] != 7 {
		t.Errorf("bad %v of %v bytes, want %v", bad, stretches, want)
	}
	stop := errors.New("enough")
	if err := DumpFile(f.fs, f.log.file(segmentOf(1)), testIncarnation, func(*DumpedChunk) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestInspect_namesWhatIsWrong(t *testing.T) {
	f := rolledFixture(t)
	f.must(f.store.Close())
	f.must(f.fs.Remove(f.log.file(segmentOf(5))))
	f.edit(segmentOf(1), func(b []byte) []byte { return b[:10] })
	f.edit(segmentOf(13), func(b []byte) []byte { return b[:len(b)-1] })
	f.edit(manifestName, func(b []byte) []byte { return b[:len(b)-1] })
	in, err := Inspect(f.fs, f.log.dir, testIncarnation)
	f.must(err)
	if len(in.Problems) != 1 || len(in.Segments) != 4 {
		t.Fatalf("%v\n%s", in.Problems, describe(in))
	}
	// The third segment's record is the torn one, so it counts as unsealed.
	for i, want := range []int{1, 1, 0, 1} {
		if got := len(in.Segments[i].Problems); got != want {
			t.Errorf("segment %d: %v", i, in.Segments[i].Problems)
		}
	}
}

func TestVerifyDir(t *testing.T) {
	f := rolledFixture(t)
	size := f.log.Stats().DiskBytes
	f.must(f.store.Close())
	v, err := VerifyDir(f.fs, f.log.dir, testIncarnation)
	if err != nil || len(v.Problems) > 0 || v.Segments != 4 || v.Bytes != size {
		t.Fatalf("%+v, %v; want %d bytes", v, err, size)
	}
	for name, change := range map[string]func(){
		"flip":    func() { f.edit(segmentOf(5), func(b []byte) []byte { b[100] ^= 1; return b }) },
		"missing": func() { f.must(f.fs.Remove(f.log.file(segmentOf(9)))) },
		"unnamed": func() { f.must(f.fs.Rename(f.log.file(indexFile(nameOf(1))), f.log.file("x"))) },
	} {
		change()
		before := len(v.Problems)
		v, err = VerifyDir(f.fs, f.log.dir, testIncarnation)
		if err != nil || len(v.Problems) <= before {
			t.Errorf("%s: %v, %v", name, v.Problems, err)
		}
	}
}
