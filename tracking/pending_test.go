package tracking

import (
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func refs(updates []Update) (out []string) {
	for _, u := range updates {
		out = append(out, fmt.Sprintf("%s=%d v%d.%d", u.Ref, u.Offset, u.Epoch, u.Version))
	}
	return out
}

func want(t *testing.T, got []Update, want ...string) {
	t.Helper()
	if g := refs(got); !slices.Equal(g, want) {
		t.Fatalf("got  %q\nwant %q", g, want)
	}
}

// TestPending_outcomes is 4.2 and F6 on one reference, step by step.
func TestPending_outcomes(t *testing.T) {
	l := newTestLog(t, Caps{})
	for i, step := range []struct {
		offset chunk.Offset
		want   Outcome
		len    int
	}{
		{10, Forward, 1}, {10, Same, 1}, {12, Forward, 1}, {11, Back, 1},
	} {
		if got := l.store("a", step.offset); got != step.want || l.pending.Len() != step.len {
			t.Fatalf("step %d: %v, %d pending", i, got, l.pending.Len())
		}
	}
	want(t, l.pending.Append(nil), "a=11 v1.3")
	l.delta()
	if got := l.store("a", 11); got != Same || l.pending.Len() != 0 {
		t.Fatalf("a value already written is pending again: %v", got)
	}
	if got := l.store("a", 3); got != Back {
		t.Fatalf("below what is written: %v", got)
	}
	// Back to the written value is a move too: followers hold the 3.
	if got := l.store("a", 11); got != Forward || l.pending.Len() != 1 {
		t.Fatalf("got %v", got)
	}
	if l.store("zero", 0) != Forward {
		t.Fatal("offset 0 is not stored")
	}
	if v, ok := l.pending.Current(l.state, []byte("zero")); v != 0 || !ok {
		t.Fatal("offset 0 is not there")
	}
	if _, ok := l.pending.Current(l.state, []byte("none")); ok {
		t.Fatal("an id that nobody stored is there")
	}
	if l.store("top", 1<<64-1) != Forward {
		t.Fatal("the highest offset is not stored")
	}
}

func TestPending_takeOldestFirst(t *testing.T) {
	p := NewPending(Caps{})
	p.Lead(1)
	s := New(Caps{}, 1)
	for i, ref := range []string{"a", "b", "c", "a"} {
		p.Store(s, []byte(ref), chunk.Offset(i+1), 0)
	}
	want(t, p.Take(nil, 2*UpdateLengthMax(1)), "b=2 v1.2", "c=3 v1.3")
	want(t, p.Take(nil, 1000), "a=4 v1.4")
	if p.Len() != 0 || p.Bytes() != 0 {
		t.Fatalf("%d left, %d bytes", p.Len(), p.Bytes())
	}
}

func TestPending_since(t *testing.T) {
	p := NewPending(Caps{})
	p.Lead(2)
	s := New(Caps{}, 1)
	p.Add(Update{Ref: "old", Epoch: 1, Version: 99})
	for i, ref := range []string{"a", "b", "c", "a"} {
		p.Store(s, []byte(ref), chunk.Offset(i+1), 0)
	}
	want(t, p.AppendSince(nil, 0), "b=2 v2.2", "c=3 v2.3", "a=4 v2.4")
	want(t, p.AppendSince(nil, 2), "c=3 v2.3", "a=4 v2.4")
	want(t, p.AppendSince(nil, 4))
	want(t, NewPending(Caps{}).AppendSince(nil, 0))
}

func TestPending_cap(t *testing.T) {
	p := NewPending(Caps{Offsets: 2})
	p.Lead(1)
	s := New(Caps{Offsets: 2}, 1)
	for i, ref := range []string{"a", "b", "a", "c"} {
		p.Store(s, []byte(ref), chunk.Offset(i+1), 0)
	}
	want(t, p.Append(nil), "a=3 v1.3", "c=4 v1.4")
	if p.Dropped() != 1 {
		t.Fatalf("dropped %d", p.Dropped())
	}
}

// TestPending_mergeByEpochAndVersion: never by the larger offset (F5).
func TestPending_mergeByEpochAndVersion(t *testing.T) {
	reports := []Update{
		{Ref: "a", Offset: 900, Epoch: 2, Version: 7},
		{Ref: "a", Offset: 5, Epoch: 3, Version: 1},
		{Ref: "b", Offset: 10, Epoch: 3, Version: 4},
		{Ref: "b", Offset: 99, Epoch: 3, Version: 3},
		{Ref: "c", Offset: 1, Epoch: 1, Version: 1},
	}
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		r.Shuffle(len(reports), func(i, j int) { reports[i], reports[j] = reports[j], reports[i] })
		p := NewPending(Caps{})
		p.Merge(reports)
		want(t, p.Append(nil), "c=1 v1.1", "a=5 v3.1", "b=10 v3.4")
	}
}

