package tracking

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// FuzzApply: any payload gives a verdict without a panic; one that is refused
// leaves the state as it was, one that is accepted leaves a state that a
// checkpoint and a snapshot carry on whole.
func FuzzApply(f *testing.F) {
	for _, name := range []string{"filter-trailer", "trailer-short", "delta", "barrier", "snapshot-first", "snapshot-last"} {
		r := goldenChunk(f, name)
		f.Add(r.payload, uint8(r.h.Type), uint16(r.h.Flags))
	}
	f.Add(unhex(f, "testdata/forget.hex"), uint8(chunk.Delta), uint16(0))
	f.Add([]byte{0, 0, 0, 1}, uint8(chunk.Snapshot), uint16(chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast))
	f.Fuzz(func(t *testing.T, payload []byte, typ uint8, flags uint16) {
		l := newTestLog(t, Caps{Offsets: 4, Publishers: 4})
		l.store("app", 17)
		l.user(l.take(), SequenceUpdate{Ref: "orders-import-7", Sequence: 9}, SequenceUpdate{Ref: "p", Sequence: 1})
		before := bytesOf(t, l.state)
		h := chunk.Header{Type: chunk.Type(typ % 3), Flags: chunk.Flags(flags), LSN: 3, Epoch: 4, Timestamp: 5_000_000}
		held := NewPending(Caps{})
		held.Add(Update{Ref: "app", Offset: 3, Epoch: 4, Version: 2})
		if err := l.state.Apply(&h, payload); err != nil {
			if bytesOf(t, l.state) != before {
				t.Fatal("a refused payload changed the state")
			}
			return
		}
		held.Observe(&h, payload)
		b, ok := l.state.AppendCheckpoint(nil)
		if !ok {
			return
		}
		back, err := DecodeCheckpoint(Caps{Offsets: 4, Publishers: 4}, b)
		if err != nil || bytesOf(t, back) != string(b) {
			t.Fatalf("checkpoint: %v", err)
		}
		again := New(Caps{Offsets: 4, Publishers: 4}, 4)
		for i, p := range l.state.EncodeSnapshot(SnapshotOptions{Epoch: 4, Now: 5_000_000}, nil) {
			apply(t, again, chunk.Header{Type: chunk.Snapshot, Flags: chunk.FlagSegmentStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast, LSN: chunk.LSN(4 + i), Epoch: 4, Timestamp: 5_000_000}, p)
		}
		if again.Stats().Publishers != l.state.Stats().Publishers {
			t.Fatalf("snapshot: %v for %v", again, l.state)
		}
	})
}

// FuzzDecodeCheckpoint: what is accepted encodes to the same bytes.
func FuzzDecodeCheckpoint(f *testing.F) {
	f.Add(unhex(f, "testdata/checkpoint.hex"))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeCheckpoint(Caps{}, b)
		if err != nil {
			return
		}
		if got := bytesOf(t, s); got != string(b) {
			t.Fatalf("encoded %x\nfrom    %x", got, b)
		}
	})
}

// FuzzDecodeUpdates: what is accepted encodes to the same bytes.
func FuzzDecodeUpdates(f *testing.F) {
	f.Add(EncodeUpdates(nil, []Update{{Ref: "a", Offset: 1, Time: 5, Epoch: 2, Version: 3}, {Ref: "b", Forget: true}}, 1000))
	f.Fuzz(func(t *testing.T, b []byte) {
		updates, err := DecodeUpdates(nil, b, 1000)
		if err != nil {
			return
		}
		if got := EncodeUpdates(nil, updates, len(b)); string(got) != string(b) {
			t.Fatalf("encoded %x\nfrom    %x", got, b)
		}
	})
}
