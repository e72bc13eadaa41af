package segstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// finishCut carries out a cut that MANIFEST says was begun (C3). The files that
// begin above it are gone already. Where a bad chunk hides the place, the cut
// stays open until the scan has kept what is before the bad chunk, see endCut.
func (r *recovery) finishCut() error {
	l := r.l
	if !l.state.CutOpen {
		return nil
	}
	n := l.state.Cut
	r.mark = min(r.mark, n)
	if err := await(l.store.syncer, func(done func(error)) { l.store.journal.Lower(l.inc, n, done) }); err != nil {
		return err
	}
	end, _, _, _ := l.state.End()
	if name, ok := r.newest(end); ok {
		found, err := r.cutFile(name, n)
		if err != nil || !found {
			return err
		}
	}
	if err := l.store.fs.SyncDir(l.dir); err != nil {
		return err
	}
	done := manifest.Record{Kind: manifest.KindCutDone, LSN: n}
	if err := l.records.append(&done); err != nil {
		return err
	}
	r.CutDone = true
	return l.state.Apply(&done)
}

// endCut ends a cut whose place torn chunks have hidden, at the tail that the
// scan has come to. An open cut would take at the next start what is appended
// until then. A damaged log keeps it open, for nothing is appended.
func (r *recovery) endCut() error {
	l := r.l
	if !l.state.CutOpen || l.damage != nil {
		return nil
	}
	r.CutDone = true
	for _, kind := range []manifest.Kind{manifest.KindCut, manifest.KindCutDone} {
		record := manifest.Record{Kind: kind, LSN: l.tail.LSN}
		if err := l.records.append(&record); err != nil {
			return err
		}
		if err := l.state.Apply(&record); err != nil {
			return err
		}
	}
	return nil
}

// cutFile cuts a file behind the chunk n, which drops its footer too. found is
// false if a bad chunk comes before.
func (r *recovery) cutFile(name manifest.Name, n chunk.LSN) (found bool, err error) {
	l := r.l
	from, err := r.dropCaches(name, n)
	if err != nil {
		return false, err
	}
	f, err := l.openFile(name, true)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	position, err := endOf(f, l.inc, n, from, r.files[name])
	if err != nil {
		if errors.Is(err, errRead) {
			return false, err
		}
		return false, nil
	}
	if err := f.Truncate(position); err != nil {
		return false, err
	}
	r.files[name] = position
	return true, l.sync(f)
}

// dropCaches removes the index of a file that is cut behind n, and the
// checkpoint if it reaches beyond. A checkpoint that stays says from where the
// chunk n must be looked for.
func (r *recovery) dropCaches(name manifest.Name, n chunk.LSN) (from int64, err error) {
	var stale []string
	if r.indexes[name] {
		stale = append(stale, indexFile(name))
		delete(r.indexes, name)
	}
	b, exists, err := readIfThere(r.l.store.fs, r.path(checkpointName))
	if err != nil {
		return 0, err
	}
	c, bad := decodeCheckpoint(r.l.inc, b)
	switch {
	case bad == nil && c.summary.Name() == name && c.summary.LastLSN <= n && c.lastAt <= r.files[name]:
		from = c.lastAt
	case exists:
		stale = append(stale, checkpointName)
	}
	for _, file := range stale {
		if err := r.remove(file); err != nil {
			return 0, err
		}
	}
	return from, nil
}

// endOf returns the position behind the last chunk that is not above n, in the
// file's first limit bytes, from a chunk on that is none above either. A footer
// or the end of the file ends the chunks; a bad chunk before n is an error.
func endOf(f io.ReaderAt, inc chunk.Incarnation, n chunk.LSN, from, limit int64) (int64, error) {
	if s, err := readFooter(f, inc, limit); err == nil {
		limit = s.Size
	}
	w := newWalker(f, inc, min(from, limit), limit, false)
	for {
		h, _, _, at, err := w.next()
		switch {
		case errors.Is(err, io.EOF):
			return at, nil
		case err != nil:
			return at, fmt.Errorf("look for chunk %d: %w", n, err)
		case h.LSN > n:
			return at, nil
		case h.LSN == n:
			return w.position, nil
		}
	}
}

// reopen opens the log's last segment again, if it was sealed and nothing
// follows it: the next chunk may belong to it. It is a cut to its own end.
func (r *recovery) reopen() (bool, error) {
	l := r.l
	if len(l.state.Segments) == 0 {
		return false, nil
	}
	last := l.state.Segments[len(l.state.Segments)-1]
	if last.Generation > 0 || r.files[last.Name()] != last.FileSize() || r.mark > last.LastLSN {
		// A compacted segment is never the last one unless something was lost,
		// and a damaged one must keep its summary.
		return false, nil
	}
	cut := manifest.Record{Kind: manifest.KindCut, LSN: last.LastLSN}
	if err := l.records.append(&cut); err != nil {
		return false, err
	}
	if err := l.state.Apply(&cut); err != nil {
		return false, err
	}
	was := r.CutDone
	if err := r.finishCut(); err != nil {
		return false, err
	}
	r.CutDone, r.Reopened = was, true
	return true, nil
}
