package manifest

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// Replacing returns the summary of a segment that is about to take the place of
// consecutive older ones: their place in the log, their epoch lines and what
// they had lost before, and no chunk so far. Keep and Drop go over the old
// chunks in their order.
func Replacing(old []Summary, generation uint32) Summary {
	first, last := &old[0], &old[len(old)-1]
	s := Summary{
		Incarnation: first.Incarnation, Generation: generation, UnitStart: first.UnitStart,
		FirstLSN: first.FirstLSN, LastLSN: last.LastLSN, FirstEpoch: first.FirstEpoch, LastEpoch: last.LastEpoch,
		BaseOffset: first.BaseOffset, NextOffset: last.NextOffset,
		DigestBefore: first.DigestBefore, DigestAfter: first.DigestBefore,
	}
	for i := range old {
		s.Lines = append(s.Lines, old[i].Lines...)
		s.DroppedLSN = max(s.DroppedLSN, old[i].DroppedLSN)
	}
	return s
}

// Keep counts a chunk that is written to the new file at position Size, as it is
// there: stripped or not.
func (s *Summary) Keep(h *chunk.Header) { s.count(h) }

// Drop notes a control chunk that does not go to the new file.
func (s *Summary) Drop(h *chunk.Header) { s.DroppedLSN = max(s.DroppedLSN, h.LSN) }

// Replaces tells whether s can stand for consecutive older segments: the same
// place in the log and the same user chunks, with no tracking that they had not.
// Error: ErrContradiction.
func (s *Summary) Replaces(old []Summary) error {
	if len(old) == 0 {
		return fmt.Errorf("%w: %s replaces nothing", ErrContradiction, s.Name())
	}
	first, last := &old[0], &old[len(old)-1]
	var sum Summary
	var lines []EpochLine
	crosses := false
	for i := range old {
		o := &old[i]
		sum.UserChunks += o.UserChunks
		sum.Entries += o.Entries
		sum.Records += o.Records
		sum.UserBytes += o.UserBytes
		sum.FilterBytes += o.FilterBytes
		sum.TrailerBytes += o.TrailerBytes
		sum.DeltaChunks += o.DeltaChunks
		sum.SnapshotChunks += o.SnapshotChunks
		sum.DroppedLSN = max(sum.DroppedLSN, o.DroppedLSN)
		lines = append(lines, o.Lines...)
		crosses = crosses || i > 0 && o.UnitStart
	}
	bad := func(what string) error {
		return fmt.Errorf("%w: %s in place of %s to %s: %s", ErrContradiction, s.Name(), first.Name(), last.Name(), what)
	}
	switch {
	case s.FirstLSN != first.FirstLSN || s.LastLSN != last.LastLSN || s.FirstEpoch != first.FirstEpoch || s.LastEpoch != last.LastEpoch:
		return bad("LSNs or epochs differ")
	case s.BaseOffset != first.BaseOffset || s.NextOffset != last.NextOffset:
		return bad("offsets differ")
	case s.DigestBefore != first.DigestBefore || s.DigestAfter != last.DigestAfter:
		return bad("digests differ")
	case s.UserChunks != sum.UserChunks || s.Entries != sum.Entries || s.Records != sum.Records ||
		s.UserBytes != sum.UserBytes || s.FilterBytes != sum.FilterBytes:
		return bad("user chunks differ")
	case s.TrailerBytes > sum.TrailerBytes || s.DeltaChunks > sum.DeltaChunks || s.SnapshotChunks > sum.SnapshotChunks:
		return bad("tracking has come to it")
	case s.UnitStart != first.UnitStart || crosses:
		return bad("units of retention differ")
	case !slices.Equal(s.Lines, lines):
		return bad("epoch lines differ")
	case s.DroppedLSN < sum.DroppedLSN:
		return bad("what was dropped before is forgotten")
	case s.Generation <= first.Generation:
		return bad("generation does not rise")
	}
	return nil
}
