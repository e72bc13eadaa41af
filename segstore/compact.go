package segstore

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
)

// ErrStale reports a piece of compaction whose sources are not the log's any
// more: retention or a cut came between. Its result is dropped.
var ErrStale = errors.New("segstore: compaction was overtaken")

// Compaction is one piece of work on a log's sealed segments (design 3.5): one
// of them loses its control chunks and trailers, or several become one.
//
//	job := log.Compact()           in the log's turn
//	for !done { job.Step(bytes) }  anywhere, while the log goes on
//	log.Install(job)               in the log's turn; or job.Abandon()
//
// Readers and appends never wait for it. The new file is complete and synced
// before Install, whose *replaced* record is the one moment at which the log's
// files change; a crash before it leaves a file that no record names, a crash
// after it files that the record calls obsolete. Recovery removes either. Client
// header and data of every user chunk are copied as they are.
//
// A Compaction is used by one goroutine at a time.
type Compaction struct {
	plan.Compaction
	rewriting

	source *handle // open file of sources[at]
	walk   *walker
	at     int

	next   chunk.Offset
	digest chunk.Digest
	lsn    chunk.LSN // of the last chunk read
}

// CompactionStats counts what compaction has done to a log since it was opened,
// and what it could do.
type CompactionStats struct {
	Drops, Merges uint64
	// BytesDropped have been gained, BytesRewritten were copied for it.
	BytesDropped, BytesRewritten int64
	// BytesDroppable could be gained now, whether it is worth the work or not.
	BytesDroppable int64
	Failures       uint64
	LastError      error
	// BytesPinned are those of files that have been replaced and are still read.
	BytesPinned int64
}

// Compact plans the next piece of compaction and returns nil if none is worth
// it now; until is then the LSN that commit and durable tail must reach before
// asking again makes sense, 0 if only a new segment can change it. It tells
// nothing about a log whose tracking is unknown: such a one compacts nothing
// (C4). Mutator.
func (l *Log) Compact() (job *Compaction, until chunk.LSN) {
	if l.Err() != nil {
		return nil, 0
	}
	l.retryRemovals()
	if !l.tracking.Known() || l.rewriting() {
		return nil, 0
	}
	in := l.compactInput()
	if in.FreeBytes = math.MaxUint64; plan.Compact(&in).Kind != plan.CompactNone {
		free, err := l.store.FreeSpace()
		if err != nil {
			free = 0 // what keeps nothing needs no room
		}
		in.FreeBytes = free
	}
	c := plan.Compact(&in)
	if c.Kind == plan.CompactNone {
		l.spare = c.Spare
		return nil, c.Until
	}
	old := in.Segments[c.From:c.To]
	job = &Compaction{Compaction: c, next: old[0].BaseOffset, digest: old[0].DigestBefore, lsn: old[0].FirstLSN - 1}
	job.dropped = c.DroppedBytes
	l.rewrite(&job.rewriting, l.layout.Load().segments[c.From:c.To], old)
	return job, 0
}

func (l *Log) compactInput() plan.CompactInput {
	in := plan.CompactInput{
		Segments: l.state.Segments, Commit: l.Commit(), Durable: l.Durable().LSN, SegmentBytes: l.config.SegmentBytes,
	}
	if l.active != nil {
		in.Segments = append(in.Segments[:len(in.Segments):len(in.Segments)], l.summary)
		in.Active = true
	}
	for i, s := range l.layout.Load().segments {
		if s.damage.Load() == nil {
			continue
		}
		if in.Unreadable == nil {
			in.Unreadable = make([]bool, len(in.Segments))
		}
		in.Unreadable[i] = true
	}
	return in
}

// Step reads at least bytes bytes of the sources, unless the work ends before,
// and copies what stays. done tells that the new file is whole and durable, and
// Install may follow. After an error only Abandon may.
//
// Errors: a *DamageError, with which the source is marked damaged; ErrStale;
// ErrClosed; what the disk says.
func (c *Compaction) Step(bytes int64) (read int64, done bool, err error) {
	for read < bytes && !c.done {
		if c.log.closed() {
			return read, false, ErrClosed
		}
		n, err := c.step()
		read += n
		if err != nil {
			return read, false, fmt.Errorf("compact segment %s: %w", c.old[min(c.at, len(c.old)-1)].Name(), err)
		}
	}
	return read, c.done, nil
}

// step goes on by one chunk, or to the next source, or to the end.
func (c *Compaction) step() (read int64, err error) {
	switch {
	case c.at == len(c.sources):
		return 0, c.finish()
	case c.old[c.at].UserChunks == 0:
		// Nothing of it stays, so nothing of it need be read.
		c.skip(&c.old[c.at])
		return 0, nil
	case c.walk == nil:
		return 0, c.open()
	}
	h, head, data, at, err := c.walk.next()
	if errors.Is(err, io.EOF) {
		return 0, c.close()
	}
	if err == nil {
		err = c.continues(&h)
	}
	if err != nil {
		return 0, c.explain(at, err)
	}
	return int64(h.Length()), c.take(&h, head, data)
}

