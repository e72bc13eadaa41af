package protocol

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// EpochLine says where an epoch begins in a log.
type EpochLine struct {
	Epoch  chunk.Epoch
	LSN    chunk.LSN    // of its first chunk
	Offset chunk.Offset // of that chunk
}

// EpochTable is a log's epochs in order (C1). It says which epoch an LSN is
// of even where compaction has dropped the chunk, and so finds where two logs
// part without looking at a chunk.
//
// Invariant: epochs and LSNs of the lines both strictly increase.
type EpochTable struct {
	lines []EpochLine
}

// NewEpochTable checks and takes the lines, which must be in order.
func NewEpochTable(lines []EpochLine) (EpochTable, error) {
	var t EpochTable
	for _, l := range lines {
		if !t.fits(l) {
			return EpochTable{}, fmt.Errorf("epoch line %d at LSN %d: %w", l.Epoch, l.LSN, ErrEpochOrder)
		}
		t.lines = append(t.lines, l)
	}
	return t, nil
}

// Lines are the table's lines; the caller must not change them.
func (t *EpochTable) Lines() []EpochLine { return t.lines }

func (t *EpochTable) fits(l EpochLine) bool {
	if len(t.lines) == 0 {
		return l.Epoch > 0 && l.LSN > 0
	}
	last := t.lines[len(t.lines)-1]
	return l.Epoch > last.Epoch && l.LSN > last.LSN
}

// add enters the line of an epoch's first chunk; a line that is there already
// changes nothing. It reports false if the line breaks the order.
func (t *EpochTable) add(l EpochLine) bool {
	if n := len(t.lines); n > 0 && t.lines[n-1].Epoch == l.Epoch {
		return true
	}
	if !t.fits(l) {
		return false
	}
	t.lines = append(t.lines, l)
	return true
}

// Last is the newest epoch, 0 in an empty log.
func (t *EpochTable) Last() chunk.Epoch {
	if len(t.lines) == 0 {
		return 0
	}
	return t.lines[len(t.lines)-1].Epoch
}

// At is the epoch of an LSN at or below the tail, 0 before the first line.
func (t *EpochTable) At(n chunk.LSN) chunk.Epoch {
	for _, l := range slices.Backward(t.lines) {
		if l.LSN <= n {
			return l.Epoch
		}
	}
	return 0
}

// Line returns the line of the epoch of an LSN.
func (t *EpochTable) Line(n chunk.LSN) EpochLine {
	for _, l := range slices.Backward(t.lines) {
		if l.LSN <= n {
			return l
		}
	}
	return EpochLine{}
}

// End answers a search step (C2): the largest epoch at or below e that the log
// holds, and that epoch's last LSN given the log's tail. Both are 0 if there
// is none.
func (t *EpochTable) End(e chunk.Epoch, tail chunk.LSN) (chunk.Epoch, chunk.LSN) {
	end := tail
	for _, l := range slices.Backward(t.lines) {
		if l.Epoch <= e {
			return l.Epoch, end
		}
		end = l.LSN - 1
	}
	return 0, 0
}

// Between returns the lines whose first LSN is above from and at most to: what
// a gap's frame must carry (C5). It is a copy, since the frame may outlive it.
func (t *EpochTable) Between(from, to chunk.LSN) []EpochLine {
	i := slices.IndexFunc(t.lines, func(l EpochLine) bool { return l.LSN > from })
	if i < 0 {
		return nil
	}
	j := i
	for j < len(t.lines) && t.lines[j].LSN <= to {
		j++
	}
	return slices.Clone(t.lines[i:j])
}

// truncate drops the lines that begin above n (C1).
func (t *EpochTable) truncate(n chunk.LSN) {
	for len(t.lines) > 0 && t.lines[len(t.lines)-1].LSN > n {
		t.lines = t.lines[:len(t.lines)-1]
	}
}

// retain drops the lines before the one that holds start − 1 (C1).
func (t *EpochTable) retain(start chunk.LSN) {
	keep := 0
	for i, l := range t.lines {
		if l.LSN < start {
			keep = i
		}
	}
	t.lines = slices.Delete(t.lines, 0, keep)
}

// reset makes the table that of a log that begins at a given start (C4).
func (t *EpochTable) reset(s LogStart) {
	t.lines = t.lines[:0]
	if s.LSN > 1 {
		t.lines = append(t.lines, s.Line)
	}
}

// search is the follower's side of the divergence search.
type search struct {
	at   chunk.Tail // candidate; its epoch strictly falls until done
	done bool
}

// step takes the leader's answer (le, end) to s.at. With own off the candidate
// is bounded by the leader's table alone, which is not enough (owntable).
func (s *search) step(t *EpochTable, le chunk.Epoch, end chunk.LSN, own bool) {
	n := min(s.at.LSN, end)
	if le >= s.at.Epoch || n == 0 {
		s.at.LSN, s.done = n, true
		return
	}
	if !own {
		s.at = chunk.Tail{Epoch: le, LSN: n}
		return
	}
	_, ownEnd := t.End(le, s.at.LSN)
	n = min(n, ownEnd)
	s.at = chunk.Tail{Epoch: t.At(n), LSN: n}
	s.done = n == 0
}
