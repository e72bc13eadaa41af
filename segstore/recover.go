package segstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// Recovery tells what opening a log found and did.
type Recovery struct {
	// Tail is the last chunk of the log, and durable.
	Tail chunk.Tail
	// Mark is the durable mark that was believed: chunks up to it had been
	// synced. Above Tail's LSN it means damage.
	Mark chunk.LSN
	// Damage lists what can't be read: at the end of the log (the first, with
	// Aside = AsideDamaged), or sealed segments.
	Damage []*DamageError
	// Aside is what the journal remembers after recovery.
	Aside Aside
	// TornBytes were cut from the end of the unsealed file.
	TornBytes int64
	// Sealed counts seals that were done but not on record, CutDone tells of a
	// half-done cut.
	Sealed  int
	CutDone bool
	// ManifestRebuilt: MANIFEST was missing or damaged and made anew from the
	// segments' footers.
	ManifestRebuilt bool
	// Reopened: the log ended in a sealed segment, which was opened again.
	Reopened bool
	// Quarantined, Ignored and Removed list files, by their names at the time;
	// what is ignored is unknown and could not be moved.
	Quarantined, Ignored, Removed []string
	// ReadBytes were read of the unsealed file, from the checkpoint on.
	ReadBytes int64
}

// recovery is one run of it. Its steps, in order:
//
//  1. list    what lies in the directory
//  2. manifest  fold it; rebuild it from the footers if it is lost or damaged
//  3. seals   a footer without its record in front of another file: write the
//     record; without a file behind it, it is part of the torn tail
//  4. tidy    remove what the records call gone, quarantine the unknown
//  5. cut     finish a cut that was begun, before any length or mark is judged;
//     where torn chunks hide its place, 7 does
//  6. reopen  a log must not end in a sealed segment
//  7. scan    the unsealed file, from the checkpoint on, past the mark as far as
//     chunks are valid; what follows is a torn tail (cut) or damage (kept)
//  8. sync    what was read past the mark, and only then call it durable
//  9. track   fold tracking from the last complete snapshot, if 7 did not
//
// Two invariants: nothing that may be below the durable mark is cut or deleted,
// and a crash at any point leaves a state from which the same steps lead to the
// same log. The obvious way, to cut at the first bad chunk, would call rot a
// torn tail and lose acknowledged chunks silently.
type recovery struct {
	*Recovery
	l *Log
	// files are the segment files that are there, with their sizes.
	files   map[manifest.Name]int64
	indexes map[manifest.Name]bool
	unknown []string
	// sealed are the files that records name; set before tidying.
	sealed map[manifest.Name]*manifest.Summary
	// mark is the journal's newest mark; the scan may raise it.
	mark chunk.LSN
}

// recover reads the log's files anew and replaces everything known about it.
func (l *Log) recover() (Recovery, error) {
	var out Recovery
	r := &recovery{Recovery: &out, l: l, files: map[manifest.Name]int64{}, indexes: map[manifest.Name]bool{}}
	l.shed()
	l.unread = true
	err := r.run()
	l.unread = err != nil
	return out, err
}

// shed drops what is known about the files, before they are read anew.
func (l *Log) shed() {
	l.mu.Lock()
	l.run++
	l.poison, l.damage = nil, nil
	l.tail, l.durable, l.next, l.summary = chunk.Tail{}, chunk.Tail{}, 0, manifest.Summary{}
	l.mu.Unlock()
	l.cuts.Add(1)
	if lay := l.layout.Load(); lay != nil {
		for _, s := range lay.segments {
			s.gone.Store(true)
			l.store.handles.drop(s)
		}
	}
	l.store.cache.cut(&l.cached, 0)
	l.active, l.unit, l.digest, l.last, l.lastAt, l.lastCRC = nil, unitCount{}, 0, 0, 0, 0
	l.skipped = 0
	l.check.reset()
	l.removals = nil
}

func (r *recovery) run() error {
	l := r.l
	kept, _ := l.store.journal.State(l.inc)
	r.mark, r.Aside = kept.Mark, kept.Aside
	l.SetCommit(kept.Commit)
	if err := r.list(); err != nil {
		return err
	}
	if err := r.manifest(); err != nil {
		return err
	}
	if err := r.finishSeals(); err != nil {
		return err
	}
	if n := len(l.state.Segments); n > 0 { // a sealed record is of synced chunks
		r.mark = max(r.mark, l.state.Segments[n-1].LastLSN)
	}
	if err := r.tidy(); err != nil {
		return err
	}
	if err := r.finishCut(); err != nil {
		return err
	}
	return r.openTail()
}

