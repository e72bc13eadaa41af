package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	footerMagic      = 0xD34D4601 // D3 'M' 'F', version 1
	footerHeadLength = 8
	// FooterTailLength is the end of every footer; with it a reader finds how
	// long the whole one is.
	FooterTailLength = 12
)

// ErrNoFooter reports that the bytes do not end in a whole footer of this
// incarnation: the segment is unsealed, or its footer is torn.
var ErrNoFooter = errors.New("manifest: no footer")

// ErrVersion reports an undamaged record or footer of a format that this
// program is too old for.
var ErrVersion = errors.New("manifest: written by a newer version of the format")

// AppendFooter appends the block that seals a segment's file:
//
//	 0        4        8
//	+--------+--------+----------------+---------+--------+--------+
//	| magic  | length | summary        | CRC-32C | total  | magic  |
//	+--------+--------+----------------+---------+--------+--------+
//
// length is the summary's, total the block's. The CRC covers what is before it
// and what is behind it.
func AppendFooter(dst []byte, s *Summary) []byte {
	be := binary.BigEndian
	from := len(dst)
	dst = be.AppendUint32(dst, footerMagic)
	dst = be.AppendUint32(dst, uint32(summaryFixedLength+lineLength*len(s.Lines)))
	dst = appendSummary(dst, s)
	total := len(dst) - from + FooterTailLength
	var tail [8]byte
	be.PutUint32(tail[0:], uint32(total))
	be.PutUint32(tail[4:], footerMagic)
	dst = be.AppendUint32(dst, frameCRC(s.Incarnation, tail[:], dst[from:]))
	return append(dst, tail[:]...)
}

func (s *Summary) footerLength() int {
	return footerHeadLength + summaryFixedLength + lineLength*len(s.Lines) + FooterTailLength
}

// FooterLength reads, from the last FooterTailLength bytes of a file, how long
// its footer is; 0 if there is none.
func FooterLength(tail []byte) int {
	be := binary.BigEndian
	if len(tail) < FooterTailLength {
		return 0
	}
	tail = tail[len(tail)-FooterTailLength:]
	total := be.Uint32(tail[4:])
	if be.Uint32(tail[8:])|0xff != footerMagic|0xff || total > bodyLengthMax ||
		total < footerHeadLength+summaryFixedLength+FooterTailLength {
		return 0
	}
	return int(total)
}

// DecodeFooter decodes a footer of exactly these bytes.
// Errors: ErrNoFooter, ErrVersion, ErrContradiction.
func DecodeFooter(inc chunk.Incarnation, b []byte) (Summary, error) {
	if n := FooterLength(b); n == 0 || n != len(b) {
		return Summary{}, ErrNoFooter
	}
	be := binary.BigEndian
	body, tail := b[:len(b)-FooterTailLength], b[len(b)-FooterTailLength:]
	if frameCRC(inc, tail[4:], body) != be.Uint32(tail) {
		return Summary{}, fmt.Errorf("%w: bad CRC", ErrNoFooter)
	}
	if be.Uint32(tail[8:]) > footerMagic {
		return Summary{}, fmt.Errorf("%w: footer %08x", ErrVersion, be.Uint32(tail[8:]))
	}
	if be.Uint32(body) != footerMagic || int(be.Uint32(body[4:])) != len(body)-footerHeadLength {
		return Summary{}, fmt.Errorf("%w: ends of a footer differ", ErrContradiction)
	}
	s, err := readSummary(body[footerHeadLength:])
	if err == nil && s.Incarnation != inc {
		err = fmt.Errorf("%w: footer of incarnation %s", ErrContradiction, s.Incarnation)
	}
	return s, err
}
