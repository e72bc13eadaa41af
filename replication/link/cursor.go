package link

import (
	"encoding/binary"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// cursor reads fields one after the other. What is too short or out of bounds
// makes it bad; then it reads zeros, and done says no.
type cursor struct {
	p   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n > len(c.p) {
		c.bad = true
		return nil
	}
	b := c.p[:n]
	c.p = c.p[n:]
	return b
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// length reads a length in bytes that is at most max.
func (c *cursor) length(max int) int {
	n := c.u32()
	if uint64(n) > uint64(max) {
		c.bad = true
		return 0
	}
	return int(n)
}

// text reads a length of one byte and that many bytes, at least one.
func (c *cursor) text() string {
	n := int(c.u8())
	c.require(n > 0)
	return string(c.take(n))
}

// words is text that may be empty.
func (c *cursor) words() string { return string(c.take(int(c.u8()))) }

func (c *cursor) require(ok bool) { c.bad = c.bad || !ok }

// done tells whether everything was good and nothing is left.
func (c *cursor) done() bool { return !c.bad && len(c.p) == 0 }

func (c *cursor) tail() chunk.Tail {
	e := chunk.Epoch(c.u64())
	return chunk.Tail{Epoch: e, LSN: chunk.LSN(c.u64())}
}

func (c *cursor) line() protocol.EpochLine {
	return protocol.EpochLine{Epoch: chunk.Epoch(c.u64()), LSN: chunk.LSN(c.u64()), Offset: chunk.Offset(c.u64())}
}

func (c *cursor) start() protocol.LogStart {
	return protocol.LogStart{
		LSN: chunk.LSN(c.u64()), Offset: chunk.Offset(c.u64()), Line: c.line(), Digest: chunk.Digest(c.u64()),
	}
}

const lineBytes, markBytes = 24, 9

// gap reads a gap to the end of the fields. Nothing is allocated before the
// counts are known to be those of the bytes at hand.
func (c *cursor) gap() *protocol.Gap {
	lines, segments := uint64(c.u32()), uint64(c.u32())
	if c.bad || lines*lineBytes+segments*markBytes != uint64(len(c.p)) {
		c.bad = true
		return nil
	}
	g := &protocol.Gap{}
	if lines > 0 {
		g.Lines = make([]protocol.EpochLine, lines)
	}
	if segments > 0 {
		g.Segments = make([]protocol.SegmentMark, segments)
	}
	for i := range g.Lines {
		g.Lines[i] = c.line()
	}
	for i := range g.Segments {
		g.Segments[i].LSN = chunk.LSN(c.u64())
		unit := c.u8()
		c.require(unit <= 1)
		g.Segments[i].Unit = unit == 1
	}
	return g
}
