package manifest

import (
	"errors"
	"reflect"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func fold(t *testing.T, records ...Record) State {
	t.Helper()
	s, err := Fold(testIncarnation, records)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names(s *State) (out []Name) {
	for i := range s.Segments {
		out = append(out, s.Segments[i].Name())
	}
	return out
}

func TestState_sealedSegmentsContinueEachOther(t *testing.T) {
	l := newLog()
	a, b := l.sealed(2), l.sealed(3)
	s := fold(t, sealedRecord(a), sealedRecord(b))
	lsn, offset, digest, tail := s.End()
	if lsn != 8 || offset != 10 || digest != l.digest || tail != (chunk.Tail{Epoch: 1, LSN: 7}) {
		t.Errorf("ends at %d, %d, %s, %s", lsn, offset, digest, tail)
	}
	for name, spoil := range map[string]func(*Summary){
		"a hole in LSNs":  func(b *Summary) { b.FirstLSN++ },
		"another offset":  func(b *Summary) { b.BaseOffset++ },
		"another history": func(b *Summary) { b.DigestBefore++ },
		"an older epoch":  func(b *Summary) { b.FirstEpoch = 0 },
	} {
		bad := b
		spoil(&bad)
		if _, err := Fold(testIncarnation, []Record{sealedRecord(a), sealedRecord(bad)}); !errors.Is(err, ErrContradiction) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestState_replacedSwapsARun(t *testing.T) {
	records := sampleRecords()
	s := fold(t, records[:4]...)
	if want := []Name{{1, 1}, records[2].Summary.Name()}; !reflect.DeepEqual(names(&s), want) {
		t.Errorf("segments %v, want %v", names(&s), want)
	}
	if !reflect.DeepEqual(s.Obsolete, records[3].Old) {
		t.Errorf("obsolete %v", s.Obsolete)
	}
	for name, spoil := range map[string]func(*Record){
		"unknown generation":  func(r *Record) { r.Old[1].Generation = 7 },
		"nothing replaced":    func(r *Record) { r.Old = nil },
		"too many":            func(r *Record) { r.Old = append(r.Old, Name{8, 0}, Name{9, 0}) },
		"ends elsewhere":      func(r *Record) { r.Summary.LastLSN++ },
		"begins elsewhere":    func(r *Record) { r.Summary.FirstLSN++ },
		"other user data":     func(r *Record) { r.Summary.DigestAfter++ },
		"the same generation": func(r *Record) { r.Summary.Generation = 0 },
	} {
		records := sampleRecords()
		spoil(&records[3])
		got, err := Fold(testIncarnation, records[:4])
		if !errors.Is(err, ErrContradiction) {
			t.Errorf("%s: %v", name, err)
		}
		if len(got.Segments) != 3 || got.Obsolete != nil {
			t.Errorf("%s: applied by halves: %v", name, names(&got))
		}
	}
}

// Retention keeps the line that holds log start − 1 and all later ones (C1).
func TestState_startKeepsTheLineBefore(t *testing.T) {
	l := newLog()
	a := l.sealed(1)
	l.elect(&a)
	b := l.sealed(1)
	l.elect(&b)
	c := l.sealed(1)
	s := fold(t, sealedRecord(a), sealedRecord(b), sealedRecord(c), Record{Kind: KindStart, Start: startAt(&b, a.Lines[1])})
	if want := []EpochLine{a.Lines[1], b.Lines[0]}; !reflect.DeepEqual(s.Lines, want) {
		t.Errorf("lines %v, want %v", s.Lines, want)
	}
	if want := []Name{b.Name(), c.Name()}; !reflect.DeepEqual(names(&s), want) {
		t.Errorf("segments %v, want %v", names(&s), want)
	}
	for name, start := range map[string]Start{
		"inside a segment": {LSN: b.FirstLSN + 1, Line: a.Lines[1]},
		"backwards":        {LSN: 1},
		"line behind it":   {LSN: b.FirstLSN, Line: EpochLine{Epoch: 9, LSN: b.FirstLSN}},
	} {
		before := len(s.Segments)
		if err := s.Apply(&Record{Kind: KindStart, Start: start}); !errors.Is(err, ErrContradiction) {
			t.Errorf("%s: %v", name, err)
		}
		if len(s.Segments) != before || s.Start.LSN != b.FirstLSN {
			t.Errorf("%s: applied by halves", name)
		}
	}
}

// A log start above the tail drops the log and begins anew there (C4).
func TestState_reset(t *testing.T) {
	l := newLog()
	a, b := l.sealed(2), l.sealed(2)
	start := Start{LSN: 1000, Offset: 5000, Digest: 77, Line: EpochLine{Epoch: 6, LSN: 900, Offset: 4000}}
	s := fold(t, sealedRecord(a), sealedRecord(b), Record{Kind: KindStart, Start: start})
	lsn, offset, digest, tail := s.End()
	if lsn != 1000 || offset != 5000 || digest != 77 || tail != (chunk.Tail{Epoch: 6, LSN: 999}) {
		t.Errorf("ends at %d, %d, %s, %s", lsn, offset, digest, tail)
	}
	if want := []EpochLine{start.Line}; len(s.Segments) != 0 || !reflect.DeepEqual(s.Lines, want) {
		t.Errorf("segments %v, lines %v", names(&s), s.Lines)
	}
}

func TestState_cutVoidsAndReopens(t *testing.T) {
	l := newLog()
	a, b := l.sealed(2), l.sealed(2)
	l.elect(&b)
	c := l.sealed(2)
	records := []Record{sealedRecord(a), sealedRecord(b), sealedRecord(c)}
	for _, x := range []struct {
		name     string
		to       chunk.LSN
		segments []Name
		lines    int
	}{
		{"inside the last", c.LastLSN - 1, []Name{a.Name(), b.Name()}, 2},
		{"at the end of one: it is opened again", b.LastLSN, []Name{a.Name()}, 2},
		{"below an epoch's line", b.LastLSN - 1, []Name{a.Name()}, 1},
		{"everything", 0, nil, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := fold(t, append(records[:3:3], Record{Kind: KindCut, LSN: x.to})...)
			if !reflect.DeepEqual(names(&s), x.segments) || len(s.Lines) != x.lines || !s.CutOpen || s.Cut != x.to {
				t.Errorf("segments %v, lines %v, cut %d open %v", names(&s), s.Lines, s.Cut, s.CutOpen)
			}
			if err := s.Apply(&Record{Kind: KindCutDone, LSN: x.to + 1}); !errors.Is(err, ErrContradiction) {
				t.Errorf("another cut's end: %v", err)
			}
			if err := s.Apply(&Record{Kind: KindCutDone, LSN: x.to}); err != nil || s.CutOpen {
				t.Errorf("done: %v, open %v", err, s.CutOpen)
			}
		})
	}
}

// Rewriting keeps the state, whatever came before.
func TestState_recordsFoldBack(t *testing.T) {
	all := sampleRecords()
	for n := range len(all) + 1 {
		s := fold(t, all[:n]...)
		again := fold(t, s.Records()...)
		s.Obsolete = nil
		if !sameState(&s, &again) {
			t.Errorf("after %d records\n got %+v\nwant %+v", n, again, s)
		}
	}
}

func sameState(a, b *State) bool {
	lines := len(a.Lines) == len(b.Lines)
	for i := range a.Lines {
		lines = lines && a.Lines[i] == b.Lines[i]
	}
	return lines && a.Start == b.Start && a.Cut == b.Cut && a.CutOpen == b.CutOpen &&
		len(a.Segments) == len(b.Segments) && (len(a.Segments) == 0 || reflect.DeepEqual(a.Segments, b.Segments))
}

// A unit that begins by a record: with the segment that comes next, until that
// is sealed or cut away; a cut that opens it again keeps what its summary said.
func TestState_unitStart(t *testing.T) {
	l := newLog()
	a, b := l.sealed(2), l.sealed(3)
	a.UnitStart, b.UnitStart = false, true
	begin := sealedRecord(a)
	unit := Record{Kind: KindUnit, LSN: b.FirstLSN}
	if _, err := Fold(testIncarnation, []Record{begin, {Kind: KindUnit, LSN: b.FirstLSN + 1}}); !errors.Is(err, ErrContradiction) {
		t.Errorf("elsewhere than at the end: %v", err)
	}
	for name, x := range map[string]struct {
		records []Record
		want    chunk.LSN
	}{
		"noted":           {[]Record{begin, unit}, b.FirstLSN},
		"twice":           {[]Record{begin, unit, unit}, b.FirstLSN},
		"sealed":          {[]Record{begin, unit, sealedRecord(b)}, 0},
		"cut inside":      {[]Record{begin, unit, {Kind: KindCut, LSN: b.FirstLSN}}, b.FirstLSN},
		"cut away":        {[]Record{begin, unit, {Kind: KindCut, LSN: a.LastLSN}}, 0},
		"opened again":    {[]Record{begin, unit, sealedRecord(b), {Kind: KindCut, LSN: b.LastLSN}}, b.FirstLSN},
		"sealed, cut out": {[]Record{begin, unit, sealedRecord(b), {Kind: KindCut, LSN: a.FirstLSN}}, 0},
		"the log's start": {[]Record{begin, unit, {Kind: KindStart, Start: startAt(&b, a.Lines[0])}}, b.FirstLSN},
		"below the start": {[]Record{begin, unit, {Kind: KindStart, Start: Start{LSN: b.FirstLSN + 9, Line: a.Lines[0]}}}, 0},
	} {
		s := fold(t, x.records...)
		if s.UnitStart != x.want {
			t.Errorf("%s: unit starts at %d, want %d", name, s.UnitStart, x.want)
		}
		if again := fold(t, s.Records()...); again.UnitStart != x.want {
			t.Errorf("%s: rewritten it starts at %d, want %d", name, again.UnitStart, x.want)
		}
	}
}
