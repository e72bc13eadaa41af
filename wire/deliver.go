package wire

import "encoding/binary"

// ChunkHeaderSize is the length of the header that every delivered chunk
// begins with, in bytes.
const ChunkHeaderSize = 48

// Deliver brings one chunk of a subscription. Chunk refers to the payload that
// it was decoded from.
type Deliver struct {
	Version        uint16 // 1, or 2: with CommittedChunkID
	SubscriptionID uint8
	// CommittedChunkID is the base offset of the last committed chunk that the
	// server knows of, in version 2.
	CommittedChunkID uint64
	// Chunk is the client header and the data, nothing between them.
	Chunk []byte
}

func (*Deliver) Key() Key              { return KeyDeliver }
func (d *Deliver) wireVersion() uint16 { return d.Version }

func (d *Deliver) fields(c *codec) {
	d.Version = c.version
	c.u8("subscription id", &d.SubscriptionID)
	if c.version == 2 {
		c.u64("committed chunk id", &d.CommittedChunkID)
	} else {
		d.CommittedChunkID = 0
	}
	if c.mode == writing {
		c.out = append(c.out, d.Chunk...)
		return
	}
	if c.remaining() < ChunkHeaderSize {
		c.fail("chunk", ErrTruncated)
	}
	d.Chunk = c.take("chunk", c.remaining())
}

// Decode decodes payload into d, whose Chunk then refers to it.
func (d *Deliver) Decode(payload []byte) error {
	c, err := beginDecode(payload, KeyDeliver)
	if err != nil {
		return err
	}
	d.fields(&c)
	return c.finish(KeyDeliver)
}

// The lengths of what stands before the chunk, size bytes included.
const (
	DeliverV1HeadSize = SizeSize + HeaderSize + 1
	DeliverV2HeadSize = DeliverV1HeadSize + 8
)

// AppendDeliverV1 appends what stands before a chunk of chunkSize bytes
// (header and data) in Deliver version 1.
func AppendDeliverV1(dst []byte, subscriptionID uint8, chunkSize int) []byte {
	dst = appendHeader(dst, uint32(DeliverV1HeadSize-SizeSize+chunkSize), KeyDeliver, 1)
	return append(dst, subscriptionID)
}

// AppendDeliverV2 appends what stands before a chunk of chunkSize bytes in
// Deliver version 2.
func AppendDeliverV2(dst []byte, subscriptionID uint8, committedChunkID uint64, chunkSize int) []byte {
	dst = appendHeader(dst, uint32(DeliverV2HeadSize-SizeSize+chunkSize), KeyDeliver, 2)
	return binary.BigEndian.AppendUint64(append(dst, subscriptionID), committedChunkID)
}
