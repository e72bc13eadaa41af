package segstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// The functions of this file look at the files of a stopped node. They change
// nothing and need no Store.

// StreamDir is a stream's directory below a data directory.
type StreamDir struct {
	Stream
	Dir string
}

// StreamDirs lists the streams of a data directory, by name of directory.
func StreamDirs(fsys vfs.FS, dataDir string) ([]StreamDir, error) {
	parent := path.Join(dataDir, streamsDir)
	found, err := fsys.List(parent)
	if err != nil {
		return nil, err
	}
	var dirs []StreamDir
	for _, e := range found {
		if hash, inc, ok := ParseDirName(e.Name); ok && e.IsDir() {
			dirs = append(dirs, StreamDir{Stream{hash, inc}, path.Join(parent, e.Name)})
		}
	}
	return dirs, nil
}

// Inspection is what a stream's directory says about the log in it.
type Inspection struct {
	Incarnation chunk.Incarnation
	Start       manifest.Start
	Lines       []manifest.EpochLine
	// CutOpen: a cut to Cut was begun; the next start of the node finishes it.
	CutOpen bool
	Cut     chunk.LSN
	// Segments are those that MANIFEST names and the unsealed one, ascending.
	Segments []InspectedSegment
	// Unnamed are files that belong to no segment of the log.
	Unnamed []string
	// Problems are those of MANIFEST itself.
	Problems []error
}

// InspectedSegment is one segment's summary and files. The summary of an
// unsealed segment is counted from its chunks.
type InspectedSegment struct {
	SegmentInfo
	File       string
	FileBytes  int64
	IndexBytes int64
	// Problems is what is wrong with the file at first sight; VerifySegment
	// reads it all.
	Problems []error
}

// Inspect describes a stream's directory. It reads MANIFEST and the heads of the
// unsealed segment's chunks.
func Inspect(fsys vfs.FS, dir string, inc chunk.Incarnation) (*Inspection, error) {
	listed, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Incarnation: inc}
	state, problem := readState(fsys, dir, inc)
	if problem != nil {
		in.Problems = append(in.Problems, problem)
	}
	in.Start, in.Lines, in.CutOpen, in.Cut = state.Start, state.Lines, state.CutOpen, state.Cut
	sizes := map[string]int64{}
	for _, e := range listed {
		if e.IsRegular() {
			sizes[e.Name] = e.Size
		}
	}
	used := map[string]bool{manifestName: true, checkpointName: true}
	add := func(sum manifest.Summary, sealed bool, problems []error) {
		file, index := segmentFile(sum.Name()), indexFile(sum.Name())
		used[file], used[index] = true, true
		size, exists := sizes[file]
		if !exists {
			problems = append(problems, errors.New("file is missing"))
		} else if sealed && size != sum.FileSize() {
			problems = append(problems, fmt.Errorf("file has %d bytes, want %d", size, sum.FileSize()))
		}
		in.Segments = append(in.Segments, InspectedSegment{
			SegmentInfo: SegmentInfo{Summary: sum, Sealed: sealed},
			File:        path.Join(dir, file), FileBytes: size, IndexBytes: sizes[index], Problems: problems,
		})
	}
	for i := range state.Segments {
		add(state.Segments[i], true, nil)
	}
	end, _, _, tail := state.End()
	var names []manifest.Name
	for file := range sizes {
		if n, suffix, ok := parseFile(file); ok && suffix == segmentSuffix && n.FirstLSN >= end {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compareNames)
	for _, n := range names {
		sum, err := countFile(fsys, path.Join(dir, segmentFile(n)), inc, n, tail.Epoch)
		sum.UnitStart = sum.UnitStart || state.UnitStart == n.FirstLSN
		var problems []error
		if err != nil {
			problems = append(problems, err)
		}
		add(sum, false, problems)
	}
	for _, e := range listed {
		if !used[e.Name] {
			in.Unnamed = append(in.Unnamed, e.Name)
		}
	}
	return in, nil
}

