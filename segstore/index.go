package segstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
)

// indexStride is the distance in bytes of file between two index entries.
const indexStride = 64 << 10

// indexEntry tells where one chunk of a segment lies, of whatever type. The
// first chunk always has one.
type indexEntry struct {
	base      chunk.Offset
	lsn       chunk.LSN
	timestamp chunk.Timestamp
	position  int64
}

// index finds a place to start looking from; the segment's bytes decide.
type index interface {
	len() int
	at(i int) indexEntry
}

// before returns the position of the last entry for which ok holds; ok must
// hold for a run of entries from the first on. Without any it is the segment's
// start.
func before(x index, ok func(indexEntry) bool) (i int, position int64) {
	i = sort.Search(x.len(), func(i int) bool { return !ok(x.at(i)) }) - 1
	if i < 0 {
		return -1, 0
	}
	return i, x.at(i).position
}

const sparseBlock = 256

// sparse is the index of an active segment. One goroutine adds, any may read.
type sparse struct {
	blocks atomic.Pointer[[]*[sparseBlock]indexEntry]
	n      atomic.Int64
}

func (x *sparse) len() int { return int(x.n.Load()) }

func (x *sparse) at(i int) indexEntry { return (*x.blocks.Load())[i/sparseBlock][i%sparseBlock] }

func (x *sparse) add(e indexEntry) {
	i := x.len()
	var blocks []*[sparseBlock]indexEntry
	if p := x.blocks.Load(); p != nil {
		blocks = *p
	}
	if i/sparseBlock == len(blocks) {
		blocks = append(blocks[:len(blocks):len(blocks)], new([sparseBlock]indexEntry))
		x.blocks.Store(&blocks)
	}
	blocks[i/sparseBlock][i%sparseBlock] = e
	x.n.Store(int64(i) + 1)
}

// note adds an entry for a chunk if it is due.
func (x *sparse) note(h *chunk.Header, position int64) {
	if n := x.len(); n > 0 && position < x.at(n-1).position+indexStride {
		return
	}
	x.add(indexEntry{base: h.BaseOffset, lsn: h.LSN, timestamp: h.Timestamp, position: position})
}

// noIndex is the size of an index file that is not there.
const noIndex = -1

// indexSize returns the bytes that the segment's index takes, in memory while
// the segment is active and in its file then.
func (s *segment) indexSize() int64 {
	if x := s.sparse.Load(); x != nil {
		return indexHeaderLength + indexEntryLength*int64(x.len())
	}
	n := s.indexBytes.Load()
	if n == 0 {
		n = noIndex // it is a cache, and may be missing
		if info, err := s.log.store.fs.Stat(s.indexPath()); err == nil {
			n = info.Size
		}
		s.indexBytes.Store(n)
	}
	return max(n, 0)
}

// entries is an index read from a file.
type entries []indexEntry

func (x entries) len() int            { return len(x) }
func (x entries) at(i int) indexEntry { return x[i] }

const (
	indexMagic        = 0xD34D4901 // D3 'M' 'I', version 1
	indexHeaderLength = 16
	indexEntryLength  = 32
)

// errBadIndex reports an index file that is of no use. It is a cache: whoever
// meets one builds it anew from the segment.
var errBadIndex = errors.New("segstore: bad index file")

// encodeIndex returns an index file:
//
//	 0        4        8        12       16        48
//	+--------+--------+--------+--------+---------+-- -
//	| magic  | count  | CRC-32C|   0    | entry 0 | …
//	+--------+--------+--------+--------+---------+-- -
//
// An entry is base offset, LSN, timestamp, position, u64 each. The CRC starts
// from the incarnation and covers the entries.
func encodeIndex(inc chunk.Incarnation, x index) []byte {
	be := binary.BigEndian
	b := make([]byte, indexHeaderLength, indexHeaderLength+indexEntryLength*x.len())
	b = appendEntries(b, x)
	be.PutUint32(b[0:], indexMagic)
	be.PutUint32(b[4:], uint32(x.len()))
	be.PutUint32(b[8:], chunk.CRC(inc, b[indexHeaderLength:]))
	return b
}

func appendEntries(b []byte, x index) []byte {
	be := binary.BigEndian
	for i := range x.len() {
		e := x.at(i)
		b = be.AppendUint64(b, uint64(e.base))
		b = be.AppendUint64(b, uint64(e.lsn))
		b = be.AppendUint64(b, uint64(e.timestamp))
		b = be.AppendUint64(b, uint64(e.position))
	}
	return b
}

func readEntries(b []byte) entries {
	be := binary.BigEndian
	x := make(entries, len(b)/indexEntryLength)
	for i := range x {
		e := b[i*indexEntryLength:]
		x[i] = indexEntry{
			base: chunk.Offset(be.Uint64(e)), lsn: chunk.LSN(be.Uint64(e[8:])),
			timestamp: chunk.Timestamp(be.Uint64(e[16:])), position: int64(be.Uint64(e[24:])),
		}
	}
	return x
}

// decodeIndex reads an index file of a segment that spans these LSNs and has so
// many bytes of chunks. Error: errBadIndex.
func decodeIndex(inc chunk.Incarnation, b []byte, first, last chunk.LSN, size int64) (entries, error) {
	be := binary.BigEndian
	if len(b) < indexHeaderLength || be.Uint32(b) != indexMagic || be.Uint32(b[12:]) != 0 {
		return nil, fmt.Errorf("%w: header", errBadIndex)
	}
	body := b[indexHeaderLength:]
	if uint64(len(body)) != indexEntryLength*uint64(be.Uint32(b[4:])) || chunk.CRC(inc, body) != be.Uint32(b[8:]) {
		return nil, fmt.Errorf("%w: length or CRC", errBadIndex)
	}
	x := readEntries(body)
	for i, e := range x {
		if e.lsn < first || e.lsn > last || e.position < 0 || e.position >= size {
			return nil, fmt.Errorf("%w: entry %d is not of this segment", errBadIndex, i)
		}
		if i > 0 {
			if p := x[i-1]; e.lsn <= p.lsn || e.position <= p.position || e.base < p.base || e.timestamp < p.timestamp {
				return nil, fmt.Errorf("%w: entry %d is out of order", errBadIndex, i)
			}
		}
	}
	return x, nil
}
