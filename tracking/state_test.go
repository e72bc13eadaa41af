package tracking

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// TestState_foldEqualsAnyBase: the fold from empty, from every complete
// snapshot, and from every checkpoint is the same state, byte for byte (I17).
func TestState_foldEqualsAnyBase(t *testing.T) {
	for seed := range int64(150) {
		caps := Caps{Offsets: 3 + int(seed%8), Publishers: 3 + int(seed%7)}
		r := rand.New(rand.NewSource(seed))
		l := newTestLog(t, caps)
		for range 120 {
			l.step(r)
		}
		l.write(chunk.User, 0, nil)
		want := bytesOf(t, l.state)
		for i := range l.records {
			h := &l.records[i].h
			if h.Type == chunk.Snapshot && h.Has(chunk.FlagSnapshotFirst) {
				if got := fold(t, caps, l.records[i:]); !got.Known() || bytesOf(t, got) != want {
					t.Fatalf("seed %d: fold from the snapshot at %d differs:\n%v\n%v", seed, h.LSN, got, l.state)
				}
			}
		}
		s := New(caps, 1)
		for i := range l.records {
			if err := s.Apply(&l.records[i].h, l.records[i].payload); err != nil {
				t.Fatal(err)
			}
			b, ok := s.AppendCheckpoint(nil)
			if !ok {
				continue
			}
			back, err := DecodeCheckpoint(caps, b)
			if err != nil {
				t.Fatalf("seed %d: checkpoint at %d: %v", seed, s.Last().LSN, err)
			}
			if bytesOf(t, back) != string(b) {
				t.Fatalf("seed %d: checkpoint at %d changes when it is read", seed, s.Last().LSN)
			}
			s = back
		}
		if bytesOf(t, s) != want {
			t.Fatalf("seed %d: fold through checkpoints differs", seed)
		}
	}
}

func TestState_lookups(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.store("app", 17)
	l.user(l.take(), SequenceUpdate{Ref: "p", Sequence: 9})
	if v, ok := l.state.Offset([]byte("app")); !ok || v != (Stored{Offset: 17, Time: l.now, Epoch: 1, Version: 1}) {
		t.Fatalf("stored %+v, %t", v, ok)
	}
	if v, ok := l.state.Sequence([]byte("p")); !ok || v != (Sequence{Last: 9, LSN: 2}) {
		t.Fatalf("sequence %+v, %t", v, ok)
	}
	if _, ok := l.state.Offset([]byte("p")); ok {
		t.Fatal("a publisher's name has an offset")
	}
}

// TestState_known is F9 as a table: what a fold from the given LSN has seen,
// and whether it says everything.
func TestState_known(t *testing.T) {
	user := func(f chunk.Flags) record { return record{h: chunk.Header{Type: chunk.User, Flags: f}} }
	parts := New(Caps{}, 1).EncodeSnapshot(SnapshotOptions{}, nil)
	snap := record{chunk.Header{Type: chunk.Snapshot, Flags: partFlags(0, 1)}, parts[0]}
	first := record{chunk.Header{Type: chunk.Snapshot, Flags: partFlags(0, 2)}, []byte{0, 0, 0, 2}}
	last := record{chunk.Header{Type: chunk.Snapshot, Flags: partFlags(1, 2)}, []byte{0, 1, 0, 2}}
	hole := record{h: chunk.Header{Type: 99}} // not applied: its LSN is missing
	tests := []struct {
		name  string
		first chunk.LSN
		log   []record
		known bool
	}{
		{"from the log's first chunk", 1, []record{user(0), user(0)}, true},
		{"log starts later", 5, []record{user(0)}, false},
		{"log starts later, then a snapshot", 5, []record{user(0), snap, user(0)}, true},
		{"hole", 1, []record{user(0), hole, user(0)}, false},
		{"hole, then a snapshot", 1, []record{user(0), hole, user(0), snap}, true},
		{"snapshot, then a hole", 1, []record{snap, hole, user(0)}, false},
		{"stripped trailer", 1, []record{user(chunk.FlagStripped)}, false},
		{"stripped trailer, then a snapshot", 1, []record{user(chunk.FlagStripped), snap}, true},
		{"first part only", 5, []record{first}, false},
		{"both parts", 5, []record{first, last}, true},
		{"user chunk between the parts", 5, []record{first, user(0), last}, false},
		{"hole between the parts", 5, []record{first, hole, last}, false},
		{"last part only", 5, []record{last}, false},
		{"first part twice", 5, []record{first, first, last}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Caps{}, tt.first)
			lsn := tt.first
			for _, r := range tt.log {
				r.h.LSN, r.h.Epoch = lsn, 1
				lsn++
				if r.h.Type == 99 {
					continue
				}
				if err := s.Apply(&r.h, r.payload); err != nil {
					t.Fatal(err)
				}
			}
			if s.Known() != tt.known {
				t.Fatalf("known = %t", s.Known())
			}
		})
	}
}

