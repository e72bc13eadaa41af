// Package inspect answers: what do a stream's files hold?
//
// It reads segments and MANIFEST as they lie, changes nothing, and needs no
// running node, so it serves `millrace segment` on a stopped node's folder and
// the same questions asked of a running one. It never repairs: recovery is
// segstore's.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
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

// Until limits what is read of the unsealed file to the LSN, which a running
// node knows to be written.
func (f Folder) Until(lsn chunk.LSN) Folder {
	f.until = lsn
	return f
}

// files lists the segments: of each first LSN the highest generation, less
// those that MANIFEST says were replaced.
func (f Folder) files() ([]string, error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, err
	}
	obsolete := f.obsolete()
	newest := map[string]string{} // by the LSN in the name
	for _, e := range entries {
		lsn, rest, ok := strings.Cut(e.Name(), ".")
		if !ok || len(lsn) != 20 || !strings.HasSuffix(rest, ".seg") || slices.Contains(obsolete, e.Name()) {
			continue
		}
		if old, ok := newest[lsn]; !ok || generation(old) < generation(e.Name()) {
			newest[lsn] = e.Name()
		}
	}
	var names []string
	for _, name := range newest {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func generation(file string) uint64 {
	parts := strings.Split(file, ".")
	n, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// obsolete names the files that MANIFEST says are replaced. A MANIFEST that
// cannot be read names none: what lies there is shown then.
func (f Folder) obsolete() []string {
	text, err := os.ReadFile(filepath.Join(f.path, "MANIFEST"))
	if err != nil {
		return nil
	}
	records, _, err := manifest.Decode(f.inc, text)
	if err != nil {
		return nil
	}
	state, err := manifest.Fold(f.inc, records)
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range state.Obsolete {
		names = append(names, n.String()+".seg")
	}
	return names
}

// Segments sums each file up, oldest first, by reading its chunks.
func (f Folder) Segments() ([]admin.Segment, error) {
	names, err := f.files()
	if err != nil {
		return nil, err
	}
	list := []admin.Segment{}
	for _, name := range names {
		s, err := f.segment(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // retention or compaction was quicker
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func (f Folder) segment(name string) (admin.Segment, error) {
	file, err := open(filepath.Join(f.path, name), f.inc)
	if err != nil {
		return admin.Segment{}, err
	}
	defer file.Close()
	out := admin.Segment{File: name, State: "active"}
	out.Bytes.Disk = uint64(file.size)
	if footer := file.footer(); footer != nil {
		summary, err := manifest.DecodeFooter(f.inc, footer)
		if err != nil {
			return admin.Segment{}, err
		}
		out.State = "sealed"
		fill(&out, &summary)
		return out, nil
	}
	return f.scan(file, out)
}

// scan sums a file without a footer up chunk by chunk.
func (f Folder) scan(file *segmentFile, out admin.Segment) (admin.Segment, error) {
	var summary *manifest.Summary
	var epoch chunk.Epoch
	problems, err := file.walk(f.until, func(_ int64, h *chunk.Header) {
		if summary == nil {
			s := manifest.NewSummary(f.inc, 0, h)
			summary, epoch = &s, h.Epoch
		}
		summary.Add(h, epoch)
		epoch = h.Epoch
	})
	if err != nil {
		return out, err
	}
	if summary != nil {
		fill(&out, summary)
	}
	if len(problems) > 0 {
		out.State = "damaged"
	}
	return out, nil
}

func fill(out *admin.Segment, s *manifest.Summary) {
	out.FirstLSN, out.LastLSN = uint64(s.FirstLSN), uint64(s.LastLSN)
	out.FirstOffset, out.NextOffset = uint64(s.BaseOffset), uint64(s.NextOffset)
	out.FirstTimestamp, out.LastTimestamp = int64(s.FirstTimestamp), int64(s.LastTimestamp)
	out.Chunks, out.Records = s.UserChunks, s.Records
	out.Bytes.User = uint64(s.UserBytes)
	out.Bytes.Trailer, out.Bytes.Filter = uint64(s.TrailerBytes), uint64(s.FilterBytes)
	out.Bytes.Delta, out.Bytes.Snapshot = uint64(s.DeltaBytes), uint64(s.SnapshotBytes)
}

// Chunks lists the chunks of one file of the folder.
func (f Folder) Chunks(name string) ([]admin.Chunk, error) {
	if name != filepath.Base(name) || !strings.HasSuffix(name, ".seg") {
		return nil, fmt.Errorf("%w: %q", admin.ErrNoSegment, name)
	}
	file, err := open(filepath.Join(f.path, name), f.inc)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", admin.ErrNoSegment, name)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	list := []admin.Chunk{}
	_, err = file.walk(f.until, func(position int64, h *chunk.Header) {
		list = append(list, admin.Chunk{
			Position: position, LSN: uint64(h.LSN), Epoch: uint64(h.Epoch), Type: h.Type.String(), Flags: flags(h.Flags),
			FirstOffset: uint64(h.BaseOffset), Entries: int(h.Entries), Records: h.Records, Timestamp: int64(h.Timestamp),
			DataBytes: int(h.DataLength), TrailerBytes: int(h.TrailerLength), FilterBytes: int(h.FilterLength),
		})
	})
	return list, err
}

// Verify reads every byte of every file of the folder.
func (f Folder) Verify(ctx context.Context) ([]admin.Verdict, error) {
	names, err := f.files()
	if err != nil {
		return nil, err
	}
	list := []admin.Verdict{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v, err := f.VerifyFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// VerifyFile reads every byte of one file: each chunk's two CRCs and fields,
// the chain of digests, and for a sealed one that its footer tells the truth.
func (f Folder) VerifyFile(name string) (admin.Verdict, error) {
	file, err := open(filepath.Join(f.path, name), f.inc)
	if err != nil {
		return admin.Verdict{}, err
	}
	defer file.Close()
	v := admin.Verdict{File: name, Bytes: file.size}
	var chain []admin.Problem
	var before *chunk.Header
	v.Problems, err = file.walk(f.until, func(position int64, h *chunk.Header) {
		v.Chunks++
		v.Records += uint64(h.Records)
		if what := breaks(before, h); what != "" {
			chain = append(chain, admin.Problem{Position: position, What: what})
		}
		copied := *h
		before = &copied
	})
	if err != nil {
		return v, err
	}
	if len(v.Problems) == 0 { // behind a bad place the chain cannot hold
		v.Problems = chain
	}
	if footer := file.footer(); footer != nil {
		summary, err := manifest.DecodeFooter(f.inc, footer)
		if err == nil && summary.Records != v.Records {
			v.Problems = append(v.Problems, admin.Problem{Position: file.chunksEnd,
				What: fmt.Sprintf("the footer counts %d records, the chunks hold %d", summary.Records, v.Records)})
		}
	}
	return nonNil(v), nil
}

func nonNil(v admin.Verdict) admin.Verdict {
	if v.Problems == nil {
		v.Problems = []admin.Problem{}
	}
	return v
}

// breaks says how h does not follow before, or "".
func breaks(before, h *chunk.Header) string {
	if before == nil {
		return ""
	}
	want := before.DigestBefore
	if before.Type == chunk.User {
		want = before.DigestAfter()
	}
	switch {
	case h.BaseOffset != before.Next():
		return fmt.Sprintf("offset %s does not follow %s", h.BaseOffset, before.Next())
	case h.DigestBefore != want:
		return fmt.Sprintf("digest %s does not follow %s", h.DigestBefore, want)
	case h.Epoch < before.Epoch:
		return fmt.Sprintf("epoch %s comes after %s", h.Epoch, before.Epoch)
	}
	return ""
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

// Streams lists the folders of a data directory that hold streams.
func Streams(dataDir string) ([]Folder, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir, "streams"))
	if err != nil {
		return nil, err
	}
	var list []Folder
	for _, e := range entries {
		if _, inc, ok := segstore.ParseDirName(e.Name()); ok && e.IsDir() {
			list = append(list, Folder{path: filepath.Join(dataDir, "streams", e.Name()), inc: inc})
		}
	}
	return list, nil
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