// list reads the directory.
func (r *recovery) list() error {
	found, err := r.l.store.fs.List(r.l.dir)
	if err != nil {
		return err
	}
	for _, e := range found {
		name, suffix, ours := parseFile(e.Name)
		switch {
		case !e.IsRegular():
			r.unknown = append(r.unknown, e.Name)
		case ours && suffix == segmentSuffix:
			r.files[name] = e.Size
		case ours:
			r.indexes[name] = true
		case e.Name == manifestName || e.Name == checkpointName:
		case isTemporary(e.Name):
			if err := r.remove(e.Name); err != nil {
				return err
			}
		default:
			r.unknown = append(r.unknown, e.Name)
		}
	}
	return nil
}

// isTemporary tells whether a file is what a crash leaves of replacing one of
// ours: its content is in no file's place yet.
func isTemporary(file string) bool {
	base, ok := cutSuffix(file, temporary)
	if !ok {
		return false
	}
	_, _, ours := parseFile(base)
	return ours || base == manifestName || base == checkpointName
}

func cutSuffix(s, suffix string) (string, bool) {
	if len(s) < len(suffix) || s[len(s)-len(suffix):] != suffix {
		return s, false
	}
	return s[:len(s)-len(suffix)], true
}

func (r *recovery) path(file string) string { return path.Join(r.l.dir, file) }

func (r *recovery) remove(file string) error {
	r.Removed = append(r.Removed, file)
	return r.l.store.fs.Remove(r.path(file))
}

func (r *recovery) quarantine(file string) error {
	r.Quarantined = append(r.Quarantined, file)
	return r.l.store.quarantine(r.path(file))
}

// manifest reads and folds MANIFEST.
func (r *recovery) manifest() error {
	l := r.l
	l.records = manifestFile{fs: l.store.fs, dir: l.dir, inc: l.inc}
	b, exists, err := readIfThere(l.store.fs, l.records.path())
	if err != nil {
		return err
	}
	records, good, err := manifest.Decode(l.inc, b)
	if errors.Is(err, manifest.ErrVersion) {
		return fmt.Errorf("%w: %w", ErrVersion, err)
	}
	if err == nil && good > 0 {
		l.state, err = manifest.Fold(l.inc, records)
	}
	if err != nil || good == 0 {
		return r.rebuild(exists)
	}
	l.records.size = int64(good)
	live := int64(len(manifest.Encode(l.inc, l.state.Records())))
	if good < len(b) || manifest.WorthRewriting(int64(good), live) && len(l.state.Obsolete) == 0 {
		return l.records.rewrite(l.state.Records())
	}
	if l.fresh {
		l.fresh = false
		return nil
	}
	return l.records.settle(records)
}

func readIfThere(fsys vfs.FS, name string) (b []byte, exists bool, err error) {
	if exists, err = vfs.Exists(fsys, name); err != nil || !exists {
		return nil, false, err
	}
	b, err = vfs.ReadFile(fsys, name)
	return b, true, err
}

// finishSeals writes the records of footers that have none although other files
// follow, where MANIFEST is an old copy.
//
// A footer that nothing follows is what a crash inside of a seal leaves, and
// proves little: it may have reached the disk before the chunks in front of it.
// The scan reads these and takes the footer for the torn tail, which comes to
// the same as sealing the file and opening it again.
func (r *recovery) finishSeals() error {
	l := r.l
	for {
		first, _, _, _ := l.state.End()
		name, ok := r.newest(first)
		if !ok {
			return nil
		}
		sum, ok, err := r.footer(name)
		if err != nil || !ok {
			return err
		}
		if l.state.CutOpen && sum.LastLSN >= l.state.Cut {
			return nil // the cut is about to take it
		}
		if !r.vouched(&sum) {
			return nil
		}
		record := manifest.Record{Kind: manifest.KindSealed, Summary: sum}
		if trial := l.state; trial.Apply(&record) != nil {
			return nil // not a segment of this log; the scan judges the bytes
		}
		if err := l.syncFile(name); err != nil {
			return err
		}
		if err := l.records.append(&record); err != nil {
			return err
		}
		if err := l.state.Apply(&record); err != nil {
			return err
		}
		r.Sealed++
	}
}

// vouched tells whether the chunks before a footer were synced: another file
// follows, or it is of a compaction, which syncs them before it writes one.
func (r *recovery) vouched(footer *manifest.Summary) bool {
	_, followed := r.newest(footer.LastLSN + 1)
	return followed || footer.Generation > 0
}

// newest returns the file with the highest generation that begins at an LSN.
func (r *recovery) newest(first chunk.LSN) (name manifest.Name, found bool) {
	for n := range r.files {
		if n.FirstLSN == first && (!found || n.Generation > name.Generation) {
			name, found = n, true
		}
	}
	return name, found
}

