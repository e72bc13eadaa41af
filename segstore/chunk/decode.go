package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// Peek reads the lengths from a chunk's first 48 bytes, so that a reader knows
// how much to read next. Nothing is proven before Decode has seen the whole
// head, but the lengths are within the limits of the format. The places of
// magic, version, lengths and CRC are the same in every version.
//
// Errors: ErrShort, ErrMagic, ErrLength.
func Peek(b []byte) (headLength, dataLength int, err error) {
	if len(b) < StorageHeaderLength {
		return 0, 0, fmt.Errorf("%w: %d of %d bytes of the storage header", ErrShort, len(b), StorageHeaderLength)
	}
	be := binary.BigEndian
	m := be.Uint32(b)
	if m&^0xff != magic || m&0xff == 0 {
		return 0, 0, fmt.Errorf("%w: %08x", ErrMagic, m)
	}
	headLength, dataLength, ok := lengths(b)
	if !ok {
		return 0, 0, fmt.Errorf("%w: data %d, trailer %d, filter %d bytes",
			ErrLength, be.Uint32(b[32:]), be.Uint32(b[36:]), b[40])
	}
	return headLength, dataLength, nil
}

// lengths reads head and data length from a storage header, and tells whether
// they are within the limits.
func lengths(b []byte) (head, data int, ok bool) {
	be := binary.BigEndian
	d, trailer, filter := be.Uint32(b[32:]), be.Uint32(b[36:]), int(b[40])
	ok = d <= DataLengthMax && trailer <= TrailerLengthMax && (filter == 0 || filter >= FilterLengthMin)
	return HeadLengthMin + filter + int(trailer), int(d), ok
}

func storedCRC(head []byte) uint32 { return binary.BigEndian.Uint32(head[headCRCAt:]) }

// Decode checks and decodes a head, which may be longer than the chunk's own
// head (then the rest is ignored). It proves everything but the data.
//
// Errors: those of Peek, ErrShort for an incomplete head, ErrHeadCRC,
// ErrVersion, ErrReserved, ErrMalformed. The CRC is checked before version and
// contents: a flipped version byte is damage, not a newer program's chunk.
func Decode(inc Incarnation, head []byte) (Header, error) {
	n, _, err := Peek(head)
	if err != nil {
		return Header{}, err
	}
	if len(head) < n {
		return Header{}, fmt.Errorf("%w: %d of %d bytes of the head", ErrShort, len(head), n)
	}
	head = head[:n:n]
	want := storedCRC(head)
	if got := headCRC(inc, head); got != want {
		return Header{}, fmt.Errorf("%w: computed %08x, stored %08x", ErrHeadCRC, got, want)
	}
	if head[3] > FormatVersion {
		return Header{}, fmt.Errorf("%w: version %d, known %d", ErrVersion, head[3], FormatVersion)
	}
	h := load(head)
	if err := h.check(head); err != nil {
		return Header{}, err
	}
	return h, nil
}

func load(head []byte) Header {
	be := binary.BigEndian
	c := ClientHeaderOf(head)
	return Header{
		Type:            Type(head[4]),
		Flags:           Flags(be.Uint16(head[6:])),
		LSN:             LSN(be.Uint64(head[8:])),
		SyncedLSN:       LSN(be.Uint64(head[16:])),
		DigestBefore:    Digest(be.Uint64(head[24:])),
		DataLength:      be.Uint32(head[32:]),
		TrailerLength:   be.Uint32(head[36:]),
		FilterLength:    head[40],
		FilterAlgorithm: head[41],
		HeadCRC:         storedCRC(head),
		Entries:         be.Uint16(c[2:]),
		Records:         be.Uint32(c[4:]),
		Timestamp:       Timestamp(be.Uint64(c[8:])),
		Epoch:           Epoch(be.Uint64(c[16:])),
		BaseOffset:      Offset(be.Uint64(c[24:])),
		DataCRC:         be.Uint32(c[32:]),
	}
}

// check holds a head's fields against each other.
func (h *Header) check(head []byte) error {
	be := binary.BigEndian
	c := ClientHeaderOf(head)
	if head[5] != 0 || be.Uint16(head[42:]) != 0 || be.Uint64(c[40:]) != 0 || h.Flags&^flagsUnderstood != 0 {
		return fmt.Errorf("%w: chunk %d", ErrReserved, h.LSN)
	}
	if c[0] != clientMagic || c[1] != head[4] || be.Uint32(c[36:]) != h.DataLength {
		return fmt.Errorf("%w: client header and storage header differ in chunk %d", ErrMalformed, h.LSN)
	}
	return h.CheckFields()
}

