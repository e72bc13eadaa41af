package inspect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// A segmentFile is an open segment and where its chunks end.
type segmentFile struct {
	*os.File
	name string
	inc  chunk.Incarnation
	// chunksEnd is where the footer starts, or the file's size.
	chunksEnd int64
	size      int64
	sealed    bool
}

func open(path string, inc chunk.Incarnation) (*segmentFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	s := &segmentFile{File: f, name: filepath.Base(path), inc: inc, chunksEnd: info.Size(), size: info.Size()}
	if footer := s.footer(); footer != nil {
		s.sealed, s.chunksEnd = true, s.size-int64(len(footer))
	}
	return s, nil
}

// footer returns the bytes of the file's footer, or nil if it has none that is
// whole.
func (s *segmentFile) footer() []byte {
	tail := make([]byte, manifest.FooterTailLength)
	if _, err := s.ReadAt(tail, max(0, s.size-int64(len(tail)))); err != nil {
		return nil
	}
	n := int64(manifest.FooterLength(tail))
	if n == 0 || n > s.size {
		return nil
	}
	block := make([]byte, n)
	if _, err := s.ReadAt(block, s.size-n); err != nil {
		return nil
	}
	if _, err := manifest.DecodeFooter(s.inc, block); err != nil {
		return nil
	}
	return block
}

// walk reads the chunks in order and calls visit for each whole one, then
// returns the places that hold none. Behind a bad place it goes on with the
// next chunk that proves itself, as recovery does.
//
// until, if not 0, is the last LSN to read: what follows in the active file of
// a running node may be half written.
func (s *segmentFile) walk(until chunk.LSN, visit func(position int64, h *chunk.Header)) ([]admin.Problem, error) {
	problems := []admin.Problem{}
	var last chunk.LSN
	for position := int64(0); position < s.chunksEnd; {
		if until != 0 && last >= until {
			return problems, nil
		}
		h, err := s.chunkAt(position)
		if err == nil && h.LSN <= last {
			err = fmt.Errorf("LSN %s does not follow %s", h.LSN, last)
		}
		if err != nil {
			var pathErr *os.PathError
			if errors.As(err, &pathErr) {
				return problems, err
			}
			problems = append(problems, admin.Problem{Position: position, What: err.Error()})
			if position, err = s.next(position + 1); err != nil {
				return problems, err
			}
			continue
		}
		visit(position, &h)
		last, position = h.LSN, position+int64(h.Length())
	}
	return problems, nil
}

// chunkAt reads and proves the whole chunk at position.
func (s *segmentFile) chunkAt(position int64) (chunk.Header, error) {
	lengths := make([]byte, chunk.StorageHeaderLength)
	if err := s.read(lengths, position); err != nil {
		return chunk.Header{}, err
	}
	head, data, err := chunk.Peek(lengths)
	if err != nil {
		return chunk.Header{}, err
	}
	if position+int64(head)+int64(data) > s.chunksEnd {
		return chunk.Header{}, fmt.Errorf("%w: claims %d bytes, the file has %d left", chunk.ErrShort, head+data, s.chunksEnd-position)
	}
	whole := make([]byte, head+data)
	if err := s.read(whole, position); err != nil {
		return chunk.Header{}, err
	}
	return chunk.Verify(s.inc, whole[:head], whole[head:])
}

// read fills b, and takes the end of the chunks for a chunk that is cut short.
func (s *segmentFile) read(b []byte, position int64) error {
	if position+int64(len(b)) > s.chunksEnd {
		return fmt.Errorf("%w: %d bytes are left", chunk.ErrShort, s.chunksEnd-position)
	}
	_, err := s.ReadAt(b, position)
	return err
}

// windowLength bounds what a search for the next chunk holds in memory; the
// largest head fits.
const windowLength = 8 << 20

// next finds the next proven chunk at or after position, or the end.
func (s *segmentFile) next(position int64) (int64, error) {
	window := make([]byte, min(windowLength, max(s.chunksEnd-position, 0)))
	for position < s.chunksEnd {
		n, err := s.ReadAt(window[:min(int64(len(window)), s.chunksEnd-position)], position)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		final := position+int64(n) >= s.chunksEnd
		at, _, ok := chunk.Scan(s.inc, window[:n], final)
		if ok {
			return position + int64(at), nil
		}
		if final {
			break
		}
		position += int64(at)
	}
	return s.chunksEnd, nil
}
