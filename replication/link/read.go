package link

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// read takes frames until the connection breaks or brings something that is
// none; it returns why.
func (c *conn) read() error {
	var f Frame
	for {
		c.in.until = noTime
		first, err := c.reader.Peek(lengthBytes)
		if err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(first))
		if n < 2 || n > fieldsMax {
			return fmt.Errorf("length %d: %w", n, ErrFrame)
		}
		if _, err := c.reader.Discard(lengthBytes); err != nil {
			return err
		}
		fields, skip, err := c.fields(n)
		if err != nil {
			return err
		}
		if err := c.take(fields, skip, &f); err != nil {
			return err
		}
		f = Frame{}
	}
}

// fields returns the next n bytes. Where they have room in the reader's buffer
// they are there, and skip of them are to be discarded.
func (c *conn) fields(n int) (p []byte, skip int, err error) {
	if c.reader.Buffered() < n {
		c.in.allow(n)
	}
	if n <= readerBytes {
		p, err = c.reader.Peek(n)
		return p, n, err
	}
	p, err = c.grow(n)
	return p, 0, err
}

// grow reads n bytes into memory that grows with what has come.
func (c *conn) grow(n int) ([]byte, error) {
	p := make([]byte, 0, min(n, readerBytes))
	for len(p) < n {
		if len(p) == cap(p) {
			larger := make([]byte, len(p), min(n, 2*cap(p)))
			copy(larger, p)
			p = larger
		}
		m, err := io.ReadFull(c.reader, p[len(p):cap(p)])
		p = p[:len(p)+m]
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// take deals with one frame, the bytes beside included.
func (c *conn) take(fields []byte, skip int, f *Frame) error {
	if messageKinds[fields[0]] == 0 {
		ctl, err := decodeControl(fields)
		if err != nil {
			return err
		}
		if _, err := c.reader.Discard(skip); err != nil {
			return err
		}
		return c.obey(&ctl)
	}
	if c.serves {
		return fmt.Errorf("a message among requests: %w", ErrFrame)
	}
	beside, err := decodeFrame(fields, f)
	if err != nil {
		return err
	}
	if _, err := c.reader.Discard(skip); err != nil {
		return err
	}
	return c.deliver(f, beside)
}

// deliver asks for admittance before anything of a chunk is read.
func (c *conn) deliver(f *Frame, b beside) error {
	peer, handler := c.b.peer.node, c.b.peer.links.handler
	cost := b.head + b.data + b.pending
	if c.reader.Buffered() < cost {
		c.in.allow(cost)
	}
	if cost > 0 {
		c.mu.Lock()
		taken, err := c.flow.arrived(f.Stream, cost, c.takenOf)
		c.mu.Unlock()
		if err != nil {
			return err
		}
		f.Taken = taken
	}
	if err := handler.Admit(peer, f); err != nil {
		c.b.peer.links.refused.Add(1)
		if cost > 0 {
			f.Taken(cost)
		}
		_, err := c.reader.Discard(cost)
		return err
	}
	if err := c.beside(f, b); err != nil {
		return err
	}
	handler.Deliver(peer, f)
	return nil
}

func (c *conn) takenOf(s chunk.Incarnation) func(int) {
	return func(n int) { c.taken(s, n) }
}

// beside reads a chunk into the handler's memory, pending updates into new. What
// is larger than usual is asked for only when it is here.
func (c *conn) beside(f *Frame, b beside) (err error) {
	if f.Message.Kind != protocol.MsgChunk {
		if b.pending > 0 {
			f.Pending, err = c.grow(b.pending)
		}
		return err
	}
	handler := c.b.peer.links.handler
	if b.head <= readerBytes && b.data <= chunk.DataLengthTarget {
		f.Head, f.Data, f.Held = handler.Buffer(b.head, b.data)
		if _, err = io.ReadFull(c.reader, f.Head); err == nil {
			_, err = io.ReadFull(c.reader, f.Data)
		}
		if err != nil && f.Held != nil {
			f.Held.Release()
		}
		return err
	}
	all, err := c.grow(b.head + b.data)
	if err != nil {
		return err
	}
	f.Head, f.Data, f.Held = handler.Buffer(b.head, b.data)
	copy(f.Head, all)
	copy(f.Data, all[b.head:])
	return nil
}

// obey does what a frame of the link itself asks.
func (c *conn) obey(ctl *control) error {
	switch {
	case ctl.kind == kindHeartbeat:
		return nil
	case ctl.kind == kindCredit && !c.serves:
		c.mu.Lock()
		ok := c.queue.credited(ctl.stream, int(ctl.bytes))
		c.mu.Unlock()
		if !ok {
			return fmt.Errorf("%d bytes given back of stream %v: %w", ctl.bytes, ctl.stream, ErrCredit)
		}
		c.poke()
		return nil
	case ctl.kind == kindRequest && c.serves:
		return c.asked(ctl)
	case ctl.kind == kindResponse && c.serves:
		return c.answered(ctl)
	}
	return fmt.Errorf("kind %#02x on this connection: %w", ctl.kind, ErrFrame)
}
