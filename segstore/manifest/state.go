package manifest

import (
	"fmt"
	"slices"
	"sort"

	"github.com/millrace/millrace/segstore/chunk"
)

// State is what the records of a MANIFEST come to.
type State struct {
	Incarnation chunk.Incarnation
	Start       Start
	// Segments are the sealed ones, ascending.
	// Invariant: contiguous in LSN, offset and digest, the first not above Start.
	Segments []Summary
	// Lines is the epoch table up to the last sealed segment (C1), ascending;
	// an active segment's lines come from its headers.
	Lines []EpochLine
	// Obsolete names the files that a replaced record took out.
	Obsolete []Name
	// Cut is the LSN of a cut that was begun and not finished, if CutOpen.
	Cut     chunk.LSN
	CutOpen bool
	// UnitStart is where the segment behind the sealed ones begins if that begins
	// a unit by a record, not by its first chunk; else 0.
	UnitStart chunk.LSN
}

// NewState returns the state of a log without records: it starts at LSN 1.
func NewState(inc chunk.Incarnation) State {
	return State{Incarnation: inc, Start: Start{LSN: 1}}
}

// Fold applies all records to a new state.
func Fold(inc chunk.Incarnation, records []Record) (State, error) {
	s := NewState(inc)
	for i := range records {
		if err := s.Apply(&records[i]); err != nil {
			return s, fmt.Errorf("record %d: %w", i+1, err)
		}
	}
	return s, nil
}

// Apply changes the state by one record, or leaves it as it is and returns
// ErrContradiction.
func (s *State) Apply(r *Record) error {
	switch r.Kind {
	case KindSealed:
		return s.seal(&r.Summary)
	case KindReplaced:
		return s.replace(r)
	case KindStart:
		return s.setStart(r.Start)
	case KindLine:
		return s.addLine(r.Line)
	case KindCut:
		s.cut(r.LSN)
		return nil
	case KindCutDone:
		if !s.CutOpen || s.Cut != r.LSN {
			return fmt.Errorf("%w: cut to %d done without its beginning", ErrContradiction, r.LSN)
		}
		s.Cut, s.CutOpen = 0, false
		return nil
	case KindUnit:
		lsn, _, _, _ := s.End()
		if r.LSN != lsn {
			return fmt.Errorf("%w: unit starts at %d, the next segment at %d", ErrContradiction, r.LSN, lsn)
		}
		s.UnitStart = lsn
		return nil
	}
	return fmt.Errorf("%w: %s", ErrContradiction, r.Kind)
}

// End returns where the next segment must begin: LSN, offset and digest, and
// the tail that the sealed segments give the log.
func (s *State) End() (lsn chunk.LSN, offset chunk.Offset, digest chunk.Digest, tail chunk.Tail) {
	if n := len(s.Segments); n > 0 {
		l := &s.Segments[n-1]
		return l.LastLSN + 1, l.NextOffset, l.DigestAfter, l.Tail()
	}
	return s.Start.LSN, s.Start.Offset, s.Start.Digest, s.Start.Tail()
}

func (s *State) seal(seg *Summary) error {
	lsn, offset, digest, tail := s.End()
	if seg.FirstLSN != lsn || seg.BaseOffset != offset || seg.DigestBefore != digest || seg.FirstEpoch < tail.Epoch {
		return fmt.Errorf("%w: segment %s does not continue the log at %d", ErrContradiction, seg.Name(), lsn)
	}
	lines := s.Lines
	for _, l := range seg.Lines {
		if n := len(lines); n > 0 && l.Epoch <= lines[n-1].Epoch {
			if slices.Contains(s.Lines, l) {
				continue // a line record told it before
			}
			return fmt.Errorf("%w: epoch %d of segment %s", ErrContradiction, l.Epoch, seg.Name())
		}
		lines = append(lines, l)
	}
	s.Lines = lines
	s.Segments = append(s.Segments, *seg)
	s.UnitStart = 0
	return nil
}

func (s *State) replace(r *Record) error {
	at := s.find(r.Summary.FirstLSN)
	bad := fmt.Errorf("%w: %v replaced by %s", ErrContradiction, r.Old, r.Summary.Name())
	if at < 0 || len(r.Old) == 0 || at+len(r.Old) > len(s.Segments) {
		return bad
	}
	run := s.Segments[at : at+len(r.Old)]
	for i := range run {
		if run[i].Name() != r.Old[i] {
			return bad
		}
	}
	if err := r.Summary.Replaces(run); err != nil {
		return err
	}
	s.Obsolete = append(s.Obsolete, r.Old...)
	s.Segments = slices.Replace(slices.Clone(s.Segments), at, at+len(r.Old), r.Summary)
	return nil
}

