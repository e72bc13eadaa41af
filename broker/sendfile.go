package broker

import (
	"fmt"
	"io"
)

// sectionPiece is how much of a file goes through memory at a time where it
// can't be sent from the file.
const sectionPiece = 64 << 10

// copySection writes a section of a file through a buffer.
func (w *writer) copySection(from io.ReaderAt, position, length int64) error {
	w.sent(int(length))
	piece := buffers.take(sectionPiece)
	defer buffers.give(piece)
	for left := length; left > 0; {
		b := piece.bytes[:min(left, int64(len(piece.bytes)))]
		if _, err := from.ReadAt(b, position+length-left); err != nil {
			return fmt.Errorf("read chunk to deliver: %w", err)
		}
		if err := w.writeAll(b); err != nil {
			return err
		}
		left -= int64(len(b))
	}
	return nil
}

// writeAll writes bytes to the client.
func (w *writer) writeAll(b []byte) error {
	if w.session.tls != nil {
		return w.seal(b)
	}
	return w.push(b)
}

// push writes bytes to the socket, whatever time a slow reader takes.
func (w *writer) push(b []byte) error {
	for len(b) > 0 {
		if err := w.allowTime(); err != nil {
			return err
		}
		n, err := w.session.socket.Write(b)
		if err != nil && (!timedOut(err) || n == 0) {
			return w.blocked(err)
		}
		b = b[n:]
	}
	return nil
}
