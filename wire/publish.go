package wire

import (
	"encoding/binary"
	"math"
)

// SubBatchUncompressedMax is the most that a sub-batch may claim to be when it
// is decompressed, in bytes.
const SubBatchUncompressedMax = 64 << 20

// CompressionMax is the highest compression code of a sub-batch: 0 none,
// 1 gzip, 2 snappy, 3 LZ4, 4 zstd.
const CompressionMax = 4

const (
	idSize             = 8
	subBatchHeaderSize = 11
	subBatchBit        = 0x80
	subBatchReserved   = 0x0f
)

// Publish is a frame of messages. It refers to the payload that it was decoded
// from, and is valid as long as that. Nothing is copied and nothing is
// allocated: the frame is checked as a whole when it is decoded, and Entries
// then walks over it.
type Publish struct {
	Version     uint16 // 1, or 2: with filter values
	PublisherID uint8
	Count       int // entries
	// Accepted is how many entries, from the first on, may be stored. The first
	// one behind them is a sub-batch that breaks a rule; it and all that follow
	// are refused by PublishError 17, so that a sequence has no hole.
	Accepted int
	// Records is the number of records in the accepted entries.
	Records int

	entries []byte
}

func (*Publish) Key() Key              { return KeyPublish }
func (p *Publish) wireVersion() uint16 { return p.Version }

// DecodePublish decodes a Publish without an allocation. A frame whose count
// and entries disagree, or that holds a sub-batch in version 2, is malformed
// as a whole.
func DecodePublish(payload []byte) (Publish, error) {
	var p Publish
	c, err := beginDecode(payload, KeyPublish)
	if err != nil {
		return p, err
	}
	p.fields(&c)
	if err := c.finish(KeyPublish); err != nil {
		return Publish{}, err
	}
	return p, nil
}

func (p *Publish) fields(c *codec) {
	c.u8("publisher id", &p.PublisherID)
	sizeMin := idSize + 4
	if c.version == 2 {
		sizeMin += 2
	}
	c.count("entries", &p.Count, sizeMin)
	if c.mode == writing {
		c.out = append(c.out, p.entries...)
		return
	}
	p.Version = c.version
	p.entries = c.take("", c.remaining())
	if c.err == nil {
		p.check(c)
	}
}

// check walks over the entries once: they must be Count, and fill the frame.
func (p *Publish) check(c *codec) {
	rest := p.entries
	p.Accepted, p.Records = p.Count, 0
	for i := range p.Count {
		raw, end, err := bounds(rest, c.version == 2)
		if err != nil {
			c.array, c.index = "entries", i
			c.fail("", err)
			return
		}
		switch {
		case i >= p.Accepted:
		case rest[raw]&subBatchBit == 0:
			p.Records++
		case sizesFit(rest[raw:end]):
			p.Records += int(subBatchRecords(rest[raw:]))
		default:
			p.Accepted = i
		}
		rest = rest[end:]
	}
	if len(rest) > 0 {
		c.fail("entries", ErrTrailing)
	}
}

// bounds finds the first entry in b: its chunk form is b[raw:end]. The error
// says why there is none.
func bounds(b []byte, filtered bool) (raw, end int, err error) {
	raw = idSize
	if filtered {
		if raw, err = filterEnd(b); err != nil {
			return 0, 0, err
		}
	}
	if len(b) < raw+4 {
		return 0, 0, ErrTruncated
	}
	size := uint64(binary.BigEndian.Uint32(b[raw:])) + 4
	if b[raw]&subBatchBit != 0 {
		switch {
		case filtered:
			return 0, 0, ErrSubBatch
		case len(b) < raw+subBatchHeaderSize:
			return 0, 0, ErrTruncated
		}
		size = uint64(binary.BigEndian.Uint32(b[raw+7:])) + subBatchHeaderSize
	}
	if size > uint64(len(b)-raw) {
		return 0, 0, ErrTruncated
	}
	return raw, raw + int(size), nil
}

// filterEnd returns where the filter value of b's first entry ends.
func filterEnd(b []byte) (int, error) {
	const start = idSize + 2
	if len(b) < start {
		return 0, ErrTruncated
	}
	n := binary.BigEndian.Uint16(b[idSize:])
	switch {
	case n == math.MaxUint16:
		return start, nil
	case n > StringMax:
		return 0, ErrNegativeLength
	case int(n) > len(b)-start:
		return 0, ErrTruncated
	}
	return start + int(n), nil
}

func subBatchRecords(raw []byte) uint16 { return binary.BigEndian.Uint16(raw[1:]) }

// sizesFit tells whether a sub-batch keeps the size rules, and has none of the
// reserved bits, which no chunk may hold.
func sizesFit(raw []byte) bool {
	compression := raw[0] &^ subBatchBit >> 4
	records := uint32(subBatchRecords(raw))
	uncompressed := binary.BigEndian.Uint32(raw[3:])
	switch {
	case raw[0]&subBatchReserved != 0,
		uncompressed > SubBatchUncompressedMax, records == 0, records*4 > uncompressed,
		compression > CompressionMax,
		len(raw) == subBatchHeaderSize && compression != 0:
		return false
	}
	return true
}

// Entry is one message, or one sub-batch, of a Publish. Filter and Raw refer
// to the frame.
type Entry struct {
	PublishingID uint64
	// Filter is the filter value; empty for none.
	Filter []byte
	// Raw is the entry as a chunk holds it: u32 size and message, or the
	// sub-batch header and its data.
	Raw []byte
	// Records is 1 for a message, the claimed number for a sub-batch.
	Records uint32
}

// SubBatch tells whether the entry is a sub-batch.
func (e *Entry) SubBatch() bool { return e.Raw[0]&subBatchBit != 0 }

// Entries begins an iteration, from the first entry to the last:
//
//	entries := p.Entries()
//	for e, ok := entries.Next(); ok; e, ok = entries.Next() { … }
func (p *Publish) Entries() Entries { return Entries{rest: p.entries, filtered: p.Version == 2} }

// Entries iterates over the entries of a Publish.
type Entries struct {
	rest     []byte
	filtered bool
}

// Next returns the next entry, and false behind the last.
func (s *Entries) Next() (e Entry, ok bool) {
	b := s.rest
	raw, end, err := bounds(b, s.filtered)
	if err != nil {
		return Entry{}, false // the end: Publish.check found no other fault
	}
	e.PublishingID = binary.BigEndian.Uint64(b)
	e.Raw = b[raw:end:end]
	e.Records = 1
	if e.SubBatch() {
		e.Records = uint32(subBatchRecords(e.Raw))
	}
	if raw > idSize+2 {
		e.Filter = b[idSize+2 : raw : raw]
	}
	s.rest = b[end:]
	return e, true
}
