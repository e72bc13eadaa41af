package segstore

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
	"github.com/millrace/millrace/tracking"
)

// Log is one replica's log.
//
//	            durable          tail
//	start          │               │
//	  │ sealed │ sealed │ active   │
//	  ├────────┼────────┼──────────┤
//	                ▲ commit (told by the owner)
//
// One goroutine at a time calls the methods that change it; they are marked by
// "mutator" in their comments. The others may be called at any time.
type Log struct {
	store *Store
	dir   string
	inc   chunk.Incarnation

	// The mutator's own.
	config   Config
	records  manifestFile
	state    manifest.State
	active   *segment // nil when the log ends without an unsealed segment
	tracking *tracking.State
	unit     unitCount
	// spare is how many bytes tracking may grow by until compaction must look at
	// the log before its next seal; 0 if it need not.
	spare int64
	// skipped is the end of a gap behind the tail, if it is above the tail.
	skipped  chunk.LSN
	digest   chunk.Digest
	last     chunk.Timestamp // of the last chunk
	lastAt   int64           // its position in the active segment
	lastCRC  uint32          // of its head
	buffers  [][]byte        // for one write, reused
	removals []removal       // files that could not be removed yet
	check    checkpointing
	rewriter *rewriting // the last one that was begun
	unread   bool       // the last recovery has failed: the fields above say nothing
	// fresh: nobody has opened the files before, and they are durable.
	fresh bool

	// layout is what readers see of the files.
	layout atomic.Pointer[layout]
	cached cachedLog
	// commit is what the owner knows to be committed.
	commit atomic.Uint64
	// cuts counts the times that files were cut or replaced: places that readers
	// remember from before are void.
	cuts atomic.Uint64

	// reading is held while a cut reads the files anew: what tail and segments say
	// then is true of no log. Who attaches or describes waits. Taken before mu.
	reading sync.RWMutex

	hurt atomic.Pointer[func()] // who hears of damage in a segment

	// mu guards the fields below, which syncs and readers touch too.
	mu      sync.Mutex
	summary manifest.Summary // of the active segment; written by the mutator only
	tail    chunk.Tail
	next    chunk.Offset
	durable chunk.Tail
	marked  chunk.LSN // the durable mark that the journal was told when it last was
	run     uint64    // counts recoveries and cuts: a sync asked for before says nothing after
	// compaction counts; its BytesPinned are those of the last look.
	compaction CompactionStats
	repaired   uint64 // segments, since the log was opened
	poison     error  // a failed sync
	damage     error  // what makes the end of the log unproven
	isClosed   bool
}

// unitCount is what has been written since the last size or age roll.
type unitCount struct {
	userBytes int64
	first     chunk.Timestamp // of the first user chunk, if used
	used      bool
}

// Incarnation returns the incarnation whose log this is.
func (l *Log) Incarnation() chunk.Incarnation { return l.inc }

// Tail returns the place of the last chunk.
func (l *Log) Tail() chunk.Tail {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail
}

// Durable returns the place of the last chunk that would survive a power loss.
func (l *Log) Durable() chunk.Tail {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Next returns the offset that the next record will take.
func (l *Log) Next() chunk.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// First returns the offset of the first record that is still there or, in an
// empty log, of the one to come.
func (l *Log) First() chunk.Offset { return l.layout.Load().start.Offset }

// LogStart returns where the log starts.
func (l *Log) LogStart() manifest.Start { return l.layout.Load().start }

// Commit returns the highest LSN known to be committed.
func (l *Log) Commit() chunk.LSN { return chunk.LSN(l.commit.Load()) }

// SetCommit tells the log what is committed; lower values are ignored. Nothing
// at or below it is ever cut.
func (l *Log) SetCommit(lsn chunk.LSN) {
	for {
		was := l.commit.Load()
		if uint64(lsn) <= was || l.commit.CompareAndSwap(was, uint64(lsn)) {
			return
		}
	}
}

// Digest returns the running digest after the last chunk. Mutator.
func (l *Log) Digest() chunk.Digest { return l.digest }

// LastTimestamp returns the last chunk's timestamp, below which no later one's
// may be. Mutator.
func (l *Log) LastTimestamp() chunk.Timestamp { return l.last }

// Tracking returns the fold of the log up to its tail. Appending and cutting
// change it (I17); nobody else may. Mutator.
func (l *Log) Tracking() *tracking.State { return l.tracking }

// Epochs returns the epoch table (C1), ascending. Mutator.
func (l *Log) Epochs() []manifest.EpochLine {
	lines := append([]manifest.EpochLine(nil), l.state.Lines...)
	// A gap's lines are written before the chunk behind it.
	lines = slices.DeleteFunc(lines, func(line manifest.EpochLine) bool { return line.LSN > l.tail.LSN })
	for _, line := range l.summary.Lines {
		// A segment that was opened again has its lines in both places.
		if n := len(lines); n == 0 || line.Epoch > lines[n-1].Epoch {
			lines = append(lines, line)
		}
	}
	return lines
}

// Config returns the settings in force. Mutator.
func (l *Log) Config() Config { return l.config }

// Configure changes the settings. Caps of tracking take effect when the log is
// opened again. Mutator.
func (l *Log) Configure(c Config) { l.config = c.orDefault() }

// Err returns why the log takes no chunks: ErrClosed, ErrPoisoned, ErrDamaged,
// or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err()
}

