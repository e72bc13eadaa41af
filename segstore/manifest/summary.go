package manifest

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// EpochLine is one line of an epoch table (C1): an epoch with the LSN and the
// base offset of its first chunk.
type EpochLine struct {
	Epoch  chunk.Epoch
	LSN    chunk.LSN
	Offset chunk.Offset
}

// Place is where a chunk lies in its segment's file. LSN 0 means nowhere.
type Place struct {
	LSN      chunk.LSN
	Position int64 // bytes from the file's start
}

// Name names a segment's file: the LSN of its first chunk and the generation,
// 0 as written and higher after each compaction or merge.
type Name struct {
	FirstLSN   chunk.LSN
	Generation uint32
}

func (n Name) String() string { return fmt.Sprintf("%020d.%d", uint64(n.FirstLSN), n.Generation) }

// Summary says what a segment contains, so that counting, attaching, retention
// and compaction need not open it. Add keeps it while the segment grows.
//
// Invariant: Size = 48·UserChunks + UserBytes + TrailerBytes + FilterBytes +
// DeltaBytes + SnapshotBytes.
type Summary struct {
	Incarnation chunk.Incarnation
	Generation  uint32
	// UnitStart: a unit of retention begins with this segment.
	UnitStart bool

	// FirstLSN and LastLSN bound the chunks that were written to the segment;
	// compaction may have dropped some, also the first and the last (R6).
	FirstLSN, LastLSN chunk.LSN
	// FirstEpoch is that of the first chunk; it may have begun earlier.
	FirstEpoch, LastEpoch chunk.Epoch
	// Lines are those of the epochs that begin in this segment, ascending.
	Lines []EpochLine

	BaseOffset, NextOffset    chunk.Offset
	DigestBefore, DigestAfter chunk.Digest
	// FirstTimestamp and LastTimestamp are those of user chunks; 0 without any.
	FirstTimestamp, LastTimestamp chunk.Timestamp

	UserChunks, Entries, Records uint64
	UserBytes                    int64 // client headers and data of user chunks
	TrailerBytes, FilterBytes    int64 // of user chunks
	DeltaChunks, SnapshotChunks  uint64
	DeltaBytes, SnapshotBytes    int64 // whole chunks
	// TrailerSequenceBytes and SnapshotSequenceBytes are the parts of
	// TrailerBytes and SnapshotBytes that publisher sequences take (F7).
	TrailerSequenceBytes, SnapshotSequenceBytes int64
	Size                                        int64 // bytes of all chunks: where the footer starts
	LastUser                                    int64 // position of the last user chunk; 0 without any
	SnapshotFirst, SnapshotLast                 Place // parts of the head snapshot; Last only if complete
	// DroppedLSN is the highest LSN whose chunk or trailer compaction took, 0
	// if none: proof that everything up to it is committed (C5), and where
	// folding tracking may not start below (F9).
	DroppedLSN chunk.LSN
	// Chain is a CRC-32C over the head CRCs of all chunks in their order: the
	// digest of the file as it lies on this replica.
	Chain uint32
}

// NewSummary returns the summary of a segment that is still empty and whose
// first chunk will be h.
func NewSummary(inc chunk.Incarnation, generation uint32, h *chunk.Header) Summary {
	return Summary{
		Incarnation: inc, Generation: generation, UnitStart: h.Has(chunk.FlagUnitStart),
		FirstLSN: h.LSN, LastLSN: h.LSN - 1, FirstEpoch: h.Epoch, LastEpoch: h.Epoch,
		BaseOffset: h.BaseOffset, NextOffset: h.BaseOffset,
		DigestBefore: h.DigestBefore, DigestAfter: h.DigestBefore,
	}
}

// Add counts the chunk that is written at position Size. The caller has checked
// that it continues the log; before is the epoch of the chunk before it, so
// that an epoch's line is known although a segment starts with it.
func (s *Summary) Add(h *chunk.Header, before chunk.Epoch) {
	if h.Epoch != before {
		s.Lines = append(s.Lines, EpochLine{Epoch: h.Epoch, LSN: h.LSN, Offset: h.BaseOffset})
	}
	s.LastLSN, s.LastEpoch, s.NextOffset = h.LSN, h.Epoch, h.Next()
	s.count(h)
}

// count takes a chunk at position Size into what is counted of each kind.
func (s *Summary) count(h *chunk.Header) {
	place := Place{LSN: h.LSN, Position: s.Size}
	length := int64(h.Length())
	switch h.Type {
	case chunk.User:
		s.addUser(h)
	case chunk.Delta:
		s.DeltaChunks++
		s.DeltaBytes += length
	case chunk.Snapshot:
		s.SnapshotChunks++
		s.SnapshotBytes += length
		if h.Has(chunk.FlagSnapshotFirst) {
			s.SnapshotFirst = place
		}
		if h.Has(chunk.FlagSnapshotLast) && s.SnapshotFirst.LSN != 0 {
			s.SnapshotLast = place
		}
	}
	s.Chain = chain(s.Chain, h.HeadCRC)
	s.Size += length
}

