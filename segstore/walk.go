package segstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/segstore/chunk"
)

// walkWindow is how much a walker reads at once when it reads data too.
const walkWindow = 256 << 10

// headWindow is how much a walker reads at once when it skips data: enough for
// many small chunks, little to waste before a big one.
const headWindow = 64 << 10

// walker steps through the chunks of a file, reading few and big pieces. Each
// head is checked by its CRC; data only if asked for. It does not check that
// the chunks continue each other.
type walker struct {
	file io.ReaderAt
	inc  chunk.Incarnation
	// position is where the next chunk starts, limit where the chunks end.
	position, limit int64
	data            bool // read and check the data sections too

	window   []byte // bytes of the file from windowAt on
	windowAt int64
	buffer   []byte
}

func newWalker(file io.ReaderAt, inc chunk.Incarnation, from, limit int64, data bool) *walker {
	return &walker{file: file, inc: inc, position: from, limit: limit, data: data}
}

// next returns the next chunk and where it starts; head and data alias the
// walker's buffer and live until the next call. data is nil unless asked for.
//
// Errors: io.EOF at the limit; those of chunk.Verify; a read error that wraps
// errRead. After an error the walker stays where it was.
func (w *walker) next() (h chunk.Header, head, data []byte, at int64, err error) {
	at = w.position
	if at >= w.limit {
		return h, nil, nil, at, io.EOF
	}
	b, err := w.need(chunk.StorageHeaderLength)
	if err != nil {
		return h, nil, nil, at, err
	}
	headLength, dataLength, err := chunk.Peek(b)
	if err != nil {
		return h, nil, nil, at, err
	}
	length := headLength
	if w.data {
		length += dataLength
	}
	if b, err = w.need(length); err != nil {
		return h, nil, nil, at, err
	}
	head = b[:min(headLength, len(b))]
	if h, err = chunk.Decode(w.inc, head); err != nil {
		return h, nil, nil, at, err
	}
	if w.limit-at < int64(h.Length()) {
		return h, nil, nil, at, fmt.Errorf("%w: %d of %d bytes of chunk %d", chunk.ErrShort, w.limit-at, h.Length(), h.LSN)
	}
	if w.data {
		data = b[headLength:length]
		if err := h.VerifyData(data); err != nil {
			return h, nil, nil, at, err
		}
	}
	w.position += int64(h.Length())
	return h, head, data, at, nil
}

// errRead reports that the disk refused to give bytes, which says nothing about
// what they are.
var errRead = errors.New("segstore: read failed")

// need returns at least n bytes from the position on, or all up to the limit.
func (w *walker) need(n int) ([]byte, error) {
	n = int(min(int64(n), w.limit-w.position))
	skip := w.position - w.windowAt
	if skip >= 0 && skip+int64(n) <= int64(len(w.window)) {
		return w.window[skip:], nil
	}
	want := headWindow
	if w.data {
		want = walkWindow
	}
	want = int(min(int64(max(n, want)), w.limit-w.position))
	if cap(w.buffer) < want {
		w.buffer = make([]byte, want)
	}
	got, err := w.file.ReadAt(w.buffer[:want], w.position)
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = chunk.ErrShort // the file ends below its limit
			return nil, fmt.Errorf("%w: file ends at %d", err, w.position+int64(got))
		}
		return nil, fmt.Errorf("%w: %d bytes at %d: %w", errRead, n, w.position, err)
	}
	w.window, w.windowAt = w.buffer[:got], w.position
	return w.window, nil
}

// resume sets the walker to the first whole head from a position on, and tells
// whether there is one.
func (w *walker) resume(from int64) (found bool) {
	_ = scanBehindUntil(w.file, w.inc, from, w.limit, func(_ *chunk.Header, at int64) error {
		w.position, found = at, true
		return errFound
	})
	return found
}

var errFound = errors.New("found")

// scanBehind looks for whole heads of this incarnation behind a bad chunk, from
// a position up to the file's end, and calls found for each. What it finds
// proves how far the file had been written and synced.
func scanBehind(file io.ReaderAt, inc chunk.Incarnation, from, limit int64, found func(h *chunk.Header, at int64)) error {
	return scanBehindUntil(file, inc, from, limit, func(h *chunk.Header, at int64) error {
		found(h, at)
		return nil
	})
}

// scanBehindUntil is scanBehind with an end: the first error of found.
func scanBehindUntil(file io.ReaderAt, inc chunk.Incarnation, from, limit int64, found func(h *chunk.Header, at int64) error) error {
	buffer := make([]byte, max(0, min(1<<20, limit-from)))
	for from < limit {
		want := int(min(int64(len(buffer)), limit-from))
		got, err := file.ReadAt(buffer[:want], from)
		if got == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("%w: %d bytes at %d: %w", errRead, want, from, err)
		}
		// A file that ends below its limit has nothing more to say either.
		final := from+int64(got) >= limit || got < want
		window := buffer[:got]
		for {
			at, h, whole := chunk.Scan(inc, window, final)
			from += int64(at)
			if !whole {
				break
			}
			if err := found(&h, from); err != nil {
				return err
			}
			window = window[at+1:]
			from++
		}
		if final {
			return nil
		}
		if len(window) == got && len(buffer) < chunk.HeadLengthMax && int64(len(buffer)) < limit-from {
			buffer = make([]byte, chunk.HeadLengthMax) // for a head that exceeds the window
		}
	}
	return nil
}
