package manifest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func TestSummary_countsByKind(t *testing.T) {
	l := newLog()
	s := l.sealed(3)
	l.elect(&s)
	want := Summary{
		Incarnation: testIncarnation, UnitStart: true,
		FirstLSN: 1, LastLSN: 5, FirstEpoch: 1, LastEpoch: 3,
		Lines:      []EpochLine{{Epoch: 1, LSN: 1, Offset: 0}, {Epoch: 3, LSN: 5, Offset: 6}},
		BaseOffset: 0, NextOffset: 6, DigestAfter: l.digest,
		FirstTimestamp: 1_700_000_000_010, LastTimestamp: 1_700_000_000_030,
		UserChunks: 3, Entries: 6, Records: 6, UserBytes: 3 * 148, TrailerBytes: 36,
		DeltaChunks: 2, DeltaBytes: 100 + 96,
		Size: 100 + 3*(96+12+100) + 96, LastUser: 100 + 2*208,
		Chain: s.Chain,
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("summary\n got %+v\nwant %+v", s, want)
	}
	if s.Chain == 0 {
		t.Error("the chain over the head CRCs did not move")
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

// A snapshot of several parts counts only from its last part on (E1).
func TestSummary_snapshotCountsWhenComplete(t *testing.T) {
	l := newLog()
	l.sealed(1)
	first := l.header(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst, 1000)
	s := NewSummary(testIncarnation, 0, &first)
	s.Add(&first, l.epoch)
	if s.SnapshotFirst != (Place{LSN: 3}) || s.SnapshotLast != (Place{}) {
		t.Fatalf("after the first part: %v to %v", s.SnapshotFirst, s.SnapshotLast)
	}
	last := l.header(chunk.Snapshot, chunk.FlagSnapshotLast, 500)
	s.Add(&last, l.epoch)
	if want := (Place{LSN: 4, Position: 1096}); s.SnapshotLast != want {
		t.Errorf("last part at %v, want %v", s.SnapshotLast, want)
	}
	if s.SnapshotChunks != 2 || s.SnapshotBytes != 1096+596 || s.ControlBytes() != 0 {
		t.Errorf("%d snapshot chunks, %d bytes, %d control bytes", s.SnapshotChunks, s.SnapshotBytes, s.ControlBytes())
	}
}

func TestSummary_strippedTrailerIsProofOfCommit(t *testing.T) {
	l := newLog()
	s := l.sealed(1)
	h := l.header(chunk.User, chunk.FlagStripped, 0)
	s.Add(&h, l.epoch)
	if s.DroppedLSN != h.LSN {
		t.Errorf("dropped LSN %d, want %d", s.DroppedLSN, h.LSN)
	}
}

func TestSummary_chainIsCRC32C(t *testing.T) {
	var want, got uint32
	for _, v := range []uint32{0, 1, 0xdeadbeef, 1 << 31} {
		want = crc32.Update(want, castagnoli, binary.BigEndian.AppendUint32(nil, v))
		got = chain(got, v)
	}
	if got != want {
		t.Errorf("chain %08x, want %08x", got, want)
	}
}

func TestSummary_checkRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Summary){
		"no LSN":             func(s *Summary) { s.FirstLSN = 0 },
		"ends before it":     func(s *Summary) { s.LastLSN = s.FirstLSN - 2 },
		"epochs go down":     func(s *Summary) { s.LastEpoch = 0 },
		"records":            func(s *Summary) { s.Records++ },
		"offsets go down":    func(s *Summary) { s.BaseOffset = s.NextOffset + 1 },
		"size":               func(s *Summary) { s.Size++ },
		"negative bytes":     func(s *Summary) { s.UserBytes -= 1 << 40; s.TrailerBytes += 1 << 40 },
		"sequences":          func(s *Summary) { s.TrailerSequenceBytes = s.TrailerBytes + 1 },
		"snapshot sequences": func(s *Summary) { s.SnapshotSequenceBytes = s.SnapshotBytes + 1 },
		"time goes back":     func(s *Summary) { s.LastTimestamp = s.FirstTimestamp - 1 },
		"last user chunk":    func(s *Summary) { s.LastUser = s.Size + 1 },
		"dropped the future": func(s *Summary) { s.DroppedLSN = s.LastLSN + 1 },
		"line outside":       func(s *Summary) { s.Lines[0].LSN = s.LastLSN + 1 },
		"lines unordered":    func(s *Summary) { s.Lines = append(s.Lines, s.Lines[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newLog().sealed(2)
			spoil(&s)
			if err := s.Check(); !errors.Is(err, ErrContradiction) {
				t.Errorf("got %v, want ErrContradiction", err)
			}
		})
	}
}

// Publishers' sequences are outside of what tracking may take (F7).
func TestSummary_countsSequencesApart(t *testing.T) {
	l := newLog()
	l.sealed(1)
	head := l.header(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, 300)
	s := NewSummary(testIncarnation, 0, &head)
	user := l.header(chunk.User, 0, 50)
	delta := l.header(chunk.Delta, 0, 40)
	for _, c := range []struct {
		h         *chunk.Header
		sequences int64
	}{{&head, 200}, {&user, 20}, {&delta, 0}} {
		s.Add(c.h, l.epoch)
		s.AddSequences(c.h, c.sequences)
	}
	if got, want := s.TrackingBytes(), int64(96+300-200+50-20+96+40); got != want {
		t.Errorf("tracking takes %d bytes, want %d", got, want)
	}
	b := AppendFooter(nil, &s)
	got, err := DecodeFooter(testIncarnation, b)
	if err != nil || got.TrailerSequenceBytes != 20 || got.SnapshotSequenceBytes != 200 {
		t.Errorf("read back %+v, %v", got, err)
	}
}

func TestFooter_everyFlippedBitIsFound(t *testing.T) {
	s := newLog().sealed(2)
	b := AppendFooter(nil, &s)
	if got, err := DecodeFooter(testIncarnation, b); err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := s.FileSize() - s.Size; got != int64(len(b)) {
		t.Errorf("footer of %d bytes announced, %d written", got, len(b))
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := DecodeFooter(testIncarnation, b); err == nil {
				t.Fatalf("bit %d of byte %d flipped: accepted", bit, i)
			}
			b[i] ^= 1 << bit
		}
	}
}

func TestFooter_refuses(t *testing.T) {
	s := newLog().sealed(2)
	b := AppendFooter(nil, &s)
	if _, err := DecodeFooter(testIncarnation+1, b); !errors.Is(err, ErrNoFooter) {
		t.Errorf("another incarnation: %v", err)
	}
	for n := range b {
		if FooterLength(b[:n]) == n && n > 0 {
			t.Errorf("cut to %d bytes it still ends like a footer", n)
		}
		if _, err := DecodeFooter(testIncarnation, b[:n]); !errors.Is(err, ErrNoFooter) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}
