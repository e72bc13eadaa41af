package segstore

import (
	"errors"
	"fmt"
	"os"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/tracking"
)

// Stamp writes this replica's durable LSN into a chunk that came from a leader
// and was verified; a follower does so before it appends. Mutator.
func (l *Log) Stamp(c *Chunk) {
	c.Header.SyncedLSN = l.Durable().LSN
	c.Header.HeadCRC = chunk.Restamp(l.inc, c.Head, c.Header.SyncedLSN)
}

// Append adds chunks that continue the log, in one write as far as they share a
// segment; a chunk flagged segment-start seals the active segment first. The
// log and its cache take counts of the chunks, whose bytes must not change from
// now on; they count as durable once Sync says so. After an error the chunks
// that are in the log are those up to Tail, and the file ends there. Mutator.
//
// Errors: ErrNotContiguous before anything is written, what the disk says,
// ErrPoisoned, ErrDamaged, ErrClosed.
func (l *Log) Append(chunks ...*Chunk) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.checkContinues(chunks); err != nil {
		return err
	}
	for len(chunks) > 0 {
		run := 1
		for run < len(chunks) && !chunks[run].Header.Has(chunk.FlagSegmentStart) {
			run++
		}
		if err := l.appendRun(chunks[:run]); err != nil {
			return l.wrap(fmt.Sprintf("append chunk %d", chunks[0].Header.LSN), err)
		}
		chunks = chunks[run:]
	}
	return nil
}

// checkContinues holds every chunk against the one before it (B2).
func (l *Log) checkContinues(chunks []*Chunk) error {
	tail, next, digest, last := l.before(), l.next, l.digest, l.last
	for _, c := range chunks {
		h := &c.Header
		if err := continues(h, tail, next, digest, last); err != nil {
			return l.wrap("append", err)
		}
		tail, next, digest, last = h.Tail(), h.Next(), h.DigestAfter(), h.Timestamp
	}
	return nil
}

// continues tells whether a chunk follows on what is before it.
// Error: ErrNotContiguous.
func continues(h *chunk.Header, tail chunk.Tail, next chunk.Offset, digest chunk.Digest, last chunk.Timestamp) error {
	bad := func(what string, got, want any) error {
		return fmt.Errorf("%w: chunk %d after %s: %s %v, want %v", ErrNotContiguous, h.LSN, tail, what, got, want)
	}
	switch {
	case h.LSN != tail.LSN+1:
		return bad("LSN", h.LSN, tail.LSN+1)
	case h.Epoch < tail.Epoch:
		return bad("epoch", h.Epoch, tail.Epoch)
	case h.BaseOffset != next:
		return bad("base offset", h.BaseOffset, next)
	case h.DigestBefore != digest:
		return bad("digest", h.DigestBefore, digest)
	case h.Timestamp < last:
		return bad("timestamp", h.Timestamp, last)
	}
	return nil
}

// appendRun writes chunks that go to one segment.
func (l *Log) appendRun(run []*Chunk) error {
	first := &run[0].Header
	if l.active != nil && first.Has(chunk.FlagSegmentStart) && l.summary.Size > 0 {
		if err := l.seal(); err != nil {
			return err
		}
	}
	switch {
	case l.active == nil:
		if err := l.begin(first); err != nil {
			return err
		}
	case l.summary.Size == 0: // the chunk that it was begun for could not be written
		l.setSummary(l.newSummary(l.active.name, first))
	}
	s := l.active
	h, err := l.store.handles.acquire(s)
	if err != nil {
		return err
	}
	defer l.store.handles.release(h)

	l.buffers = l.buffers[:0]
	total := 0
	for _, c := range run {
		l.buffers = append(l.buffers, c.Head)
		if len(c.Data) > 0 {
			l.buffers = append(l.buffers, c.Data)
		}
		total += len(c.Head) + len(c.Data)
	}
	position := l.summary.Size
	n, err := h.WriteVAt(l.buffers, position)
	clear(l.buffers)
	if err != nil || n < total {
		// Nothing of a failed append may be found by a later recovery.
		return l.condemn(fmt.Errorf("wrote %d of %d bytes: %w", n, total, err), h.Truncate(position))
	}
	return l.adopt(s, run)
}

// adopt takes chunks that are in the file into all that is kept about the log.
func (l *Log) adopt(s *segment, run []*Chunk) error {
	for _, c := range run {
		h := &c.Header
		l.passGap(h.LSN - 1)
		c.segment, c.position = s, l.summary.Size
		if err := l.tracking.Apply(h, h.TrailerOf(c.Head)); err != nil {
			// The bytes are good and yet not tracking: a faulty writer. Going on
			// would let tracking drift from the log.
			return l.condemn(err, err)
		}
		if x := s.sparse.Load(); x != nil {
			x.note(h, c.position)
		}
		l.unit.count(h)
		l.last, l.lastAt, l.lastCRC = h.Timestamp, c.position, h.HeadCRC
		// First the bytes, then the tail: who sees the tail finds the chunk.
		s.end.Store(c.position + int64(h.Length()))
		l.advance(h, h.TrailerOf(c.Head))
		l.store.cache.put(&l.cached, c)
	}
	l.check.due(l)
	return nil
}

// advance takes a chunk at the active segment's end into summary and tail.
func (l *Log) advance(h *chunk.Header, payload []byte) {
	l.digest = h.DigestAfter()
	sequences := tracking.SequenceBytes(h, payload)
	l.spend(h, sequences)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summary.Add(h, l.tail.Epoch)
	l.summary.AddSequences(h, sequences)
	l.tail, l.next = h.Tail(), h.Next()
}

// spend has the log looked at again once compaction, which found nothing worth
// it, must take tracking after all.
func (l *Log) spend(h *chunk.Header, sequences int64) {
	if l.spare <= 0 {
		return
	}
	if l.spare -= h.TrackingBytes() - sequences; l.spare <= 0 {
		l.store.candidates.add(candidate{log: l})
	}
}

func (l *Log) setSummary(s manifest.Summary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summary = s
}

// condemn makes the log take no more chunks if fatal is set, and returns err.
func (l *Log) condemn(err, fatal error) error {
	if fatal != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.poison == nil {
			l.poison = fmt.Errorf("%w: %w", ErrPoisoned, fatal)
		}
	}
	return err
}

// begin creates the segment's file that starts with this chunk. Its name is
// synced before any chunk in it can count as durable.
func (l *Log) begin(first *chunk.Header) error {
	lsn, _, _, _ := l.state.End() // the first chunk's, unless its head is in a gap
	s := &segment{log: l, name: manifest.Name{FirstLSN: lsn}, base: first.BaseOffset}
	s.sparse.Store(&sparse{})
	f, err := l.store.fs.OpenFile(s.path(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("create segment %s: %w", s.name, err)
	}
	if err := l.store.fs.SyncDir(l.dir); err != nil {
		// Whether the name is there after a power loss is unknown, and a later
		// success of the same call proves nothing.
		return l.condemn(errors.Join(err, f.Close()), err)
	}
	l.store.handles.release(l.store.handles.adopt(s, f))
	l.active = s
	l.check.reset()
	l.setSummary(l.newSummary(s.name, first))
	lay := l.layout.Load()
	l.publish(append(lay.segments[:len(lay.segments):len(lay.segments)], s))
	return nil
}