func (c *Compaction) skip(s *manifest.Summary) {
	if s.Chunks() > 0 {
		c.out.Drop(&chunk.Header{LSN: s.LastLSN})
	}
	c.lsn = s.LastLSN
	c.at++
}

func (c *Compaction) open() error {
	s := c.sources[c.at]
	h, err := c.log.store.handles.acquire(s)
	if err != nil {
		return c.explain(0, err)
	}
	c.source = h
	c.walk = newWalker(h, c.log.inc, 0, s.end.Load(), true)
	return nil
}

// close ends the reading of a source: its summary must have told the truth.
func (c *Compaction) close() error {
	s := &c.old[c.at]
	if c.next != s.NextOffset || c.digest != s.DigestAfter || c.lsn > s.LastLSN {
		return c.explain(s.Size, fmt.Errorf("%w: ends at chunk %d, offset %d, digest %s", chunk.ErrMalformed, c.lsn, c.next, c.digest))
	}
	c.lsn = s.LastLSN
	c.leave()
	c.at++
	return nil
}

func (c *Compaction) leave() {
	if c.source != nil {
		c.log.store.handles.release(c.source)
		c.source, c.walk = nil, nil
	}
}

// continues holds a chunk against the one before it: what does not fit is
// damage, and must not be copied (I26).
func (c *Compaction) continues(h *chunk.Header) error {
	if h.LSN <= c.lsn || h.LSN > c.old[c.at].LastLSN || h.BaseOffset != c.next || h.DigestBefore != c.digest {
		return fmt.Errorf("%w: chunk %d, offset %d after chunk %d, want offset %d", chunk.ErrMalformed, h.LSN, h.BaseOffset, c.lsn, c.next)
	}
	return nil
}

// take copies a user chunk without its trailer, or leaves a control chunk out.
func (c *Compaction) take(h *chunk.Header, head, data []byte) error {
	c.lsn = h.LSN
	if h.Type != chunk.User {
		c.out.Drop(h)
		return nil
	}
	c.next, c.digest = h.Next(), h.DigestAfter()
	return c.keepStripped(h, head, data)
}

// explain turns a failure to read a source into what it means: the source is not
// the log's any more, or it is damaged, which is noted on it.
func (c *Compaction) explain(at int64, err error) error {
	s := c.sources[c.at]
	if s.gone.Load() {
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
	if !isBadChunk(err) {
		return err // a disk that refuses to read may do so later
	}
	sum := &c.old[c.at]
	d := &DamageError{File: s.path(), Position: at, Segment: s.name, First: max(sum.FirstLSN, c.lsn+1), Last: sum.LastLSN, Offset: max(sum.BaseOffset, c.next), Next: sum.NextOffset, Cause: err}
	s.note(&s.damage, d)
	return d
}

// Abandon drops the work and its file. The log is as if it had never begun. It
// may be called after any error, and does nothing after Install.
func (c *Compaction) Abandon() {
	c.leave()
	c.at = len(c.sources)
	c.abandon()
}

// Install makes a finished piece of compaction part of the log: one record, then
// readers go on in the new file, then the old ones go. Mutator.
//
// Errors: ErrStale, then the work was for nothing; what the disk says. The new
// file is removed unless a record may name it.
func (l *Log) Install(c *Compaction) error {
	if err := l.install(&c.rewriting); err != nil {
		return err
	}
	l.compacted(c)
	return nil
}

// compacted counts a piece of compaction.
func (l *Log) compacted(c *Compaction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Kind == plan.CompactMerge {
		l.compaction.Merges++
	} else {
		l.compaction.Drops++
	}
	l.compaction.BytesDropped += c.DroppedBytes
	l.compaction.BytesRewritten += c.out.Size
}

// failed counts a piece of compaction that came to nothing.
func (l *Log) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compaction.Failures++
	l.compaction.LastError = err
}

// Compaction tells what compaction has done since the log was opened, and what
// it could do now.
func (l *Log) Compaction() CompactionStats { return l.compactionOf(l.Segments()) }

func (l *Log) compactionOf(infos []SegmentInfo) CompactionStats {
	droppable := plan.Droppable(l.droppableInput(infos))
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.compaction
	st.BytesDroppable = droppable
	return st
}

func (l *Log) droppableInput(infos []SegmentInfo) *plan.CompactInput {
	in := &plan.CompactInput{Commit: l.Commit(), Durable: l.Durable().LSN}
	for i := range infos {
		in.Segments = append(in.Segments, infos[i].Summary)
		in.Unreadable = append(in.Unreadable, infos[i].Damage != nil)
	}
	return in
}