func (l *Log) err() error {
	switch {
	case l.isClosed:
		return ErrClosed
	case l.poison != nil:
		return l.poison
	}
	return l.damage
}

// closed tells whether the log's files must not be touched any more.
func (l *Log) closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isClosed
}

// ShouldRoll tells whether the next append should begin a new segment, and why
// (design 3.3). The leader asks before it builds a chunk, and tells of what kind
// that is and how many bytes of stored offsets it will carry; a follower rolls
// when it is sent a chunk flagged segment-start. Mutator.
func (l *Log) ShouldRoll(now time.Time, appending Appending, stored int64) RollKind {
	if l.active == nil {
		return RollNone
	}
	s := &l.summary
	// The head snapshot says best how big one is. What State estimates is an
	// upper bound, by which tracking could pile up beyond nine snapshots.
	snapshot, next := s.SnapshotBytes, l.tracking.Stats().SnapshotBytesMax
	if s.SnapshotLast.LSN == 0 {
		snapshot = next
	}
	held, bound := plan.HeldTracking(l.state.Segments, s, next)
	return plan.Roll(&plan.RollInput{
		Holds: s.UserChunks+s.DeltaChunks > 0, Appending: appending,
		UnitUserBytes: l.unit.userBytes, SegmentBytes: l.config.SegmentBytes,
		UnitFirst: l.unit.first, UnitUsed: l.unit.used,
		Now: chunk.Timestamp(now.UnixMilli()), MaxAge: l.config.MaxAge.Milliseconds(),
		ControlBytes: s.ControlBytes(), UserBytes: s.UserBytes,
		SnapshotBytes:   snapshot,
		ControlBytesMin: l.config.ControlBytes, ControlPerMille: l.config.ControlPerMille,
		HeldBytes: held + stored, HeldBound: bound, Damaged: l.active.harm() != nil,
	})
}

// count takes a chunk into the unit's counters.
func (u *unitCount) count(h *chunk.Header) {
	if h.Has(chunk.FlagUnitStart) {
		*u = unitCount{}
	}
	if h.Type == chunk.User {
		if !u.used {
			u.first, u.used = h.Timestamp, true
		}
		u.userBytes += h.UserBytes()
	}
}

// countSegment takes a sealed segment into the unit's counters.
func (u *unitCount) countSegment(s *manifest.Summary) {
	if s.UnitStart {
		*u = unitCount{}
	}
	if s.UserChunks > 0 {
		if !u.used {
			u.first, u.used = s.FirstTimestamp, true
		}
		u.userBytes += s.UserBytes
	}
}

// publish shows readers the present files.
func (l *Log) publish(segments []*segment) {
	l.layout.Store(&layout{start: l.state.Start, segments: segments})
}

// SegmentInfo describes one segment of a log.
type SegmentInfo struct {
	manifest.Summary
	Sealed bool
	// Damage is set if the segment can't be read as a whole, as far as that is
	// known: from the start on, or since a reader has met it.
	Damage *DamageError
	// DroppedBytes have been gained by compaction since the log was opened.
	DroppedBytes int64
}

// SegmentFigures is a segment with what costs a little more to know.
type SegmentFigures struct {
	SegmentInfo
	IndexBytes int64
	// DroppableBytes could be gained by compaction now, whether it is worth the
	// work or not.
	DroppableBytes int64
}

// SegmentFigures describes all segments from the log start on, for operators.
func (l *Log) SegmentFigures() []SegmentFigures {
	l.reading.RLock()
	infos, segments := l.describe()
	l.reading.RUnlock()
	list := make([]SegmentFigures, len(infos))
	for i := range infos {
		list[i].SegmentInfo, list[i].IndexBytes = infos[i], segments[i].indexSize()
	}
	plan.DroppableBy(l.droppableInput(infos), func(i int, bytes int64) { list[i].DroppableBytes = bytes })
	return list
}

// Segments describes all segments from the log start on.
func (l *Log) Segments() []SegmentInfo {
	l.reading.RLock()
	defer l.reading.RUnlock()
	infos, _ := l.describe()
	return infos
}

// describe returns the segments as well, one for each description. reading is
// held for reading.
func (l *Log) describe() ([]SegmentInfo, []*segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	segments := l.layout.Load().segments
	infos := make([]SegmentInfo, 0, len(segments))
	for _, s := range segments {
		info := SegmentInfo{Damage: s.harm(), DroppedBytes: s.dropped.Load()}
		if sealed := s.summary.Load(); sealed != nil {
			info.Summary, info.Sealed = *sealed, true
		} else {
			info.Summary = l.summary
		}
		infos = append(infos, info)
	}
	return infos, segments
}