// readState folds MANIFEST as far as it can be read.
func readState(fsys vfs.FS, dir string, inc chunk.Incarnation) (manifest.State, error) {
	b, err := vfs.ReadFile(fsys, path.Join(dir, manifestName))
	if err != nil {
		return manifest.NewState(inc), err
	}
	records, good, err := manifest.Decode(inc, b)
	state, folded := manifest.Fold(inc, records)
	switch {
	case err != nil:
		return state, err
	case folded != nil:
		return state, folded
	case good == 0:
		return state, fmt.Errorf("%w: no record of this incarnation", manifest.ErrDamaged)
	case good < len(b):
		return state, fmt.Errorf("the last %d bytes of MANIFEST are a torn record", len(b)-good)
	}
	return state, nil
}

// countFile counts an unsealed file's chunks by their heads. The error, if any,
// says why it stopped.
func countFile(fsys vfs.FS, file string, inc chunk.Incarnation, name manifest.Name, before chunk.Epoch) (manifest.Summary, error) {
	sum := manifest.Summary{Incarnation: inc, Generation: name.Generation, FirstLSN: name.FirstLSN, LastLSN: name.FirstLSN - 1}
	err := walkFile(fsys, file, inc, false, func(d *DumpedChunk) error {
		if d.Err != nil || d.Footer != nil {
			return d.Err
		}
		if sum.Size == 0 {
			sum = manifest.NewSummary(inc, name.Generation, &d.Header)
		} else {
			before = sum.LastEpoch
		}
		sum.Add(&d.Header, before)
		sum.AddSequences(&d.Header, tracking.SequenceBytes(&d.Header, d.Header.TrailerOf(d.Head)))
		return nil
	})
	return sum, err
}

// DumpedChunk is one chunk in a file, or one stretch of bytes that is none.
type DumpedChunk struct {
	Position int64
	// Bytes is the chunk's length, or that of the bad stretch.
	Bytes  int64
	Header chunk.Header
	Head   []byte // valid during the visit
	Data   []byte // valid during the visit
	// Footer is set for the block that ends a sealed file; the rest is not.
	Footer *manifest.Summary
	// Err says why the bytes are no good chunk. A chunk whose head is good and
	// whose data is not has both Header and Err.
	Err error
}

// DumpFile visits everything in a segment file in order: chunks with their data
// checked, bad stretches, the footer. A visit that returns an error ends it.
func DumpFile(fsys vfs.FS, file string, inc chunk.Incarnation, visit func(*DumpedChunk) error) error {
	return walkFile(fsys, file, inc, true, visit)
}

func walkFile(fsys vfs.FS, file string, inc chunk.Incarnation, data bool, visit func(*DumpedChunk) error) error {
	f, err := fsys.OpenFile(file, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	limit := size
	footer, err := readFooter(f, inc, size)
	sealed := err == nil
	if sealed {
		limit = footer.Size
	}
	w := newWalker(f, inc, 0, limit, data)
	for {
		d := DumpedChunk{}
		d.Header, d.Head, d.Data, d.Position, d.Err = w.next()
		if errors.Is(d.Err, io.EOF) {
			break
		}
		d.Bytes = w.position - d.Position
		if d.Err != nil {
			if d.Bytes, err = badStretch(f, w, &d); err != nil {
				return err
			}
			w.position = d.Position + d.Bytes
		}
		if err := visit(&d); err != nil {
			return err
		}
	}
	if sealed {
		return visit(&DumpedChunk{Position: limit, Bytes: size - limit, Footer: &footer})
	}
	return nil
}

// badStretch tells how many bytes a dump skips: a chunk with bad data as a
// whole, else up to the next good head.
func badStretch(f io.ReaderAt, w *walker, d *DumpedChunk) (int64, error) {
	if d.Header.LSN != 0 && errors.Is(d.Err, chunk.ErrDataCRC) {
		return int64(d.Header.Length()), nil
	}
	next := w.limit
	errFound := errors.New("found")
	err := scanBehindUntil(f, w.inc, d.Position+1, w.limit, func(_ *chunk.Header, at int64) error {
		next = at
		return errFound
	})
	if err != nil && !errors.Is(err, errFound) && !errors.Is(err, errRead) {
		return 0, err
	}
	return next - d.Position, nil
}
