package segstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// Attach returns a Reader of user chunks that starts where spec says. commit
// bounds what Last may choose; the other places are fixed at this moment by what
// is in the log. No segment but the one that holds the place is opened.
//
// Errors: ErrClosed, what the disk says. A place in a damaged segment is found
// by Next, not here.
func (l *Log) Attach(spec Spec, commit chunk.LSN) (*Reader, error) {
	r, err := l.attach(spec, commit)
	for tries := 1; errors.Is(err, errMoved) && tries < triesMax; tries++ {
		r, err = l.attach(spec, commit) // the file was replaced or given up meanwhile
	}
	if err != nil {
		return nil, l.wrap("attach at "+spec.String(), err)
	}
	return r, nil
}

// triesMax bounds how often a place is looked for anew. Each time the files
// must have changed in between.
const triesMax = 100

func (l *Log) attach(spec Spec, commit chunk.LSN) (*Reader, error) {
	if l.closed() {
		return nil, ErrClosed
	}
	r := &Reader{log: l}
	tail, next := l.end() // before the layout, which then holds all that is below
	lay := l.layout.Load()
	r.lsn, r.offset = tail.LSN+1, next // Next, and the fallback of the others
	var err error
	switch spec.Kind {
	case First:
		r.lsn, r.offset = lay.start.LSN, lay.start.Offset
	case Last:
		err = r.toLast(lay, commit)
	case AtOffset:
		switch {
		case spec.Offset < lay.start.Offset:
			r.lsn, r.offset = lay.start.LSN, lay.start.Offset
		case spec.Offset < next:
			err = r.toOffset(lay, spec.Offset)
		}
	case AtTimestamp:
		err = r.toTimestamp(lay, spec.Timestamp)
	}
	return r, err
}

// AttachLSN returns a Reader of all chunks, control chunks too, from an LSN on:
// for a link that feeds a follower.
func (l *Log) AttachLSN(lsn chunk.LSN) *Reader { return &Reader{log: l, all: true, lsn: lsn} }

func (l *Log) end() (chunk.Tail, chunk.Offset) {
	l.reading.RLock()
	defer l.reading.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail, l.next
}

// OffsetAfter returns the offset behind the last record of the chunks up to an
// LSN that is in the log, or the one before its start.
func (l *Log) OffsetAfter(lsn chunk.LSN) (chunk.Offset, error) {
	tail, next := l.end()
	lay := l.layout.Load()
	switch {
	case lsn >= tail.LSN:
		return next, nil
	case lsn < lay.start.LSN:
		return lay.start.Offset, nil
	}
	r := &Reader{log: l, lsn: lsn + 1}
	o, err := r.nextOffset()
	for tries := 1; errors.Is(err, errMoved) && tries < triesMax; tries++ {
		o, err = r.nextOffset()
	}
	return o, err
}

// TimestampAt returns the timestamp of the user chunk that holds an offset, and
// the offset behind that chunk's last record; ok is false if no chunk of the log
// holds it. It reads heads alone, from the index's place on.
//
// Errors: a *DamageError, ErrClosed, what the disk says.
func (l *Log) TimestampAt(o chunk.Offset) (at chunk.Timestamp, until chunk.Offset, ok bool, err error) {
	h, ok, err := l.headAt(o)
	for tries := 1; errors.Is(err, errMoved) && tries < triesMax; tries++ {
		h, ok, err = l.headAt(o)
	}
	if err != nil {
		err = l.wrap("look for offset "+o.String(), err)
	}
	return h.Timestamp, h.Next(), ok, err
}

func (l *Log) headAt(o chunk.Offset) (h chunk.Header, ok bool, err error) {
	if l.closed() {
		return h, false, ErrClosed
	}
	_, next := l.end() // before the layout, which then holds all that is below
	lay := l.layout.Load()
	if o < lay.start.Offset || o >= next {
		return h, false, nil
	}
	i := lay.at(o)
	if i < 0 {
		return h, false, nil
	}
	r := &Reader{log: l, segment: lay.segments[i], cuts: l.cuts.Load()}
	if d := r.segment.damage.Load(); d != nil {
		return h, false, d
	}
	_, h, err = r.segment.find(
		func(e indexEntry) bool { return e.base <= o },
		func(h *chunk.Header) bool { return h.Type == chunk.User && h.Contains(o) })
	switch {
	case errors.Is(err, io.EOF):
		return h, false, errMoved // it was cut, or replaced, meanwhile
	case err != nil:
		return h, false, r.explain(err)
	}
	return h, true, nil
}