// TestState_partsOfTwoEpochs: a set that the next leader would go on with does
// not count (E1).
func TestState_partsOfTwoEpochs(t *testing.T) {
	s := New(Caps{}, 5)
	apply(t, s, chunk.Header{Type: chunk.Snapshot, Flags: partFlags(0, 2), LSN: 5, Epoch: 1}, []byte{0, 0, 0, 2})
	if !s.Assembling() {
		t.Fatal("not assembling")
	}
	if _, ok := s.AppendCheckpoint(nil); ok {
		t.Fatal("checkpoint in the middle of a snapshot")
	}
	apply(t, s, chunk.Header{Type: chunk.Snapshot, Flags: partFlags(1, 2), LSN: 6, Epoch: 2}, []byte{0, 1, 0, 2})
	if s.Known() || s.Assembling() {
		t.Fatal("parts of two epochs count")
	}
}

func apply(t *testing.T, s *State, h chunk.Header, payload []byte) {
	t.Helper()
	if err := s.Apply(&h, payload); err != nil {
		t.Fatal(err)
	}
}

// TestState_snapshotIsExactForSequences: taken before a chunk, it knows nothing
// of that chunk's messages (F1).
func TestState_snapshotIsExactForSequences(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.user(nil, SequenceUpdate{Ref: "p", Sequence: 1})
	l.snapshot(0, 0, 0)
	l.user(nil, SequenceUpdate{Ref: "p", Sequence: 2})
	s := fold(t, Caps{}, l.records[2:3])
	if v, _ := s.Sequence([]byte("p")); v != (Sequence{Last: 1, LSN: 2}) {
		t.Fatalf("snapshot says %+v", v)
	}
}

func TestState_capsTakeTheLeastRecentlyUsed(t *testing.T) {
	caps := Caps{Offsets: 3, Publishers: 2}
	l := newTestLog(t, caps)
	for i, ref := range []string{"a", "b", "c", "a", "d"} {
		l.store(ref, chunk.Offset(i))
		l.user(l.take(), SequenceUpdate{Ref: ref, Sequence: uint64(i)})
	}
	var offsets, publishers string
	for ref := range l.state.Offsets() {
		offsets += ref
	}
	for ref := range l.state.Publishers() {
		publishers += ref
	}
	st := l.state.Stats()
	if offsets != "cad" || publishers != "ad" || st.OffsetsEvicted != 1 || st.PublishersEvicted != 3 {
		t.Fatalf("offsets %q, publishers %q, %+v", offsets, publishers, st)
	}
	if st.Offsets != 3 || st.OffsetsMax != 3 || st.Publishers != 2 || st.PublishersMax != 2 {
		t.Fatalf("%+v", st)
	}
}

// TestState_staleIDs is 4.3: an id before the first available offset leaves at
// a snapshot, after the grace since its last store, an equal one included.
func TestState_staleIDs(t *testing.T) {
	const hour = 3600 * 1000
	l := newTestLog(t, Caps{})
	for i, ref := range []string{"old", "refreshed", "late", "fresh"} {
		if ref == "late" {
			l.now += 20 * hour
		}
		l.store(ref, chunk.Offset(10*i))
		l.delta()
	}
	if l.store("refreshed", 10) != Same {
		t.Fatal("an equal value is not the same")
	}
	l.now += 4 * hour
	l.snapshot(25, GraceDefault, 0)
	left := ""
	for ref := range l.state.Offsets() {
		left += ref + " "
	}
	if left != "refreshed late fresh " {
		t.Fatalf("left: %s", left)
	}
	l.snapshot(25, 0, 0)
	if st := l.state.Stats(); st.Offsets != 1 {
		t.Fatalf("without grace %d are left", st.Offsets)
	}
}

