package segstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// Options say where a Store lives and what it may use.
type Options struct {
	// Dir is the data directory; it is made if it is missing.
	Dir string
	// FS is vfs.OS by default.
	FS vfs.FS
	// Syncer is what syncs segment files; a nil one is made, with SyncParallel
	// syncs at once (4 by default), and closed with the store.
	Syncer       *vfs.Syncer
	SyncParallel int
	// CacheBytes bounds the chunks in memory, 64 MiB by default; HandlesMax the
	// open segment files, 1,024 by default.
	CacheBytes int64
	HandlesMax int
	// Damaged, if not nil, hears of each damage once: when a log is opened, when
	// a reader, the scrub or compaction meets it. It is called from anywhere and
	// must not block.
	Damaged func(l *Log, d *DamageError)
}

// Store is a node's data directory. Its methods may be called concurrently.
type Store struct {
	fs         vfs.FS
	dir        string
	syncer     *vfs.Syncer
	ownsSyncer bool
	lock       io.Closer
	journal    *Journal
	handles    handles
	cache      cache
	candidates candidates
	damaged    func(*Log, *DamageError)

	// names is the sync of streams/.
	names sharedSync

	// mu guards the fields below.
	mu   sync.Mutex
	dirs map[chunk.Incarnation]string // names below streams/
	// fresh are the streams that were made since the start and not opened yet: all
	// of their files is known to be durable.
	fresh  map[chunk.Incarnation]struct{}
	logs   map[chunk.Incarnation]*Log // open ones
	closed bool
}

// NewStore opens a data directory: it locks it against other processes, reads
// the node journal, and finishes removals that a crash interrupted. What lies
// there and has no name that this program writes goes to quarantine.
//
// Errors: vfs.ErrLocked, ErrVersion, what the disk says.
func NewStore(o Options) (*Store, error) {
	s := &Store{fs: o.FS, dir: o.Dir, syncer: o.Syncer, dirs: map[chunk.Incarnation]string{}, logs: map[chunk.Incarnation]*Log{},
		fresh: map[chunk.Incarnation]struct{}{}}
	if s.fs == nil {
		s.fs = vfs.OS{}
	}
	if s.damaged = o.Damaged; s.damaged == nil {
		s.damaged = func(*Log, *DamageError) {}
	}
	if s.syncer == nil {
		parallel := o.SyncParallel
		if parallel <= 0 {
			parallel = 4
		}
		s.syncer, s.ownsSyncer = vfs.NewSyncer(parallel), true
	}
	s.candidates.wake = make(chan struct{}, 1)
	s.cache.max = o.CacheBytes
	if s.cache.max <= 0 {
		s.cache.max = cacheBytesDefault
	}
	s.handles = handles{fs: s.fs, syncer: s.syncer, max: o.HandlesMax, open: map[*segment]*handle{}}
	if s.handles.max <= 0 {
		s.handles.max = handlesMaxDefault
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", s.dir, err)
	}
	return s, nil
}

func (s *Store) open() error {
	if err := s.makeDir(); err != nil {
		return err
	}
	for _, name := range []string{streamsDir, quarantineDir, journalDir} {
		if err := s.fs.MkdirAll(path.Join(s.dir, name), 0o755); err != nil {
			return err
		}
	}
	lock, err := s.fs.Lock(path.Join(s.dir, lockName))
	if err != nil {
		return err
	}
	s.lock = lock
	if err := s.openLocked(); err != nil {
		return errors.Join(err, s.lock.Close())
	}
	return nil
}