// footer reads a file's footer; ok is false if there is no valid one. The
// footer's claims are held against the file's name and length.
func (r *recovery) footer(name manifest.Name) (s manifest.Summary, ok bool, err error) {
	f, err := r.l.openFile(name, false)
	if err != nil {
		return s, false, err
	}
	defer func() { _ = f.Close() }()
	s, err = readFooter(f, r.l.inc, r.files[name])
	switch {
	case errors.Is(err, manifest.ErrVersion):
		return s, false, fmt.Errorf("%w: %s: %w", ErrVersion, segmentFile(name), err)
	case errors.Is(err, errRead):
		return s, false, err
	case err != nil || s.Name() != name:
		return s, false, nil
	}
	return s, true, nil
}

// readFooter returns the summary that a segment file ends with.
// Errors: those of manifest.DecodeFooter, errRead.
func readFooter(f io.ReaderAt, inc chunk.Incarnation, size int64) (manifest.Summary, error) {
	tail := make([]byte, manifest.FooterTailLength)
	if size < int64(len(tail)) {
		return manifest.Summary{}, manifest.ErrNoFooter
	}
	if err := readFull(f, tail, size-int64(len(tail))); err != nil {
		return manifest.Summary{}, err
	}
	n := int64(manifest.FooterLength(tail))
	if n == 0 || n > size {
		return manifest.Summary{}, manifest.ErrNoFooter
	}
	block := make([]byte, n)
	if err := readFull(f, block, size-n); err != nil {
		return manifest.Summary{}, err
	}
	s, err := manifest.DecodeFooter(inc, block)
	if err == nil && s.Size != size-n {
		err = fmt.Errorf("%w: it is of a file of %d bytes of chunks", manifest.ErrNoFooter, s.Size)
	}
	return s, err
}

func readFull(f io.ReaderAt, b []byte, at int64) error {
	if n, err := f.ReadAt(b, at); n < len(b) {
		return fmt.Errorf("%w: %d bytes at %d: %w", errRead, len(b), at, err)
	}
	return nil
}

// tidy brings the directory in line with the records. Files below the log start
// go oldest first and files above a cut newest first, so that what is left is
// one run even if MANIFEST is lost in between.
func (r *recovery) tidy() error {
	r.sealed = make(map[manifest.Name]*manifest.Summary, len(r.l.state.Segments))
	for i := range r.l.state.Segments {
		s := &r.l.state.Segments[i]
		r.sealed[s.Name()] = s
	}
	var below, above []manifest.Name
	for name := range r.files {
		switch r.judge(name) {
		case superfluous:
			below = append(below, name)
		case cutAway:
			above = append(above, name)
		case unexplained:
			if err := r.quarantine(segmentFile(name)); err != nil {
				return err
			}
			delete(r.files, name)
		}
	}
	slices.SortFunc(below, compareNames)
	slices.SortFunc(above, compareNames)
	slices.Reverse(above)
	for _, name := range append(below, above...) {
		if err := r.remove(segmentFile(name)); err != nil {
			return err
		}
		delete(r.files, name)
	}
	for name := range r.indexes {
		if _, used := r.files[name]; !used {
			if err := r.remove(indexFile(name)); err != nil {
				return err
			}
		}
	}
	for _, file := range r.unknown {
		// A thing that can't be moved (a mount point, say) is let be: it has none
		// of our names.
		if err := r.quarantine(file); err != nil {
			r.Ignored = append(r.Ignored, file)
		}
	}
	return nil
}

func compareNames(a, b manifest.Name) int {
	if c := cmp.Compare(a.FirstLSN, b.FirstLSN); c != 0 {
		return c
	}
	return cmp.Compare(a.Generation, b.Generation)
}

type verdict uint8

const (
	unexplained verdict = iota
	named               // a record says what it is
	superfluous         // its content is elsewhere, or was given up
	cutAway             // an open cut takes it
	unsealed            // it continues the log
)

// judge says what a segment file is. Only what the records call replaced, cut or
// below the log start, or what whole named files cover, may be removed.
func (r *recovery) judge(name manifest.Name) verdict {
	state := &r.l.state
	end, _, _, _ := state.End()
	switch {
	case r.sealed[name] != nil:
		return named
	case slices.Contains(state.Obsolete, name), name.FirstLSN < state.Start.LSN:
		return superfluous
	case state.CutOpen && name.FirstLSN > state.Cut:
		return cutAway
	case name.FirstLSN == end:
		if n, _ := r.newest(end); n == name {
			return unsealed
		}
	case name.FirstLSN < end && r.covered(name):
		return superfluous
	}
	return unexplained
}

