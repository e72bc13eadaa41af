package wire

import "encoding/binary"

// PublishConfirm tells which messages of a publisher are committed.
type PublishConfirm struct {
	PublisherID uint8
	IDs         []uint64
}

func (*PublishConfirm) Key() Key { return KeyPublishConfirm }

func (p *PublishConfirm) fields(c *codec) {
	c.u8("publisher id", &p.PublisherID)
	c.u64s("ids", &p.IDs)
}

// Decode decodes payload into p, in the memory of p.IDs if that suffices.
func (p *PublishConfirm) Decode(payload []byte) error {
	c, err := beginDecode(payload, KeyPublishConfirm)
	if err != nil {
		return err
	}
	p.fields(&c)
	return c.finish(KeyPublishConfirm)
}

// PublishError tells which messages of a publisher were refused, and why.
type PublishError struct {
	PublisherID uint8
	Errors      []PublishingError
}

// PublishingError is one refused message.
type PublishingError struct {
	ID   uint64
	Code ResponseCode
}

func (*PublishError) Key() Key { return KeyPublishError }

func (p *PublishError) fields(c *codec) {
	c.u8("publisher id", &p.PublisherID)
	n := len(p.Errors)
	c.count("errors", &n, publishingErrorSize)
	if c.mode != writing {
		p.Errors = resize(p.Errors, n)
	}
	for i := range p.Errors {
		c.u64("errors", &p.Errors[i].ID)
		c.code(&p.Errors[i].Code)
	}
}

// Decode decodes payload into p, in the memory of p.Errors if that suffices.
func (p *PublishError) Decode(payload []byte) error {
	c, err := beginDecode(payload, KeyPublishError)
	if err != nil {
		return err
	}
	p.fields(&c)
	return c.finish(KeyPublishError)
}

const (
	confirmHeadSize     = HeaderSize + 1 + 4
	publishingErrorSize = idSize + 2
)

// ConfirmIDsMax is how many ids a PublishConfirm may hold to stay within
// frameMax bytes, 0 meaning no limit; PublishErrorIDsMax is the same for
// PublishError. Both are at least 1.
func ConfirmIDsMax(frameMax uint32) int      { return idsMax(frameMax, idSize) }
func PublishErrorIDsMax(frameMax uint32) int { return idsMax(frameMax, publishingErrorSize) }

func idsMax(frameMax uint32, size int) int {
	const unlimited = 1 << 20
	if frameMax == 0 {
		return unlimited
	}
	return max(1, (int(frameMax)-confirmHeadSize)/size)
}

// AppendPublishConfirm appends a whole PublishConfirm frame for ids.
func AppendPublishConfirm(dst []byte, publisherID uint8, ids []uint64) []byte {
	dst = appendHeader(dst, uint32(confirmHeadSize+idSize*len(ids)), KeyPublishConfirm, 1)
	dst = binary.BigEndian.AppendUint32(append(dst, publisherID), uint32(len(ids)))
	for _, id := range ids {
		dst = binary.BigEndian.AppendUint64(dst, id)
	}
	return dst
}

// AppendPublishError appends a whole PublishError frame that gives each of ids
// the same code.
func AppendPublishError(dst []byte, publisherID uint8, ids []uint64, code ResponseCode) []byte {
	dst = appendHeader(dst, uint32(confirmHeadSize+publishingErrorSize*len(ids)), KeyPublishError, 1)
	dst = binary.BigEndian.AppendUint32(append(dst, publisherID), uint32(len(ids)))
	for _, id := range ids {
		dst = binary.BigEndian.AppendUint64(dst, id)
		dst = binary.BigEndian.AppendUint16(dst, uint16(code))
	}
	return dst
}
