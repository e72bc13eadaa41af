package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// StringMax is the longest string of the protocol, in bytes (an i16 length).
const StringMax = math.MaxInt16

// codec walks over the fields of one command, either way: each command lists
// its fields once, in wire order, and the mode decides whether the walk fills
// them from in or appends them to out. So encoding and decoding cannot drift
// apart.
//
// After the first error a reading walk goes on without effect.
type codec struct {
	mode    mode
	version uint16

	in  []byte // reading, skipping: the payload
	pos int    // Invariant: pos <= len(in)
	// text is the same bytes as in when they are an immutable list's; strings
	// are then cut out of it instead of being copied.
	text string
	// array and index name the element being read, for errors; "" outside.
	array string
	index int
	err   *DecodeError

	out []byte // writing
}

type mode uint8

const (
	reading  mode = iota
	skipping      // checks like reading, but allocates nothing for the values
	writing
)

func (c *codec) fail(field string, err error) {
	if c.err != nil {
		return
	}
	if c.array != "" {
		c.err = &DecodeError{Field: c.array, Index: c.index, Err: err}
		return
	}
	c.err = &DecodeError{Field: field, Index: -1, Err: err}
}

func (c *codec) remaining() int { return len(c.in) - c.pos }

// take consumes n bytes; nil after an error.
func (c *codec) take(field string, n int) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.remaining() {
		c.fail(field, ErrTruncated)
		return nil
	}
	b := c.in[c.pos : c.pos+n]
	c.pos += n
	return b
}

func (c *codec) u8(field string, v *uint8) {
	if c.mode == writing {
		c.out = append(c.out, *v)
	} else if b := c.take(field, 1); b != nil {
		*v = b[0]
	}
}

func (c *codec) bool(field string, v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	c.u8(field, &b)
	if b > 1 {
		c.fail(field, ErrBool)
	}
	if c.mode != writing {
		*v = b == 1
	}
}

func (c *codec) u16(field string, v *uint16) {
	if c.mode == writing {
		c.out = binary.BigEndian.AppendUint16(c.out, *v)
	} else if b := c.take(field, 2); b != nil {
		*v = binary.BigEndian.Uint16(b)
	}
}

func (c *codec) code(v *ResponseCode) { c.u16("code", (*uint16)(v)) }

func (c *codec) u32(field string, v *uint32) {
	if c.mode == writing {
		c.out = binary.BigEndian.AppendUint32(c.out, *v)
	} else if b := c.take(field, 4); b != nil {
		*v = binary.BigEndian.Uint32(b)
	}
}

func (c *codec) correlation(v *uint32) { c.u32("correlation id", v) }

func (c *codec) u64(field string, v *uint64) {
	if c.mode == writing {
		c.out = binary.BigEndian.AppendUint64(c.out, *v)
	} else if b := c.take(field, 8); b != nil {
		*v = binary.BigEndian.Uint64(b)
	}
}

func (c *codec) i64(field string, v *int64) {
	u := uint64(*v)
	c.u64(field, &u)
	*v = int64(u)
}

// str is a string that may not be null.
func (c *codec) str(field string, v *string) {
	if c.mode == writing {
		c.out = appendString(c.out, *v)
		return
	}
	b := c.take(field, 2)
	if b == nil {
		return
	}
	n := int16(binary.BigEndian.Uint16(b))
	switch {
	case n == -1:
		c.fail(field, ErrNull)
	case n < 0:
		c.fail(field, ErrNegativeLength)
	default:
		c.cut(field, int(n), v)
	}
}

// nullableString reads null as the empty string, and writes the empty string.
func (c *codec) nullableString(field string, v *string) {
	if c.mode != writing && c.remaining() >= 2 &&
		binary.BigEndian.Uint16(c.in[c.pos:]) == math.MaxUint16 {
		c.pos += 2
		*v = ""
		return
	}
	c.str(field, v)
}

// cut makes a string of the next n bytes.
func (c *codec) cut(field string, n int, v *string) {
	start := c.pos
	b := c.take(field, n)
	switch {
	case b == nil || c.mode == skipping:
	case c.text != "":
		*v = c.text[start : start+n]
	default:
		*v = string(b)
	}
}

// bytes is an i32 length and as many bytes; null is read as nil, and nil is
// written as length 0.
func (c *codec) bytes(field string, v *[]byte) {
	if c.mode == writing {
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(len(*v)))
		c.out = append(c.out, *v...)
		return
	}
	var n uint32
	c.u32(field, &n)
	switch {
	case n == math.MaxUint32:
		*v = nil
	case n > math.MaxInt32:
		c.fail(field, ErrNegativeLength)
	default:
		if b := c.take(field, int(n)); len(b) > 0 {
			*v = append([]byte(nil), b...)
		}
	}
}

// count is an array's i32 count, held against the bytes that are left: an
// element takes at least sizeMin of them.
func (c *codec) count(field string, n *int, sizeMin int) {
	if c.mode == writing {
		c.out = binary.BigEndian.AppendUint32(c.out, uint32(*n))
		return
	}
	var u uint32
	c.u32(field, &u)
	switch {
	case u > math.MaxInt32:
		c.fail(field, ErrNegativeLength)
		u = 0
	case int(u) > c.remaining()/sizeMin:
		c.fail(field, ErrCount)
		u = 0
	}
	*n = int(u)
}

// u16s and u64s reuse the capacity of *v when reading.
func (c *codec) u16s(field string, v *[]uint16) {
	n := len(*v)
	c.count(field, &n, 2)
	if c.mode == writing {
		for _, x := range *v {
			c.out = binary.BigEndian.AppendUint16(c.out, x)
		}
		return
	}
	b := c.take(field, 2*n)
	if c.mode == skipping {
		return
	}
	*v = resize(*v, len(b)/2)
	for i := range *v {
		(*v)[i] = binary.BigEndian.Uint16(b[2*i:])
	}
}

func (c *codec) u64s(field string, v *[]uint64) {
	n := len(*v)
	c.count(field, &n, 8)
	if c.mode == writing {
		for _, x := range *v {
			c.out = binary.BigEndian.AppendUint64(c.out, x)
		}
		return
	}
	b := c.take(field, 8*n)
	*v = resize(*v, len(b)/8)
	for i := range *v {
		(*v)[i] = binary.BigEndian.Uint64(b[8*i:])
	}
}

// resize returns a slice of n elements, in v's memory if that is large enough.
func resize[T any](v []T, n int) []T {
	if n > cap(v) {
		return make([]T, n)
	}
	return v[:n]
}

// appendString panics above StringMax: callers bound what they put in.
func appendString(dst []byte, s string) []byte {
	if len(s) > StringMax {
		panic(fmt.Sprintf("wire: string of %d bytes, at most %d", len(s), StringMax))
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}
