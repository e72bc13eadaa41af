// Package inspect answers: what do a stream's files hold?
//
// It turns what segstore reads from segments and MANIFEST into the answers of
// the operators' API, for `millrace segment` on a stopped node's folder and for
// the same questions asked of a running node. It changes nothing and never
// repairs: recovery is segstore's.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// ErrUnknownIncarnation: neither the folder's name nor the caller says which
// incarnation the files are of, and every CRC starts from it.
var ErrUnknownIncarnation = errors.New("the stream's incarnation is not known")

// Folder is one stream's files.
type Folder struct {
	path string
	inc  chunk.Incarnation
	// until is the last LSN to believe of the unsealed file; 0: all of it.
	until chunk.LSN
}

// Open takes the folder at path. The incarnation comes from its name, or from
// the caller where files were copied elsewhere.
func Open(path string, inc chunk.Incarnation) (Folder, error) {
	if inc == 0 {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return Folder{}, err
		}
		_, named, ok := segstore.ParseDirName(filepath.Base(absolute))
		if !ok {
			return Folder{}, fmt.Errorf("%w: %s", ErrUnknownIncarnation, path)
		}
		inc = named
	}
	return Folder{path: path, inc: inc}, nil
}

// Streams lists the folders of a data directory that hold streams.
func Streams(dataDir string) ([]Folder, error) {
	dirs, err := segstore.StreamDirs(vfs.OS{}, dataDir)
	var list []Folder
	for _, d := range dirs {
		list = append(list, Folder{path: d.Dir, inc: d.Incarnation})
	}
	return list, err
}

// Find returns the folders of the named stream, one for each incarnation that
// left its files.
func Find(dataDir, name string) ([]Folder, error) {
	all, err := Streams(dataDir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(f Folder) bool {
		hash, _, _ := segstore.ParseDirName(filepath.Base(f.path))
		return hash != segstore.Hash(name)
	}), nil
}

// Path is where the folder is.
func (f Folder) Path() string { return f.path }

// Until limits what is believed of the unsealed file to the LSN, which a
// running node knows to be written.
func (f Folder) Until(lsn chunk.LSN) Folder {
	f.until = lsn
	return f
}

// Segments sums each file up, oldest first.
func (f Folder) Segments() ([]admin.Segment, error) {
	found, err := segstore.Inspect(f.files(), f.path, f.inc)
	if err != nil {
		return nil, err
	}
	list := []admin.Segment{}
	for i := range found.Segments {
		list = append(list, describe(&found.Segments[i]))
	}
	beginUnit(list)
	return list, nil
}

func describe(s *segstore.InspectedSegment) admin.Segment {
	out := describeFigures(&segstore.SegmentFigures{SegmentInfo: s.SegmentInfo, IndexBytes: s.IndexBytes})
	out.Bytes.Disk = uint64(s.FileBytes)
	if len(s.Problems) > 0 {
		out.State = "damaged"
	}
	return out
}

// Describe tells operators of the segments of a running node's log.
func Describe(segments []segstore.SegmentFigures) []admin.Segment {
	list := []admin.Segment{}
	for i := range segments {
		list = append(list, describeFigures(&segments[i]))
	}
	beginUnit(list)
	return list
}

// beginUnit marks what needs no flag: the first segment always begins a unit.
func beginUnit(list []admin.Segment) {
	if len(list) > 0 {
		list[0].UnitStart = true
	}
}

func describeFigures(s *segstore.SegmentFigures) admin.Segment {
	state, disk := "active", s.Size
	switch {
	case s.Damage != nil:
		state = "damaged"
	case s.Sealed:
		state = "sealed"
	}
	if s.Sealed {
		disk = s.FileSize()
	}
	return admin.Segment{
		File: s.Name().String() + ".seg", Generation: s.Generation, UnitStart: s.UnitStart, State: state,
		FirstLSN: uint64(s.FirstLSN), LastLSN: uint64(s.LastLSN),
		FirstOffset: uint64(s.BaseOffset), NextOffset: uint64(s.NextOffset),
		FirstTimestamp: int64(s.FirstTimestamp), LastTimestamp: int64(s.LastTimestamp),
		Chunks: s.UserChunks, Records: s.Records,
		Bytes: admin.Bytes{
			User: uint64(s.UserBytes), Trailer: uint64(s.TrailerBytes), Filter: uint64(s.FilterBytes),
			Delta: uint64(s.DeltaBytes), Snapshot: uint64(s.SnapshotBytes), Index: uint64(s.IndexBytes), Disk: uint64(disk),
		},
		TrackingBytes: uint64(s.TrackingBytes()), SequenceBytes: uint64(s.TrailerSequenceBytes + s.SnapshotSequenceBytes),
		Droppable: uint64(s.DroppableBytes), Dropped: uint64(s.DroppedBytes),
	}
}