// CheckFields tells whether the fields can be those of one chunk: the rules
// that the encoder relies on and the decoder enforces. Error: ErrMalformed.
func (h *Header) CheckFields() error {
	bad := func(what string) error {
		return fmt.Errorf("%w: %s in %s chunk %d", ErrMalformed, what, h.Type, h.LSN)
	}
	switch {
	case h.Type > Snapshot:
		return bad("unknown type")
	case h.LSN == 0 || h.Epoch == 0:
		return bad("LSN or epoch 0")
	case (h.FilterLength == 0) != (h.FilterAlgorithm == FilterNone):
		return bad("filter length and algorithm at odds")
	case uint64(h.BaseOffset) > math.MaxUint64-uint64(h.Records):
		return bad("offsets beyond 64 bits")
	case h.Has(FlagUnitStart) && !h.Has(FlagSegmentStart):
		return bad("unit start without segment start")
	case h.Has(FlagEpochStart) && h.Type != Delta:
		return bad("epoch start")
	case h.Flags&(FlagSnapshotFirst|FlagSnapshotLast) != 0 && h.Type != Snapshot:
		return bad("snapshot flag")
	case h.Has(FlagStripped) && (h.Type != User || h.TrailerLength != 0):
		return bad("stripped flag")
	}
	if h.Type == User {
		if h.Entries == 0 || h.Records < uint32(h.Entries) || h.DataLength < 4*uint32(h.Entries) {
			return bad("counts and length at odds")
		}
		return nil
	}
	if h.Entries != 0 || h.Records != 0 || h.DataLength != 0 || h.DataCRC != 0 || h.FilterLength != 0 {
		return bad("data or filter")
	}
	return nil
}

// VerifyData checks the data section against its header.
// Errors: ErrShort, ErrLength for surplus bytes, ErrDataCRC.
func (h *Header) VerifyData(data []byte) error {
	switch n := uint64(len(data)); {
	case n < uint64(h.DataLength):
		return fmt.Errorf("%w: %d of %d bytes of data in chunk %d", ErrShort, n, h.DataLength, h.LSN)
	case n > uint64(h.DataLength):
		return fmt.Errorf("%w: %d bytes of data for %d in chunk %d", ErrLength, n, h.DataLength, h.LSN)
	}
	if got := crc32.ChecksumIEEE(data); got != h.DataCRC {
		return fmt.Errorf("%w: computed %08x, stored %08x in chunk %d", ErrDataCRC, got, h.DataCRC, h.LSN)
	}
	return nil
}

// Verify decodes a head and checks the data that belongs to it; what a follower
// and recovery do before they believe a chunk. The entries inside the data are
// ValidateEntries'. With ErrShort or ErrDataCRC for the data the header is
// returned too, since its own CRC holds.
func Verify(inc Incarnation, head, data []byte) (Header, error) {
	h, err := Decode(inc, head)
	if err != nil {
		return Header{}, err
	}
	return h, h.VerifyData(data)
}

// DecodeClient decodes the 48 bytes that start a delivered chunk, as a client
// sees them: the fields of the storage header stay zero, and trailer and filter
// lengths of other brokers are let pass.
// Errors: ErrShort, ErrMagic.
func DecodeClient(b []byte) (Header, error) {
	if len(b) < ClientHeaderLength {
		return Header{}, fmt.Errorf("%w: %d of %d bytes of the client header", ErrShort, len(b), ClientHeaderLength)
	}
	if b[0] != clientMagic {
		return Header{}, fmt.Errorf("%w: client header starts with %02x", ErrMagic, b[0])
	}
	be := binary.BigEndian
	return Header{
		Type:       Type(b[1]),
		Entries:    be.Uint16(b[2:]),
		Records:    be.Uint32(b[4:]),
		Timestamp:  Timestamp(be.Uint64(b[8:])),
		Epoch:      Epoch(be.Uint64(b[16:])),
		BaseOffset: Offset(be.Uint64(b[24:])),
		DataCRC:    be.Uint32(b[32:]),
		DataLength: be.Uint32(b[36:]),
	}, nil
}