// TestState_snapshotCarriesPending: stored offsets in it may be newer than the
// chunks before it, and an old value never comes back.
func TestState_snapshotCarriesPending(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.store("a", 5)
	l.store("b", 5)
	l.delta()
	l.store("a", 9)
	l.snapshot(0, 0, 0)
	a, _ := l.state.Offset([]byte("a"))
	b, _ := l.state.Offset([]byte("b"))
	if a.Offset != 9 || a.Version != 3 || b.Offset != 5 || b.Version != 2 {
		t.Fatalf("a %+v, b %+v", a, b)
	}
}

func TestState_shortIDs(t *testing.T) {
	const long = "0123456789-0123456789-0123456789-0123456789"
	l := newTestLog(t, Caps{})
	size := func() int {
		l.user(nil, SequenceUpdate{Ref: long, Sequence: 1}, SequenceUpdate{Ref: "s", Sequence: 1})
		return len(l.records[len(l.records)-1].payload)
	}
	first, second := size(), size()
	l.snapshot(0, 0, 0)
	third, fourth := size(), size()
	if first != third || second != fourth || second >= first-len(long) {
		t.Fatalf("trailers of %d, %d, then in the next segment %d, %d bytes", first, second, third, fourth)
	}
	if v, _ := l.state.Sequence([]byte(long)); v.LSN != l.state.Last().LSN {
		t.Fatalf("%+v", v)
	}
}

// TestState_shortIDsOfASegmentWithoutSnapshot: a head snapshot whose end never
// came opens its segment all the same, and with it new short ids (E1).
func TestState_shortIDsOfASegmentWithoutSnapshot(t *testing.T) {
	const long = "0123456789-0123456789"
	l := newTestLog(t, Caps{})
	l.user(nil, SequenceUpdate{Ref: long, Sequence: 1})
	l.write(chunk.Snapshot, partFlags(0, 2), []byte{0, 0, 0, 2})
	l.barrier(2)
	l.user(nil, SequenceUpdate{Ref: long, Sequence: 2})
	it := ItemsIn(l.records[len(l.records)-1].payload)
	if !it.Next() || !it.Item().Defines || it.Item().Short != 0 {
		t.Fatalf("%+v", it.Item())
	}
}

// TestState_shortIDBehindAGap: what a definition in dropped chunks meant can't
// be guessed.
func TestState_shortIDBehindAGap(t *testing.T) {
	const long = "0123456789-0123456789"
	l := newTestLog(t, Caps{})
	l.user(nil, SequenceUpdate{Ref: long, Sequence: 1})
	l.user(nil, SequenceUpdate{Ref: long, Sequence: 2})
	l.user(nil, SequenceUpdate{Ref: long, Sequence: 3})
	s := New(Caps{}, 1)
	for _, i := range []int{0, 2, 3} {
		apply(t, s, l.records[i].h, l.records[i].payload)
	}
	if _, ok := s.Sequence([]byte(long)); s.Known() || ok {
		t.Fatal("a short id was guessed")
	}
}

// TestState_forgottenStaysForgotten: within an epoch an older pending update
// does not bring a deleted id back; after it nothing remembers the deletion.
func TestState_forgottenStaysForgotten(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.store("a", 5)
	older, _ := l.pending.Lookup([]byte("a"))
	l.delta()
	if !l.pending.Forget(l.state, []byte("a"), l.now) || l.pending.Forget(l.state, []byte("b"), l.now) {
		t.Fatal("forget of a known and of an unknown id")
	}
	l.delta()
	l.snapshot(0, 0, 0)
	if _, ok := l.state.Offset([]byte("a")); ok || l.state.Stats().Offsets != 0 {
		t.Fatal("still there")
	}
	held := NewPending(Caps{})
	held.Add(older)
	if got := held.ForBarrier(l.state, l.state.Last()); len(got) != 0 {
		t.Fatalf("comes back as %+v", got)
	}
	l.barrier(2)
	if n := l.state.offsets.len(); n != 0 {
		t.Fatalf("%d entries after the epoch", n)
	}
}

func TestState_deletionsPushNobodyOut(t *testing.T) {
	l := newTestLog(t, Caps{Offsets: 10})
	change := func() {
		l.write(chunk.Delta, 0, EncodeDelta(nil, l.pending.Take(nil, chunk.TrailerLengthMax)))
	}
	for i := range 5 {
		l.store(fmt.Sprintf("reader-%d", i), chunk.Offset(i))
	}
	change()
	for i := range 100 {
		job := []byte(fmt.Sprintf("job-%d", i))
		l.store(string(job), 1)
		change()
		l.pending.Forget(l.state, job, l.now)
		change()
	}
	for i := range 5 {
		if _, ok := l.state.Offset([]byte(fmt.Sprintf("reader-%d", i))); !ok {
			t.Errorf("reader-%d has lost its offset to jobs that were deleted", i)
		}
	}
	if st := l.state.Stats(); st.Offsets != 5 || st.OffsetsEvicted != 0 {
		t.Errorf("%+v", st)
	}
}

