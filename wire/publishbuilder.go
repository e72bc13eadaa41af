package wire

import (
	"encoding/binary"
	"math"
)

// PublishOverhead is what a Publish frame of one message in version 1 takes
// beside the message, without the size bytes: the longest message is the
// negotiated frame size less this.
const PublishOverhead = 21

const publishHeadSize = SizeSize + HeaderSize + 1 + 4

// PublishBuilder writes Publish frames into a buffer of its caller, without
// copying a message twice. Many frames may follow each other in one buffer.
type PublishBuilder struct {
	buf   []byte
	start int
	count uint32
	v2    bool
}

// Begin starts a frame behind buf.
func (b *PublishBuilder) Begin(buf []byte, version uint16, publisherID uint8) {
	b.start, b.count, b.v2 = len(buf), 0, version == 2
	b.buf = append(appendHeader(buf, 0, KeyPublish, version), publisherID)
	b.buf = binary.BigEndian.AppendUint32(b.buf, 0)
}

// Add appends a message, without a filter value where the version has one.
func (b *PublishBuilder) Add(publishingID uint64, message []byte) {
	b.buf = binary.BigEndian.AppendUint64(b.buf, publishingID)
	if b.v2 {
		b.buf = binary.BigEndian.AppendUint16(b.buf, math.MaxUint16)
	}
	b.message(message)
}

// AddFiltered appends a message with a filter value, in version 2.
func (b *PublishBuilder) AddFiltered(publishingID uint64, filter string, message []byte) {
	if !b.v2 {
		panic("wire: filter value in Publish version 1")
	}
	b.buf = binary.BigEndian.AppendUint64(b.buf, publishingID)
	b.buf = appendString(b.buf, filter)
	b.message(message)
}

// AddSubBatch appends a sub-batch in version 1: records messages, each with a
// u32 size before it, of uncompressed bytes in all, compressed to data.
func (b *PublishBuilder) AddSubBatch(publishingID uint64, compression uint8, records uint16, uncompressed uint32, data []byte) {
	if b.v2 {
		panic("wire: sub-batch in Publish version 2")
	}
	b.buf = binary.BigEndian.AppendUint64(b.buf, publishingID)
	b.buf = append(b.buf, subBatchBit|compression<<4)
	b.buf = binary.BigEndian.AppendUint16(b.buf, records)
	b.buf = binary.BigEndian.AppendUint32(b.buf, uncompressed)
	b.buf = binary.BigEndian.AppendUint32(b.buf, uint32(len(data)))
	b.buf = append(b.buf, data...)
	b.count++
}

func (b *PublishBuilder) message(message []byte) {
	b.buf = binary.BigEndian.AppendUint32(b.buf, uint32(len(message)))
	b.buf = append(b.buf, message...)
	b.count++
}

// Count is the number of entries so far.
func (b *PublishBuilder) Count() int { return int(b.count) }

// Size is the length of the frame so far, as it counts against the negotiated
// maximum: without the size bytes.
func (b *PublishBuilder) Size() int { return len(b.buf) - b.start - SizeSize }

// End completes the frame and returns the buffer.
func (b *PublishBuilder) End() []byte {
	finishFrame(b.buf, b.start)
	binary.BigEndian.PutUint32(b.buf[b.start+publishHeadSize-4:], b.count)
	return b.buf
}