// nextOffset returns the offset that the first record from the Reader's LSN on
// has.
func (r *Reader) nextOffset() (chunk.Offset, error) {
	defer r.Rest()
	if err := r.locate(); err != nil || r.segment == nil {
		return r.log.First(), errors.Join(err, r.log.unproven())
	}
	if sum := r.segment.summary.Load(); sum != nil && r.position >= sum.Size {
		return sum.NextOffset, nil // compaction has dropped the rest
	}
	h, _, err := r.head()
	if err != nil {
		return 0, r.explain(err)
	}
	return h.BaseOffset, nil
}

// locate finds the place of the Reader's LSN. It leaves segment nil where the
// log has no such chunk now.
func (r *Reader) locate() error {
	if cuts := r.log.cuts.Load(); r.cuts != cuts {
		r.cuts, r.anchored = cuts, false
	}
	lay := r.log.layout.Load()
	if r.lsn < lay.start.LSN {
		if r.offset < lay.start.Offset {
			r.jumps++
			r.offset = lay.start.Offset
		}
		r.lsn = lay.start.LSN
	}
	i := lay.holding(r.lsn)
	if i < 0 || lay.segments[i].gone.Load() {
		if r.log.layout.Load() != lay {
			return errMoved // another file holds it by now
		}
		return nil
	}
	s := lay.segments[i]
	if sum := s.summary.Load(); sum != nil && r.lsn > sum.LastLSN {
		return r.log.unproven()
	}
	if r.lsn == s.name.FirstLSN || s.damage.Load() != nil {
		r.arrive(s, 0)
		return nil
	}
	at, _, err := s.find(
		func(e indexEntry) bool { return e.lsn <= r.lsn },
		func(h *chunk.Header) bool { return h.LSN >= r.lsn })
	r.arrive(s, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return r.explain(err)
	}
	return nil
}

func (r *Reader) arrive(s *segment, position int64) {
	r.segment, r.position, r.checkedFrom = s, position, position
}

// start places the Reader at a chunk.
func (r *Reader) start(s *segment, at int64, h *chunk.Header) {
	r.arrive(s, at)
	r.lsn, r.offset = h.LSN, h.BaseOffset
}

// startDamaged places the Reader at the head of a segment that can't be read, so
// that Next says so.
func (r *Reader) startDamaged(s *segment) bool {
	if s.damage.Load() == nil {
		return false
	}
	r.arrive(s, 0)
	r.lsn, r.offset = s.name.FirstLSN, s.base
	return true
}

func (r *Reader) toOffset(lay *layout, o chunk.Offset) error {
	i := lay.at(o)
	if i < 0 {
		return nil
	}
	return r.startIn(lay.segments[i],
		func(e indexEntry) bool { return e.base <= o },
		func(h *chunk.Header) bool { return h.Type == chunk.User && h.Contains(o) })
}

func (r *Reader) toTimestamp(lay *layout, t chunk.Timestamp) error {
	for _, s := range lay.segments {
		if users, last := s.lastUser(); users == 0 || last < t {
			continue
		}
		return r.startIn(s,
			func(e indexEntry) bool { return e.timestamp < t },
			func(h *chunk.Header) bool { return h.Type == chunk.User && h.Timestamp >= t })
	}
	return nil
}

// startIn places the Reader at the first chunk of a segment that is wanted. By
// the segment's summary there is one.
func (r *Reader) startIn(s *segment, before func(indexEntry) bool, wanted func(*chunk.Header) bool) error {
	r.cuts = r.log.cuts.Load()
	if r.startDamaged(s) {
		return nil
	}
	at, h, err := s.find(before, wanted)
	if errors.Is(err, io.EOF) {
		if s.summary.Load() == nil {
			return errMoved // it was cut meanwhile
		}
		err = fmt.Errorf("%w: it does not hold the chunk looked for", chunk.ErrMalformed)
	}
	if err != nil {
		r.segment = s
		return r.explain(err)
	}
	r.start(s, at, &h)
	return nil
}

// lastUser returns how many user chunks the segment holds and the timestamp of
// the last.
func (s *segment) lastUser() (users uint64, last chunk.Timestamp) {
	if sum := s.summary.Load(); sum != nil {
		return sum.UserChunks, sum.LastTimestamp // no copy: a search asks thousands
	}
	sum := s.sum()
	return sum.UserChunks, sum.LastTimestamp
}