// find returns the index of the segment that begins at lsn, −1 if none does.
func (s *State) find(lsn chunk.LSN) int {
	i := sort.Search(len(s.Segments), func(i int) bool { return s.Segments[i].FirstLSN >= lsn })
	if i < len(s.Segments) && s.Segments[i].FirstLSN == lsn {
		return i
	}
	return -1
}

// setStart moves the log start up: to the beginning of a segment, to that of
// the active one, or above everything (reset). Lines older than the one that
// holds the LSN before the start go.
func (s *State) setStart(start Start) error {
	if start.LSN < s.Start.LSN || start.LSN == 0 || start.Line.LSN >= start.LSN {
		return fmt.Errorf("%w: log start moves from %d to %d", ErrContradiction, s.Start.LSN, start.LSN)
	}
	keep := 0
	for keep < len(s.Segments) && s.Segments[keep].LastLSN < start.LSN {
		keep++
	}
	if keep < len(s.Segments) && s.Segments[keep].FirstLSN != start.LSN {
		return fmt.Errorf("%w: log start %d inside of segment %s", ErrContradiction, start.LSN, s.Segments[keep].Name())
	}
	reset := keep == len(s.Segments) // nothing sealed is left
	s.Segments = s.Segments[keep:]
	s.Start = start
	if s.UnitStart < start.LSN {
		s.UnitStart = 0
	}
	lines := make([]EpochLine, 0, len(s.Lines)+1)
	if start.Line.Epoch > 0 {
		lines = append(lines, start.Line)
	}
	for _, l := range s.Lines {
		if l.Epoch > start.Line.Epoch && !(reset && l.LSN >= start.LSN) {
			lines = append(lines, l)
		}
	}
	s.Lines = lines
	return nil
}

func (s *State) addLine(l EpochLine) error {
	if n := len(s.Lines); n > 0 && (l.Epoch <= s.Lines[n-1].Epoch || l.LSN <= s.Lines[n-1].LSN) {
		if slices.Contains(s.Lines, l) {
			return nil
		}
		return fmt.Errorf("%w: line of epoch %d", ErrContradiction, l.Epoch)
	}
	s.Lines = append(s.Lines, l)
	return nil
}

// cut voids the summaries with last LSN ≥ n and the lines above n. The one that
// ends in n goes too: the log must not end in a sealed segment, so it is opened
// again.
func (s *State) cut(n chunk.LSN) {
	if s.UnitStart > n {
		s.UnitStart = 0
	}
	for i := range s.Segments {
		if seg := &s.Segments[i]; seg.FirstLSN <= n && seg.LastLSN >= n && seg.UnitStart {
			s.UnitStart = seg.FirstLSN // it is unsealed again, and its head may be missing
		}
	}
	s.Segments = slices.DeleteFunc(slices.Clone(s.Segments), func(seg Summary) bool { return seg.LastLSN >= n })
	s.Lines = slices.DeleteFunc(slices.Clone(s.Lines), func(l EpochLine) bool { return l.LSN > n })
	s.Cut, s.CutOpen = n, true
}

// Records returns the fewest records that fold to this state, without the
// obsolete names: whoever rewrites has removed these files.
func (s *State) Records() []Record {
	var out []Record
	if s.Start != (Start{LSN: 1}) {
		out = append(out, Record{Kind: KindStart, Start: s.Start})
	}
	inSegments := make(map[chunk.Epoch]bool)
	for i := range s.Segments {
		for _, l := range s.Segments[i].Lines {
			inSegments[l.Epoch] = true
		}
	}
	lines := s.Lines
	emit := func(below chunk.LSN) {
		for len(lines) > 0 && lines[0].LSN < below {
			if l := lines[0]; !inSegments[l.Epoch] && l != s.Start.Line {
				out = append(out, Record{Kind: KindLine, Line: l})
			}
			lines = lines[1:]
		}
	}
	for i := range s.Segments {
		emit(s.Segments[i].FirstLSN)
		out = append(out, Record{Kind: KindSealed, Summary: s.Segments[i]})
	}
	emit(^chunk.LSN(0))
	if s.UnitStart != 0 {
		out = append(out, Record{Kind: KindUnit, LSN: s.UnitStart})
	}
	if s.CutOpen {
		out = append(out, Record{Kind: KindCut, LSN: s.Cut})
	}
	return out
}