// Stats describes a log in figures. Bytes are those of chunks on disk.
type Stats struct {
	Tail, Durable chunk.Tail
	Commit        chunk.LSN
	First, Next   chunk.Offset
	Segments      int
	// Records counts messages: from summaries, without reading anything (M5).
	Records       uint64
	UserChunks    uint64
	UserBytes     int64
	TrailerBytes  int64
	FilterBytes   int64
	DeltaBytes    int64
	SnapshotBytes int64
	// SequenceBytes is the part of TrailerBytes and SnapshotBytes that publishers'
	// sequences take; TrackingBytes is what stored offsets take (F7).
	SequenceBytes int64
	TrackingBytes int64
	// TrackingBound is what TrackingBytes may be at most (design 1).
	TrackingBound int64
	DiskBytes     int64
	IndexBytes    int64 // in files beside the segments, and in memory for the active one
	Compaction    CompactionStats
	// Damaged counts segments that are known to be damaged, Repaired those
	// that were fetched from another replica since the log was opened.
	Damaged  int
	Repaired uint64
	// Err is what Log.Err tells.
	Err error
}

// Stats returns the figures of now.
func (l *Log) Stats() Stats {
	l.reading.RLock()
	infos, segments := l.describe()
	l.mu.Lock()
	st := Stats{Tail: l.tail, Durable: l.durable, Next: l.next, Repaired: l.repaired, Err: l.err()}
	l.mu.Unlock()
	l.reading.RUnlock()
	st.Commit, st.First, st.Segments = l.Commit(), l.First(), len(infos)
	st.Compaction = l.compactionOf(infos)
	summaries := make([]manifest.Summary, len(infos))
	for i := range infos {
		s := &infos[i]
		summaries[i] = s.Summary
		if s.Damage != nil {
			st.Damaged++
		}
		st.Records += s.Records
		st.UserChunks += s.UserChunks
		st.UserBytes += s.UserBytes
		st.TrailerBytes += s.TrailerBytes
		st.FilterBytes += s.FilterBytes
		st.DeltaBytes += s.DeltaBytes
		st.SnapshotBytes += s.SnapshotBytes
		st.SequenceBytes += s.TrailerSequenceBytes + s.SnapshotSequenceBytes
		st.TrackingBytes += s.TrackingBytes()
		st.DiskBytes += s.Size
		st.IndexBytes += segments[i].indexSize()
	}
	st.TrackingBound = plan.TrackingBound(summaries)
	return st
}

func (l *Log) wrap(step string, err error) error {
	return fmt.Errorf("log %s: %s: %w", l.inc, step, err)
}

// file returns the path of a file of the log.
func (l *Log) file(name string) string { return path.Join(l.dir, name) }

// Close syncs the log, remembers its mark and commit, and writes a checkpoint.
// A log whose sync has failed is cut back to its last successful one at the next
// opening; Close notes that, and if it can't, the log stays open, and Close may be
// called again. Mutator.
func (l *Log) Close() error {
	if l.closed() {
		return nil
	}
	err := l.syncNow()
	l.mu.Lock()
	poison, durable, damage := l.poison, l.durable, l.damage
	l.mu.Unlock()
	switch {
	case l.unread:
		err = nil // nothing is known, so nothing may be noted
	case poison != nil:
		if err = l.noteFailedSync(durable.LSN); err != nil {
			return err
		}
	case damage != nil:
		err = nil // told by Err; the files stay as they are
	case err == nil:
		l.check.last(l)
		err = await(l.store.syncer, l.saveProgress)
	}
	l.shut()
	return err
}

// noteFailedSync makes sure that the next opening takes nothing above n for
// durable, whatever the system's cache then shows (design 3.7). MANIFEST is
// replaced by a new file, since the sync that failed may have been its own.
func (l *Log) noteFailedSync(n chunk.LSN) error {
	lowered := await(l.store.syncer, func(done func(error)) { l.store.journal.Lower(l.inc, n, done) })
	records := append(l.state.Records(), manifest.Record{Kind: manifest.KindCut, LSN: n})
	return errors.Join(lowered, l.records.rewrite(records))
}

// shut ends the use of the log's files without a last sync.
func (l *Log) shut() {
	l.mu.Lock()
	l.isClosed = true
	l.run++
	l.mu.Unlock()
	if lay := l.layout.Load(); lay != nil {
		for _, s := range lay.segments {
			s.gone.Store(true)
			l.store.handles.drop(s)
		}
	}
	l.store.cache.cut(&l.cached, 0)
	l.store.candidates.drop(l)
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	delete(l.store.logs, l.inc)
}

// damagedPlaces counts the segments that are known to be damaged, and the log's
// end if it is.
func (l *Log) damagedPlaces() (n int) {
	if lay := l.layout.Load(); lay != nil {
		for _, s := range lay.segments {
			if s.harm() != nil {
				n++
			}
		}
	}
	if l.unproven() != nil {
		n++
	}
	return n
}

// unproven returns the damage at the end of the log, if there is any.
func (l *Log) unproven() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.damage
}
