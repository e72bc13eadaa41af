package chunk

import (
	"encoding/binary"
	"fmt"
)

const (
	simpleHeaderLength   = 4
	subBatchHeaderLength = 11
	subBatchBit          = 0x80
	subBatchReserved     = 0x0f
)

// Compression says how a sub-batch's body is packed; the broker never unpacks.
type Compression uint8

// The codes of the client protocol; 5 and 6 are free.
const (
	CompressionNone   Compression = 0
	CompressionGzip   Compression = 1
	CompressionSnappy Compression = 2
	CompressionLZ4    Compression = 3
	CompressionZstd   Compression = 4
	CompressionUser   Compression = 7
)

// Entry is one entry of a data section; its slices alias the section.
type Entry struct {
	// Offset is that of the entry's first record.
	Offset Offset
	// Records is 1 for a simple entry.
	Records uint32
	// SubBatch tells the two forms apart; the next two fields are zero without.
	SubBatch     bool
	Compression  Compression
	Uncompressed uint32 // length of the body once unpacked, as the publisher claims
	Body         []byte
	// Raw is the entry with its own header.
	Raw []byte
}

// ParseEntry reads the entry that b starts with; its Offset is left zero.
//
//	simple     0:1 length:31 | body
//	sub-batch  1:1 compression:3 0:4 | records u16 | uncompressed u32 | length u32 | body
//
// Errors: ErrShort where b ends inside of the entry, ErrReserved, ErrEntries
// for a sub-batch of no records.
func ParseEntry(b []byte) (Entry, error) {
	if len(b) < simpleHeaderLength {
		return Entry{}, fmt.Errorf("%w: %d bytes of an entry's header", ErrShort, len(b))
	}
	be := binary.BigEndian
	if b[0]&subBatchBit == 0 {
		end := simpleHeaderLength + uint64(be.Uint32(b))
		if uint64(len(b)) < end {
			return Entry{}, fmt.Errorf("%w: entry of %d bytes in %d", ErrShort, end, len(b))
		}
		return Entry{Records: 1, Body: b[simpleHeaderLength:end:end], Raw: b[:end:end]}, nil
	}
	if len(b) < subBatchHeaderLength {
		return Entry{}, fmt.Errorf("%w: %d bytes of a sub-batch's header", ErrShort, len(b))
	}
	if b[0]&subBatchReserved != 0 {
		return Entry{}, fmt.Errorf("%w: sub-batch starts with %02x", ErrReserved, b[0])
	}
	end := subBatchHeaderLength + uint64(be.Uint32(b[7:]))
	if uint64(len(b)) < end {
		return Entry{}, fmt.Errorf("%w: sub-batch of %d bytes in %d", ErrShort, end, len(b))
	}
	e := Entry{
		Records:      uint32(be.Uint16(b[1:])),
		SubBatch:     true,
		Compression:  Compression(b[0] >> 4 & 7),
		Uncompressed: be.Uint32(b[3:]),
		Body:         b[subBatchHeaderLength:end:end],
		Raw:          b[:end:end],
	}
	if e.Records == 0 {
		return Entry{}, fmt.Errorf("%w: sub-batch of no records", ErrEntries)
	}
	return e, nil
}

// AppendSimple appends a message as a simple entry.
func AppendSimple(dst, message []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(message)))
	return append(dst, message...)
}

// AppendSubBatch appends a sub-batch whose body is packed already.
func AppendSubBatch(dst []byte, c Compression, records uint16, uncompressed uint32, body []byte) []byte {
	dst = append(dst, subBatchBit|byte(c)<<4)
	dst = binary.BigEndian.AppendUint16(dst, records)
	dst = binary.BigEndian.AppendUint32(dst, uncompressed)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	return append(dst, body...)
}

// Entries walks the data section of a user chunk without copying:
//
//	it := h.EntriesIn(data)
//	for it.Next() {
//		use(it.Entry())
//	}
//	return it.Err()
//
// The walk ends with an error unless bytes, entries and records all come out
// as the header says.
type Entries struct {
	rest    []byte
	entry   Entry
	offset  Offset
	entries uint16 // still to come
	records uint32 // still to come
	lsn     LSN
	err     error
}

// EntriesIn starts a walk over the chunk's data.
func (h *Header) EntriesIn(data []byte) Entries {
	return Entries{rest: data, offset: h.BaseOffset, entries: h.Entries, records: h.Records, lsn: h.LSN}
}

// Next steps to the next entry, and tells whether there is one.
func (it *Entries) Next() bool {
	if it.err != nil {
		return false
	}
	if it.entries == 0 {
		if len(it.rest) != 0 || it.records != 0 {
			it.err = fmt.Errorf("%w: %d bytes and %d records left over in chunk %d", ErrEntries, len(it.rest), it.records, it.lsn)
		}
		return false
	}
	e, err := ParseEntry(it.rest)
	if err != nil {
		it.err = fmt.Errorf("%w: at offset %d of chunk %d: %w", ErrEntries, it.offset, it.lsn, err)
		return false
	}
	if e.Records > it.records {
		it.err = fmt.Errorf("%w: more records than %d in chunk %d", ErrEntries, it.records, it.lsn)
		return false
	}
	e.Offset = it.offset
	it.offset += Offset(e.Records)
	it.records -= e.Records
	it.entries--
	it.rest = it.rest[len(e.Raw):]
	it.entry = e
	return true
}

// Entry returns the entry that Next stepped to.
func (it *Entries) Entry() Entry { return it.entry }

// Err returns why the walk ended early: nil, or ErrEntries.
func (it *Entries) Err() error { return it.err }

// ValidateEntries walks the whole data section for its verdict alone.
func (h *Header) ValidateEntries(data []byte) error {
	it := h.EntriesIn(data)
	for it.Next() {
	}
	return it.Err()
}

// Messages splits the unpacked body of a sub-batch into its messages, calling
// yield for each in order; they alias the body. Error: ErrEntries unless the
// body is exactly that many simple entries.
func Messages(body []byte, records uint32, yield func(message []byte)) error {
	for i := range records {
		e, err := ParseEntry(body)
		if err != nil || e.SubBatch {
			return fmt.Errorf("%w: message %d of %d in a sub-batch is no simple entry", ErrEntries, i, records)
		}
		yield(e.Body)
		body = body[len(e.Raw):]
	}
	if len(body) != 0 {
		return fmt.Errorf("%w: %d bytes behind the messages of a sub-batch", ErrEntries, len(body))
	}
	return nil
}
