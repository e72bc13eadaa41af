package protocol

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func TestCommitment(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  chunk.LSN
		quorum int
		acks   []chunk.LSN
		held   chunk.LSN
		want   chunk.LSN
	}{
		{"alone", 1, 1, []chunk.LSN{7}, 7, 7},
		{"no voter, no commit", 1, 0, nil, 0, 0},
		{"two of three", 1, 2, []chunk.LSN{5, 9, 7}, 7, 7},
		{"three of five, two silent", 1, 3, []chunk.LSN{5, 9, 7}, 5, 5},
		{"a majority is missing", 1, 3, []chunk.LSN{5, 9}, 0, 0},
		{"set aside stays in the denominator", 1, 2, []chunk.LSN{9}, 0, 0},
		{"four need three", 1, 3, []chunk.LSN{4, 3, 2, 1}, 2, 2},
	} {
		k := Commitment{First: c.first, Quorum: c.quorum}
		for range 2 { // a second count starts afresh
			k.Begin()
			for _, a := range c.acks {
				k.Count(a)
			}
		}
		if k.Held() != c.held || k.Committed() != c.want {
			t.Errorf("%s: held %d, committed %d", c.name, k.Held(), k.Committed())
		}
	}
}

// TestCommitment_ignoresEarlierEpoch is B4: a chunk of an older epoch is not
// committed by being on a majority, but with the first of the own.
func TestCommitment_ignoresEarlierEpoch(t *testing.T) {
	k := Commitment{First: 10, Quorum: 2}
	k.Begin()
	k.Count(9)
	k.Count(20)
	if k.Held() != 9 || k.Committed() != 0 {
		t.Errorf("held %d, committed %d", k.Held(), k.Committed())
	}
	k.Count(10)
	if k.Committed() != 10 {
		t.Errorf("committed %d", k.Committed())
	}
}

// TestCommitment_noBarrierNoCommit: before the barrier is written there is no
// chunk of the own epoch.
func TestCommitment_noBarrierNoCommit(t *testing.T) {
	k := Commitment{Quorum: 1}
	k.Begin()
	k.Count(5)
	if k.Committed() != 0 {
		t.Errorf("committed %d", k.Committed())
	}
}

func TestBacklog(t *testing.T) {
	var b backlog
	chunkAt := func(n chunk.LSN) *Chunk {
		return &Chunk{LSN: n, Offset: chunk.Offset(10 * (n - 1)), Records: 10, Bytes: 7}
	}
	for n := chunk.LSN(1); n <= 500; n++ {
		b.push(chunkAt(n))
		if n%3 == 0 {
			if end, ok := b.release(n - 1); !ok || end != chunk.Offset(10*(n-1)) {
				t.Fatalf("release %d: %d %v", n-1, end, ok)
			}
		}
	}
	if b.n != 3 || b.bytes != 21 { // 499, 500 and 498 were never released
		t.Fatalf("%d entries, %d bytes", b.n, b.bytes)
	}
	b.truncate(498)
	if end, ok := b.release(600); !ok || end != 4980 || b.bytes != 0 {
		t.Fatalf("after a cut: %d %v, %d bytes", end, ok, b.bytes)
	}
	if _, ok := b.release(600); ok {
		t.Fatal("released nothing twice")
	}
	b.push(chunkAt(499))
	b.push(chunkAt(520)) // a gap: all before it was committed
	if b.n != 1 || b.first != 520 || b.bytes != 7 {
		t.Fatalf("after a gap: %+v", b)
	}
}

func TestFlight(t *testing.T) {
	var f flight
	l := Limits{WindowBytes: 1000, WindowChunks: 200}
	for n := chunk.LSN(1); !f.full(l); n++ {
		f.add(n, 10)
	}
	if f.n != 100 || f.bytes != 1000 {
		t.Fatalf("bounded by bytes: %d chunks, %d bytes", f.n, f.bytes)
	}
	f.release(60)
	for n := chunk.LSN(101); !f.full(l); n++ {
		f.add(n, 1)
	}
	if f.n != 200 || f.bytes != 560 {
		t.Fatalf("bounded by chunks: %d chunks, %d bytes", f.n, f.bytes)
	}
	f.reset()
	f.add(1, 5000)
	if f.n != 1 || !f.full(l) {
		t.Fatal("one that is larger than the window goes alone")
	}
	f.release(1)
	if f.full(l) {
		t.Fatal("an empty window has room")
	}
}
