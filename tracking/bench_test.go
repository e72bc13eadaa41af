package tracking

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// busy is a state of 1,000 stored offsets and as many publishers, and the
// references as the wire gives them.
func busy(t testing.TB) (*testLog, [][]byte) {
	l := newTestLog(t, Caps{})
	var names [][]byte
	for i := range 1000 {
		name := fmt.Sprintf("consumer-or-publisher-%03d", i)
		names = append(names, []byte(name))
		l.store(name, 1)
		l.user(nil, SequenceUpdate{Ref: name, Sequence: 1})
	}
	l.delta()
	return l, names
}

// TestState_allocatesNothing: looking up and updating references that exist.
func TestState_allocatesNothing(t *testing.T) {
	l, names := busy(t)
	p := NewPacer(Pacing{}, l.pending, l.now)
	payload := make([]byte, 0, 1<<16)
	updates := make([]Update, 0, 1000)
	sequences := make([]SequenceUpdate, 3)
	refs := []string{string(names[0]), string(names[1]), string(names[2])}
	offset := chunk.Offset(1)
	h := chunk.Header{Type: chunk.User, LSN: l.state.Last().LSN, Epoch: 1}
	cycle := func() {
		offset++
		l.now += 5000
		for _, name := range names {
			if _, ok := l.state.Sequence(name); !ok {
				t.Fatal("not there")
			}
			p.Store(l.state, name, offset, l.now, l.now)
		}
		for i := range sequences {
			sequences[i] = SequenceUpdate{Ref: refs[i], Sequence: uint64(offset)}
		}
		p.UserBytes(l.now, 10<<20)
		if d := p.Decide(l.now, true); d.Action != Ride {
			t.Fatalf("got %v", d)
		}
		updates = l.pending.Take(updates[:0], chunk.TrailerLengthMax)
		payload = l.state.EncodeTrailer(payload[:0], false, sequences, updates)
		h.LSN++
		h.Timestamp = l.now
		if err := l.state.Apply(&h, payload); err != nil {
			t.Fatal(err)
		}
		p.Written(l.now, int64(len(payload)))
	}
	cycle()
	if n := testing.AllocsPerRun(20, cycle); n != 0 {
		t.Fatalf("%v allocations for 1,000 stores and a trailer", n)
	}
}

func BenchmarkState_Sequence(b *testing.B) {
	l, names := busy(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := l.state.Sequence(names[i%len(names)]); !ok {
			b.Fatal("not there")
		}
	}
}

func BenchmarkPacer_Store(b *testing.B) {
	l, names := busy(b)
	p := NewPacer(Pacing{}, l.pending, l.now)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Store(l.state, names[i%len(names)], chunk.Offset(2+i), l.now, l.now)
	}
}

// BenchmarkState_Apply folds a trailer with one publisher under its short id,
// and one stored offset: what a user chunk costs.
func BenchmarkState_Apply(b *testing.B) {
	l, _ := busy(b)
	sequences := []SequenceUpdate{{Ref: "consumer-or-publisher-007", Sequence: 2}}
	updates := []Update{{Ref: "consumer-or-publisher-008", Offset: 5, Version: 5000}}
	payload := l.state.EncodeTrailer(nil, false, sequences, updates)
	h := chunk.Header{Type: chunk.User, LSN: l.state.Last().LSN, Epoch: 1}
	b.ReportAllocs()
	for b.Loop() {
		h.LSN++
		if err := l.state.Apply(&h, payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSnapshot encodes and folds a full state: 10,000 offsets and 65,536
// publishers.
func BenchmarkSnapshot(b *testing.B) {
	l := newTestLog(b, Caps{})
	var sequences []SequenceUpdate
	for i := range PublishersMaxDefault {
		sequences = append(sequences, SequenceUpdate{Ref: fmt.Sprintf("publisher-%d", i), Sequence: uint64(i)})
	}
	l.user(nil, sequences...)
	for i := range OffsetsMaxDefault {
		l.store(fmt.Sprintf("consumer-%d", i), chunk.Offset(i))
	}
	l.delta()
	n := 0
	for b.Loop() {
		l.records = l.records[:0]
		l.snapshot(0, GraceDefault, 0)
		n = 0
		for _, r := range l.records {
			n += len(r.payload)
		}
	}
	b.ReportMetric(float64(n), "bytes")
}
