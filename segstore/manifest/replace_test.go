package manifest

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// compacted returns what a compaction or merge makes of consecutive segments,
// by their chunks.
func compacted(old []Summary, headers ...chunk.Header) Summary {
	s := Replacing(old, 1)
	for _, h := range headers {
		if h.Type != chunk.User {
			s.Drop(&h)
			continue
		}
		if h.TrailerLength > 0 {
			h.TrailerLength, h.Flags = 0, h.Flags|chunk.FlagStripped
		}
		s.Keep(&h)
	}
	return s
}

// twoSegments returns neighbours of one unit and their chunks.
func twoSegments() ([]Summary, []chunk.Header) {
	l := newLog()
	l.sealed(1)
	var old []Summary
	var headers []chunk.Header
	for range 2 {
		head := l.header(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, 30)
		s := NewSummary(testIncarnation, 0, &head)
		before := head.Epoch
		l.epoch++
		for _, h := range []chunk.Header{
			head, l.header(chunk.Delta, chunk.FlagEpochStart, 10), l.header(chunk.User, 0, 12), l.header(chunk.User, 0, 0),
			l.header(chunk.Delta, 0, 40),
		} {
			s.Add(&h, before)
			before = h.Epoch
			headers = append(headers, h)
		}
		old = append(old, s)
	}
	return old, headers
}

func TestReplacing_keepsWhatTheLogSays(t *testing.T) {
	old, headers := twoSegments()
	s := compacted(old, headers...)
	if err := errors.Join(s.Check(), s.Replaces(old)); err != nil {
		t.Fatal(err)
	}
	last := headers[len(headers)-1]
	if s.DroppedLSN != last.LSN || s.TrackingBytes() != 0 || s.Chunks() != 4 || s.LastUser != 3*196 {
		t.Errorf("compacted: %+v", s)
	}
	if len(s.Lines) != 2 || s.FirstTimestamp != old[0].FirstTimestamp || s.LastTimestamp != old[1].LastTimestamp {
		t.Errorf("lines %v, times %d to %d", s.Lines, s.FirstTimestamp, s.LastTimestamp)
	}
	state := NewState(testIncarnation)
	state.Start = startAt(&old[0], EpochLine{})
	for _, r := range []Record{
		sealedRecord(old[0]), sealedRecord(old[1]),
		{Kind: KindReplaced, Old: []Name{old[0].Name(), old[1].Name()}, Summary: s},
	} {
		if err := state.Apply(&r); err != nil {
			t.Fatal(err)
		}
	}
	if len(state.Segments) != 1 || state.Segments[0].Generation != 1 || len(state.Lines) != 2 {
		t.Errorf("state %+v", state)
	}
}

// A segment without user chunks leaves only its footer, which says all the same
// where it lies in the log.
func TestReplacing_footerAlone(t *testing.T) {
	l := newLog()
	l.sealed(1)
	old := l.sealed(0)
	s := compacted([]Summary{old}, chunk.Header{Type: chunk.Snapshot, LSN: old.LastLSN})
	if err := errors.Join(s.Check(), s.Replaces([]Summary{old})); err != nil {
		t.Fatal(err)
	}
	if s.Size != 0 || s.LastLSN != old.LastLSN || s.NextOffset != old.NextOffset {
		t.Errorf("compacted: %+v", s)
	}
}

func TestReplaces_refuses(t *testing.T) {
	for name, spoil := range map[string]func(s *Summary, old []Summary){
		"a chunk is missing":  func(s *Summary, _ []Summary) { s.UserChunks-- },
		"fewer records":       func(s *Summary, _ []Summary) { s.Records-- },
		"other bytes":         func(s *Summary, _ []Summary) { s.UserBytes++ },
		"a filter is gone":    func(s *Summary, old []Summary) { old[0].FilterBytes++ },
		"other digest":        func(s *Summary, _ []Summary) { s.DigestAfter++ },
		"other offsets":       func(s *Summary, _ []Summary) { s.NextOffset++ },
		"ends elsewhere":      func(s *Summary, _ []Summary) { s.LastLSN-- },
		"a line is gone":      func(s *Summary, _ []Summary) { s.Lines = s.Lines[1:] },
		"dropped forgotten":   func(s *Summary, old []Summary) { s.DroppedLSN, old[1].DroppedLSN = 0, 1 },
		"crosses a unit":      func(_ *Summary, old []Summary) { old[1].UnitStart = true },
		"opens a unit":        func(s *Summary, _ []Summary) { s.UnitStart = true },
		"the same generation": func(s *Summary, _ []Summary) { s.Generation = 0 },
		"tracking comes to":   func(s *Summary, _ []Summary) { s.DeltaChunks = 10 },
	} {
		old, headers := twoSegments()
		s := compacted(old, headers...)
		spoil(&s, old)
		if err := s.Replaces(old); !errors.Is(err, ErrContradiction) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
