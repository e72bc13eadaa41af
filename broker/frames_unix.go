//go:build unix

package broker

import (
	"io"

	"golang.org/x/sys/unix"
)

// read waits until the socket has bytes and only then takes a buffer for them,
// so that ten thousand idle connections hold none.
func (r *frameReader) read() (int, error) {
	if r.raw == nil {
		return r.readHeld()
	}
	var n int
	var failure error
	err := r.raw.Read(func(descriptor uintptr) bool {
		for {
			n, failure = unix.Read(int(descriptor), r.space())
			if failure != unix.EINTR {
				break
			}
		}
		if failure == unix.EAGAIN {
			r.rest()
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case failure != nil:
		return 0, failure
	case n <= 0:
		return 0, io.EOF
	}
	r.splitter.Received(n)
	return n, nil
}
