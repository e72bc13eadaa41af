package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	summaryFixedLength = 264
	lineLength         = 24
	// linesMax bounds a summary; more elections than that within one segment
	// would need it to roll.
	linesMax = 1 << 16

	summaryUnitStart = 1 << 0
)

// A summary's body, whose fields FORMAT.md 5.3 shows one by one:
//
//	 0        4        8              16          20       24
//	+--------+--------+--------------+-----------+--------+------------ …
//	| flags  | lines  | incarnation  |generation | chain  | u64 fields
//	+--------+--------+--------------+-----------+--------+------------ …
//	                       …  264: the epoch lines, 24 B each
//
// appendSummary and readSummary list the fields in the same order.
func appendSummary(dst []byte, s *Summary) []byte {
	be := binary.BigEndian
	var flags uint32
	if s.UnitStart {
		flags |= summaryUnitStart
	}
	dst = be.AppendUint32(dst, flags)
	dst = be.AppendUint32(dst, uint32(len(s.Lines)))
	dst = be.AppendUint64(dst, uint64(s.Incarnation))
	dst = be.AppendUint32(dst, s.Generation)
	dst = be.AppendUint32(dst, s.Chain)
	for _, v := range [...]uint64{
		uint64(s.FirstLSN), uint64(s.LastLSN), uint64(s.FirstEpoch), uint64(s.LastEpoch),
		uint64(s.BaseOffset), uint64(s.NextOffset), uint64(s.DigestBefore), uint64(s.DigestAfter),
		uint64(s.FirstTimestamp), uint64(s.LastTimestamp),
		s.UserChunks, s.Entries, s.Records, uint64(s.UserBytes), uint64(s.TrailerBytes), uint64(s.FilterBytes),
		s.DeltaChunks, uint64(s.DeltaBytes), s.SnapshotChunks, uint64(s.SnapshotBytes),
		uint64(s.Size), uint64(s.LastUser),
		uint64(s.SnapshotFirst.LSN), uint64(s.SnapshotFirst.Position),
		uint64(s.SnapshotLast.LSN), uint64(s.SnapshotLast.Position),
		uint64(s.DroppedLSN), uint64(s.TrailerSequenceBytes), uint64(s.SnapshotSequenceBytes),
	} {
		dst = be.AppendUint64(dst, v)
	}
	dst = append(dst, make([]byte, summaryFixedLength-summaryFieldsLength)...)
	for _, l := range s.Lines {
		dst = appendLine(dst, l)
	}
	return dst
}

// summaryFieldsLength is what the fields take; the rest up to the fixed length
// is reserved and zero.
const summaryFieldsLength = 24 + 29*8

// readSummary reads what appendSummary wrote. It trusts nothing: the CRC has
// been checked, but the writer may have been faulty.
func readSummary(b []byte) (Summary, error) {
	if n := summaryLength(b); n < 0 || n != len(b) {
		return Summary{}, fmt.Errorf("%w: summary of %d bytes", ErrContradiction, len(b))
	}
	be := binary.BigEndian
	at := 24
	next := func() uint64 { at += 8; return be.Uint64(b[at-8:]) }
	place := func() Place {
		lsn := chunk.LSN(next())
		return Place{LSN: lsn, Position: int64(next())}
	}
	flags := be.Uint32(b)
	s := Summary{
		UnitStart:   flags&summaryUnitStart != 0,
		Incarnation: chunk.Incarnation(be.Uint64(b[8:])),
		Generation:  be.Uint32(b[16:]),
		Chain:       be.Uint32(b[20:]),
	}
	s.FirstLSN, s.LastLSN = chunk.LSN(next()), chunk.LSN(next())
	s.FirstEpoch, s.LastEpoch = chunk.Epoch(next()), chunk.Epoch(next())
	s.BaseOffset, s.NextOffset = chunk.Offset(next()), chunk.Offset(next())
	s.DigestBefore, s.DigestAfter = chunk.Digest(next()), chunk.Digest(next())
	s.FirstTimestamp, s.LastTimestamp = chunk.Timestamp(next()), chunk.Timestamp(next())
	s.UserChunks, s.Entries, s.Records = next(), next(), next()
	s.UserBytes, s.TrailerBytes, s.FilterBytes = int64(next()), int64(next()), int64(next())
	s.DeltaChunks, s.DeltaBytes = next(), int64(next())
	s.SnapshotChunks, s.SnapshotBytes = next(), int64(next())
	s.Size, s.LastUser = int64(next()), int64(next())
	s.SnapshotFirst, s.SnapshotLast = place(), place()
	s.DroppedLSN = chunk.LSN(next())
	s.TrailerSequenceBytes, s.SnapshotSequenceBytes = int64(next()), int64(next())
	if flags&^summaryUnitStart != 0 || !allZero(b[at:summaryFixedLength]) {
		return Summary{}, fmt.Errorf("%w: reserved bits of a summary are set", ErrContradiction)
	}
	for at := summaryFixedLength; at < len(b); at += lineLength {
		s.Lines = append(s.Lines, readLine(b[at:]))
	}
	return s, s.Check()
}

// summaryLength returns the length of the summary that b starts with, −1 if it
// can't be one.
func summaryLength(b []byte) int {
	if len(b) < 8 {
		return -1
	}
	lines := binary.BigEndian.Uint32(b[4:])
	if lines > linesMax {
		return -1
	}
	return summaryFixedLength + lineLength*int(lines)
}

func appendLine(dst []byte, l EpochLine) []byte {
	be := binary.BigEndian
	dst = be.AppendUint64(dst, uint64(l.Epoch))
	dst = be.AppendUint64(dst, uint64(l.LSN))
	return be.AppendUint64(dst, uint64(l.Offset))
}

func readLine(b []byte) EpochLine {
	be := binary.BigEndian
	return EpochLine{
		Epoch:  chunk.Epoch(be.Uint64(b)),
		LSN:    chunk.LSN(be.Uint64(b[8:])),
		Offset: chunk.Offset(be.Uint64(b[16:])),
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
