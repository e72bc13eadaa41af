package segstore

import (
	"errors"
	"io/fs"

	"github.com/millrace/millrace/segstore/chunk"
)

// OnDamage has f called each time that damage is noted in one of the log's
// segments: from anywhere, so it must not block.
func (l *Log) OnDamage(f func()) { l.hurt.Store(&f) }

// DamagedAbove returns what is known to be damaged of the log above the chunk n,
// nil if nothing is. Above the known commit nobody else need have it, so that the
// log's tail is unproven (A7). A sealed segment is one thing: it counts if it
// reaches above n. In the unsealed one the damaged chunk must be above n itself;
// or the file is gone, and what is appended to it with it.
func (l *Log) DamagedAbove(n chunk.LSN) *DamageError {
	for _, s := range l.reachAbove(n) {
		if d := s.harm(); d.above(s, n) {
			return d
		}
	}
	return nil
}

// CheckAbove reads the segments that reach above the chunk n, until damage is
// found as DamagedAbove means it, and returns that; nil if all is good. It reads
// all that there is above n. Error: what the disk says.
func (l *Log) CheckAbove(n chunk.LSN) (*DamageError, error) {
	for _, s := range l.reachAbove(n) {
		d := s.harm()
		if !d.above(s, n) {
			var err error
			if d, err = l.Check(segmentFile(s.name)); err != nil {
				return nil, err
			}
		}
		if d.above(s, n) {
			return d, nil
		}
	}
	return nil, nil
}

func (d *DamageError) above(s *segment, n chunk.LSN) bool {
	return d != nil && (s.summary.Load() != nil || d.First > n || errors.Is(d.Cause, fs.ErrNotExist))
}

// reachAbove returns the segments that may hold chunks above n, the unsealed one
// always.
func (l *Log) reachAbove(n chunk.LSN) (above []*segment) {
	lay := l.layout.Load()
	if lay == nil {
		return nil
	}
	for _, s := range lay.segments {
		if sum := s.summary.Load(); sum == nil || sum.LastLSN > n {
			above = append(above, s)
		}
	}
	return above
}

// DropFrom gives up a damaged sealed segment, or what is damaged in the unsealed
// one, and all behind it, as DropDamaged does the log's end: for a replica that
// is set aside and that a leader is about to fill again. What can be read of the
// file goes to quarantine. Mark and known commit are lowered to the chunk before
// it; so the log must be opened anew behind this. Mutator.
func (l *Log) DropFrom(d *DamageError) (Recovery, error) {
	n := d.Segment.FirstLSN - 1
	if l.active != nil && l.active.name == d.Segment {
		n = d.First - 1
	}
	if err := l.store.keepCopy(d.File, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, l.wrap("keep a copy of the damaged file", err)
	}
	if err := await(l.store.syncer, func(done func(error)) { l.store.journal.Lower(l.inc, n, done) }); err != nil {
		return Recovery{}, l.wrap("lower the known commit", err)
	}
	l.commit.Store(min(l.commit.Load(), uint64(n)))
	return l.Truncate(n)
}
