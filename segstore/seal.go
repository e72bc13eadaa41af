package segstore

import (
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// seal ends the active segment: footer, sync, sealed record, sync. Only then
// may the next file be created, so that one file at most is unsealed. The next
// append begins it.
func (l *Log) seal() error {
	s := l.active
	h, err := l.store.handles.acquire(s)
	if err != nil {
		return err
	}
	defer l.store.handles.release(h)
	sealed := l.summary
	if _, err := h.WriteAt(manifest.AppendFooter(nil, &sealed), sealed.Size); err != nil {
		return l.condemn(fmt.Errorf("write footer of %s: %w", s.name, err), h.Truncate(sealed.Size))
	}
	if err := l.syncFooter(h, s); err != nil {
		return err
	}
	if err := l.records.append(&manifest.Record{Kind: manifest.KindSealed, Summary: sealed}); err != nil {
		if fatal := l.records.broken; fatal != nil {
			// The record may be there or not; the footer goes with both.
			return l.condemn(err, fatal)
		}
		// No record: the segment goes on, if the footer can be taken away.
		return l.condemn(fmt.Errorf("seal %s: %w", s.name, err), h.Truncate(sealed.Size))
	}
	if err := l.state.Apply(&manifest.Record{Kind: manifest.KindSealed, Summary: sealed}); err != nil {
		return l.condemn(err, err)
	}
	l.writeIndex(s)
	s.summary.Store(&sealed)
	s.sparse.Store(nil)
	l.active = nil
	l.setSummary(manifest.Summary{})
	l.saveProgress(nil)
	l.store.candidates.add(candidate{log: l})
	return nil
}

// syncFooter makes the file durable with its footer, and so the tail.
func (l *Log) syncFooter(h *handle, s *segment) error {
	l.mu.Lock()
	tail, run := l.tail, l.run
	l.mu.Unlock()
	err := await(l.store.syncer, func(done func(error)) { l.store.syncer.Submit(h.File, done) })
	_, err = l.synced(s, tail, l.summary.Size, run, err)
	return err
}

// writeIndex writes the sparse index beside the segment. It is a cache, neither
// synced nor missed: a failure leaves it to be built anew when it is needed.
func (l *Log) writeIndex(s *segment) {
	if x := s.sparse.Load(); x != nil {
		_ = writeCache(l.store.fs, s.indexPath(), encodeIndex(l.inc, x))
	}
}

// writeCache writes a file that may get lost: temporary and renamed, so that no
// half of one is met often, but without a sync.
func writeCache(fsys vfs.FS, name string, content []byte) error {
	f, err := fsys.OpenFile(name+temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err = errors.Join(err, f.Close()); err == nil {
		err = fsys.Rename(name+temporary, name)
	}
	if err != nil {
		_ = fsys.Remove(name + temporary)
	}
	return err
}

// SaveProgress writes the durable mark and the known commit to the node
// journal: after a second without traffic, and when the log stops (design 3.7).
// done may be nil. Mutator.
func (l *Log) SaveProgress(done func(error)) { l.saveProgress(done) }

func (l *Log) saveProgress(done func(error)) {
	l.store.journal.Progress(l.inc, l.Durable().LSN, l.Commit(), done)
}

// manifestFile appends records to a stream's MANIFEST. It opens the file for
// each, since they are rare and an idle log owns no descriptor.
type manifestFile struct {
	fs   vfs.FS
	dir  string
	inc  chunk.Incarnation
	size int64
	// broken is a failed sync: what the file holds is unknown from then on.
	broken error
}

func (m *manifestFile) path() string { return path.Join(m.dir, manifestName) }

// append writes one record and syncs it.
func (m *manifestFile) append(r *manifest.Record) error {
	if m.broken != nil {
		return m.broken
	}
	f, err := m.fs.OpenFile(m.path(), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("append %s record: %w", r.Kind, err)
	}
	b := manifest.AppendRecord(nil, m.inc, r)
	if _, err := f.WriteAt(b, m.size); err != nil {
		m.broken = f.Truncate(m.size)
		return errors.Join(fmt.Errorf("append %s record: %w", r.Kind, err), f.Close())
	}
	if err := f.Datasync(); err != nil {
		m.broken = fmt.Errorf("%w: MANIFEST: %w", ErrPoisoned, err)
		return errors.Join(m.broken, f.Close())
	}
	m.size += int64(len(b))
	return f.Close()
}

// settle makes durable what was read of the file, before anything is done that
// rests on it. Whoever wrote it may have died, or have been told of a failed
// sync, between the last record and its being durable; before that one each was
// synced. So the last is written once more: the system may take its pages for
// clean. Going over bytes with the same ones harms none.
func (m *manifestFile) settle(records []manifest.Record) error {
	f, err := m.fs.OpenFile(m.path(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if n := len(records); n > 0 {
		last := manifest.AppendRecord(nil, m.inc, &records[n-1])
		_, err = f.WriteAt(last, m.size-int64(len(last)))
	}
	if err == nil {
		err = f.Datasync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return m.fs.SyncDir(m.dir)
}

// rewrite replaces the file by one that holds these records only.
func (m *manifestFile) rewrite(records []manifest.Record) error {
	b := manifest.Encode(m.inc, records)
	if err := vfs.WriteFileSynced(m.fs, m.path(), b, 0o644); err != nil {
		m.broken = fmt.Errorf("%w: MANIFEST: %w", ErrPoisoned, err)
		return m.broken
	}
	m.size = int64(len(b))
	return nil
}