// Chunks lists the good chunks of one file of the folder.
func (f Folder) Chunks(name string) ([]admin.Chunk, error) {
	if name != filepath.Base(name) || !strings.HasSuffix(name, ".seg") {
		return nil, fmt.Errorf("%w: %q", admin.ErrNoSegment, name)
	}
	list := []admin.Chunk{}
	err := segstore.DumpFile(f.files(), filepath.Join(f.path, name), f.inc, func(d *segstore.DumpedChunk) error {
		if d.Err != nil || d.Footer != nil {
			return nil
		}
		h := &d.Header
		list = append(list, admin.Chunk{
			Position: d.Position, LSN: uint64(h.LSN), Epoch: uint64(h.Epoch), Type: h.Type.String(), Flags: flags(h.Flags),
			FirstOffset: uint64(h.BaseOffset), Entries: int(h.Entries), Records: h.Records, Timestamp: int64(h.Timestamp),
			DataBytes: int(h.DataLength), TrailerBytes: int(h.TrailerLength), FilterBytes: int(h.FilterLength),
		})
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", admin.ErrNoSegment, name)
	}
	return list, err
}

// Verify reads every byte of the folder's files: a verdict for MANIFEST and
// for each segment that it names, and for the unsealed one.
func (f Folder) Verify(ctx context.Context) ([]admin.Verdict, error) {
	files := f.files()
	found, err := segstore.Inspect(files, f.path, f.inc)
	if err != nil {
		return nil, err
	}
	list := []admin.Verdict{}
	if len(found.Problems) > 0 {
		list = append(list, verdict("MANIFEST", nil, found.Problems))
	}
	for i := range found.Segments {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v, err := f.verify(files, &found.Segments[i])
		if errors.Is(err, os.ErrNotExist) && f.until != 0 {
			continue // retention or compaction was quicker
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if f.until == 0 { // a running node has files on their way
		for _, name := range found.Unnamed {
			list = append(list, verdict(name, nil, []error{errors.New("belongs to no segment of the log")}))
		}
	}
	return list, nil
}

func (f Folder) verify(files vfs.FS, s *segstore.InspectedSegment) (admin.Verdict, error) {
	var want *manifest.Summary
	if s.Sealed {
		want = &s.Summary
	}
	_, problems, err := segstore.VerifySegment(files, s.File, f.inc, want)
	if err != nil && !(errors.Is(err, os.ErrNotExist) && f.until == 0) {
		return admin.Verdict{}, err
	}
	if len(problems) == 0 {
		problems = s.Problems // such as a file that is missing
	}
	return verdict(filepath.Base(s.File), s, problems), nil
}

// VerifyFile reads every byte of one file, wherever MANIFEST is.
func (f Folder) VerifyFile(name string) (admin.Verdict, error) {
	s := &segstore.InspectedSegment{File: filepath.Join(f.path, name)}
	info, err := os.Stat(s.File)
	if err != nil {
		return admin.Verdict{}, err
	}
	s.FileBytes = info.Size()
	err = segstore.DumpFile(f.files(), s.File, f.inc, func(d *segstore.DumpedChunk) error {
		switch {
		case d.Footer != nil:
			s.Summary, s.Sealed = *d.Footer, true
		case d.Err != nil:
		case s.Summary.Size == 0:
			s.Summary = manifest.NewSummary(f.inc, 0, &d.Header)
			s.Summary.Add(&d.Header, d.Header.Epoch)
		default:
			s.Summary.Add(&d.Header, s.Summary.LastEpoch)
		}
		return nil
	})
	if err != nil {
		return admin.Verdict{}, err
	}
	return f.verify(f.files(), s)
}

func verdict(file string, s *segstore.InspectedSegment, problems []error) admin.Verdict {
	v := admin.Verdict{File: file, Problems: []string{}}
	if s != nil {
		v.Chunks, v.Records, v.Bytes = s.Chunks(), s.Records, s.FileBytes
	}
	for _, p := range problems {
		v.Problems = append(v.Problems, p.Error())
	}
	return v
}

// flags names the flags that are set.
func flags(f chunk.Flags) string {
	var names []string
	for _, known := range []struct {
		flag chunk.Flags
		name string
	}{
		{chunk.FlagSegmentStart, "segment-start"}, {chunk.FlagUnitStart, "unit-start"}, {chunk.FlagEpochStart, "epoch-start"},
		{chunk.FlagSnapshotFirst, "snapshot-first"}, {chunk.FlagSnapshotLast, "snapshot-last"}, {chunk.FlagStripped, "stripped"},
	} {
		if f&known.flag != 0 {
			names = append(names, known.name)
		}
	}
	return strings.Join(names, " ")
}
