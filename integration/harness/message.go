package harness

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
)

// A message body proves whose it is and that it is whole:
//
//	 0          4            12         20                    −4
//	+----------+------------+----------+---------------------+----------+
//	| producer | counter    | random   | … up to the length  | CRC-32   |
//	+----------+------------+----------+---------------------+----------+
const messageMin = 24

// ErrForged: a body that no producer of the harness made.
var ErrForged = errors.New("not a message of the harness")

// AppendMessage appends a message of length bytes (24 at least).
func AppendMessage(dst []byte, producer uint32, counter uint64, length int) []byte {
	from := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, producer)
	dst = binary.BigEndian.AppendUint64(dst, counter)
	dst = binary.BigEndian.AppendUint64(dst, rand.Uint64())
	for len(dst)-from < max(length, messageMin)-4 {
		dst = append(dst, byte(counter)+byte(len(dst)))
	}
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[from:]))
}

// ParseMessage proves a body and says whose message it is.
func ParseMessage(body []byte) (producer uint32, counter uint64, err error) {
	if len(body) < messageMin {
		return 0, 0, ErrForged
	}
	sum := len(body) - 4
	if crc32.ChecksumIEEE(body[:sum]) != binary.BigEndian.Uint32(body[sum:]) {
		return 0, 0, ErrForged
	}
	return binary.BigEndian.Uint32(body), binary.BigEndian.Uint64(body[4:]), nil
}
