package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// Meta is what the writer decides about a chunk beside its entries.
type Meta struct {
	Incarnation  Incarnation
	Flags        Flags
	LSN          LSN
	SyncedLSN    LSN
	DigestBefore Digest
	Timestamp    Timestamp
	Epoch        Epoch
	// BaseOffset is the offset of the first record; for a control chunk that of
	// the record to come.
	BaseOffset Offset
	// Trailer is copied; at most TrailerLengthMax bytes.
	Trailer []byte
	// Filter is copied; empty, or FilterLengthMin to FilterLengthMax bytes made
	// by FilterFNV.
	Filter []byte
}

// Builder makes user chunks in two buffers that the caller hands in: the head
// (storage header, filter, trailer, client header) and the data. It copies runs
// of entries and allocates only where a buffer must grow.
//
// Invariant: len(data) ≤ DataLengthTarget unless entries == 1, entries ≤
// EntriesMax, and a sub-batch is alone.
type Builder struct {
	head, data []byte
	entries    int
	records    uint32
	// alone is set once a sub-batch is in: it shares its chunk with nobody,
	// since one public client reads only a chunk's first.
	alone bool
}

// Reset starts a chunk in the given buffers, whose contents are overwritten.
func (b *Builder) Reset(head, data []byte) {
	*b = Builder{head: head[:0], data: data[:0]}
}

// Move goes on in a larger data buffer, whose contents are overwritten, and
// returns the one before: so buffers of a pool stay what they are.
func (b *Builder) Move(data []byte) (before []byte) {
	before = b.data
	b.data = append(data[:0], before...)
	return before
}

// Entries returns the number of entries so far.
func (b *Builder) Entries() int { return b.entries }

// Records returns the number of records so far.
func (b *Builder) Records() uint32 { return b.records }

// DataLength returns the bytes of data so far.
func (b *Builder) DataLength() int { return len(b.data) }

// Fits tells whether that many simple entries, of so many bytes together, may
// still join. A single entry always fits an empty chunk, if DataLengthMax
// allows it at all; a sub-batch may be appended only to an empty one.
func (b *Builder) Fits(dataBytes, entries int) bool {
	if b.entries == 0 && entries == 1 {
		return dataBytes <= DataLengthMax
	}
	return !b.alone && len(b.data)+dataBytes <= DataLengthTarget && b.entries+entries <= EntriesMax
}

// AppendRun adds count entries that lie back to back in chunk layout, holding
// that many records, by one copy. The caller has parsed and counted them and
// has asked Fits; a run that breaks the Builder's invariant panics.
func (b *Builder) AppendRun(entries []byte, count int, records uint32) {
	batch := len(entries) > 0 && entries[0]&subBatchBit != 0
	if count < 1 || len(entries) < 4*count || records < uint32(count) ||
		!b.Fits(len(entries), count) || batch && (b.entries > 0 || count > 1) {
		panic(fmt.Sprintf("chunk: run of %d entries, %d records, %d bytes does not fit behind %d entries, %d bytes",
			count, records, len(entries), b.entries, len(b.data)))
	}
	b.data = append(b.data, entries...)
	b.entries += count
	b.records += records
	b.alone = batch
}

// Finish completes a user chunk. Head and data are the Builder's buffers, grown
// where needed, and stay valid until the next Reset with the same ones. Fields
// that make no chunk (no entry, LSN 0, a trailer or filter out of limits)
// panic.
func (b *Builder) Finish(m *Meta) (head, data []byte, h Header) {
	h = m.header(User)
	h.DataLength = uint32(len(b.data))
	h.Entries = uint16(b.entries)
	h.Records = b.records
	h.DataCRC = crc32.ChecksumIEEE(b.data)
	b.head = m.build(b.head, &h)
	return b.head, b.data, h
}

// BuildControl makes a delta (barriers too) or snapshot chunk in the head's
// buffer; m.Trailer is its payload. It has no data. Fields that make no chunk
// panic.
func BuildControl(t Type, m *Meta, buffer []byte) (head []byte, h Header) {
	h = m.header(t)
	head = m.build(buffer[:0], &h)
	return head, h
}

func (m *Meta) header(t Type) Header {
	h := Header{
		Type: t, Flags: m.Flags, LSN: m.LSN, SyncedLSN: m.SyncedLSN, DigestBefore: m.DigestBefore,
		TrailerLength: uint32(len(m.Trailer)), FilterLength: uint8(len(m.Filter)),
		Timestamp: m.Timestamp, Epoch: m.Epoch, BaseOffset: m.BaseOffset,
	}
	if len(m.Filter) > 0 {
		h.FilterAlgorithm = FilterFNV
	}
	return h
}

func (m *Meta) build(head []byte, h *Header) []byte {
	if len(m.Trailer) > TrailerLengthMax || len(m.Filter) > FilterLengthMax ||
		len(m.Filter) > 0 && len(m.Filter) < FilterLengthMin {
		panic(fmt.Sprintf("chunk: %d bytes of trailer, %d of filter", len(m.Trailer), len(m.Filter)))
	}
	if err := h.CheckFields(); err != nil {
		panic(err.Error())
	}
	n := h.HeadLength()
	head = slices.Grow(head, n)[:n]
	copy(head[StorageHeaderLength:], m.Filter)
	copy(head[StorageHeaderLength+len(m.Filter):], m.Trailer)
	h.putHead(head)
	h.putHeadCRC(m.Incarnation, head)
	return head
}

// Restamp writes a follower's own synced LSN and the CRC that follows from it
// into a head that Decode has accepted; everything else stays as the leader
// sent it. It returns the new CRC.
func Restamp(inc Incarnation, head []byte, synced LSN) uint32 {
	binary.BigEndian.PutUint64(head[16:], uint64(synced))
	crc := headCRC(inc, head)
	binary.BigEndian.PutUint32(head[headCRCAt:], crc)
	return crc
}

// Strip appends to dst the head of a user chunk without its trailer, flagged
// stripped; client header and filter are the same bytes as before. A head that
// has no trailer is only copied. head must be one that Decode has accepted as h.
func Strip(inc Incarnation, dst, head []byte, h *Header) ([]byte, Header) {
	out := *h
	if h.Type != User || h.TrailerLength == 0 {
		return append(dst, head[:h.HeadLength()]...), out
	}
	out.TrailerLength = 0
	out.Flags |= FlagStripped
	from := len(dst)
	dst = append(dst, head[:StorageHeaderLength+int(h.FilterLength)]...)
	dst = append(dst, ClientHeaderOf(head[:h.HeadLength()])...)
	out.putHead(dst[from:])
	out.putHeadCRC(inc, dst[from:])
	return dst, out
}