// makeDir makes the data directory and its missing parents, durably. Where a
// parent can't be opened, somebody else made what is in it.
func (s *Store) makeDir() error {
	parents := []string{path.Dir(s.dir)} // its own name may be new since the last start
	for dir := parents[0]; dir != path.Dir(dir); dir = path.Dir(dir) {
		exists, err := vfs.Exists(s.fs, dir)
		if err != nil {
			return err
		}
		if exists {
			break
		}
		parents = append(parents, path.Dir(dir))
	}
	if err := s.fs.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	for _, dir := range parents {
		if err := s.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

func (s *Store) openLocked() error {
	if err := s.fs.SyncDir(s.dir); err != nil {
		return err
	}
	if err := s.listStreams(); err != nil {
		return err
	}
	journal, err := openJournal(s.fs, s.dir, s.syncer, s.quarantine, maps.Keys(s.dirs))
	s.journal = journal
	return err
}

func (s *Store) listStreams() error {
	found, err := s.fs.List(path.Join(s.dir, streamsDir))
	if err != nil {
		return err
	}
	for _, e := range found {
		name := path.Join(s.dir, streamsDir, e.Name)
		base, removed := strings.CutSuffix(e.Name, removedSuffix)
		_, inc, ours := ParseDirName(base)
		_, twice := s.dirs[inc]
		switch {
		case ours && removed && e.IsDir():
			if err := vfs.RemoveAll(s.fs, name); err != nil {
				return err
			}
		case ours && !removed && e.IsDir() && !twice:
			s.dirs[inc] = e.Name
		default:
			if err := s.quarantine(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// quarantine moves something unknown or not to be believed out of the way. It
// keeps it: an operator decides.
func (s *Store) quarantine(name string) error {
	to, err := s.quarantineName(name)
	if err == nil {
		err = s.fs.Rename(name, to)
	}
	if err != nil {
		return fmt.Errorf("quarantine %s: %w", name, err)
	}
	return errors.Join(s.fs.SyncDir(path.Join(s.dir, quarantineDir)), s.fs.SyncDir(path.Dir(name)))
}

// quarantineName returns a free name for something in quarantine.
func (s *Store) quarantineName(name string) (string, error) {
	flat := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(name, s.dir), "/"), "/", "~")
	for i := 0; ; i++ {
		to := path.Join(s.dir, quarantineDir, fmt.Sprintf("%s.%d", flat, i))
		if exists, err := vfs.Exists(s.fs, to); err != nil || !exists {
			return to, err
		}
	}
}

// keepCopy copies a file to quarantine, durably. Where the disk does not give
// its bytes there is no copy, or, with holes, one that has zeros in their place.
func (s *Store) keepCopy(name string, holes bool) error {
	to, err := s.quarantineName(name)
	if err != nil {
		return err
	}
	from, err := s.fs.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	f, err := s.fs.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err = copyFile(f, from, holes); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), s.fs.SyncDir(path.Join(s.dir, quarantineDir)))
}

// copyFile copies a file's bytes by buffers, and by sectors where one can't be
// read as a whole.
func copyFile(to, from vfs.File, holes bool) error {
	const sector = 4096
	size, err := from.Size()
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	for at, most := int64(0), len(buffer); at < size; {
		n, err := from.ReadAt(buffer[:min(int64(most), size-at)], at)
		switch {
		case n > 0:
		case !holes:
			return err
		case most > sector:
			most = sector
			continue
		default:
			n = int(min(sector, size-at))
			clear(buffer[:n])
		}
		if _, err := to.WriteAt(buffer[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// Journal returns the node journal.
func (s *Store) Journal() *Journal { return s.journal }

// Dir returns the data directory.
func (s *Store) Dir() string { return s.dir }

// FreeSpace returns the bytes that may still be written to the disk.
func (s *Store) FreeSpace() (uint64, error) { return s.fs.FreeSpace(s.dir) }

// Capacity returns the size in bytes of the disk that holds the store.
func (s *Store) Capacity() (uint64, error) { return s.fs.Capacity(s.dir) }

// Stream is a stream that has files here.
type Stream struct {
	// Hash is Hash of the stream's name.
	Hash        string
	Incarnation chunk.Incarnation
}

// Remember changes, durably, what the journal knows of a stream, before its log
// is opened. Error: what the disk says.
func (s *Store) Remember(inc chunk.Incarnation, change func(*StreamState)) error {
	return await(s.syncer, func(done func(error)) { s.journal.Change(inc, change, done) })
}

// List returns the streams that have files here, in the order of their
// incarnations: whoever goes through them does so the same way each time.
func (s *Store) List() []Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Stream
	for _, dir := range s.dirs {
		hash, inc, _ := ParseDirName(dir)
		out = append(out, Stream{Hash: hash, Incarnation: inc})
	}
	slices.SortFunc(out, func(a, b Stream) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	return out
}

// Has tells whether a stream has files here.
func (s *Store) Has(inc chunk.Incarnation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := s.dirs[inc]
	return found
}

func (s *Store) streamDir(dir string) string { return path.Join(s.dir, streamsDir, dir) }

// Create makes the files of a new stream and remembers it in the journal. name
// is the stream's full name, virtual host included; only its hash is used.
// Error: ErrExists.
func (s *Store) Create(name string, inc chunk.Incarnation) error {
	dir := dirName(name, inc)
	s.mu.Lock()
	_, exists := s.dirs[inc]
	if !exists && !s.closed {
		s.dirs[inc] = dir
	}
	closed := s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case exists:
		return fmt.Errorf("create %s: %w", dir, ErrExists)
	}
	if err := s.create(s.streamDir(dir), inc); err != nil {
		s.forget(inc)
		return fmt.Errorf("create %s: %w", dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh[inc] = struct{}{}
	return nil
}

func (s *Store) create(dir string, inc chunk.Incarnation) error {
	if err := s.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	records := manifestFile{fs: s.fs, dir: dir, inc: inc}
	if err := records.rewrite(nil); err != nil {
		return err
	}
	if err := s.syncNames(); err != nil {
		return err
	}
	return await(s.syncer, func(done func(error)) { s.journal.Change(inc, func(*StreamState) {}, done) })
}

// syncNames makes the names of streams' folders durable.
func (s *Store) syncNames() error {
	return s.names.do(func() error { return s.fs.SyncDir(path.Join(s.dir, streamsDir)) })
}

func (s *Store) forget(inc chunk.Incarnation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dirs, inc)
	delete(s.fresh, inc)
	delete(s.logs, inc)
}

// Open recovers a stream's log; only one can be open at a time. The Recovery
// tells what was found; damage that sets the replica aside is told there and by
// Log.Err, and is no error here.
//
// Errors: ErrMissing, ErrExists if the log is open, ErrVersion, what the disk
// says.
func (s *Store) Open(inc chunk.Incarnation, c Config) (*Log, Recovery, error) {
	s.mu.Lock()
	dir, found := s.dirs[inc]
	open := s.logs[inc]
	l := &Log{store: s, dir: s.streamDir(dir), inc: inc, config: c.orDefault()}
	if found && open == nil && !s.closed {
		s.logs[inc] = l
		_, l.fresh = s.fresh[inc]
		delete(s.fresh, inc)
	}
	closed := s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, Recovery{}, ErrClosed
	case !found:
		return nil, Recovery{}, fmt.Errorf("open %s: %w", inc, ErrMissing)
	case open != nil:
		return nil, Recovery{}, fmt.Errorf("open %s: its log is open: %w", inc, ErrExists)
	}
	r, err := l.recover()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.logs, inc)
		return nil, r, fmt.Errorf("open %s: %w", dir, err)
	}
	s.candidates.add(candidate{log: l})
	for _, d := range r.Damage {
		s.damaged(l, d)
	}
	return l, r, nil
}

// reopened tells whether the log was closed and its files are open as another.
func (s *Store) reopened(l *Log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := s.logs[l.inc]
	return other != nil && other != l
}

// Remove removes a stream with all its files. It may be repeated until it
// succeeds; a crash inside of it is finished at the next start. A log that is
// open is closed without a last sync. No error if the stream is not here.
func (s *Store) Remove(inc chunk.Incarnation) error {
	s.mu.Lock()
	dir, found := s.dirs[inc]
	l := s.logs[inc]
	s.mu.Unlock()
	if l != nil {
		l.shut()
	}
	if !found {
		return nil
	}
	from, to := s.streamDir(dir), s.streamDir(dir+removedSuffix)
	if err := s.fs.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := s.syncNames(); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := await(s.syncer, func(done func(error)) { s.journal.Remove(inc, done) }); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := vfs.RemoveAll(s.fs, to); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	s.forget(inc)
	return nil
}

// Quarantine moves a stream's files out of the way and forgets it: what to do
// with a stream that the catalog does not know. Nothing is deleted.
func (s *Store) Quarantine(inc chunk.Incarnation) error {
	s.mu.Lock()
	dir, found := s.dirs[inc]
	l := s.logs[inc]
	s.mu.Unlock()
	if l != nil {
		l.shut()
	}
	if !found {
		return nil
	}
	if err := s.quarantine(s.streamDir(dir)); err != nil {
		return err
	}
	s.forget(inc)
	return await(s.syncer, func(done func(error)) { s.journal.Remove(inc, done) })
}

// CloseUnused closes the segment files that nobody has used since the last call;
// the next use of one opens it anew. Called from time to time, it leaves idle
// streams without a descriptor.
func (s *Store) CloseUnused() { s.handles.closeUnused() }

// StoreStats counts what a store holds and does.
type StoreStats struct {
	Streams, OpenLogs, OpenFiles int
	// Damaged counts the segments, and ends of logs, that are known to be damaged.
	Damaged int
	Cache   CacheStats
	Journal JournalStats
	Syncs   vfs.SyncStats
}

// Stats returns the figures of now.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	st := StoreStats{Streams: len(s.dirs), OpenLogs: len(s.logs)}
	s.mu.Unlock()
	for _, l := range s.openLogs() {
		st.Damaged += l.damagedPlaces()
	}
	st.OpenFiles = s.handles.count()
	st.Cache, st.Journal, st.Syncs = s.cache.snapshot(), s.journal.Stats(), s.syncer.Stats()
	return st
}

// Close closes the logs that are still open, the journal and the directory.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var open []*Log
	for _, l := range s.logs {
		open = append(open, l)
	}
	s.mu.Unlock()
	var errs []error
	for _, l := range open {
		errs = append(errs, l.Close())
		l.shut()
	}
	errs = append(errs, s.journal.close())
	if s.ownsSyncer {
		errs = append(errs, s.syncer.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}