// covered tells whether a named file that is there as a whole holds the LSNs of
// this one.
func (r *recovery) covered(name manifest.Name) bool {
	for i := range r.l.state.Segments {
		s := &r.l.state.Segments[i]
		if s.FirstLSN <= name.FirstLSN && name.FirstLSN <= s.LastLSN {
			return r.files[s.Name()] == s.FileSize()
		}
	}
	return false
}

// openTail finds the unsealed file, reads it, and puts the log together.
func (r *recovery) openTail() error {
	l := r.l
	active, err := r.findActive()
	if err != nil {
		return err
	}
	if err := r.endCut(); err != nil {
		return err
	}
	segments := make([]*segment, 0, len(l.state.Segments)+1)
	for i := range l.state.Segments {
		segments = append(segments, r.sealedSegment(&l.state.Segments[i]))
		l.unit.countSegment(&l.state.Segments[i])
	}
	if active != nil {
		l.active = active
		l.unit.countSegment(&l.summary)
		segments = append(segments, active)
	}
	r.track(segments)
	r.proveCommit()
	l.mu.Lock()
	l.durable, l.marked = l.tail, l.tail.LSN // see remember
	l.mu.Unlock()
	r.Tail = l.tail
	if err := r.remember(); err != nil {
		return err
	}
	l.publish(segments)
	return nil
}

// findActive returns the segment that the log goes on in, nil if it is empty or
// its end is unproven. A file without a single good chunk is a creation that
// nobody relied on; a log that then ends in a sealed segment opens that again.
func (r *recovery) findActive() (*segment, error) {
	for {
		end, next, digest, tail := r.l.state.End()
		r.l.setTail(tail, next, digest)
		name, ok := r.newest(end)
		if !ok {
			reopened, err := r.reopen()
			if err != nil {
				return nil, err
			}
			if reopened {
				continue
			}
			return nil, r.judgeEnd(&DamageError{File: r.l.dir, Segment: manifest.Name{FirstLSN: end}, Cause: errMissingEnd})
		}
		s, err := r.scan(name)
		if err != nil || s != nil || r.l.damage != nil {
			return s, err
		}
		if err := errors.Join(r.remove(segmentFile(name)), r.l.store.fs.SyncDir(r.l.dir)); err != nil {
			return nil, err
		}
		delete(r.files, name)
	}
}

var errMissingEnd = errors.New("no file holds them")

// setTail says where the log ends, before more chunks are read.
func (l *Log) setTail(tail chunk.Tail, next chunk.Offset, digest chunk.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail, l.next, l.digest = tail, next, digest
}

// sealedSegment makes the segment of a summary; a file that is missing or has
// another length marks it damaged, and the log goes on without it.
func (r *recovery) sealedSegment(sum *manifest.Summary) *segment {
	s := &segment{log: r.l, name: sum.Name(), base: sum.BaseOffset}
	s.end.Store(sum.Size)
	s.synced.Store(sum.Size)
	s.summary.Store(sum)
	if size, ok := r.files[s.name]; !ok || size != sum.FileSize() {
		cause := fmt.Errorf("file has %d bytes, want %d", size, sum.FileSize())
		if !ok {
			cause = errors.New("file is missing")
		}
		r.damaged(s, &DamageError{
			File: s.path(), Segment: s.name, First: sum.FirstLSN, Last: sum.LastLSN,
			Offset: sum.BaseOffset, Next: sum.NextOffset, Cause: cause,
		})
	}
	return s
}

func (r *recovery) damaged(s *segment, d *DamageError) {
	s.damage.Store(d)
	r.Damage = append(r.Damage, d)
}

// proveCommit raises the known commit to what the log's own state proves: what
// retention or compaction took had been committed (C5).
func (r *recovery) proveCommit() {
	r.l.SetCommit(r.l.state.Start.LSN - 1)
	for i := range r.l.state.Segments {
		r.l.SetCommit(r.l.state.Segments[i].DroppedLSN)
	}
}

// remember writes to the journal what recovery came to.
func (r *recovery) remember() error {
	l := r.l
	l.mu.Lock()
	damage := l.damage
	l.mu.Unlock()
	if damage != nil {
		r.Aside = AsideDamaged
	}
	return await(l.store.syncer, func(done func(error)) {
		l.store.journal.Change(l.inc, func(s *StreamState) {
			if damage != nil {
				s.Aside = AsideDamaged
				s.Mark = max(s.Mark, r.Mark)
			}
			s.Mark = max(s.Mark, l.tail.LSN)
			s.Commit = max(s.Commit, min(l.Commit(), s.Mark))
		}, done)
	})
}
