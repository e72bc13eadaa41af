package tracking

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// What stored offsets take is the rest: the parts of a payload add up.
func TestSequenceBytes_countsPublishersAlone(t *testing.T) {
	s := New(Caps{}, 1)
	long := "a-publisher-with-a-long-reference"
	h := chunk.Header{Type: chunk.User, LSN: 1, Epoch: 1, Timestamp: 1000, Flags: chunk.FlagSegmentStart}
	sequences := []SequenceUpdate{{Ref: long, Sequence: 300}, {Ref: "p", Sequence: 7}}
	updates := []Update{{Ref: "consumer", Offset: 500, Version: 1, Epoch: 1}}
	alone := s.EncodeTrailer(nil, true, sequences, nil)
	both := s.EncodeTrailer(nil, true, sequences, updates)
	if got := SequenceBytes(&h, both); got != int64(len(alone)) || got == 0 {
		t.Errorf("trailer: %d bytes of sequences, want %d", got, len(alone))
	}
	if got := SequenceBytes(&h, EncodeDelta(nil, updates)); got != 0 {
		t.Errorf("without sequences: %d bytes", got)
	}
	if got := SequenceBytes(&h, nil); got != 0 {
		t.Errorf("empty trailer: %d bytes", got)
	}
	if err := s.Apply(&h, both); err != nil {
		t.Fatal(err)
	}

	snapshot := chunk.Header{
		Type: chunk.Snapshot, LSN: 2, Epoch: 1, Timestamp: 1000,
		Flags: chunk.FlagSegmentStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast,
	}
	whole := s.EncodeSnapshot(SnapshotOptions{Now: 1000, Epoch: 1}, nil)[0]
	none := New(Caps{}, 1).EncodeSnapshot(SnapshotOptions{Now: 1000, Epoch: 1}, nil)[0]
	onlyStored := New(Caps{}, 1)
	delta := chunk.Header{Type: chunk.Delta, LSN: 1, Epoch: 1, Timestamp: 1000}
	if err := onlyStored.Apply(&delta, EncodeDelta(nil, updates)); err != nil {
		t.Fatal(err)
	}
	stored := onlyStored.EncodeSnapshot(SnapshotOptions{Now: 1000, Epoch: 1}, nil)[0]
	if got, want := SequenceBytes(&snapshot, whole), int64(len(whole)-len(stored)); got != want || got == 0 {
		t.Errorf("snapshot: %d bytes of sequences, want %d", got, want)
	}
	if got := SequenceBytes(&snapshot, none); got != 0 {
		t.Errorf("empty snapshot: %d bytes of sequences", got)
	}
}
