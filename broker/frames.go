package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// errLeaving says that the broker closes.
var errLeaving = errors.New("broker is closing")

// errFrameTooLarge says that a frame's size is above the limit of the moment.
var errFrameTooLarge = errors.New("frame too large")

const (
	frameSizeBytes = 4
	// readBytesMin is the first read of a connection, readBytesHot what a busy
	// one grows to; only a frame that is longer takes more.
	readBytesMin = 4 << 10
	readBytesHot = 64 << 10
	// quietReads is after how many small reads in a row a reader asks for a
	// smaller buffer again.
	quietReads = 64
)

// frameReader cuts the bytes of a connection into frames.
//
//	buffer: … done │start … one or more frames … end│ free …
//
// It holds a buffer only while bytes are in it: an idle connection waits for
// the socket without one. The buffer grows with the bytes that came, never with
// the size that a frame claims, so a claim alone costs nothing.
type frameReader struct {
	conn net.Conn
	raw  syscall.RawConn // nil where the connection is not a plain socket

	buffer     *buffer
	start, end int
	want       int // size of the next buffer to take
	quiet      int // reads in a row that a quarter of it would have held

	// limit is the largest frame in bytes, without its size; 0 is none.
	limit uint32
	// until, where set, is the moment when waiting ends whatever comes. Else a
	// read waits for idle, and a frame that has begun for whole; 0 is for ever.
	until       time.Time
	idle, whole time.Duration
	begun       time.Time // when the frame in the buffer began; zero: none has

	stopped  atomic.Bool
	received uint64         // bytes
	tally    *atomic.Uint64 // counts them too, for all connections; may be nil
	first    [4]byte        // the first of them, to tell what a stranger speaks
}

func newFrameReader(conn net.Conn) *frameReader {
	r := &frameReader{conn: conn, want: readBytesMin}
	if socket, ok := conn.(syscall.Conn); ok {
		r.raw, _ = socket.SyscallConn()
	}
	return r
}

// next returns the next frame without its size; it is valid until the call
// after. A frame above the limit gives errFrameTooLarge as soon as its size is
// known. io.EOF says that the client ended between two frames.
func (r *frameReader) next() ([]byte, error) {
	for {
		held := r.end - r.start
		if held >= frameSizeBytes {
			size := binary.BigEndian.Uint32(r.buffer.bytes[r.start:])
			if r.limit > 0 && size > r.limit {
				return nil, errFrameTooLarge
			}
			if held-frameSizeBytes >= int(size) {
				from := r.start + frameSizeBytes
				r.start = from + int(size)
				r.begun = time.Time{}
				return r.buffer.bytes[from:r.start], nil
			}
		}
		if err := r.fill(); err != nil {
			if err == io.EOF && r.end > r.start {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// passBehind forgets what is held up to the end of a pattern, and whether it
// was there; without it, all that can't be the beginning of one.
func (r *frameReader) passBehind(pattern []byte) bool {
	if r.buffer == nil {
		return false
	}
	held := r.buffer.bytes[r.start:r.end]
	if at := bytes.Index(held, pattern); at >= 0 {
		r.start += at + len(pattern)
		return true
	}
	r.start += max(0, len(held)-len(pattern)+1)
	return false
}

// interrupt makes the present and all later waits end with errLeaving. It may
// be called from anywhere.
func (r *frameReader) interrupt() {
	r.stopped.Store(true)
	_ = r.conn.SetReadDeadline(time.Unix(1, 0))
}

// discard reads and forgets until the client ends, an error, or the moment.
func (r *frameReader) discard(until time.Time) error {
	r.until = until
	for {
		r.start, r.end = 0, 0
		if err := r.fill(); err != nil {
			return err
		}
	}
}

// release gives the buffer back. The frame last returned is gone.
func (r *frameReader) release() {
	if r.buffer != nil {
		buffers.give(r.buffer)
		r.buffer, r.start, r.end = nil, 0, 0
	}
}

// fill waits for more bytes and puts them behind those that are held.
func (r *frameReader) fill() error {
	r.makeRoom()
	if err := r.conn.SetReadDeadline(r.deadline(time.Now())); err != nil {
		return err
	}
	// Whoever interrupts sets stopped first and the deadline then, so that one
	// of the two is seen here.
	if r.stopped.Load() {
		return errLeaving
	}
	n, err := r.read()
	if n <= 0 && r.stopped.Load() {
		return errLeaving
	}
	if n > 0 {
		if r.received < uint64(len(r.first)) {
			copy(r.first[r.received:], r.buffer.bytes[r.end:r.end+n])
		}
		r.received += uint64(n)
		if r.tally != nil {
			r.tally.Add(uint64(n))
		}
		r.adapt(n)
		r.end += n
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// makeRoom leaves either no buffer or one with free bytes at its end.
func (r *frameReader) makeRoom() {
	switch held := r.end - r.start; {
	case r.buffer == nil:
	case held == 0:
		r.release()
	case r.end < len(r.buffer.bytes):
	case r.start > 0:
		copy(r.buffer.bytes, r.buffer.bytes[r.start:r.end])
		r.start, r.end = 0, held
	default:
		r.want = 2 * len(r.buffer.bytes)
		larger := buffers.take(r.want)
		copy(larger.bytes, r.buffer.bytes[:held])
		buffers.give(r.buffer)
		r.buffer = larger
	}
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
	if r.end > r.start && r.whole > 0 {
		if r.begun.IsZero() {
			r.begun = now
		}
		if whole := r.begun.Add(r.whole); deadline.IsZero() || whole.Before(deadline) {
			deadline = whole
		}
	}
	return deadline
}

// adapt grows the wish for a buffer while reads fill it, and lets it shrink
// after many that did not need it.
func (r *frameReader) adapt(n int) {
	switch {
	case r.end+n == len(r.buffer.bytes) && r.want < readBytesHot:
		r.want, r.quiet = 2*r.want, 0
	case r.want > readBytesMin && r.end+n <= r.want/4:
		if r.quiet++; r.quiet >= quietReads {
			r.want, r.quiet = r.want/2, 0
		}
	default:
		r.quiet = 0
	}
}

// readHeld reads into the buffer, taking one first: for connections that can't
// be waited for without.
func (r *frameReader) readHeld() (int, error) {
	if r.buffer == nil {
		r.buffer, r.start, r.end = buffers.take(r.want), 0, 0
	}
	return r.conn.Read(r.buffer.bytes[r.end:])
}
