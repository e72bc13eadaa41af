package segstore

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// segment is one file of chunks as readers see it. It stays the same value from
// its creation over its sealing to its removal.
type segment struct {
	log  *Log
	name manifest.Name
	base chunk.Offset
	// end is the position behind the last chunk; it grows while the segment is
	// active. synced ≤ end is what is known durable.
	end, synced atomic.Int64
	// summary is nil while the segment is active.
	summary atomic.Pointer[manifest.Summary]
	// sparse is the index in memory: of the active segment only.
	sparse atomic.Pointer[sparse]
	// gone: the log does not hold this file any more; readers look for the next.
	gone atomic.Bool
	// pins counts the uses of the open file.
	pins atomic.Int32
	// damage is set for a sealed segment that can't be read as a whole.
	damage atomic.Pointer[DamageError]
	// found is the first damage that was met in a segment whose other chunks go
	// on being read: by a reader, or by the scrub in the unsealed one.
	found atomic.Pointer[DamageError]
	// dropped counts what compaction has taken from the segment, and from those
	// that were merged into it, since the log was opened.
	dropped atomic.Int64
	// indexBytes is the size of a sealed segment's index file or noIndex, 0 until
	// it is asked for.
	indexBytes atomic.Int64
	checked    checkedSet
}

func (s *segment) path() string { return s.log.file(segmentFile(s.name)) }

func (s *segment) indexPath() string { return s.log.file(indexFile(s.name)) }

// mayHold tells whether a chunk can be one of this segment: one that was found in
// its file may be another segment's, if files were swapped.
func (s *segment) mayHold(h *chunk.Header) bool {
	sum := s.summary.Load()
	return h.LSN >= s.name.FirstLSN && h.BaseOffset >= s.base && (sum == nil || h.LSN <= sum.LastLSN && h.Next() <= sum.NextOffset)
}

// harm returns the damage that is known of a segment, nil if none is.
func (s *segment) harm() *DamageError {
	if d := s.damage.Load(); d != nil {
		return d
	}
	return s.found.Load()
}

// note keeps the first damage of a segment that is met in one of two ways, and
// tells the node of the segment's first.
func (s *segment) note(as *atomic.Pointer[DamageError], d *DamageError) {
	first := s.harm() == nil
	if !as.CompareAndSwap(nil, d) {
		return
	}
	if first {
		s.log.store.damaged(s.log, d)
	}
	if hurt := s.log.hurt.Load(); hurt != nil {
		(*hurt)()
	}
}

// dirty: the file holds bytes that no sync has covered.
func (s *segment) dirty() bool { return s.summary.Load() == nil && s.end.Load() != s.synced.Load() }

// layout is what the log consists of at one moment; it never changes.
type layout struct {
	start    manifest.Start
	segments []*segment // ascending; the last may be active
}

// holding returns the index of the segment in which the chunk with that LSN is
// or, behind all, would be; −1 without any segment or below the first.
func (l *layout) holding(lsn chunk.LSN) int {
	return sort.Search(len(l.segments), func(i int) bool { return l.segments[i].name.FirstLSN > lsn }) - 1
}

// at returns the index of the segment in which the record with that offset is
// or, behind all, would be; −1 as holding.
func (l *layout) at(o chunk.Offset) int {
	return sort.Search(len(l.segments), func(i int) bool { return l.segments[i].base > o }) - 1
}

// checkedBlock is the unit in which data read from disk is remembered as
// checked.
const checkedBlock = 1 << 20

// checkedSet remembers, a bit per MiB, where the data CRCs of all chunks that
// begin there were checked since the store was opened.
type checkedSet struct {
	mu   sync.Mutex // guards bits
	bits []uint64
}

func (c *checkedSet) has(position int64) bool {
	b := position / checkedBlock
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(b/64) < len(c.bits) && c.bits[b/64]&(1<<(b%64)) != 0
}

// add notes that the chunks that begin in [from, to) were checked, without one
// left out; complete blocks count.
func (c *checkedSet) add(from, to int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := (from + checkedBlock - 1) / checkedBlock; (b+1)*checkedBlock <= to; b++ {
		for int(b/64) >= len(c.bits) {
			c.bits = append(c.bits, 0)
		}
		c.bits[b/64] |= 1 << (b % 64)
	}
}