// sum returns the segment's summary, up to now for an active one.
func (s *segment) sum() manifest.Summary {
	if sum := s.summary.Load(); sum != nil {
		return *sum
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if sum := s.summary.Load(); sum != nil {
		return *sum // sealed meanwhile
	}
	return s.log.summary
}

// toLast places the Reader at the last user chunk that is not above the commit.
func (r *Reader) toLast(lay *layout, commit chunk.LSN) error {
	r.cuts = r.log.cuts.Load()
	for i := lay.holding(commit); i >= 0; i-- {
		s := lay.segments[i]
		sum := s.sum()
		if sum.UserChunks == 0 || sum.FirstLSN != s.name.FirstLSN {
			continue
		}
		if r.startDamaged(s) {
			return nil
		}
		at, h, err := s.lastAt(&sum, commit)
		switch {
		case errors.Is(err, io.EOF):
			continue // its user chunks are all above the commit
		case err != nil:
			r.segment = s
			return r.explain(err)
		}
		r.start(s, at, &h)
		return nil
	}
	return nil
}

// lastAt finds the last user chunk of a segment at or below an LSN: the last one
// of all as a rule, else backwards by the index. Error: io.EOF if there is none.
func (s *segment) lastAt(sum *manifest.Summary, lsn chunk.LSN) (at int64, h chunk.Header, err error) {
	w, x, err := s.walk()
	if err != nil {
		return 0, h, err
	}
	defer w.release()
	w.position = sum.LastUser
	if h, _, _, at, err = w.next(); err != nil || h.LSN <= lsn {
		return at, h, err
	}
	until := at
	i, _ := before(x, func(e indexEntry) bool { return e.lsn <= lsn })
	for ; i >= 0; i-- {
		from := x.at(i).position
		found := false
		for w.position = from; w.position < until; {
			g, _, _, position, err := w.next()
			if err != nil {
				return 0, h, err
			}
			if g.Type == chunk.User && g.LSN <= lsn {
				h, at, found = g, position, true
			}
		}
		if found {
			return at, h, nil
		}
		until = from
	}
	return 0, h, io.EOF
}

// segmentWalk is a walker over a segment's file, which stays open meanwhile.
type segmentWalk struct {
	*walker
	handles *handles
	file    *handle
}

func (w *segmentWalk) release() { w.handles.release(w.file) }

// walk opens the segment and its index.
func (s *segment) walk() (*segmentWalk, index, error) {
	hs := &s.log.store.handles
	h, err := hs.acquire(s)
	if err != nil {
		return nil, nil, err
	}
	w := &segmentWalk{walker: newWalker(h, s.log.inc, 0, s.end.Load(), false), handles: hs, file: h}
	x, err := s.index(w.walker)
	if err != nil {
		w.release()
		return nil, nil, err
	}
	return w, x, nil
}

// find returns the first chunk that is wanted, and where it lies. indexed must
// hold for every index entry in front of which no chunk is wanted; the search
// starts at the last of these.
//
// In a segment that is not sealed, and so can't be repaired yet, a bad chunk hides
// those behind it no longer than until the next good one: a leader that goes on in
// such a file must be able to bring up its followers. What is wanted is believed
// to be found only behind a good chunk that is not: it might else be the bad one.
//
// Errors: io.EOF if there is none, chunk.ErrMalformed where the file is not this
// segment's, those of the walker.
func (s *segment) find(indexed func(indexEntry) bool, wanted func(*chunk.Header) bool) (at int64, h chunk.Header, err error) {
	w, x, err := s.walk()
	if err != nil {
		return 0, h, err
	}
	defer w.release()
	_, w.position = before(x, indexed)
	var hurt error // of a bad chunk right before
	for {
		h, _, _, at, err = w.next()
		switch {
		case isBadChunk(err) && s.summary.Load() == nil && w.resume(at+1):
			hurt = err
		case err != nil:
			return at, h, err
		case !s.mayHold(&h):
			return at, h, fmt.Errorf("%w: chunk %d is not of this segment", chunk.ErrMalformed, h.LSN)
		case wanted(&h):
			return at, h, hurt
		default:
			hurt = nil
		}
	}
}

// index returns the segment's index: from memory, from its file or, if that is
// of no use, by reading the segment's heads.
func (s *segment) index(w *walker) (index, error) {
	if x := s.sparse.Load(); x != nil {
		return x, nil
	}
	sum := s.sum()
	fsys := s.log.store.fs
	if b, err := vfs.ReadFile(fsys, s.indexPath()); err == nil {
		if x, err := decodeIndex(s.log.inc, b, sum.FirstLSN, sum.LastLSN, sum.Size); err == nil {
			return x, nil
		}
	}
	x := &sparse{}
	for {
		h, _, _, at, err := w.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		x.note(&h, at)
	}
	if !s.gone.Load() {
		_ = writeCache(fsys, s.indexPath(), encodeIndex(s.log.inc, x))
		s.indexBytes.Store(0)
	}
	return x, nil
}

// Skip leaves the sealed segment in which Next has reported damage: it goes on
// behind it.
func (r *Reader) Skip() {
	if s := r.segment; s != nil {
		if sum := s.summary.Load(); sum != nil {
			r.lsn, r.offset = sum.LastLSN+1, sum.NextOffset
			r.leave()
		}
	}
}
