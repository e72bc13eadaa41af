package segstore

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// rewriting is a file on its way that shall take the place of sealed segments:
// what a Compaction copies or a Repair fetches. It is complete and synced before
// install, whose *replaced* record is the one moment at which the log's files
// change. A log has one at a time, so that no two write to one name.
type rewriting struct {
	log     *Log
	sources []*segment
	old     []manifest.Summary
	cuts    uint64 // of the log when the work was planned

	out   manifest.Summary
	index sparse
	file  vfs.File
	// buffer holds what is kept and not written yet; it goes to the file at
	// out.Size less its own length.
	buffer   []byte
	unsynced int64
	dropped  int64 // bytes that the file is smaller than what it replaces
	done     bool
	// over: it was installed or given up.
	over atomic.Bool
}

const (
	// copyBuffer is how much a rewriting collects before it writes.
	copyBuffer = 256 << 10
	// copySync is how much it writes before it syncs, so that the last sync of a
	// big file does not hold up those that publishers wait for.
	copySync = 16 << 20
)

// rewriting tells whether sealed segments are being rewritten now.
func (l *Log) rewriting() bool { return l.rewriter != nil && !l.rewriter.over.Load() }

// rewrite begins the rewriting of consecutive sealed segments. Mutator.
func (l *Log) rewrite(w *rewriting, sources []*segment, old []manifest.Summary) {
	w.log, w.sources, w.old, w.cuts = l, sources, old, l.cuts.Load()
	w.begin()
	l.rewriter = w
}

// begin makes the new file an empty one.
func (w *rewriting) begin() {
	generation := uint32(0)
	for i := range w.old {
		generation = max(generation, w.old[i].Generation)
	}
	w.out = manifest.Replacing(w.old, generation+1)
	w.index, w.buffer, w.unsynced = sparse{}, w.buffer[:0], 0
	if w.file != nil {
		w.log.store.syncer.Forget(w.file)
		_ = w.file.Close() // nothing in it counts
		w.file = nil       // flush empties it
	}
}

// Log returns the log that is worked on.
func (w *rewriting) Log() *Log { return w.log }

// keepStripped adds a user chunk without its trailer.
func (w *rewriting) keepStripped(h *chunk.Header, head, data []byte) error {
	var kept chunk.Header
	w.buffer, kept = chunk.Strip(w.log.inc, w.buffer, head, h)
	return w.kept(&kept, data)
}

// keep adds a chunk of any type as it is.
func (w *rewriting) keep(h *chunk.Header, head, data []byte) error {
	w.buffer = append(w.buffer, head...)
	w.out.AddSequences(h, tracking.SequenceBytes(h, h.TrailerOf(head)))
	return w.kept(h, data)
}

// kept counts a chunk whose head is in the buffer.
func (w *rewriting) kept(h *chunk.Header, data []byte) error {
	w.buffer = append(w.buffer, data...)
	w.index.note(h, w.out.Size)
	w.out.Keep(h)
	if len(w.buffer) < copyBuffer {
		return nil
	}
	return w.flush()
}

// flush writes what has been collected.
func (w *rewriting) flush() error {
	if w.file == nil {
		// A leftover of the same name is of a piece of work that was given up in
		// this run: no record names it.
		f, err := w.log.store.fs.OpenFile(w.path(), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		w.file = f
	}
	if len(w.buffer) == 0 {
		return nil
	}
	_, err := w.file.WriteAt(w.buffer, w.out.Size-int64(len(w.buffer)))
	w.unsynced += int64(len(w.buffer))
	w.buffer = w.buffer[:0]
	if err != nil || w.unsynced < copySync {
		return err
	}
	return w.sync()
}

func (w *rewriting) path() string { return w.log.file(segmentFile(w.out.Name())) }

// finish makes the new file whole and durable. The chunks are synced before the
// footer is written, so that a footer vouches for them even where no record does
// (a lost MANIFEST is rebuilt from footers).
func (w *rewriting) finish() error {
	if err := errors.Join(w.out.Check(), w.out.Replaces(w.old)); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	if w.unsynced > 0 {
		if err := w.sync(); err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(manifest.AppendFooter(nil, &w.out), w.out.Size); err != nil {
		return err
	}
	if err := w.sync(); err != nil {
		return err
	}
	err := w.file.Close()
	w.log.store.syncer.Forget(w.file)
	w.file = nil
	if err = errors.Join(err, w.log.store.fs.SyncDir(w.log.dir)); err != nil {
		return err
	}
	w.buffer, w.done = nil, true
	return nil
}

func (w *rewriting) sync() error {
	w.unsynced = 0
	return await(w.log.store.syncer, func(done func(error)) { w.log.store.syncer.Submit(w.file, done) })
}

// abandon drops the work and its file, unless it is installed.
func (w *rewriting) abandon() {
	if w.file != nil {
		w.log.store.syncer.Forget(w.file)
		_ = w.file.Close()
	}
	// What stays is removed when the log is opened again. If it has been already,
	// the name may be another file's by now.
	if (w.file != nil || w.done) && !w.log.store.reopened(w.log) {
		_ = w.log.store.fs.Remove(w.path())
	}
	w.file, w.done = nil, false
	w.over.Store(true)
}

// install makes a finished file part of the log: one record, then readers go on
// in it, then the old ones go. Mutator.
//
// Errors: ErrStale, then the work was for nothing; what the disk says. The new
// file is removed unless a record may name it.
func (l *Log) install(w *rewriting) error {
	if !w.done || w.log != l {
		panic("segstore: install of a file that is not finished, or of another log's")
	}
	if err := l.Err(); err != nil {
		w.abandon()
		return err
	}
	record := manifest.Record{Kind: manifest.KindReplaced, Summary: w.out}
	for i := range w.old {
		record.Old = append(record.Old, w.old[i].Name())
	}
	after := l.state
	// Recovery, which every cut is, has removed the file.
	if w.cuts != l.cuts.Load() || after.Apply(&record) != nil {
		w.abandon()
		return l.wrap("install "+w.out.Name().String(), ErrStale)
	}
	if err := l.records.append(&record); err != nil {
		if l.records.broken != nil {
			w.done = false // a record may name the file: it must stay
		}
		w.abandon()
		return l.condemn(l.wrap("install "+w.out.Name().String(), err), l.records.broken)
	}
	l.state = after
	l.adopted(w)
	return nil
}

// adopted shows readers the new segment and lets the old ones go.
func (l *Log) adopted(w *rewriting) {
	s := &segment{log: l, name: w.out.Name(), base: w.out.BaseOffset}
	s.end.Store(w.out.Size)
	s.synced.Store(w.out.Size)
	s.summary.Store(&w.out)
	s.dropped.Store(w.dropped)
	for _, g := range w.sources {
		s.dropped.Add(g.dropped.Load())
	}
	if w.index.len() > 0 {
		_ = writeCache(l.store.fs, s.indexPath(), encodeIndex(l.inc, &w.index))
	}
	before := l.layout.Load().segments
	segments := make([]*segment, 0, len(before))
	for _, b := range before {
		switch {
		case b == w.sources[0]:
			segments = append(segments, s)
		case b.name.FirstLSN < s.name.FirstLSN || b.name.FirstLSN > w.out.LastLSN:
			segments = append(segments, b)
		}
	}
	l.publish(segments)
	for _, g := range w.sources {
		g.gone.Store(true)
		l.store.handles.drop(g)
		l.removals = append(l.removals, removal{segmentFile(g.name), g}, removal{indexFile(g.name), nil})
	}
	w.done = false
	w.over.Store(true)
	l.retryRemovals()
	l.compactRecords()
}
