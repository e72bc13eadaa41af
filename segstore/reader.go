package segstore

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	// readAhead is what a Reader reads at once from a file. Small chunks come by
	// the dozen.
	readAhead = 128 << 10
	// sendFileMin is the data length from which a chunk that was checked before
	// is given out as a section of the file.
	sendFileMin = 64 << 10
)

// Reader walks a log's chunks in order: its user chunks, or all for a link to a
// follower. It owns no descriptor and, after Rest or at the end, no buffer. One
// goroutine at a time uses it.
//
// A Reader remembers the next LSN; where the chunk lies is found again whenever
// files were cut, replaced or given up meanwhile. What retention takes before
// the Reader came by is skipped, and counted in Jumps.
type Reader struct {
	log    *Log
	all    bool         // control chunks too
	lsn    chunk.LSN    // of the next chunk to look at
	offset chunk.Offset // first record that the Reader has not given out
	// anchored: offset is what the chunk lsn must begin at, since the one before
	// it was looked at and nothing was cut since.
	anchored bool
	jumps    uint64

	// The place of lsn, if segment is not nil and cuts is still the log's.
	segment  *segment
	position int64
	cuts     uint64

	block   *Chunk // bytes of segment from blockAt on
	blockAt int64
	// checkedFrom starts the run of chunks, without one left out, whose data on
	// disk was checked; it ends at position.
	checkedFrom int64
}

// Offset returns the offset of the first record that Next has not given out.
// Right after Attach it is that of the chunk where the Reader starts.
func (r *Reader) Offset() chunk.Offset { return r.offset }

// LSN returns the LSN of the next chunk that the Reader looks at. Nothing is to
// be had while it is above the commit.
func (r *Reader) LSN() chunk.LSN { return r.lsn }

// Jumps counts the times that retention took what the Reader had not read.
func (r *Reader) Jumps() uint64 { return r.jumps }

// Rest gives the read-ahead buffer back, for a Reader that will not be asked
// for a while. Next goes on where it was.
func (r *Reader) Rest() {
	if r.block != nil {
		r.block.Release()
		r.block = nil
	}
}

// Close ends the use of the Reader.
func (r *Reader) Close() {
	r.Rest()
	r.segment = nil
}

// Next returns the next chunk at or below the commit; ok is false when there is
// none so far. The caller releases the View.
//
// Errors: a *DamageError for a chunk that can't be read; the Reader stays there,
// and Skip leaves the segment. ErrClosed. What the disk says.
func (r *Reader) Next(commit chunk.LSN) (v View, ok bool, err error) {
	for r.lsn <= commit {
		if r.log.closed() {
			return View{}, false, ErrClosed
		}
		if c := r.log.store.cache.get(&r.log.cached, r.lsn); c != nil {
			v, ok = r.fromCache(c)
		} else {
			v, ok, err = r.fromFile(commit)
			if errors.Is(err, errMoved) {
				r.leave()
				continue
			}
			if err != nil {
				return View{}, false, err
			}
			if !ok && r.segment == nil {
				return View{}, false, nil // nothing to be had at this moment
			}
		}
		if ok {
			return v, true, nil
		}
	}
	r.Rest()
	return View{}, false, nil
}

// passed notes that a chunk was looked at.
func (r *Reader) passed(h *chunk.Header) {
	r.lsn = h.LSN + 1
	r.offset = h.Next()
	r.anchored = true
}

// wants tells whether the Reader gives out chunks of a header's type.
func (r *Reader) wants(h *chunk.Header) bool { return r.all || h.Type == chunk.User }

func (r *Reader) fromCache(c *Chunk) (View, bool) {
	r.Rest()
	// What was read from the file ends here: chunks in memory are not checked.
	r.segment, r.position = c.segment, c.position+int64(c.Header.Length())
	r.cuts, r.checkedFrom = r.log.cuts.Load(), r.position
	r.passed(&c.Header)
	if !r.wants(&c.Header) {
		c.Release()
		return View{}, false
	}
	return View{Header: c.Header, Head: c.Head, Data: c.Data, owner: c}, true
}

// errMoved reports that the place the Reader remembered is not valid any more.
var errMoved = errors.New("segstore: place has moved")

// leave forgets the place, not the LSN.
func (r *Reader) leave() {
	r.Rest()
	r.segment = nil
}

// fromFile looks at the next chunk in its file. ok is false if the Reader does
// not want it or, with segment nil, if there is none now.
func (r *Reader) fromFile(commit chunk.LSN) (v View, ok bool, err error) {
	if r.segment == nil || r.segment.gone.Load() || r.cuts != r.log.cuts.Load() {
		r.leave()
		if err := r.locate(); err != nil || r.segment == nil || r.lsn > commit {
			return View{}, false, err
		}
	}
	s := r.segment
	if r.position >= s.end.Load() {
		return View{}, false, r.nextSegment()
	}
	if d := s.damage.Load(); d != nil {
		return View{}, false, d
	}
	h, head, err := r.head()
	if err != nil {
		return View{}, false, r.explain(err)
	}
	if h.LSN > commit {
		r.lsn = h.LSN // compaction dropped what was before
		return View{}, false, nil
	}
	at := r.position
	if r.wants(&h) {
		if v, err = r.view(&h, head, at); err != nil {
			return View{}, false, r.explain(err)
		}
		ok = true
	}
	r.passed(&h)
	r.position = at + int64(h.Length())
	if block := r.position - r.position%checkedBlock; block > at {
		s.checked.add(r.checkedFrom, block)
		r.checkedFrom = max(r.checkedFrom, block)
	}
	return v, ok, nil
}

