package segstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// Journal remembers, for all streams of a node, what a replica must not forget
// and can't read from its chunks: promise, known commit, durable mark, whether
// it is set aside. One file takes the records of all streams, and one sync
// covers everything written before it, so fencing a thousand streams costs what
// fencing one does.
//
// A file whose sync has failed is not believed again: what was asked for fails,
// and the next change writes a new file with everything.
type Journal struct {
	fs     vfs.FS
	dir    string
	syncer *vfs.Syncer
	lost   error

	// mu guards everything below.
	mu     sync.Mutex
	id     chunk.Incarnation
	states map[chunk.Incarnation]StreamState
	file   *journalFile
	size   int64 // bytes of good records in the file
	// made: there was none when the store was opened.
	made bool
	// suspect: a write or sync of the file has failed.
	suspect bool
	closed  bool
	stats   JournalStats
}

// journalFile is one generation of the file. The one that a rewrite replaces is
// closed when its last sync has been answered.
type journalFile struct {
	vfs.File
	// Guarded by Journal.mu.
	synced  int64 // everything before this position is durable
	waiting int   // syncs asked for and not answered
	retired bool
}

// JournalStats counts a journal's work since it was opened.
type JournalStats struct {
	Streams  int
	Bytes    int64
	Records  uint64
	Rewrites uint64
}

// openJournal reads the node's journal. One that is missing although there are
// streams, or damaged, is kept in quarantine and replaced by one that sets every
// stream aside, since what they promised is not known any more; lost tells why.
func openJournal(fsys vfs.FS, dir string, syncer *vfs.Syncer, quarantine func(name string) error, streams iter.Seq[chunk.Incarnation]) (*Journal, error) {
	j := &Journal{fs: fsys, dir: path.Join(dir, journalDir), syncer: syncer}
	if err := fsys.MkdirAll(j.dir, 0o755); err != nil {
		return nil, err
	}
	name := path.Join(j.dir, journalName)
	b, err := vfs.ReadFile(fsys, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j, j.create(streams, fmt.Errorf("%w: %s is missing", errJournalDamaged, name))
	case err != nil:
		return nil, err
	}
	var good int
	j.id, j.states, good, err = decodeJournal(b)
	if errors.Is(err, errJournalDamaged) {
		if err := quarantine(name); err != nil {
			return nil, err
		}
		return j, j.create(streams, err)
	}
	if err != nil {
		return nil, err
	}
	// What was read may never have reached the disk: the process died before it
	// was synced, or after it was told of a failed sync, when the system takes
	// pages for clean. A torn end goes by the way.
	err = j.rewrite()
	if errors.Is(err, syscall.ENOSPC) {
		err = j.writeOver(name, b[:good])
	}
	return j, err
}

