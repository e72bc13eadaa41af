package segstore

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// Gap is chunks that compaction had dropped at the leader before the follower
// got them (C5). All of them were control chunks below the leader's commit.
type Gap struct {
	Last chunk.LSN // of the missing chunks; the first follows the tail
	// Lines are those of epochs that begin inside.
	Lines []manifest.EpochLine
	// Segments begin inside, ascending.
	Segments []GapSegment
}

// GapSegment is a segment whose first chunk is missing.
type GapSegment struct {
	FirstLSN  chunk.LSN
	UnitStart bool
}

// Skip passes a gap: the next chunk follows on Gap.Last. Epoch lines are durable
// when it returns; that there is a gap is known from the chunk behind it alone,
// so a crash in between leaves the log before the gap.
//
// Where segments begin inside, one begins here too, right behind the tail, so
// that no segment ends in a gap; the others would hold nothing. Mutator.
//
// Errors: ErrNotContiguous, what the disk says, ErrPoisoned, ErrDamaged,
// ErrClosed.
func (l *Log) Skip(g Gap) error {
	if err := l.Err(); err != nil {
		return err
	}
	if g.Last <= l.tail.LSN {
		return l.wrap("skip", fmt.Errorf("%w: gap to %d after %s", ErrNotContiguous, g.Last, l.tail))
	}
	if err := l.noteLines(g.Lines); err != nil {
		return l.wrap(fmt.Sprintf("skip to %d", g.Last), err)
	}
	if err := l.beginBehind(g.Segments); err != nil {
		return l.wrap(fmt.Sprintf("skip to %d", g.Last), err)
	}
	l.skipped = g.Last
	return nil
}

// beginBehind sees to it that the chunk behind a gap begins a segment if any
// begin inside, and a unit if any of these does: no chunk will say so, so
// MANIFEST must.
func (l *Log) beginBehind(inside []GapSegment) error {
	if len(inside) == 0 {
		return nil
	}
	if l.active != nil && l.summary.Size > 0 {
		if err := l.seal(); err != nil {
			return err
		}
	}
	lsn, _, _, _ := l.state.End()
	if l.state.UnitStart == lsn || !slices.ContainsFunc(inside, func(s GapSegment) bool { return s.UnitStart }) {
		return nil
	}
	return l.note(&manifest.Record{Kind: manifest.KindUnit, LSN: lsn})
}

// note writes a record to MANIFEST and folds it.
func (l *Log) note(r *manifest.Record) error {
	if err := l.records.append(r); err != nil {
		return l.condemn(err, l.records.broken)
	}
	if err := l.state.Apply(r); err != nil {
		return l.condemn(err, err)
	}
	return nil
}

// before returns what the next chunk must follow on: the tail, or the end of a
// gap behind it.
func (l *Log) before() chunk.Tail {
	if l.skipped > l.tail.LSN {
		return l.tailAt(l.skipped)
	}
	return l.tail
}

// noteLines writes epoch lines to MANIFEST, those of the active segment first:
// they stand there in order.
func (l *Log) noteLines(lines []manifest.EpochLine) error {
	if len(lines) == 0 {
		return nil
	}
	all := append(append([]manifest.EpochLine(nil), l.summary.Lines...), lines...)
	for _, line := range all {
		if err := l.note(&manifest.Record{Kind: manifest.KindLine, Line: line}); err != nil {
			return err
		}
	}
	return nil
}

// tailAt is the place of a missing chunk behind the tail.
func (l *Log) tailAt(lsn chunk.LSN) chunk.Tail {
	epoch := l.tail.Epoch
	for _, line := range l.state.Lines {
		if line.LSN <= lsn {
			epoch = max(epoch, line.Epoch)
		}
	}
	return chunk.Tail{Epoch: epoch, LSN: lsn}
}

// passGap moves the tail over missing chunks up to an LSN, right before the
// chunk behind them is counted.
func (l *Log) passGap(to chunk.LSN) {
	l.skipped = 0
	if to <= l.tail.LSN {
		return
	}
	tail := l.tailAt(to)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = tail
	l.summary.DroppedLSN = max(l.summary.DroppedLSN, to)
}

// lastChunk returns the last chunk of the log at or below n: n, unless that is in a
// gap.
func (l *Log) lastChunk(n chunk.LSN) (chunk.LSN, error) {
	lay := l.layout.Load()
	i := lay.holding(n)
	if i < 0 {
		return n, nil
	}
	last := lay.segments[i].name.FirstLSN - 1
	r := l.AttachLSN(last + 1)
	defer r.Close()
	for {
		v, ok, err := r.Next(n)
		if err != nil || !ok {
			return last, err
		}
		last = v.Header.LSN
		v.Release()
	}
}

// newSummary returns the summary of a segment whose first chunk will be h. In a
// segment whose head is missing that chunk is not where the segment begins.
func (l *Log) newSummary(name manifest.Name, h *chunk.Header) manifest.Summary {
	s := manifest.NewSummary(l.inc, name.Generation, h)
	if l.state.UnitStart == name.FirstLSN {
		s.UnitStart, l.unit = true, unitCount{}
	}
	if h.LSN > name.FirstLSN {
		_, _, _, before := l.state.End()
		s.FirstLSN, s.LastLSN = name.FirstLSN, name.FirstLSN-1
		s.FirstEpoch = before.Epoch
		for _, line := range l.state.Lines {
			if line.LSN <= name.FirstLSN {
				s.FirstEpoch = max(s.FirstEpoch, line.Epoch)
			}
		}
	}
	return s
}
