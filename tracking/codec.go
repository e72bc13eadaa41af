package tracking

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed: a payload is not what any encoder here writes.
var ErrMalformed = errors.New("tracking: malformed payload")

// ErrOrder: a chunk is applied that does not come after the one before.
var ErrOrder = errors.New("tracking: chunk out of order")

// ReferenceLengthMax is the client protocol's limit for a reference, in bytes.
const ReferenceLengthMax = 255

// Item tags. The first group stands in trailers and deltas, sequences only in
// trailers; the second in snapshot parts.
const (
	tagSequence       = 0x01 // ref, sequence
	tagSequenceDefine = 0x02 // short id, ref, sequence
	tagSequenceShort  = 0x03 // short id, sequence
	tagSequenceForget = 0x04 // ref
	tagOffset         = 0x11 // ref, version step, offset
	tagOffsetForget   = 0x12 // ref, version step

	tagPublisher = 0x21 // ref, LSN, sequence
	tagStored    = 0x22 // ref, epoch, version, age, offset
	tagForgotten = 0x23 // ref, version
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Numbers are uvarints in their shortest form; references have their length, 1
// to 255, in a byte before them.
func appendRef(dst []byte, ref string) []byte {
	if len(ref) == 0 || len(ref) > ReferenceLengthMax {
		panic(fmt.Sprintf("tracking: reference of %d bytes", len(ref)))
	}
	dst = append(dst, byte(len(ref)))
	return append(dst, ref...)
}

// uvarintLength returns the bytes of v as a uvarint.
func uvarintLength(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// reader takes a payload apart; its first failure sticks.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) done() bool { return len(r.b) == 0 || r.failed }

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.failed = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint16() uint16 {
	if len(r.b) < 2 {
		r.failed = true
		return 0
	}
	v := binary.BigEndian.Uint16(r.b)
	r.b = r.b[2:]
	return v
}

// ref returns a reference that aliases the payload.
func (r *reader) ref() []byte {
	n := int(r.byte())
	if n == 0 || n > len(r.b) {
		r.failed = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}