// nextSegment steps over a segment's end, or forgets the place if the log has
// nothing more.
func (r *Reader) nextSegment() error {
	s := r.segment
	sum := s.summary.Load()
	if sum == nil {
		// The active segment ends before the commit: the owner is ahead of the
		// bytes for a moment (ST-12).
		r.leave()
		return r.log.unproven()
	}
	if r.anchored && r.offset != sum.NextOffset {
		return r.explain(fmt.Errorf("%w: it ends at offset %d, and not at %d", chunk.ErrMalformed, r.offset, sum.NextOffset))
	}
	r.lsn = max(r.lsn, sum.LastLSN+1)
	r.leave()
	return errMoved
}

// head returns the head of the chunk at the position. It aliases the block.
func (r *Reader) head() (h chunk.Header, head []byte, err error) {
	b, err := r.bytes(chunk.StorageHeaderLength)
	if err != nil {
		return h, nil, err
	}
	n, _, err := chunk.Peek(b)
	if err != nil {
		return h, nil, err
	}
	if b, err = r.bytes(n); err != nil {
		return h, nil, err
	}
	if h, err = chunk.Decode(r.log.inc, b[:n]); err != nil {
		return h, nil, err
	}
	if h.LSN < r.lsn || !r.segment.mayHold(&h) || r.position+int64(h.Length()) > r.segment.end.Load() ||
		r.anchored && h.BaseOffset != r.offset {
		return h, nil, fmt.Errorf("%w: chunk %d at offset %d where %d at %d is due", chunk.ErrMalformed, h.LSN, h.BaseOffset, r.lsn, r.offset)
	}
	return h, b[:n], nil
}

// bytes returns at least n bytes of the segment from the position on, reading a
// new block if the present one does not hold them.
func (r *Reader) bytes(n int) ([]byte, error) {
	if r.block != nil {
		if skip := r.position - r.blockAt; skip >= 0 && skip+int64(n) <= int64(len(r.block.Data)) {
			return r.block.Data[skip:], nil
		}
	}
	left := r.segment.end.Load() - r.position
	if left < int64(n) {
		return nil, fmt.Errorf("%w: %d bytes left for %d", chunk.ErrShort, left, n)
	}
	want := int(min(left, int64(max(n, readAhead))))
	r.Rest()
	block := NewChunk(want)
	block.Data = block.Data[:want]
	if err := r.read(block.Data, r.position); err != nil {
		block.Release()
		return nil, err
	}
	r.block, r.blockAt = block, r.position
	return block.Data, nil
}

func (r *Reader) read(b []byte, at int64) error {
	h, err := r.log.store.handles.acquire(r.segment)
	if err != nil {
		return err
	}
	defer r.log.store.handles.release(h)
	return readFull(h, b, at)
}

// view makes the View of a chunk whose head is in the block. Data that was not
// checked since the store was opened is read and checked; after that, big data
// stays in the file.
func (r *Reader) view(h *chunk.Header, head []byte, at int64) (View, error) {
	v := View{Header: *h, Head: head}
	checked := r.segment.checked.has(at)
	if checked && h.DataLength >= sendFileMin && !r.all {
		file, err := r.log.store.handles.acquire(r.segment)
		if err != nil {
			return View{}, err
		}
		v.handles, v.file = &r.log.store.handles, file
		v.position = at + int64(len(head)-chunk.ClientHeaderLength)
		// The head must outlive the block: the block's count is taken.
		r.block.Retain()
		v.owner = r.block
		return v, nil
	}
	b, err := r.bytes(h.Length())
	if err != nil {
		return View{}, err
	}
	v.Head, v.Data = b[:len(head):len(head)], b[len(head):h.Length():h.Length()]
	if !checked {
		if err := h.VerifyData(v.Data); err != nil {
			return View{}, err
		}
	}
	r.block.Retain()
	v.owner = r.block
	return v, nil
}

// explain turns a failure at the present place into what the caller should do:
// look again, because the file is not the log's any more, or report damage.
func (r *Reader) explain(err error) error {
	s := r.segment
	if s.gone.Load() || r.cuts != r.log.cuts.Load() {
		return errMoved
	}
	if errors.Is(err, fs.ErrNotExist) || isBadChunk(err) || errors.Is(err, errRead) {
		d := &DamageError{File: s.path(), Position: r.position, Segment: s.name, First: r.lsn, Last: r.lsn, Offset: r.offset, Cause: err}
		if sum := s.summary.Load(); sum != nil {
			d.Last, d.Next = sum.LastLSN, sum.NextOffset
		}
		s.note(&s.found, d)
		return d
	}
	return err
}

// isBadChunk tells whether bytes were read that are no good chunk.
func isBadChunk(err error) bool {
	for _, bad := range []error{
		chunk.ErrShort, chunk.ErrMagic, chunk.ErrVersion, chunk.ErrLength, chunk.ErrHeadCRC,
		chunk.ErrDataCRC, chunk.ErrReserved, chunk.ErrMalformed,
	} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}