// TestPending_forBarrier: written only if the epoch is above the tail's, or
// equal and not covered.
func TestPending_forBarrier(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.barrier(3)
	for _, ref := range []string{"covered", "same", "behind"} {
		l.store(ref, 100)
	}
	l.delta()
	p := NewPending(Caps{})
	p.Merge([]Update{
		{Ref: "covered", Offset: 1, Epoch: 3, Version: 0},
		{Ref: "same", Offset: 2, Epoch: 3, Version: 2},
		{Ref: "behind", Offset: 3, Epoch: 3, Version: 9},
		{Ref: "unheard", Offset: 4, Epoch: 3, Version: 1},
		{Ref: "older", Offset: 5, Epoch: 2, Version: 99},
		{Ref: "later", Offset: 6, Epoch: 4, Version: 1},
	})
	got := p.ForBarrier(l.state, l.state.Last())
	slices.SortFunc(got, func(a, b Update) int { return int(a.Offset) - int(b.Offset) })
	want(t, got, "behind=3 v3.9", "unheard=4 v3.1", "later=6 v4.1")
	if p.Len() != 0 || p.Bytes() != 0 {
		t.Fatal("the set is not empty")
	}
	l.barrier(5, got...)
	v, _ := l.state.Offset([]byte("behind"))
	if v.Offset != 3 || v.Epoch != 5 || v.Version != 0 {
		t.Fatalf("%+v", v)
	}
}

// TestPending_observe is F5's rule of dropping, as a table.
func TestPending_observe(t *testing.T) {
	held := []Update{
		{Ref: "a", Offset: 1, Epoch: 3, Version: 5},
		{Ref: "b", Offset: 2, Epoch: 3, Version: 6},
	}
	delta := func(version uint64, ref string) []byte {
		return EncodeDelta(nil, []Update{{Ref: ref, Offset: 9, Epoch: 3, Version: version}})
	}
	snapshot := func(version uint64) []byte {
		s := New(Caps{}, 1)
		s.setOffset([]byte("a"), 3, version, stored{offset: 9})
		s.setOffset([]byte("b"), 2, 99, stored{offset: 9})
		return s.EncodeSnapshot(SnapshotOptions{Epoch: 3}, nil)[0]
	}
	tests := []struct {
		name    string
		h       chunk.Header
		payload []byte
		want    []string
	}{
		{"user chunk without a trailer", chunk.Header{Epoch: 3}, nil, []string{"a=1 v3.5", "b=2 v3.6"}},
		{"lower version", chunk.Header{Epoch: 3}, delta(4, "a"), []string{"a=1 v3.5", "b=2 v3.6"}},
		{"own version", chunk.Header{Epoch: 3}, delta(5, "a"), []string{"b=2 v3.6"}},
		{"higher version", chunk.Header{Epoch: 3, Type: chunk.Delta}, delta(7, "a"), []string{"b=2 v3.6"}},
		{"higher version of another id", chunk.Header{Epoch: 3}, delta(7, "c"), []string{"a=1 v3.5", "b=2 v3.6"}},
		{"earlier epoch", chunk.Header{Epoch: 2}, delta(7, "a"), []string{"a=1 v3.5", "b=2 v3.6"}},
		{"barrier of its own epoch", chunk.Header{Epoch: 3, Type: chunk.Delta, Flags: chunk.FlagEpochStart}, EncodeBarrier(nil, []Update{{Ref: "a"}}), []string{"a=1 v3.5", "b=2 v3.6"}},
		{"barrier of the next epoch", chunk.Header{Epoch: 4, Type: chunk.Delta, Flags: chunk.FlagEpochStart}, nil, nil},
		{"snapshot that covers one", chunk.Header{Epoch: 3, Type: chunk.Snapshot}, snapshot(5), []string{"b=2 v3.6"}},
		{"snapshot that covers none", chunk.Header{Epoch: 3, Type: chunk.Snapshot}, snapshot(4), []string{"a=1 v3.5", "b=2 v3.6"}},
		{"deletion", chunk.Header{Epoch: 3}, EncodeDelta(nil, []Update{{Ref: "a", Forget: true, Version: 6}}), []string{"b=2 v3.6"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := NewPending(Caps{})
			p.Merge(held)
			p.Observe(&tt.h, tt.payload)
			want(t, p.Append(nil), tt.want...)
		})
	}
}

