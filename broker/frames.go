package broker

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/wire"
)

// errLeaving says that the broker closes.
var errLeaving = errors.New("broker is closing")

// frameReader reads the frames of a connection. It holds a buffer only while
// bytes are in it: an idle connection waits for its socket without one.
type frameReader struct {
	conn net.Conn
	raw  syscall.RawConn // nil where the connection is not a plain socket
	// socket is what reading by way of raw needs.
	socket socketReader

	splitter wire.Splitter
	lent     *buffer // what splitter uses; nil while it has none
	want     int     // size of the next buffer to lend

	// until, where set, is the moment when waiting ends whatever comes. Else a
	// read waits for idle, and a frame that has begun for whole; 0 is for ever.
	until       time.Time
	idle, whole time.Duration
	begun       time.Time // when the frame that is not whole began; zero: none has

	stopped  atomic.Bool
	received uint64         // bytes
	tally    *atomic.Uint64 // counts them too, for all connections; may be nil
	// peek takes the first bytes after a wait, where that needs a place for them.
	peek  [16]byte
	first [4]byte // the first of them, to tell what a stranger speaks
}

func newFrameReader(conn net.Conn, limit uint32) *frameReader {
	r := &frameReader{conn: conn}
	r.splitter.SetLimit(limit)
	if socket, ok := conn.(syscall.Conn); ok {
		r.raw, _ = socket.SyscallConn()
	}
	return r
}

// next returns the next frame without its size; it is valid until the call
// after. A bad size is an error of wire as soon as it is known. io.EOF says that
// the client ended between two frames.
func (r *frameReader) next() ([]byte, error) {
	for {
		payload, err := r.splitter.Next()
		if payload != nil || err != nil {
			r.begun = time.Time{}
			return payload, err
		}
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && r.splitter.Buffered() > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// interrupt makes the present and all later waits end with errLeaving. It may
// be called from anywhere.
func (r *frameReader) interrupt() {
	r.stopped.Store(true)
	_ = r.conn.SetReadDeadline(time.Unix(1, 0))
}

// find reads until a pattern has come, wherever frames begin; discard reads for
// nothing. Both end with the client, an error or the moment.
func (r *frameReader) find(pattern []byte, until time.Time) error {
	held := bytes.Clone(r.splitter.Held())
	r.release()
	if err := r.setDeadline(until); err != nil {
		return err
	}
	piece := make([]byte, 4<<10)
	for !bytes.Contains(held, pattern) {
		n, err := r.conn.Read(piece)
		if err != nil {
			return err
		}
		held = append(held[max(0, len(held)-len(pattern)+1):], piece[:n]...)
	}
	return nil
}

func (r *frameReader) discard(until time.Time) error {
	r.release()
	if err := r.setDeadline(until); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, r.conn)
	return err
}

// release gives the buffer back, with all that is in it.
func (r *frameReader) release() {
	r.splitter = wire.Splitter{}
	if r.lent != nil {
		buffers.give(r.lent)
		r.lent = nil
	}
}

// fill waits for more bytes and puts them behind those that are held.
func (r *frameReader) fill() error {
	r.rest()
	if err := r.setDeadline(r.deadline(time.Now())); err != nil {
		return err
	}
	n, err := r.read()
	switch {
	case n > 0:
		r.count(n)
		return nil
	case r.stopped.Load():
		return errLeaving
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// setDeadline sets until when the next read waits. Whoever interrupts sets
// stopped first and the deadline then, so that one of the two is seen here.
func (r *frameReader) setDeadline(until time.Time) error {
	_ = r.conn.SetReadDeadline(until) // what is wrong with it the read will say
	if r.stopped.Load() {
		return errLeaving
	}
	return nil
}

// deadline says when the next read gives up. The zero time is never.
func (r *frameReader) deadline(now time.Time) time.Time {
	if !r.until.IsZero() {
		return r.until
	}
	var deadline time.Time
	if r.idle > 0 {
		deadline = now.Add(r.idle)
	}
	if r.splitter.Buffered() > 0 && r.whole > 0 {
		if r.begun.IsZero() {
			r.begun = now
		}
		if whole := r.begun.Add(r.whole); deadline.IsZero() || whole.Before(deadline) {
			deadline = whole
		}
	}
	return deadline
}

// space returns where to read to, in a buffer that is lent if there is none.
func (r *frameReader) space() []byte {
	if r.lent == nil {
		r.lent = buffers.take(r.want)
		r.splitter.Attach(r.lent.bytes)
	}
	return r.splitter.Space()
}

// rest gives a buffer back that nothing is in.
func (r *frameReader) rest() {
	if r.lent == nil {
		return
	}
	if buf := r.splitter.Detach(); buf != nil {
		r.lent.bytes, r.want = buf, len(buf) // it may have grown
		buffers.give(r.lent)
		r.lent = nil
	}
}

// count takes bytes that were read into space.
func (r *frameReader) count(n int) {
	if r.received < uint64(len(r.first)) {
		copy(r.first[:], r.splitter.Held())
	}
	r.received += uint64(n)
	if r.tally != nil {
		r.tally.Add(uint64(n))
	}
}

// readHeld reads from a connection that can't be waited for without a place for
// the bytes, such as one under TLS. The wait is for few of them; only then there
// is a buffer.
func (r *frameReader) readHeld() (int, error) {
	if r.lent != nil {
		n, err := r.conn.Read(r.space())
		r.splitter.Received(n)
		return n, err
	}
	n, err := r.conn.Read(r.peek[:])
	if n > 0 {
		r.splitter.Received(copy(r.space(), r.peek[:n]))
	}
	return n, err
}
