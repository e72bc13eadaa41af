package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Sizes and limits of the format, in bytes unless said otherwise.
const (
	StorageHeaderLength = 48
	ClientHeaderLength  = 48
	// HeadLengthMin is the head of a chunk without filter and trailer.
	HeadLengthMin = StorageHeaderLength + ClientHeaderLength
	// HeadLengthMax bounds what a reader must hold to check a head.
	HeadLengthMax = HeadLengthMin + FilterLengthMax + TrailerLengthMax

	// DataLengthTarget is the most data that several entries share; a single
	// larger entry goes alone.
	DataLengthTarget = 1 << 20
	// DataLengthMax bounds the data of any chunk, that of one huge entry too.
	DataLengthMax = 64 << 20
	// EntriesMax is what the client header's 16 bits can count.
	EntriesMax = 65535
	// TrailerLengthMax bounds trailer, delta and one snapshot part.
	TrailerLengthMax = 4 << 20

	// FormatVersion is the last byte of the magic of the chunks written here.
	FormatVersion = 1
	// MagicLength counts the bytes that every version starts with; the version
	// follows them.
	MagicLength = 3

	magic           = 0xD34D5200 // D3 'M' 'R', then the version
	clientMagic     = 0x50
	headCRCAt       = 44
	flagsUnderstood = FlagSegmentStart | FlagUnitStart | FlagEpochStart |
		FlagSnapshotFirst | FlagSnapshotLast | FlagStripped
)

// Type tells what a chunk carries. The values are those of the client protocol.
type Type uint8

const (
	User     Type = 0 // records; may carry a trailer
	Delta    Type = 1 // tracking that changed; barriers are deltas too
	Snapshot Type = 2 // one part of the whole tracking state
)