// TestPending_nothingIsLostBetweenLeaders plays leader, follower and election
// with one register for each id: the winner's state is the last value that the
// follower was told of, or a later one from the log; never an older one (4.2).
func TestPending_nothingIsLostBetweenLeaders(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		leader := newTestLog(t, Caps{})
		follower := New(Caps{}, 1)
		held := NewPending(Caps{})
		epoch := chunk.Epoch(1)
		taken := 0
		take := func(n int) {
			for ; taken < n; taken++ {
				rec := &leader.records[taken]
				apply(t, follower, rec.h, rec.payload)
				held.Observe(&rec.h, rec.payload)
			}
		}
		take(1)
		for range 30 {
			told := map[string]chunk.Offset{}
			var sent uint64
			for range r.Intn(20) {
				switch r.Intn(4) {
				case 0, 1:
					leader.store(fmt.Sprint("id", r.Intn(4)), chunk.Offset(r.Intn(100)))
				case 2:
					if leader.pending.Len() > 0 {
						leader.delta()
					}
				case 3:
					// The lane is ordered: chunks first, then what is pending.
					take(len(leader.records))
					held.Merge(leader.pending.AppendSince(nil, sent))
					sent = leader.pending.Version()
					for i := range 4 {
						ref := fmt.Sprint("id", i)
						if v, ok := leader.pending.Current(leader.state, []byte(ref)); ok {
							told[ref] = v
						}
					}
				}
			}
			take(taken + r.Intn(len(leader.records)-taken+1))
			// The leader is gone; the follower wins with what it has.
			epoch++
			wantAfter := map[string]chunk.Offset{}
			for ref, v := range told {
				wantAfter[ref] = v
			}
			for i := range leader.records[:taken] {
				for it := ItemsIn(leader.records[i].payload); it.Next(); {
					item := it.Item()
					e, ok := follower.Offset(item.Ref)
					u, has := held.Lookup(item.Ref)
					if ok && (!has || u.Epoch == e.Epoch && u.Version <= e.Version) {
						wantAfter[string(item.Ref)] = e.Offset
					}
				}
			}
			merged := held.ForBarrier(follower, follower.Last())
			next := &testLog{t: t, state: follower, pending: NewPending(Caps{}), now: leader.now, records: slices.Clone(leader.records[:taken])}
			next.barrier(epoch, merged...)
			for ref, v := range wantAfter {
				if got, _ := next.state.Offset([]byte(ref)); got.Offset != v {
					t.Fatalf("seed %d, epoch %d: %s is %d, want %d", seed, epoch, ref, got.Offset, v)
				}
			}
			leader = next
			follower = fold(t, Caps{}, leader.records)
			if bytesOf(t, follower) != bytesOf(t, leader.state) {
				t.Fatalf("seed %d: fold differs", seed)
			}
			taken = len(leader.records)
			held = NewPending(Caps{})
		}
	}
}

func TestUpdates_codec(t *testing.T) {
	in := []Update{
		{Ref: "a", Offset: 1<<64 - 1, Time: -5, Epoch: 1, Version: 1},
		{Ref: "b", Forget: true, Time: 1700000000000, Epoch: 2, Version: 1 << 63},
		{Ref: "c", Offset: 7, Epoch: 3, Version: 3},
	}
	b := EncodeUpdates(nil, in, 1<<20)
	out, err := DecodeUpdates(nil, b, 3)
	if err != nil || !reflect.DeepEqual(in, out) {
		t.Fatalf("%+v, %v", out, err)
	}
	last := EncodeUpdates(nil, in[2:], 1<<20)
	if got := EncodeUpdates(nil, in, len(last)); string(got) != string(last) {
		t.Fatalf("room for the newest: %x", got)
	}
	if got := EncodeUpdates(nil, in, len(last)-1); len(got) != 0 {
		t.Fatalf("no room: %x", got)
	}
	for cut := 1; cut < len(last); cut++ {
		if _, err := DecodeUpdates(nil, last[:cut], 3); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	if _, err := DecodeUpdates(nil, b, 2); !errors.Is(err, ErrMalformed) {
		t.Fatalf("beyond the limit: %v", err)
	}
	if _, err := DecodeUpdates(nil, append([]byte{2}, last[1:]...), 3); !errors.Is(err, ErrMalformed) {
		t.Fatalf("flag 2: %v", err)
	}
}
