package segstore

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// VerifySegment reads a whole segment file and holds every byte of it against
// its CRCs, every chunk against the one before, and all together against the
// summary that MANIFEST has of it (I24). want is nil for an unsealed segment.
// read counts the bytes of good chunks; problems is empty if all is well. A
// problem with chunks is a *DamageError, which names the range.
func VerifySegment(fsys vfs.FS, file string, inc chunk.Incarnation, want *manifest.Summary) (read int64, problems []error, err error) {
	v := verification{file: file, inc: inc, want: want}
	if v.segment, _, _ = parseFile(path.Base(file)); want != nil {
		v.segment = want.Name()
	}
	if err := DumpFile(fsys, file, inc, v.visit); err != nil {
		return v.read, v.problems, err
	}
	v.end()
	return v.read, v.problems, nil
}

// verification is one run of VerifySegment.
type verification struct {
	file    string
	inc     chunk.Incarnation
	segment manifest.Name
	want    *manifest.Summary

	sum    manifest.Summary
	last   chunk.Header // the last good chunk
	sealed bool
	// open is damage of which no good chunk has told the end yet.
	open     *DamageError
	read     int64
	problems []error
}

// damaged notes that what is behind the last good chunk is not good.
func (v *verification) damaged(at int64, cause error) *DamageError {
	d := &DamageError{File: v.file, Position: at, Segment: v.segment, First: v.segment.FirstLSN, Cause: cause}
	if v.last.LSN != 0 {
		d.First, d.Offset = v.last.LSN+1, v.last.Next()
	} else if v.want != nil {
		d.Offset = v.want.BaseOffset
	}
	if v.want != nil {
		d.Last, d.Next = v.want.LastLSN, v.want.NextOffset
	}
	v.problems = append(v.problems, d)
	return d
}

func (v *verification) bad(at int64, what string) {
	v.problems = append(v.problems, fmt.Errorf("%s: at byte %d: %s", path.Base(v.file), at, what))
}

func (v *verification) visit(d *DumpedChunk) error {
	h, want := &d.Header, v.want
	switch {
	case d.Footer != nil:
		v.sealed = true
		if want != nil && !sameSummary(d.Footer, want) {
			v.bad(d.Position, "footer differs from MANIFEST")
		}
		return nil
	case d.Err != nil && want != nil && d.Position >= want.Size:
		v.bad(d.Position, fmt.Sprintf("the footer: %v", d.Err))
		return nil
	case d.Err != nil:
		if v.open == nil {
			v.open = v.damaged(d.Position, d.Err)
		}
		return nil
	}
	v.place(d.Position, h)
	if err := h.ValidateEntries(d.Data); h.Type == chunk.User && err != nil {
		v.chunk(d.Position, h, err)
	}
	before := v.last.Epoch
	if v.last.LSN == 0 && !startsEpoch(want, h) {
		before = h.Epoch
	}
	v.sum.Add(h, before)
	v.sum.AddSequences(h, tracking.SequenceBytes(h, h.TrailerOf(d.Head)))
	v.read += d.Bytes
	v.last = *h
	return nil
}

// chunk notes that one chunk is whole and yet wrong.
func (v *verification) chunk(at int64, h *chunk.Header, cause error) {
	v.problems = append(v.problems, &DamageError{
		File: v.file, Position: at, Segment: v.segment, First: h.LSN, Last: h.LSN, Offset: h.BaseOffset, Next: h.Next(), Cause: cause,
	})
}

// place holds a good chunk against the one before, or ends the damage between.
func (v *verification) place(at int64, h *chunk.Header) {
	if v.last.LSN == 0 {
		v.sum = manifest.NewSummary(v.inc, v.segment.Generation, h)
		if v.want != nil {
			v.sum.FirstEpoch = v.want.FirstEpoch
		}
	}
	last := &v.last
	switch {
	case v.open != nil:
		v.open.Last, v.open.Next = h.LSN-1, h.BaseOffset
		v.open = nil
	case last.LSN != 0 && (h.LSN <= last.LSN || h.BaseOffset != last.Next() || h.DigestBefore != last.DigestAfter() ||
		h.Timestamp < last.Timestamp || h.Epoch < last.Epoch):
		v.chunk(at, h, fmt.Errorf("%w: chunk %d after %d", ErrNotContiguous, h.LSN, last.LSN))
	}
}

// end holds the file as a whole against its summary.
func (v *verification) end() {
	want, sum := v.want, &v.sum
	if want == nil || len(v.problems) > 0 {
		return
	}
	whole := func(what string) { v.problems = append(v.problems, errors.New(what)) }
	if !v.sealed {
		whole("no footer")
	}
	if want.Generation == 0 && !sameSummary(sum, want) {
		whole("chunks differ from MANIFEST's summary")
	}
	if sum.Size != want.Size || sum.Chain != want.Chain || sum.UserBytes != want.UserBytes || sum.Records != want.Records {
		whole("chunks and MANIFEST's counts differ")
	}
}

// Verification is what reading a stream's files through has found.
type Verification struct {
	Segments int
	// Bytes were read of good chunks.
	Bytes int64
	// Problems name the file they are about.
	Problems []error
}

// VerifyDir verifies MANIFEST, every segment that it names, and the unsealed one.
func VerifyDir(fsys vfs.FS, dir string, inc chunk.Incarnation) (*Verification, error) {
	in, err := Inspect(fsys, dir, inc)
	if err != nil {
		return nil, err
	}
	v := &Verification{Segments: len(in.Segments)}
	add := func(file string, problems []error) {
		for _, p := range problems {
			v.Problems = append(v.Problems, fmt.Errorf("%s: %w", file, p))
		}
	}
	add(manifestName, in.Problems)
	for _, file := range in.Unnamed {
		add(file, []error{errors.New("belongs to no segment of the log")})
	}
	for i := range in.Segments {
		s := &in.Segments[i]
		if add(path.Base(s.File), s.Problems); len(s.Problems) > 0 && s.FileBytes == 0 {
			continue
		}
		var want *manifest.Summary
		if s.Sealed {
			want = &s.Summary
		}
		read, problems, err := VerifySegment(fsys, s.File, inc, want)
		if err != nil {
			problems = append(problems, err)
		}
		v.Bytes += read
		add(path.Base(s.File), problems)
	}
	return v, nil
}

// startsEpoch tells whether a segment's first chunk begins an epoch.
func startsEpoch(want *manifest.Summary, h *chunk.Header) bool {
	return want != nil && len(want.Lines) > 0 && want.Lines[0].LSN == h.LSN
}

func sameSummary(a, b *manifest.Summary) bool {
	return slices.Equal(manifest.AppendFooter(nil, a), manifest.AppendFooter(nil, b))
}
