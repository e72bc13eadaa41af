package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/wire"
)

// frameMaxTaken is the largest frame taken from a broker, in bytes. A Deliver
// may exceed what was negotiated.
const frameMaxTaken = 256 << 20

// Raw is a connection without a memory: it sends what it is given and reads
// frame by frame. One goroutine may read while another writes.
type Raw struct {
	conn   net.Conn
	frames *wire.Splitter
	heard  atomic.Bool // bytes came since somebody reset it
}

// DialRaw connects to addr (host:port) and sends nothing yet.
func DialRaw(ctx context.Context, addr string) (*Raw, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewRaw(conn), nil
}

// NewRaw wraps a connection.
func NewRaw(conn net.Conn) *Raw {
	return &Raw{conn: conn, frames: wire.NewSplitter(frameMaxTaken)}
}

// Write sends bytes as they are.
func (r *Raw) Write(b []byte) (int, error) { return r.conn.Write(b) }

// Send sends the commands' frames in one write.
func (r *Raw) Send(commands ...wire.Command) error {
	var b []byte
	for _, c := range commands {
		b = wire.Append(b, c)
	}
	_, err := r.conn.Write(b)
	return err
}

// Next waits for the next frame and returns its payload, valid until the next
// call. io.EOF says that the broker ended between two frames,
// io.ErrUnexpectedEOF that it did inside of one.
func (r *Raw) Next() ([]byte, error) {
	for {
		payload, err := r.frames.Next()
		if payload != nil || err != nil {
			return payload, err
		}
		n, err := r.conn.Read(r.frames.Space())
		if n > 0 {
			r.heard.Store(true)
			r.frames.Received(n)
		} else if errors.Is(err, io.EOF) && r.frames.Buffered() > 0 {
			return nil, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, err
		}
	}
}

// NextCommand waits for the next frame and decodes it. A *wire.Deliver is
// valid until the next call.
func (r *Raw) NextCommand() (wire.Command, error) {
	payload, err := r.Next()
	if err != nil {
		return nil, err
	}
	return wire.FromServer(payload)
}

// Request sends a request and waits for its answer. Heartbeats on the way are
// dropped; any other command is an error, the broker's Close a *ClosedError.
func (r *Raw) Request(request wire.Command) (wire.Command, error) {
	if err := r.Send(request); err != nil {
		return nil, err
	}
	return r.await(request.Key().Answer())
}

func (r *Raw) await(key wire.Key) (wire.Command, error) {
	for {
		c, err := r.NextCommand()
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", key, err)
		}
		if c.Key() == key {
			return c, nil
		}
		switch c := c.(type) {
		case *wire.Heartbeat:
		case *wire.Close:
			return nil, &ClosedError{Code: c.Code, Reason: c.Reason}
		default:
			return nil, fmt.Errorf("wait for %s: got %s", key, c.Key())
		}
	}
}

// SetDeadline sets when reads and writes fail; the zero time means never.
func (r *Raw) SetDeadline(t time.Time) error { return r.conn.SetDeadline(t) }

// LocalAddr is our end of the connection.
func (r *Raw) LocalAddr() net.Addr { return r.conn.LocalAddr() }

// CloseWrite ends our side only, where the connection can do that.
func (r *Raw) CloseWrite() error {
	if c, ok := r.conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return r.conn.Close()
}

// Close drops the connection without a word.
func (r *Raw) Close() error { return r.conn.Close() }