// TestState_versionsThatGoBack: a delta says less than one before it, with a lower
// version. The log's order decides, from any base alike, and what the leader
// writes next is a snapshot that everybody can read.
func TestState_versionsThatGoBack(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.user([]Update{{Ref: "a", Offset: 9, Epoch: 1, Version: 7}, {Ref: "b", Offset: 9, Epoch: 1, Version: 8}}, SequenceUpdate{Ref: "p", Sequence: 3})
	l.write(chunk.Delta, 0, EncodeDelta(nil, []Update{{Ref: "a", Offset: 3, Epoch: 1, Version: 2}}))
	before := len(l.records)
	l.snapshot(0, 0, 0)
	l.user([]Update{{Ref: "c", Offset: 1, Epoch: 1, Version: 9}}, SequenceUpdate{Ref: "p", Sequence: 2})
	if a, _ := l.state.Offset([]byte("a")); a.Offset != 3 || a.Version != 2 {
		t.Errorf("a is %+v", a)
	}
	if p, _ := l.state.Sequence([]byte("p")); p.Last != 2 {
		t.Errorf("p is %+v", p)
	}
	for name, from := range map[string]int{"the beginning": 0, "the snapshot": before} {
		if got := fold(t, Caps{}, l.records[from:]); bytesOf(t, got) != bytesOf(t, l.state) {
			t.Errorf("folded from %s:\n%v\n%v", name, got, l.state)
		}
	}
}

