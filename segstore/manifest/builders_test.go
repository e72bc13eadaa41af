package manifest

import (
	"github.com/millrace/millrace/segstore/chunk"
)

const testIncarnation chunk.Incarnation = 0x0123456789abcdef

// logBuilder makes the summaries of a log that grows by made-up chunks.
type logBuilder struct {
	lsn    chunk.LSN
	offset chunk.Offset
	digest chunk.Digest
	epoch  chunk.Epoch
	time   chunk.Timestamp
}

func newLog() *logBuilder { return &logBuilder{lsn: 1, epoch: 0, time: 1_700_000_000_000} }

// header returns the next chunk's header.
func (l *logBuilder) header(t chunk.Type, flags chunk.Flags, trailer uint32) chunk.Header {
	h := chunk.Header{
		Type: t, Flags: flags, LSN: l.lsn, Epoch: l.epoch, BaseOffset: l.offset, DigestBefore: l.digest,
		Timestamp: l.time, TrailerLength: trailer, HeadCRC: uint32(l.lsn) * 0x9e3779b9,
	}
	if t == chunk.User {
		h.Entries, h.Records, h.DataLength, h.DataCRC = 2, 2, 100, uint32(l.lsn)
	}
	l.lsn++
	l.offset = h.Next()
	l.digest = h.DigestAfter()
	l.time += 10
	return h
}

// sealed returns the summary of a segment with so many user chunks behind its
// head: a barrier that begins an epoch for the first one, else a snapshot.
func (l *logBuilder) sealed(users int) Summary {
	before := l.epoch
	var head chunk.Header
	if l.lsn == 1 {
		l.epoch++
		head = l.header(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, 4)
	} else {
		head = l.header(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, 30)
	}
	s := NewSummary(testIncarnation, 0, &head)
	s.Add(&head, before)
	for range users {
		h := l.header(chunk.User, 0, 12)
		s.Add(&h, l.epoch)
	}
	return s
}

// elect begins a new epoch inside a segment.
func (l *logBuilder) elect(s *Summary) {
	before := l.epoch
	l.epoch += 2
	h := l.header(chunk.Delta, chunk.FlagEpochStart, 0)
	s.Add(&h, before)
}

// startAt returns the log start at the beginning of a segment.
func startAt(s *Summary, line EpochLine) Start {
	return Start{LSN: s.FirstLSN, Offset: s.BaseOffset, Digest: s.DigestBefore, Line: line}
}

func sealedRecord(s Summary) Record { return Record{Kind: KindSealed, Summary: s} }
