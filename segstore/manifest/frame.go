package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	frameHeaderLength = 8
	// bodyLengthMax bounds a record: a summary with its epoch lines, or the
	// list of generations that one merge replaces.
	bodyLengthMax = 4 << 20
)

// ErrDamaged reports a record that is bad and not merely the torn end of the
// last append: valid records follow it, or it is whole but for one bit.
var ErrDamaged = errors.New("manifest: damaged record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendFrame appends a record's frame, which MANIFEST and the node journal
// share:
//
//	 0          4          8
//	+----------+----------+------------------+
//	| length   | CRC-32C  | body             |
//	+----------+----------+------------------+
//
// The CRC starts from the incarnation and covers body, then length.
func AppendFrame(dst []byte, inc chunk.Incarnation, body []byte) []byte {
	var h [frameHeaderLength]byte
	binary.BigEndian.PutUint32(h[0:], uint32(len(body)))
	binary.BigEndian.PutUint32(h[4:], frameCRC(inc, h[:4], body))
	return append(append(dst, h[:]...), body...)
}

func frameCRC(inc chunk.Incarnation, length, body []byte) uint32 {
	return crc32.Update(chunk.CRC(inc, body), castagnoli, length)
}

// frameAt returns the body of a valid frame that b starts with.
func frameAt(inc chunk.Incarnation, b []byte) (body []byte, ok bool) {
	if len(b) < frameHeaderLength {
		return nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if n > bodyLengthMax || uint64(n) > uint64(len(b)-frameHeaderLength) {
		return nil, false
	}
	body = b[frameHeaderLength:][:n:n]
	return body, frameCRC(inc, b[:4], body) == binary.BigEndian.Uint32(b[4:])
}

// Frames splits a file of frames. It returns the bodies of the valid records
// from the start, which alias b, and the bytes they take; what is behind good
// is the torn end of the last append. bodyLength tells the length that a body
// must have, judged by its first bytes, or −1 for a body of no known kind; it
// keeps the search for later records cheap.
//
// Error: ErrDamaged if the first bad record is not a torn end; bodies and good
// are still those before it.
func Frames(inc chunk.Incarnation, b []byte, bodyLength func(body []byte) int) (bodies [][]byte, good int, err error) {
	for good < len(b) {
		body, ok := frameAt(inc, b[good:])
		if !ok {
			return bodies, good, judgeBad(inc, b, good, bodyLength)
		}
		bodies = append(bodies, body)
		good += frameHeaderLength + len(body)
	}
	return bodies, good, nil
}

// judgeBad decides between a torn end, which nothing follows, and damage.
func judgeBad(inc chunk.Incarnation, b []byte, bad int, bodyLength func([]byte) int) error {
	if flippedOnce(inc, b[bad:]) {
		return fmt.Errorf("%w: one bit of the last record, at %d, is wrong", ErrDamaged, bad)
	}
	for at := bad + 1; at+frameHeaderLength < len(b); at++ {
		n := bodyLength(b[at+frameHeaderLength:])
		if n < 0 || binary.BigEndian.Uint32(b[at:]) != uint32(n) {
			continue
		}
		if _, ok := frameAt(inc, b[at:]); ok {
			return fmt.Errorf("%w: at %d, and a valid one follows at %d", ErrDamaged, bad, at)
		}
	}
	return nil
}

// flippedBytesMax bounds the work of flippedOnce; a record that lists many
// generations may be longer and is then judged like a torn one.
const flippedBytesMax = 2048

// flippedOnce tells whether the frame is whole but for a single bit: a torn
// write does not look like that, rot does. The chance that a torn one does by
// accident is its bits in 2^32.
func flippedOnce(inc chunk.Incarnation, b []byte) bool {
	if len(b) < frameHeaderLength || len(b) > flippedBytesMax {
		return false
	}
	trial := append([]byte(nil), b...)
	for i := range trial {
		for bit := range 8 {
			trial[i] ^= 1 << bit
			body, ok := frameAt(inc, trial)
			if ok && frameHeaderLength+len(body) == len(b) {
				return true
			}
			trial[i] ^= 1 << bit
		}
	}
	return false
}