// chain continues a CRC-32C by the four big-endian bytes of v. It is
// crc32.Update without the slice, which would be allocated for each chunk.
func chain(crc, v uint32) uint32 {
	crc = ^crc
	for shift := 24; shift >= 0; shift -= 8 {
		crc = castagnoli[byte(crc)^byte(v>>shift)] ^ crc>>8
	}
	return ^crc
}

func (s *Summary) addUser(h *chunk.Header) {
	if s.UserChunks == 0 {
		s.FirstTimestamp = h.Timestamp
	}
	s.LastTimestamp = h.Timestamp
	s.LastUser = s.Size
	s.UserChunks++
	s.Entries += uint64(h.Entries)
	s.Records += uint64(h.Records)
	s.UserBytes += h.UserBytes()
	s.TrailerBytes += int64(h.TrailerLength)
	s.FilterBytes += int64(h.FilterLength)
	s.DigestAfter = h.DigestAfter()
	if h.Has(chunk.FlagStripped) {
		s.DroppedLSN = max(s.DroppedLSN, h.LSN)
	}
}

// AddSequences counts the bytes that publisher sequences take in the trailer or
// snapshot part of a chunk that Add has counted.
func (s *Summary) AddSequences(h *chunk.Header, n int64) {
	switch h.Type {
	case chunk.User:
		s.TrailerSequenceBytes += n
	case chunk.Snapshot:
		s.SnapshotSequenceBytes += n
	}
}

// Name returns the name of the segment's file.
func (s *Summary) Name() Name { return Name{FirstLSN: s.FirstLSN, Generation: s.Generation} }

// Tail returns the place of the segment's last chunk in the order of tails.
func (s *Summary) Tail() chunk.Tail { return chunk.Tail{Epoch: s.LastEpoch, LSN: s.LastLSN} }

// Chunks counts the chunks that are in the file.
func (s *Summary) Chunks() uint64 { return s.UserChunks + s.DeltaChunks + s.SnapshotChunks }

// ControlBytes returns the bytes of control chunks that count towards a control
// roll: deltas and barriers, never the snapshot.
func (s *Summary) ControlBytes() int64 { return s.DeltaBytes }

// TrackingBytes returns what stored offsets take: trailers, deltas with barriers,
// and snapshots, without the publishers' sequences.
func (s *Summary) TrackingBytes() int64 {
	return s.TrailerBytes + s.DeltaBytes + s.SnapshotBytes - s.TrailerSequenceBytes - s.SnapshotSequenceBytes
}

// FileSize returns the bytes of the sealed file, its footer included.
func (s *Summary) FileSize() int64 { return s.Size + int64(s.footerLength()) }

// ErrContradiction reports a record that is undamaged but can't be true, or
// can't follow the records before it.
var ErrContradiction = errors.New("manifest: contradictory record")

// Check tells whether the fields can be those of one segment.
func (s *Summary) Check() error {
	bad := func(what string) error {
		return fmt.Errorf("%w: segment %s: %s", ErrContradiction, s.Name(), what)
	}
	sum := int64(chunk.StorageHeaderLength)*int64(s.UserChunks) + s.UserBytes + s.TrailerBytes +
		s.FilterBytes + s.DeltaBytes + s.SnapshotBytes
	switch {
	case s.FirstLSN == 0 || s.LastLSN+1 < s.FirstLSN:
		return bad("LSNs")
	case s.FirstEpoch > s.LastEpoch:
		return bad("epochs")
	case s.NextOffset < s.BaseOffset || uint64(s.NextOffset-s.BaseOffset) != s.Records:
		return bad("offsets and records differ")
	case s.UserBytes < 0 || s.TrailerBytes < 0 || s.FilterBytes < 0 || s.DeltaBytes < 0 || s.SnapshotBytes < 0 || s.Size != sum:
		return bad("bytes by kind and size differ")
	case s.TrailerSequenceBytes < 0 || s.TrailerSequenceBytes > s.TrailerBytes ||
		s.SnapshotSequenceBytes < 0 || s.SnapshotSequenceBytes > s.SnapshotBytes:
		return bad("bytes of sequences")
	case s.FirstTimestamp > s.LastTimestamp || s.LastUser < 0 || s.LastUser > s.Size:
		return bad("timestamps or last user chunk")
	case s.DroppedLSN > s.LastLSN:
		return bad("dropped more than was there")
	}
	for i, l := range s.Lines {
		if l.LSN < s.FirstLSN || l.LSN > s.LastLSN || i > 0 && (l.Epoch <= s.Lines[i-1].Epoch || l.LSN <= s.Lines[i-1].LSN) {
			return bad("epoch lines")
		}
	}
	return nil
}
