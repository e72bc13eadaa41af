package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	frameHeaderLength = 8
	// bodyLengthMax bounds a record: a summary with its epoch lines, or the
	// list of generations that one merge replaces.
	bodyLengthMax = 4 << 20
)

// ErrDamaged reports a record that is bad and not merely the torn end of the
// last append: records follow that prove it to have been durable, or it is whole
// but for one bit.
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
// is the torn end of the last append. before is how many bytes of the file are in
// front of b. bodyLength tells the length that a body
// must have, judged by its first bytes, or −1 for a body of no known kind; it
// keeps the search for later records cheap. durable tells up to where a record
// at a position proves the file to have been durable when it was written.
//
// Error: ErrDamaged if the first bad record is not a torn end; bodies and good
// are still those before it.
func Frames(inc chunk.Incarnation, b []byte, before int, bodyLength func(body []byte) int, durable func(body []byte, at int) int) (bodies [][]byte, good int, err error) {
	for good < len(b) {
		body, ok := frameAt(inc, b[good:])
		if !ok {
			return bodies, good, judgeBad(inc, b, before, good, bodyLength, durable)
		}
		bodies = append(bodies, body)
		good += frameHeaderLength + len(body)
	}
	return bodies, good, nil
}

// AllBefore is the durable of files whose records are synced one by one: where
// there is a record, everything before it was durable.
func AllBefore(_ []byte, at int) int { return at }

// judgeBad decides between a torn end and damage: nothing that follows a torn end
// proves it to have been durable, and it does not look like rot.
func judgeBad(inc chunk.Incarnation, b []byte, before, bad int, bodyLength func([]byte) int, durable func([]byte, int) int) error {
	end := len(b) // of what is bad
	for at := bad + 1; at+frameHeaderLength < len(b); at++ {
		n := bodyLength(b[at+frameHeaderLength:])
		if n < 0 || binary.BigEndian.Uint32(b[at:]) != uint32(n) {
			continue
		}
		body, ok := frameAt(inc, b[at:])
		if !ok {
			continue
		}
		if durable(body, at) > bad {
			return fmt.Errorf("%w: at %d, and a valid one follows at %d", ErrDamaged, bad, at)
		}
		end = min(end, at)
	}
	if at, ok := flippedOnce(inc, b[bad:end]); ok && !tornBefore(b, before, bad, bad+at) {
		return fmt.Errorf("%w: one bit of the record at %d is wrong", ErrDamaged, bad)
	}
	return nil
}

// sectorLength is what a disk writes wholly or not at all.
const sectorLength = 512

// tornBefore tells whether the wrong byte of a record looks like one that was
// never written: from a border between sectors inside of the record on,
// everything is zero. Where a record's end holds a single bit that is set, its
// torn write differs from it by that bit alone.
func tornBefore(b []byte, before, record, wrong int) bool {
	border := wrong - (before+wrong)%sectorLength
	return border > record && len(bytes.Trim(b[border:], "\x00")) == 0
}

// flippedOnce tells whether b is one whole frame but for a single bit, and in
// which byte: a torn write seldom looks like that (see tornBefore), rot does. The
// chance that one does by accident is its bits in 2^32.
//
// A CRC is linear: a flipped bit changes it by what depends on the bit's distance
// from the end alone. So one pass over the distances finds the bit, if there is
// one.
func flippedOnce(inc chunk.Incarnation, b []byte) (at int, ok bool) {
	if len(b) < frameHeaderLength {
		return 0, false
	}
	length, body := b[:4], b[frameHeaderLength:]
	stored := binary.BigEndian.Uint32(b[4:])
	if wrong := binary.BigEndian.Uint32(length) ^ uint32(len(body)); wrong != 0 {
		right := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
		return bits.LeadingZeros32(wrong) / 8, bits.OnesCount32(wrong) == 1 && frameCRC(inc, right, body) == stored
	}
	difference := frameCRC(inc, length, body) ^ stored
	if bits.OnesCount32(difference) == 1 {
		return len(length) + bits.LeadingZeros32(difference)/8, true // of the CRC itself
	}
	var change [8]uint32 // by each bit of the byte at the present distance
	for bit := range change {
		change[bit] = castagnoli[1<<bit]
	}
	for distance := range len(length) + len(body) {
		// The length is right, so its own bits are not asked.
		if distance >= len(length) && slices.Contains(change[:], difference) {
			return len(b) - 1 - (distance - len(length)), true
		}
		for bit, c := range change {
			change[bit] = castagnoli[byte(c)] ^ c>>8
		}
	}
	return 0, false
}
