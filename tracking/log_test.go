package tracking

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// record is one chunk as tracking sees it.
type record struct {
	h       chunk.Header
	payload []byte
}

// testLog is a leader's log: what it writes goes to its own state at once and
// is kept for others to fold.
type testLog struct {
	t       testing.TB
	state   *State
	pending *Pending
	epoch   chunk.Epoch
	now     chunk.Timestamp
	records []record
}

func newTestLog(t testing.TB, caps Caps) *testLog {
	l := &testLog{t: t, state: New(caps, 1), pending: NewPending(caps), now: 1_000_000}
	l.barrier(1)
	return l
}

func (l *testLog) write(typ chunk.Type, flags chunk.Flags, payload []byte) {
	l.t.Helper()
	h := chunk.Header{
		Type: typ, Flags: flags, LSN: l.state.Last().LSN + 1, Epoch: l.epoch, Timestamp: l.now,
		TrailerLength: uint32(len(payload)),
	}
	if err := l.state.Apply(&h, payload); err != nil {
		l.t.Fatalf("own chunk: %v", err)
	}
	l.records = append(l.records, record{h, payload})
}

func (l *testLog) barrier(epoch chunk.Epoch, merged ...Update) {
	l.t.Helper()
	l.epoch = epoch
	flags := chunk.FlagEpochStart
	if len(l.records) == 0 {
		flags |= chunk.FlagSegmentStart | chunk.FlagUnitStart
	}
	l.write(chunk.Delta, flags, EncodeBarrier(nil, merged))
	l.pending.Lead(epoch)
}

func (l *testLog) store(ref string, offset chunk.Offset) Outcome {
	return l.pending.Store(l.state, []byte(ref), offset, l.now)
}

func (l *testLog) take() []Update { return l.pending.Take(nil, chunk.TrailerLengthMax) }

func (l *testLog) delta() { l.t.Helper(); l.write(chunk.Delta, 0, EncodeDelta(nil, l.take())) }

func (l *testLog) user(updates []Update, sequences ...SequenceUpdate) {
	l.t.Helper()
	l.write(chunk.User, 0, l.state.EncodeTrailer(nil, false, sequences, updates))
}

// snapshot opens a segment with the whole state, in parts of at most max bytes.
func (l *testLog) snapshot(first chunk.Offset, grace int64, max int) {
	l.t.Helper()
	parts := l.state.EncodeSnapshot(SnapshotOptions{
		Now: l.now, Epoch: l.epoch, First: first, Grace: grace, PartBytesMax: max,
	}, l.pending)
	for i, p := range parts {
		l.write(chunk.Snapshot, partFlags(i, len(parts)), p)
	}
	l.pending.Clear()
}

func partFlags(i, n int) (f chunk.Flags) {
	if i == 0 {
		f |= chunk.FlagSegmentStart | chunk.FlagSnapshotFirst
	}
	if i == n-1 {
		f |= chunk.FlagSnapshotLast
	}
	return f
}

// step does something at random; small numbers of references make them meet.
func (l *testLog) step(r *rand.Rand) {
	l.now += chunk.Timestamp(r.Intn(1000))
	switch n := r.Intn(20); {
	case n < 8:
		for range r.Intn(4) {
			l.store(randomRef(r), chunk.Offset(r.Intn(50)))
		}
		var updates []Update
		if r.Intn(2) == 0 {
			updates = l.take()
		}
		l.user(updates, l.randomSequences(r)...)
	case n < 14:
		l.store(randomRef(r), chunk.Offset(r.Intn(50)))
		if r.Intn(4) == 0 {
			l.pending.Forget(l.state, []byte(randomRef(r)), l.now)
		}
		if r.Intn(2) == 0 {
			l.delta()
		}
	case n < 15:
		l.barrier(l.epoch + chunk.Epoch(1+r.Intn(2)))
	case n < 17:
		l.snapshot(chunk.Offset(r.Intn(20)), int64(r.Intn(3000)), 40+r.Intn(400))
	default:
		l.write(chunk.User, 0, nil)
	}
}

func (l *testLog) randomSequences(r *rand.Rand) []SequenceUpdate {
	seen := map[string]bool{}
	var out []SequenceUpdate
	for range r.Intn(4) {
		ref := randomRef(r)
		if seen[ref] {
			continue
		}
		seen[ref] = true
		out = append(out, SequenceUpdate{Ref: ref, Sequence: uint64(r.Intn(1000)), Forget: r.Intn(10) == 0})
	}
	for i := range out {
		if out[i].Forget {
			out[i].Sequence = 0
		}
	}
	return out
}

func randomRef(r *rand.Rand) string {
	n := r.Intn(12)
	if n%2 == 0 {
		return fmt.Sprintf("ref%d", n)
	}
	return fmt.Sprintf("a-long-reference-%d", n)
}

func bytesOf(t testing.TB, s *State) string {
	t.Helper()
	b, ok := s.AppendCheckpoint(nil)
	if !ok {
		t.Fatal("state is in the middle of a snapshot")
	}
	return string(b)
}

// fold applies records to a state that starts before the first of them.
func fold(t testing.TB, caps Caps, records []record) *State {
	t.Helper()
	s := New(caps, records[0].h.LSN)
	for i := range records {
		if err := s.Apply(&records[i].h, records[i].payload); err != nil {
			t.Fatalf("fold: %v", err)
		}
	}
	return s
}
