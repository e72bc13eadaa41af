package protocol

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// lines makes an epoch table from pairs of epoch and first LSN.
func lines(pairs ...uint64) EpochTable {
	var t EpochTable
	for i := 0; i < len(pairs); i += 2 {
		if !t.add(EpochLine{Epoch: chunk.Epoch(pairs[i]), LSN: chunk.LSN(pairs[i+1])}) {
			panic("lines out of order")
		}
	}
	return t
}

func TestNewEpochTable_refusesDisorder(t *testing.T) {
	for _, bad := range [][]EpochLine{
		{{Epoch: 0, LSN: 1}},
		{{Epoch: 1, LSN: 0}},
		{{Epoch: 2, LSN: 1}, {Epoch: 2, LSN: 5}},
		{{Epoch: 2, LSN: 1}, {Epoch: 1, LSN: 5}},
		{{Epoch: 1, LSN: 5}, {Epoch: 2, LSN: 5}},
	} {
		if _, err := NewEpochTable(bad); !errors.Is(err, ErrEpochOrder) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestEpochTable_answers(t *testing.T) {
	table := lines(2, 1, 3, 5, 7, 6)
	for _, c := range []struct {
		ask    chunk.Epoch
		le     chunk.Epoch
		end    chunk.LSN
		reason string
	}{
		{1, 0, 0, "older than all"},
		{2, 2, 4, "up to the next line"},
		{3, 3, 5, "one chunk"},
		{5, 3, 5, "an epoch that the log does not have"},
		{7, 7, 9, "the last, up to the tail"},
		{9, 7, 9, "newer than all"},
	} {
		if le, end := table.End(c.ask, 9); le != c.le || end != c.end {
			t.Errorf("%s: End(%d) = %d, %d", c.reason, c.ask, le, end)
		}
	}
	for n, want := range []chunk.Epoch{0, 2, 2, 2, 2, 3, 7, 7} {
		if got := table.At(chunk.LSN(n)); got != want {
			t.Errorf("At(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestEpochTable_keepsWhatHoldsTheStart is C1: retention keeps the line of
// start − 1, truncation to n drops the lines above n and no other.
func TestEpochTable_keepsWhatHoldsTheStart(t *testing.T) {
	for start, want := range map[chunk.LSN]int{1: 3, 2: 3, 5: 3, 6: 2, 7: 1, 20: 1} {
		table := lines(2, 1, 3, 5, 7, 6)
		before := table.At(start - 1)
		table.retain(start)
		if len(table.Lines()) != want || table.At(start-1) != before {
			t.Errorf("log start %d keeps %v", start, table.Lines())
		}
	}
	for n, want := range map[chunk.LSN]int{0: 0, 1: 1, 4: 1, 5: 2, 6: 3, 20: 3} {
		table := lines(2, 1, 3, 5, 7, 6)
		table.truncate(n)
		if len(table.Lines()) != want {
			t.Errorf("cut to %d keeps %v", n, table.Lines())
		}
	}
}

// TestEpochTable_gapLinesAreCopied: a frame on its way must not change when
// retention moves the table.
func TestEpochTable_gapLinesAreCopied(t *testing.T) {
	table := lines(2, 1, 3, 5, 7, 6)
	gap := table.Between(1, 5)
	table.retain(7)
	if want := []EpochLine{{Epoch: 3, LSN: 5}}; !slices.Equal(gap, want) {
		t.Errorf("gap lines became %v", gap)
	}
}

// commonPoint runs the divergence search of C2 to its end, as a follower and
// its leader do one message at a time.
func commonPoint(own *EpochTable, tail chunk.Tail, leader *EpochTable, leaderTail chunk.LSN) chunk.LSN {
	s := search{at: tail}
	for !s.done {
		le, end := leader.End(s.at.Epoch, leaderTail)
		s.step(own, le, end, true)
	}
	return s.at.LSN
}

// history draws logs as elections make them: each epoch's leader has the log
// of some node, up to some LSN, and appends to it.
type history struct {
	logs [4][]chunk.Epoch // epoch of LSN i+1
}

func drawHistory(r *rand.Rand) history {
	var h history
	for e := chunk.Epoch(1); e <= 8; e++ {
		from := h.logs[r.IntN(4)]
		log := slices.Clone(from)
		for range 1 + r.IntN(3) {
			log = append(log, e)
		}
		h.logs[r.IntN(4)] = log
		if r.IntN(2) == 0 { // a follower has part of it
			h.logs[r.IntN(4)] = log[:len(from)+r.IntN(len(log)-len(from)+1)]
		}
	}
	return h
}

func tableOf(log []chunk.Epoch) EpochTable {
	var t EpochTable
	for i, e := range log {
		t.add(EpochLine{Epoch: e, LSN: chunk.LSN(i + 1)})
	}
	return t
}

// TestEpochTable_commonPoint compares the search with the chunks themselves.
// In logs that elections made, two chunks with the same epoch and LSN are one,
// and so is all before them.
func TestEpochTable_commonPoint(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		h := drawHistory(r)
		a, b := h.logs[0], h.logs[1]
		want := 0
		for want < min(len(a), len(b)) && a[want] == b[want] {
			want++
		}
		own, leader := tableOf(a), tableOf(b)
		tail := chunk.Tail{Epoch: own.Last(), LSN: chunk.LSN(len(a))}
		if got := commonPoint(&own, tail, &leader, chunk.LSN(len(b))); got != chunk.LSN(want) {
			t.Fatalf("follower %v, leader %v: %d, want %d", a, b, got, want)
		}
	}
}

func FuzzEpochTable(f *testing.F) {
	f.Add([]byte{1, 1, 2, 3}, []byte{1, 1, 3, 2}, uint8(5), uint8(4))
	f.Fuzz(func(t *testing.T, a, b []byte, tailA, tailB uint8) {
		own, leader := tableOfBytes(a), tableOfBytes(b)
		own.truncate(chunk.LSN(tailA))
		leader.truncate(chunk.LSN(tailB))
		tail := chunk.Tail{Epoch: own.Last(), LSN: chunk.LSN(tailA)}
		if n := commonPoint(&own, tail, &leader, chunk.LSN(tailB)); n > chunk.LSN(tailA) || n > chunk.LSN(tailB) {
			t.Fatalf("common point %d beyond a tail", n)
		}
	})
}

// tableOfBytes takes pairs as steps of epoch and LSN.
func tableOfBytes(b []byte) EpochTable {
	var t EpochTable
	var e chunk.Epoch
	var n chunk.LSN
	for i := 0; i+1 < len(b); i += 2 {
		e, n = e+1+chunk.Epoch(b[i]%4), n+1+chunk.LSN(b[i+1]%8)
		t.add(EpochLine{Epoch: e, LSN: n})
	}
	return t
}