func (t Type) String() string {
	switch t {
	case User:
		return "user"
	case Delta:
		return "delta"
	case Snapshot:
		return "snapshot"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Flags mark a chunk's place in the log.
type Flags uint16

const (
	// FlagSegmentStart: the leader opens a segment with this chunk (E1).
	FlagSegmentStart Flags = 1 << iota
	// FlagUnitStart: the segment also opens a unit of retention.
	FlagUnitStart
	// FlagEpochStart: the barrier, a leader's first chunk (A6); always a delta.
	FlagEpochStart
	// FlagSnapshotFirst and FlagSnapshotLast: the first and the last part of a
	// snapshot. One that fits one chunk has both; the set counts only from its
	// last part on (E1).
	FlagSnapshotFirst
	FlagSnapshotLast
	// FlagStripped: compaction took this user chunk's trailer. That it was there
	// is proof of commit (C5) and leaves tracking unknown across it (F9).
	FlagStripped
)

// Header holds both headers of a chunk, decoded. Its zero value is no chunk.
type Header struct {
	Type  Type
	Flags Flags
	LSN   LSN
	// SyncedLSN was known durable on this replica when the chunk was written;
	// the only field, with the CRC over it, in which replicas differ.
	SyncedLSN LSN
	// DigestBefore is the running digest over all user chunks before this one.
	DigestBefore    Digest
	DataLength      uint32
	TrailerLength   uint32
	FilterLength    uint8
	FilterAlgorithm uint8 // 0 when there is no filter
	HeadCRC         uint32

	// The client header's fields follow. A control chunk has 0 entries, 0
	// records and BaseOffset = the offset that the next record will take.
	Entries    uint16
	Records    uint32
	Timestamp  Timestamp
	Epoch      Epoch
	BaseOffset Offset
	DataCRC    uint32
}

// HeadLength returns the bytes of storage header, filter, trailer and client
// header together.
func (h *Header) HeadLength() int {
	return HeadLengthMin + int(h.FilterLength) + int(h.TrailerLength)
}

// Length returns the bytes of the whole chunk, as it takes them on disk.
func (h *Header) Length() int { return h.HeadLength() + int(h.DataLength) }

// UserBytes returns what retention counts: client header and data of a user
// chunk, nothing for a control chunk.
func (h *Header) UserBytes() int64 {
	if h.Type != User {
		return 0
	}
	return ClientHeaderLength + int64(h.DataLength)
}

// TrackingBytes returns what tracking takes of the chunk: a user chunk's trailer,
// all of a control chunk.
func (h *Header) TrackingBytes() int64 {
	if h.Type == User {
		return int64(h.TrailerLength)
	}
	return int64(h.Length())
}

// Next returns the offset after the chunk's last record.
func (h *Header) Next() Offset { return h.BaseOffset + Offset(h.Records) }

// Tail returns the chunk's place in the order of tails.
func (h *Header) Tail() Tail { return Tail{Epoch: h.Epoch, LSN: h.LSN} }

// Contains tells whether the record with offset o is in this chunk.
func (h *Header) Contains(o Offset) bool { return o >= h.BaseOffset && o < h.Next() }

// Has tells whether all of the given flags are set.
func (h *Header) Has(f Flags) bool { return h.Flags&f == f }

// FilterOf returns the filter bytes inside a head; they alias it.
func (h *Header) FilterOf(head []byte) []byte {
	return head[StorageHeaderLength:][:h.FilterLength:h.FilterLength]
}

// TrailerOf returns the trailer, or a control chunk's payload, inside a head;
// it aliases it.
func (h *Header) TrailerOf(head []byte) []byte {
	return head[StorageHeaderLength+int(h.FilterLength):][:h.TrailerLength:h.TrailerLength]
}

// ClientHeaderOf returns the last 48 bytes of a head: followed by the data they
// are what a Deliver frame carries.
func ClientHeaderOf(head []byte) []byte { return head[len(head)-ClientHeaderLength:] }

// Storage header, 48 bytes:
//
//	 0        4    5    6      8             16             24             32
//	+--------+----+----+------+-------------+--------------+--------------+
//	| magic  |type|  0 |flags |     LSN     |  synced LSN  | digest before|
//	+--------+----+----+------+-------------+--------------+--------------+
//	 32       36       40   41    42  44       48
//	+--------+--------+----+-----+---+--------+
//	| data   |trailer |filt|filt | 0 |CRC-32C |
//	| length | length |len |algo |   |of head |
//	+--------+--------+----+-----+---+--------+
//
// then filter, trailer and the client header, 48 bytes:
//
//	 0   1    2       4        8            16           24           32
//	+---+----+-------+--------+------------+------------+------------+
//	|50 |type|entries|records |  timestamp |    epoch   |base offset |
//	+---+----+-------+--------+------------+------------+------------+
//	 32       36       40       44      48
//	+--------+--------+--------+-------+
//	|CRC-32  |data    |trailer:|  0    |
//	|of data |length  |   0    |       |
//	+--------+--------+--------+-------+
//
// putHead fills both around a filter and a trailer that are in place already.
// The CRC of the head comes last, by putHeadCRC.
func (h *Header) putHead(head []byte) {
	be := binary.BigEndian
	be.PutUint32(head[0:], magic|FormatVersion)
	head[4], head[5] = byte(h.Type), 0
	be.PutUint16(head[6:], uint16(h.Flags))
	be.PutUint64(head[8:], uint64(h.LSN))
	be.PutUint64(head[16:], uint64(h.SyncedLSN))
	be.PutUint64(head[24:], uint64(h.DigestBefore))
	be.PutUint32(head[32:], h.DataLength)
	be.PutUint32(head[36:], h.TrailerLength)
	head[40], head[41] = h.FilterLength, h.FilterAlgorithm
	be.PutUint16(head[42:], 0)

	c := ClientHeaderOf(head)
	c[0], c[1] = clientMagic, byte(h.Type)
	be.PutUint16(c[2:], h.Entries)
	be.PutUint32(c[4:], h.Records)
	be.PutUint64(c[8:], uint64(h.Timestamp))
	be.PutUint64(c[16:], uint64(h.Epoch))
	be.PutUint64(c[24:], uint64(h.BaseOffset))
	be.PutUint32(c[32:], h.DataCRC)
	be.PutUint32(c[36:], h.DataLength)
	be.PutUint64(c[40:], 0)
}

func (h *Header) putHeadCRC(inc Incarnation, head []byte) {
	h.HeadCRC = headCRC(inc, head)
	binary.BigEndian.PutUint32(head[headCRCAt:], h.HeadCRC)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC is the CRC-32C that all own files use, started from the incarnation: the
// plain CRC-32C of the incarnation's 8 big-endian bytes followed by p. No other
// stream's bytes, and no bytes a client sent, pass for ours.
func CRC(inc Incarnation, p []byte) uint32 {
	return crc32.Update(crcSeed(inc), castagnoli, p)
}

// crcSeed works byte by byte, since what crc32.Update is given escapes to the
// heap.
func crcSeed(inc Incarnation) uint32 {
	c := ^uint32(0)
	for shift := 56; shift >= 0; shift -= 8 {
		c = castagnoli[byte(c)^byte(inc>>shift)] ^ c>>8
	}
	return ^c
}

// headCRC covers every byte of the head but the four that hold it.
func headCRC(inc Incarnation, head []byte) uint32 {
	c := crc32.Update(crcSeed(inc), castagnoli, head[:headCRCAt])
	return crc32.Update(c, castagnoli, head[StorageHeaderLength:])
}
