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
	// one behind them is a sub-batch that breaks a size rule; it and all that
	// follow are refused by PublishError 17, so that a sequence has no hole.
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
	if len(payload) < HeaderSize {
		return p, &DecodeError{Key: KeyPublish, Index: -1, Err: ErrFrameTooSmall}
	}
	key, version := Header(payload)
	if key != KeyPublish {
		return p, &DecodeError{Key: key, Index: -1, Err: ErrUnknownKey}
	}
	if version != 1 && version != 2 {
		return p, &DecodeError{Key: key, Field: "version", Index: -1, Err: ErrVersion}
	}
	c := codec{version: version, in: payload, pos: HeaderSize}
	p.fields(&c)
	if c.err != nil {
		c.err.Key = key
		return Publish{}, c.err
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
	walk := p.Entries()
	refused := false
	p.Accepted, p.Records = 0, 0
	for i := range p.Count {
		e, err := walk.next()
		if err != nil {
			c.array, c.index = "entries", i
			c.fail("", err)
			return
		}
		refused = refused || !e.sizesFit()
		if !refused {
			p.Accepted++
			p.Records += int(e.Records)
		}
	}
	if len(walk.rest) > 0 {
		c.fail("entries", ErrTrailing)
	}
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

// sizesFit tells whether a sub-batch keeps the size rules.
func (e *Entry) sizesFit() bool {
	if !e.SubBatch() {
		return true
	}
	compression := e.Raw[0] >> 4 & 7
	uncompressed := binary.BigEndian.Uint32(e.Raw[3:])
	switch {
	case uncompressed > SubBatchUncompressedMax, e.Records == 0,
		uint64(e.Records)*4 > uint64(uncompressed),
		compression > CompressionMax,
		len(e.Raw) == subBatchHeaderSize && compression != 0:
		return false
	}
	return true
}

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
func (s *Entries) Next() (Entry, bool) {
	if len(s.rest) == 0 {
		return Entry{}, false
	}
	e, err := s.next()
	return e, err == nil
}

func (s *Entries) next() (e Entry, err error) {
	b := s.rest
	if len(b) < idSize {
		return e, ErrTruncated
	}
	e.PublishingID = binary.BigEndian.Uint64(b)
	b = b[idSize:]
	if s.filtered {
		if e.Filter, b, err = cutFilter(b); err != nil {
			return e, err
		}
	}
	if len(b) < 4 {
		return e, ErrTruncated
	}
	size := uint64(binary.BigEndian.Uint32(b)) + 4
	e.Records = 1
	if b[0]&subBatchBit != 0 {
		switch {
		case s.filtered:
			return e, ErrSubBatch
		case len(b) < subBatchHeaderSize:
			return e, ErrTruncated
		}
		size = uint64(binary.BigEndian.Uint32(b[7:])) + subBatchHeaderSize
		e.Records = uint32(binary.BigEndian.Uint16(b[1:]))
	}
	if size > uint64(len(b)) {
		return e, ErrTruncated
	}
	e.Raw, s.rest = b[:size:size], b[size:]
	return e, nil
}

// cutFilter reads a filter value, null for none.
func cutFilter(b []byte) (filter, rest []byte, err error) {
	if len(b) < 2 {
		return nil, b, ErrTruncated
	}
	n := binary.BigEndian.Uint16(b)
	b = b[2:]
	switch {
	case n == math.MaxUint16:
		return nil, b, nil
	case n > StringMax:
		return nil, b, ErrNegativeLength
	case int(n) > len(b):
		return nil, b, ErrTruncated
	}
	return b[:n:n], b[n:], nil
}
