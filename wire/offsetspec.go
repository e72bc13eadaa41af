package wire

import "fmt"

// OffsetType says how an OffsetSpec names a place in a stream.
type OffsetType uint16

// The offset types. OffsetNone stands in ConsumerUpdateResponse only.
const (
	OffsetNone      OffsetType = 0
	OffsetFirst     OffsetType = 1
	OffsetLast      OffsetType = 2
	OffsetNext      OffsetType = 3
	OffsetAt        OffsetType = 4
	OffsetTimestamp OffsetType = 5
)

// OffsetSpec is a place in a stream to read from. Only the field that its type
// needs is sent.
type OffsetSpec struct {
	Type      OffsetType
	Offset    uint64 // OffsetAt
	Timestamp int64  // OffsetTimestamp: Unix time in milliseconds, may be negative
}

// FromOffset begins with the chunk that holds the offset.
func FromOffset(offset uint64) OffsetSpec { return OffsetSpec{Type: OffsetAt, Offset: offset} }

// FromTimestamp begins with the first chunk not older than ms.
func FromTimestamp(ms int64) OffsetSpec { return OffsetSpec{Type: OffsetTimestamp, Timestamp: ms} }

// fields reads a specification whose type is at least lowest.
func (o *OffsetSpec) fields(c *codec, lowest OffsetType) {
	c.u16("offset type", (*uint16)(&o.Type))
	switch {
	case o.Type < lowest || o.Type > OffsetTimestamp:
		c.fail("offset type", ErrOffsetType)
	case o.Type == OffsetAt:
		c.u64("offset", &o.Offset)
	case o.Type == OffsetTimestamp:
		c.i64("timestamp", &o.Timestamp)
	}
}

func (o OffsetSpec) String() string {
	switch o.Type {
	case OffsetNone:
		return "none"
	case OffsetFirst:
		return "first"
	case OffsetLast:
		return "last"
	case OffsetNext:
		return "next"
	case OffsetAt:
		return fmt.Sprintf("offset %d", o.Offset)
	case OffsetTimestamp:
		return fmt.Sprintf("timestamp %d", o.Timestamp)
	}
	return fmt.Sprintf("offset type %d", uint16(o.Type))
}
