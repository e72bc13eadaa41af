package segstore

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

func (l *Log) openFile(name manifest.Name, write bool) (vfs.File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	return l.store.fs.OpenFile(l.file(segmentFile(name)), flag, 0)
}

// syncFile makes a segment file durable, through the node's Syncer as all.
func (l *Log) syncFile(name manifest.Name) error {
	f, err := l.openFile(name, true)
	if err != nil {
		return err
	}
	return errors.Join(l.sync(f), f.Close())
}

func (l *Log) sync(f vfs.File) error {
	err := await(l.store.syncer, func(done func(error)) { l.store.syncer.Submit(f, done) })
	l.store.syncer.Forget(f)
	return err
}

// scan reads the unsealed file, from the checkpoint on, as far as its chunks are
// valid and continue the log. It returns the segment that the log goes on in,
// nil if not one chunk is good. What is behind the good chunks is cut if it is
// a torn tail and kept if it is damage.
func (r *recovery) scan(name manifest.Name) (*segment, error) {
	l := r.l
	f, err := l.openFile(name, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size := r.files[name]
	s := &segment{log: l, name: name, base: l.next}
	s.sparse.Store(&sparse{})
	l.tracking = tracking.New(l.config.Caps, l.state.Start.LSN)
	l.setSummary(manifest.Summary{})
	if c, state := l.loadCheckpoint(f, name, size); c != nil && c.summary.DigestBefore == l.digest {
		r.resume(c, state, s.sparse.Load())
	}
	from := l.summary.Size
	w := newWalker(f, l.inc, from, size, true)
	unproven, cause := r.readChunks(w, name, s.sparse.Load())
	r.ReadBytes += w.position - from
	if errors.Is(cause, chunk.ErrVersion) {
		return nil, fmt.Errorf("%w: %s at byte %d: %w", ErrVersion, segmentFile(name), w.position, cause)
	}
	if err := r.judgeBehind(f, w.position, size, name, cause); err != nil {
		return nil, err
	}
	if l.summary.Size == 0 {
		return nil, nil
	}
	if err := r.makeDurable(f, unproven, size); err != nil {
		return nil, err
	}
	s.base = l.summary.BaseOffset
	s.end.Store(l.summary.Size)
	s.synced.Store(l.summary.Size)
	return s, nil
}

// resume takes over what a checkpoint says. Everything in it was synced.
func (r *recovery) resume(c *checkpoint, state *tracking.State, x *sparse) {
	l := r.l
	l.tracking = state
	l.setSummary(c.summary)
	l.setTail(c.summary.Tail(), c.summary.NextOffset, c.summary.DigestAfter)
	l.last, l.lastAt, l.lastCRC = c.last, c.lastAt, c.lastCRC
	l.check.at = c.summary.Size
	r.mark = max(r.mark, c.summary.LastLSN)
	for i := range c.index.len() {
		x.add(c.index.at(i))
	}
}

// readChunks takes over good chunks and returns the position of the first that
// no mark proves durable, and why it stopped: nil at the end of the file.
func (r *recovery) readChunks(w *walker, name manifest.Name, x *sparse) (unproven int64, cause error) {
	proven := r.mark
	unproven = -1
	for {
		h, head, _, at, err := w.next()
		if errors.Is(err, io.EOF) {
			return unproven, nil
		}
		if err == nil {
			err = r.take(&h, head, at, name, x)
		}
		if err != nil {
			w.position = at
			return unproven, err
		}
		if unproven < 0 && h.LSN > proven {
			unproven = at
		}
	}
}

// take adds one chunk that the file holds to the log.
func (r *recovery) take(h *chunk.Header, head []byte, at int64, name manifest.Name, x *sparse) error {
	l := r.l
	if h.LSN > l.tail.LSN+1 && h.BaseOffset == l.next && h.DigestBefore == l.digest {
		// Only control chunks are missing: compaction had dropped them at the
		// leader. What was dropped had been committed (C5).
		l.skipped = h.LSN - 1
	}
	if err := continues(h, l.before(), l.next, l.digest, l.last); err != nil {
		return err
	}
	if err := l.tracking.Apply(h, h.TrailerOf(head)); err != nil {
		return err
	}
	if at == 0 {
		l.setSummary(l.newSummary(name, h))
	}
	if h.LSN > l.tail.LSN+1 {
		l.SetCommit(h.LSN - 1)
	}
	l.passGap(h.LSN - 1)
	x.note(h, at)
	l.advance(h, h.TrailerOf(head))
	l.last, l.lastAt, l.lastCRC = h.Timestamp, at, h.HeadCRC
	r.mark = max(r.mark, h.SyncedLSN)
	return nil
}

// judgeBehind decides what the bytes behind the good chunks are. Chunks that are
// whole there say how far the file was synced.
func (r *recovery) judgeBehind(f vfs.File, position, size int64, name manifest.Name, cause error) error {
	l := r.l
	if position < size {
		err := scanBehind(f, l.inc, position, size, func(h *chunk.Header, _ int64) {
			if h.LSN > l.tail.LSN && h.Epoch >= l.tail.Epoch {
				r.mark = max(r.mark, h.SyncedLSN)
			}
		})
		if err != nil && !errors.Is(err, errRead) {
			return err
		}
	}
	if cause == nil {
		cause = errMissingEnd
	}
	if err := r.judgeEnd(&DamageError{File: l.file(segmentFile(name)), Position: position, Segment: name, Cause: cause}); err != nil || l.damage != nil {
		return err
	}
	if position < size {
		r.TornBytes += size - position
		if err := f.Truncate(position); err != nil {
			return err
		}
	}
	return nil
}

// judgeEnd sets the log aside if chunks above its tail had been durable, or if
// the disk does not tell what follows.
func (r *recovery) judgeEnd(d *DamageError) error {
	l := r.l
	r.Mark = max(r.Mark, r.mark)
	if r.mark <= l.tail.LSN && !errors.Is(d.Cause, errRead) {
		return nil
	}
	d.First, d.Offset = l.tail.LSN+1, l.next
	if r.mark > l.tail.LSN {
		d.Last = r.mark
	}
	r.Damage = append(r.Damage, d)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.damage = d
	return nil
}

// makeDurable syncs what was read past the mark, and the cut of a torn tail. The
// bytes are written once more before: the process may have died after a failed
// sync, and then the system takes pages for clean that never reached the disk.
func (r *recovery) makeDurable(f vfs.File, unproven, size int64) error {
	l := r.l
	end := l.summary.Size
	if unproven < 0 && (end == size || l.damage != nil) {
		return nil
	}
	var buffer []byte
	if unproven >= 0 {
		buffer = make([]byte, min(1<<20, end-unproven))
	}
	for at := unproven; at >= 0 && at < end; {
		b := buffer[:min(int64(len(buffer)), end-at)]
		if err := readFull(f, b, at); err != nil {
			return err
		}
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	if err := l.sync(f); err != nil {
		return err
	}
	return l.store.fs.SyncDir(l.dir)
}

// track folds tracking from earlier segments where the unsealed one does not
// suffice: its head snapshot is not complete, or it is not there (E1, F9).
func (r *recovery) track(segments []*segment) {
	l := r.l
	if l.tracking == nil {
		l.tracking = tracking.New(l.config.Caps, l.state.Start.LSN)
	}
	if l.tracking.Known() && l.tracking.Last().LSN == l.tail.LSN {
		return
	}
	from, position, first := trackingBase(l.state.Start.LSN, segments)
	state := tracking.New(l.config.Caps, first)
	for _, s := range segments[min(from, len(segments)):] {
		if err := l.foldSegment(state, s, position); err != nil {
			sum := s.sum()
			d := &DamageError{
				File: s.path(), Segment: s.name, First: sum.FirstLSN, Last: sum.LastLSN,
				Offset: sum.BaseOffset, Next: sum.NextOffset, Cause: err,
			}
			r.damaged(s, d)
			r.Aside = AsideDamaged
			return
		}
		position = 0
	}
	l.tracking = state
}

// trackingBase says from where tracking must be folded: the newest complete
// snapshot of a sealed segment, or the log's beginning.
func trackingBase(start chunk.LSN, segments []*segment) (from int, position int64, first chunk.LSN) {
	for i := len(segments) - 1; i >= 0; i-- {
		if s := segments[i].summary.Load(); s != nil && s.SnapshotLast.LSN != 0 {
			return i, s.SnapshotFirst.Position, s.SnapshotFirst.LSN
		}
	}
	return 0, 0, start
}

func (l *Log) foldSegment(state *tracking.State, s *segment, position int64) error {
	if d := s.damage.Load(); d != nil {
		return d
	}
	f, err := l.openFile(s.name, false)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	w := newWalker(f, l.inc, position, s.end.Load(), false)
	for {
		h, head, _, _, err := w.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = state.Apply(&h, h.TrailerOf(head))
		}
		if err != nil {
			return err
		}
	}
}
