package segstore

import (
	"errors"
	"io/fs"

	"github.com/millrace/millrace/segstore/chunk"
)

// OnDamage has f called each time that damage is noted in one of the log's
// segments: from anywhere, so it must not block.
func (l *Log) OnDamage(f func()) { l.hurt.Store(&f) }

// DamagedAbove returns what is known to be damaged of the first such sealed
// segment that reaches above the chunk n, nil if there is none. Above the known
// commit nobody else need have it, so that the log's tail is unproven (A7).
func (l *Log) DamagedAbove(n chunk.LSN) *DamageError {
	for _, s := range l.sealedAbove(n) {
		if d := s.harm(); d != nil {
			return d
		}
	}
	return nil
}

// CheckAbove reads the sealed segments that reach above the chunk n, until one is
// found damaged, and returns that damage; nil if all are good. It reads all that
// there is above n. Error: what the disk says.
func (l *Log) CheckAbove(n chunk.LSN) (*DamageError, error) {
	for _, s := range l.sealedAbove(n) {
		if d := s.harm(); d != nil {
			return d, nil
		}
		if d, err := l.Check(segmentFile(s.name)); d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

func (l *Log) sealedAbove(n chunk.LSN) (above []*segment) {
	lay := l.layout.Load()
	if lay == nil {
		return nil
	}
	for _, s := range lay.segments {
		if sum := s.summary.Load(); sum != nil && sum.LastLSN > n {
			above = append(above, s)
		}
	}
	return above
}

// DropFrom gives up a damaged sealed segment and all behind it, as DropDamaged
// does the log's end: for a replica that is set aside and that a leader is about
// to fill again. What can be read of the file goes to quarantine. Mark and known
// commit are lowered to the chunk before it; so the log must be opened anew
// behind this. Mutator.
func (l *Log) DropFrom(d *DamageError) (Recovery, error) {
	n := d.Segment.FirstLSN - 1
	if err := l.store.keepCopy(d.File, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, l.wrap("keep a copy of the damaged file", err)
	}
	if err := await(l.store.syncer, func(done func(error)) { l.store.journal.Lower(l.inc, n, done) }); err != nil {
		return Recovery{}, l.wrap("lower the known commit", err)
	}
	l.commit.Store(min(l.commit.Load(), uint64(n)))
	return l.Truncate(n)
}
