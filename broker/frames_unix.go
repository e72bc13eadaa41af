//go:build unix

package broker

import (
	"io"

	"golang.org/x/sys/unix"
)

// socketReader is a frameReader's way to its socket. What a read brings is kept
// here, and the function that the runtime calls is made once, so that a read
// costs no allocation.
type socketReader struct {
	poll    func(descriptor uintptr) bool
	n       int
	failure error
}

// read waits until the socket has bytes and only then takes a buffer for them,
// so that ten thousand idle connections hold none.
func (r *frameReader) read() (int, error) {
	if r.raw == nil {
		return r.readHeld()
	}
	s := &r.socket
	if s.poll == nil {
		s.poll = r.poll
	}
	err := r.raw.Read(s.poll)
	switch {
	case err != nil:
		return 0, err
	case s.failure != nil:
		return 0, s.failure
	case s.n <= 0:
		return 0, io.EOF
	}
	r.splitter.Received(s.n)
	return s.n, nil
}

// poll reads what the socket has; false if that is nothing.
func (r *frameReader) poll(descriptor uintptr) bool {
	for {
		n, err := unix.Read(int(descriptor), r.space())
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			r.rest()
			return false
		}
		r.socket.n, r.socket.failure = n, err
		return true
	}
}