func TestState_orderAndFailureLeaveItAlone(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.user(nil, SequenceUpdate{Ref: "a-long-reference", Sequence: 1})
	before := bytesOf(t, l.state)
	next := chunk.Header{Type: chunk.User, LSN: 3, Epoch: 1}
	tests := []struct {
		name    string
		edit    func(*chunk.Header)
		payload []byte
		want    error
	}{
		{"same LSN", func(h *chunk.Header) { h.LSN = 2 }, nil, ErrOrder},
		{"earlier epoch", func(h *chunk.Header) { h.Epoch = 0 }, nil, ErrOrder},
		{"unknown tag", nil, []byte{0x7f}, ErrMalformed},
		{"empty reference", nil, []byte{tagSequence, 0, 1}, ErrMalformed},
		{"cut reference", nil, []byte{tagSequence, 9, 'a'}, ErrMalformed},
		{"cut number", nil, []byte{tagSequence, 1, 'a', 0x80}, ErrMalformed},
		{"long form of a number", nil, []byte{tagSequence, 1, 'a', 0x80, 0}, ErrMalformed},
		{"number beyond 64 bits", nil, []byte{tagSequence, 1, 'a', 255, 255, 255, 255, 255, 255, 255, 255, 255, 2}, ErrMalformed},
		{"good item, then a bad one", nil, []byte{tagSequence, 1, 'a', 1, 0x7f}, ErrMalformed},
		{"sequence twice", nil, []byte{tagSequence, 1, 'a', 1, tagSequence, 1, 'a', 2}, ErrMalformed},
		{"sequences out of order", nil, []byte{tagSequence, 1, 'b', 1, tagSequence, 1, 'a', 2}, ErrMalformed},
		{"short id behind a higher name", nil, []byte{tagSequence, 1, 'b', 1, tagSequenceShort, 0, 2}, ErrMalformed},
		{"short id that nobody gave out", nil, []byte{tagSequenceShort, 1, 1}, ErrMalformed},
		{"short id given out again", nil, []byte{tagSequenceDefine, 0, 1, 'a', 1}, ErrMalformed},
		{"sequence in a delta", func(h *chunk.Header) { h.Type = chunk.Delta }, []byte{tagSequence, 1, 'a', 1}, ErrMalformed},
		{"sequence behind an offset", nil, []byte{tagOffset, 1, 'a', 1, 1, tagSequence, 1, 'a', 1}, ErrMalformed},
		{"version 0", nil, []byte{tagOffset, 1, 'a', 0, 1}, ErrMalformed},
		{"version twice", nil, []byte{tagOffset, 1, 'a', 1, 1, tagOffset, 1, 'b', 0, 1}, ErrMalformed},
		{"version wraps", nil, append([]byte{tagOffset, 1, 'a', 1, 1, tagOffset, 1, 'b'}, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1), ErrMalformed},
		{"version in a barrier", func(h *chunk.Header) { h.Type, h.Flags, h.Epoch = chunk.Delta, chunk.FlagEpochStart, 2 }, []byte{tagOffset, 1, 'a', 1, 1}, ErrMalformed},
		{"snapshot tag in a delta", nil, []byte{tagPublisher, 1, 'a', 1, 1}, ErrMalformed},
		{"no part header", snapshotHeader, []byte{0, 0, 0}, ErrMalformed},
		{"part 0 of 0", snapshotHeader, []byte{0, 0, 0, 0}, ErrMalformed},
		{"flags and part at odds", snapshotHeader, []byte{0, 0, 0, 2}, ErrMalformed},
		{"publisher from the future", snapshotHeader, []byte{0, 0, 0, 1, tagPublisher, 1, 'a', 3, 1}, ErrMalformed},
		{"offset from the future", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'a', 2, 1, 0, 1}, ErrMalformed},
		{"publisher twice", snapshotHeader, []byte{0, 0, 0, 1, tagPublisher, 1, 'a', 1, 1, tagPublisher, 1, 'a', 2, 1}, ErrMalformed},
		{"publishers out of order", snapshotHeader, []byte{0, 0, 0, 1, tagPublisher, 1, 'a', 2, 1, tagPublisher, 1, 'b', 1, 1}, ErrMalformed},
		{"publisher behind an offset", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'a', 1, 1, 0, 1, tagPublisher, 1, 'a', 2, 1}, ErrMalformed},
		{"reference twice", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'a', 1, 1, 0, 1, tagStored, 1, 'a', 1, 2, 0, 1}, ErrMalformed},
		{"references out of order", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'a', 1, 2, 0, 1, tagStored, 1, 'b', 1, 1, 0, 1}, ErrMalformed},
		{"publishers of one chunk out of order", snapshotHeader, []byte{0, 0, 0, 1, tagPublisher, 1, 'b', 1, 1, tagPublisher, 1, 'a', 1, 1}, ErrMalformed},
		{"references of one version out of order", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'b', 1, 0, 0, 1, tagStored, 1, 'a', 1, 0, 0, 1}, ErrMalformed},
		{"age before all time", snapshotHeader, []byte{0, 0, 0, 1, tagStored, 1, 'a', 1, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1}, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := next
			if tt.edit != nil {
				tt.edit(&h)
			}
			if err := l.state.Check(&h, tt.payload); errors.Is(tt.want, ErrMalformed) && !errors.Is(err, tt.want) {
				t.Errorf("check says %v", err)
			}
			if err := l.state.Apply(&h, tt.payload); !errors.Is(err, tt.want) {
				t.Fatalf("got %v", err)
			}
			if bytesOf(t, l.state) != before {
				t.Fatal("the state changed")
			}
		})
	}
}

func snapshotHeader(h *chunk.Header) { h.Type, h.Flags = chunk.Snapshot, partFlags(0, 1) }

// TestState_partsAreBounded splits a big snapshot and puts it together again.
func TestState_partsAreBounded(t *testing.T) {
	l := newTestLog(t, Caps{})
	for i := range 3000 {
		l.store(fmt.Sprintf("consumer-%d", i), chunk.Offset(i))
		if i%100 == 0 {
			l.user(l.take(), SequenceUpdate{Ref: fmt.Sprintf("publisher-%d", i), Sequence: uint64(i)})
		}
	}
	l.delta()
	before := l.state.Stats()
	n := len(l.records)
	l.snapshot(0, 0, 4096)
	parts := l.records[n:]
	bytes := int64(0)
	for _, p := range parts {
		if len(p.payload) > 4096 {
			t.Fatalf("part of %d bytes", len(p.payload))
		}
		bytes += int64(len(p.payload))
	}
	if len(parts) < 10 || bytes > before.SnapshotBytesMax+int64(partHeaderLength*len(parts)) {
		t.Fatalf("%d parts, %d bytes, bound %d", len(parts), bytes, before.SnapshotBytesMax)
	}
	if after := l.state.Stats(); after.Offsets != 3000 || after.Publishers != 30 {
		t.Fatalf("%+v", after)
	}
}
