package broker

import (
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// send moves a section of a file to the socket without it passing through our
// memory. The offset is our own, so that any number of connections share one
// descriptor.
func (w *writer) send(from io.ReaderAt, position, length int64) error {
	socket, okSocket := rawConn(w.session.conn)
	file, okFile := rawConn(from)
	if !okSocket || !okFile {
		return w.copySection(from, position, length)
	}
	left := int(length)
	w.sent(left)
	for left > 0 {
		if err := w.allowTime(); err != nil {
			return err
		}
		sent, err := sendSome(socket, file, &position, left)
		if err != nil && (!timedOut(err) || sent == 0) {
			return w.blocked(err)
		}
		left -= sent
	}
	return nil
}

// rawConn returns the descriptor behind a socket or file; false where there is
// none, as under TLS or in memory.
func rawConn(of any) (syscall.RawConn, bool) {
	conn, ok := of.(syscall.Conn)
	if !ok {
		return nil, false
	}
	raw, err := conn.SyscallConn()
	return raw, err == nil
}

// sendSome sends until all is sent, the socket's time is over, or an error.
func sendSome(socket, file syscall.RawConn, offset *int64, left int) (sent int, err error) {
	var failure error
	outer := file.Control(func(source uintptr) {
		err = socket.Write(func(target uintptr) bool {
			for sent < left {
				var n int
				n, failure = unix.Sendfile(int(target), int(source), offset, left-sent)
				switch {
				case n > 0:
					sent += n
				case failure == unix.EINTR:
				case failure == unix.EAGAIN:
					failure = nil
					return false
				case failure == nil:
					failure = io.ErrUnexpectedEOF // the file is shorter than the chunk
					return true
				default:
					return true
				}
			}
			return true
		})
	})
	for _, e := range []error{outer, err, failure} {
		if e != nil {
			return sent, fmt.Errorf("send chunk from file: %w", e)
		}
	}
	return sent, nil
}