// writeOver makes what was read durable where there is no room for a second
// file: the same bytes once more in the same place, which takes none. What the
// disk has of them already stays as it is.
func (j *Journal) writeOver(name string, good []byte) error {
	if err := j.fs.Remove(name + temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := j.fs.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(good, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	// The name may be as new as the bytes.
	if err := errors.Join(f.Truncate(int64(len(good))), f.Datasync(), j.fs.SyncDir(j.dir)); err != nil {
		return errors.Join(err, f.Close())
	}
	j.size = int64(len(good))
	j.file = &journalFile{File: f, synced: j.size}
	return nil
}

// create starts a journal under a new id. Streams that are there already are set
// aside in the same write: were it a later one, a crash in between would leave a
// journal in which nobody has promised anything. Without streams nothing is lost:
// the node is new, or died while it made its first journal.
func (j *Journal) create(streams iter.Seq[chunk.Incarnation], lost error) error {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	j.id, j.made = chunk.Incarnation(binary.BigEndian.Uint64(id[:])), true
	j.states = make(map[chunk.Incarnation]StreamState)
	for inc := range streams {
		j.states[inc], j.lost = StreamState{Aside: AsideJournalLost}, lost
	}
	return j.rewrite()
}

// Lost tells why the journal that was expected could not be believed; nil
// almost always.
func (j *Journal) Lost() error { return j.lost }

// Made tells whether the journal was made when the store was opened, since there
// was none that could be believed. A node that was a member before has lost then
// what its replicas promised, of streams without files here too.
func (j *Journal) Made() bool { return j.made }

// State returns what is remembered of a stream. Changes whose done has not been
// called yet are in it already.
func (j *Journal) State(inc chunk.Incarnation) (StreamState, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.states[inc]
	return s, ok
}

// Promise remembers that the replica takes nothing below the epoch any more
// (A2). It never goes down.
func (j *Journal) Promise(inc chunk.Incarnation, epoch chunk.Epoch, done func(error)) {
	j.Change(inc, func(s *StreamState) { s.Promise = max(s.Promise, epoch) }, done)
}

// Progress remembers the durable mark and the known commit. Neither goes down.
func (j *Journal) Progress(inc chunk.Incarnation, mark, commit chunk.LSN, done func(error)) {
	j.Change(inc, func(s *StreamState) {
		s.Mark = max(s.Mark, mark)
		s.Commit = max(s.Commit, min(commit, s.Mark))
	}, done)
}

// Lower takes the durable mark back to n, and the known commit with it: before
// a cut (C3), and after a failed sync.
func (j *Journal) Lower(inc chunk.Incarnation, n chunk.LSN, done func(error)) {
	j.Change(inc, func(s *StreamState) { s.Mark, s.Commit = min(s.Mark, n), min(s.Commit, n) }, done)
}

// SetAside remembers that the replica counts for nothing, or, with NotAside,
// that it counts again (D2).
func (j *Journal) SetAside(inc chunk.Incarnation, why Aside, done func(error)) {
	j.Change(inc, func(s *StreamState) { s.Aside = why }, done)
}

// Change applies a change to what is remembered of a stream, which begins as
// zero, and calls done once that is durable: later on another goroutine, or at
// once if nothing changes. done must be short; nil means that nobody waits.
func (j *Journal) Change(inc chunk.Incarnation, change func(*StreamState), done func(error)) {
	j.mu.Lock()
	was, known := j.states[inc]
	s := was
	change(&s)
	if known && s == was && !j.suspect && !j.closed && j.file.waiting == 0 {
		j.mu.Unlock()
		answer(done, nil)
		return
	}
	j.states[inc] = s
	j.append(appendJournalState(nil, j.id, inc, j.file.synced, &s), done, func() {
		if j.states[inc] = was; !known {
			delete(j.states, inc)
		}
	})
}

// Remove forgets a stream.
func (j *Journal) Remove(inc chunk.Incarnation, done func(error)) {
	j.mu.Lock()
	was, known := j.states[inc]
	delete(j.states, inc)
	j.append(appendJournalGone(nil, j.id, inc, j.file.synced), done, func() {
		if known {
			j.states[inc] = was
		}
	})
}

// append writes a record and asks for a sync; if it can't be written, undo takes
// the change back. It is entered with mu held and lets it go.
func (j *Journal) append(record []byte, done func(error), undo func()) {
	err := j.write(record)
	f, end := j.file, j.size
	if err == nil {
		f.waiting++
	} else {
		undo()
	}
	j.mu.Unlock()
	if err != nil {
		answer(done, err)
		return
	}
	j.syncer.Submit(f.File, func(err error) {
		j.synced(f, end, err)
		if errors.Is(err, vfs.ErrPoisoned) {
			err = j.again(f)
		}
		answer(done, err)
	})
}

// again makes durable what was written to a file after its sync had failed and
// before that was known here: a new file takes it, if none has since.
func (j *Journal) again(f *journalFile) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if f != j.file {
		return nil
	}
	if j.closed {
		return ErrClosed
	}
	err := j.rewrite()
	j.suspect = err != nil
	return err
}

func answer(done func(error), err error) {
	if done != nil {
		done(err)
	}
}

func (j *Journal) write(record []byte) error {
	if j.closed {
		return ErrClosed
	}
	if j.suspect || manifest.WorthRewriting(j.size+int64(len(record)), j.live()) {
		err := j.rewrite()
		j.suspect = err != nil
		return err
	}
	if _, err := j.file.WriteAt(record, j.size); err != nil {
		// Half a record must not stay: the next one would make it look like
		// damage.
		j.suspect = j.file.Truncate(j.size) != nil
		return fmt.Errorf("append to the node journal: %w", err)
	}
	j.size += int64(len(record))
	j.stats.Records++
	return nil
}

func (j *Journal) synced(f *journalFile, end int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f.waiting--
	switch {
	case err == nil:
		f.synced = max(f.synced, end)
	case f == j.file:
		j.suspect = true
	}
	if f.retired && f.waiting == 0 {
		j.closeFile(f)
	}
}

func (j *Journal) closeFile(f *journalFile) {
	j.syncer.Forget(f.File)
	_ = f.Close() // everything that counts was synced
}

const journalStateFrame = 8 + journalState

func (j *Journal) live() int64 {
	return 8 + journalBegin + int64(len(j.states))*journalStateFrame
}

// rewrite replaces the file by one that holds the present states only. A crash
// leaves the old or the new one, as a whole: so each record may say that all
// before it is durable.
func (j *Journal) rewrite() error {
	b := appendJournalBegin(nil, j.id)
	incs := make([]chunk.Incarnation, 0, len(j.states))
	for inc := range j.states {
		incs = append(incs, inc)
	}
	slices.Sort(incs)
	for _, inc := range incs {
		s := j.states[inc]
		b = appendJournalState(b, j.id, inc, int64(len(b)), &s)
	}
	name := path.Join(j.dir, journalName)
	if err := vfs.WriteFileSynced(j.fs, name, b, 0o644); err != nil {
		return err
	}
	f, err := j.fs.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if old := j.file; old != nil {
		old.retired = true
		if old.waiting == 0 {
			j.closeFile(old)
		}
	}
	j.size = int64(len(b))
	j.file = &journalFile{File: f, synced: j.size}
	j.stats.Rewrites++
	return nil
}

// Stats returns the figures of now.
func (j *Journal) Stats() JournalStats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Streams, s.Bytes = len(j.states), j.size
	return s
}

// close syncs what is left and closes the file. After a sync that failed, which
// no later change has made good, a new file takes all that is remembered.
func (j *Journal) close() error {
	err := await(j.syncer, func(done func(error)) { j.syncer.Submit(j.file.File, done) })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	if err != nil || j.suspect {
		err = j.rewrite()
	}
	j.closeFile(j.file)
	return err
}

// await calls an operation that answers later, and waits for its answer. An
// inline Syncer that holds requests back does them now: nobody else would.
func await(syncer *vfs.Syncer, start func(done func(error))) error {
	answered := make(chan error, 1)
	start(func(err error) { answered <- err })
	select {
	case err := <-answered:
		return err
	default:
		syncer.Resume()
		return <-answered
	}
}
