package client

import "encoding/binary"

// The public clients exchange AMQP 1.0 messages: sections, each a described
// value of descriptor 0x70 (header) to 0x78 (footer). To a line of text we are
// such a client: it is one data section.
//
//	00 53 75 | a0 length u8 | bytes      a data section of up to 255 bytes
//	00 53 75 | b0 length u32 | bytes     a longer one
const (
	amqpDescribed  = 0x00
	amqpSmallUlong = 0x53
	amqpUlong      = 0x80
	amqpData       = 0x75
	amqpValue      = 0x77
	amqpBinary8    = 0xa0
	amqpString8    = 0xa1
	amqpBinary32   = 0xb0
	amqpString32   = 0xb1
)

// WrapData appends body to dst as an AMQP 1.0 message of one data section.
func WrapData(dst, body []byte) []byte {
	dst = append(dst, amqpDescribed, amqpSmallUlong, amqpData)
	if len(body) < 256 {
		dst = append(dst, amqpBinary8, byte(len(body)))
	} else {
		dst = binary.BigEndian.AppendUint32(append(dst, amqpBinary32), uint32(len(body)))
	}
	return append(dst, body...)
}

// UnwrapData returns the body of an AMQP 1.0 message: its data sections, joined
// if there are several, or a text or binary value. It is false for all else,
// also for bytes that are no AMQP 1.0 message. The body may share message's
// memory.
func UnwrapData(message []byte) (body []byte, ok bool) {
	for rest := message; len(rest) > 0; {
		section, value, ok := amqpSection(rest)
		if !ok {
			return nil, false
		}
		size := amqpSize(value)
		if size == 0 || size > len(value) {
			return nil, false
		}
		rest = value[size:]
		if section != amqpData && section != amqpValue {
			continue
		}
		part, text := amqpBytes(value[:size])
		switch {
		case !text, section == amqpValue && body != nil:
			return nil, false
		case body == nil:
			body = part[:len(part):len(part)]
		default:
			body = append(body, part...)
		}
	}
	return body, body != nil
}

// amqpSection reads a section's descriptor and returns what follows it.
func amqpSection(b []byte) (section byte, value []byte, ok bool) {
	switch {
	case len(b) >= 3 && b[0] == amqpDescribed && b[1] == amqpSmallUlong:
		section, value = b[2], b[3:]
	case len(b) >= 10 && b[0] == amqpDescribed && b[1] == amqpUlong && binary.BigEndian.Uint64(b[2:]) < 256:
		section, value = b[9], b[10:]
	}
	return section, value, section >= 0x70 && section <= 0x78
}

// amqpSize is the length of an encoded value with its constructor, 0 if it
// cannot be told. The constructor's high half gives the width of what follows.
func amqpSize(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch width := b[0] >> 4; width {
	case 4:
		return 1
	case 5, 6, 7, 8, 9: // 1, 2, 4, 8, 16 bytes
		return 1 + 1<<(width-5)
	case 0xa, 0xc, 0xe:
		if len(b) >= 2 {
			return 2 + int(b[1])
		}
	case 0xb, 0xd, 0xf:
		if len(b) >= 5 {
			return 5 + int(binary.BigEndian.Uint32(b[1:]))
		}
	}
	return 0
}

// amqpBytes returns the content of a binary or string value.
func amqpBytes(value []byte) ([]byte, bool) {
	switch value[0] {
	case amqpBinary8, amqpString8:
		return value[2:], true
	case amqpBinary32, amqpString32:
		return value[5:], true
	}
	return nil, false
}
